use std::path::PathBuf;

use vllm_sim_engine::latency::{AicError, RooflineError, ShapeError};
use vllm_sim_engine::sched::ConfigError;

/// Reports why a run cannot be predicted.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    /// A file or folder cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// A file is not JSON.
    #[error("{path}: {error}")]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// Error of the JSON parser.
        error: serde_json::Error,
    },
    /// A field is missing or invalid.
    #[error("run {run}: {field} {problem}")]
    Field {
        /// Id of the run.
        run: String,
        /// Path of the field.
        field: String,
        /// Description of the problem.
        problem: String,
    },
    /// The model's dimensions are invalid.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The roofline model cannot be built.
    #[error(transparent)]
    Roofline(#[from] RooflineError),
    /// The kernel tables do not cover a deployment.
    #[error("run {run}: {error}")]
    Tables {
        /// Id of the run.
        run: String,
        /// Error of the lookup.
        error: AicError,
    },
    /// The engine cannot be built, usually because the model leaves no memory for a KV cache.
    #[error("run {run}: {error}")]
    Engine {
        /// Id of the run.
        run: String,
        /// Error of the engine.
        error: ConfigError,
    },
    /// The folder has no run.
    #[error("{0}: no *.json file")]
    Empty(PathBuf),
}
