//! Predicts recorded runs of real servers and says how far off the predictions are.
//!
//! A run is one JSON file: model, GPU, engine arguments, workload and what was measured. Its
//! workload is replayed through the vLLM scheduler with the roofline, in virtual time.

mod client;
mod error;
mod report;
mod spec;

use std::path::Path;

use serde_json::Value;

use vllm_sim_engine::latency::{LatencyModel, Roofline};
use vllm_sim_engine::sched::vllm::Vllm;

pub(in crate::tools) use client::Client;
pub use error::ValidateError;
pub use report::{Latencies, Prediction};
pub(in crate::tools) use spec::{RecordedRun, Request};

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
