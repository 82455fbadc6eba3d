//! Predicts recorded runs of real servers and says how far off the predictions are.
//!
//! A run is one JSON file: model, GPU, engine arguments, workload and what was measured. Its
//! workload is replayed through the vLLM scheduler with the roofline, in virtual time.

mod client;
mod report;
mod spec;

use std::path::{Path, PathBuf};

use serde_json::Value;

use vllm_sim_engine::latency::{LatencyModel, Roofline, RooflineError, ShapeError};
use vllm_sim_engine::sched::ConfigError;
use vllm_sim_engine::sched::vllm::Vllm;

pub(in crate::tools) use client::Client;
pub use report::{Latencies, Prediction};
pub(in crate::tools) use spec::{RecordedRun, Request};

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
    /// The scheduler cannot be built.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The folder holds no run.
    #[error("{0}: no *.json file")]
    Empty(PathBuf),
}

/// Predicts every `*.json` of the folder `runs`, writes `<id>.json` per run into `out`, and
/// returns a table of the errors.
///
/// # Errors
/// [`ValidateError`] names the file or field.
pub fn validate(runs: &Path, out: Option<&Path>) -> Result<String, ValidateError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |error| ValidateError::Io { path, error }
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(runs).map_err(io(runs))? {
        let path = entry.map_err(io(runs))?.path();
        if path.extension().is_some_and(|e| e == "json") {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(ValidateError::Empty(runs.to_owned()));
    }
    if let Some(out) = out {
        std::fs::create_dir_all(out).map_err(io(out))?;
    }
    let mut rows = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).map_err(io(&path))?;
        let run: Value = serde_json::from_str(&text).map_err(|error| ValidateError::Json {
            path: path.clone(),
            error,
        })?;
        let prediction = predict(&run)?;
        if let Some(out) = out {
            let file = out.join(format!("{}.json", prediction.id));
            let json =
                serde_json::to_string_pretty(&prediction).map_err(|error| ValidateError::Json {
                    path: file.clone(),
                    error,
                })?;
            std::fs::write(&file, json + "\n").map_err(io(&file))?;
        }
        rows.push(report::Row::new(&run, &prediction));
    }
    Ok(report::table(&rows))
}

/// Predicts one run.
///
/// # Errors
/// [`ValidateError`] names the field that is missing or wrong.
pub fn predict(run: &Value) -> Result<Prediction, ValidateError> {
    let run = RecordedRun::read(run)?;
    let roofline = Roofline::new(&run.setup)?;
    let mut engines = Vec::new();
    for _ in 0..run.ranks {
        let mut config = run.engine.clone();
        config.latency = LatencyModel::Roofline(Box::new(roofline.clone()));
        engines.push(Vllm::new(config)?);
    }
    let done = client::Client::new(&run, engines, &roofline).run();
    Ok(report::Prediction::new(&run, &done))
}
