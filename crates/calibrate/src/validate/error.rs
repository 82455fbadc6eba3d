use std::path::PathBuf;

use vllm_sim_engine::latency::{AicError, RooflineError, ShapeError};
use vllm_sim_engine::sched::ConfigError;

/// Why a run cannot be predicted.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    /// A file or folder cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file is not JSON.
    #[error("{path}: {error}")]
    Json {
        /// Which.
        path: PathBuf,
        /// Why.
        error: serde_json::Error,
    },
    /// A field is missing or makes no sense.
    #[error("run {run}: {field} {problem}")]
    Field {
        /// Which run.
        run: String,
        /// Which field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The model's sizes make no sense.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The roofline cannot be built.
    #[error(transparent)]
    Roofline(#[from] RooflineError),
    /// A deployment that is not in the kernel tables.
    #[error("run {run}: {error}")]
    Tables {
        /// Which run.
        run: String,
        /// Why.
        error: AicError,
    },
    /// The engine cannot be built: the model leaves no room for a KV cache, as a rule.
    #[error("run {run}: {error}")]
    Engine {
        /// Which run.
        run: String,
        /// Why.
        error: ConfigError,
    },
    /// The folder holds no run.
    #[error("{0}: no *.json file")]
    Empty(PathBuf),
}
