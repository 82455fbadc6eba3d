//! Plays a recorded run of NVIDIA Dynamo's offline replay and reports in its form.
//!
//! A folder holds `args.json` (function, positional and keyword arguments of `dynamo.replay`
//! 1.6.1) and the trace it names. Schedulers are set to the mocker's habits; what is not modelled
//! is refused by name.

mod args;
mod json_args;
mod replay;
mod router;
mod tables;
mod typical;
mod workload;

use std::path::{Path, PathBuf};

use vllm_sim_engine::latency::GridError;
use vllm_sim_replay::ReplayError;
use vllm_sim_replay::report::Report;
use vllm_sim_replay::workload::WorkloadError;

pub(super) use args::worker;
pub(super) use router::config as router;

/// Why a run cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum DynamoError {
    /// A file cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file or line is not JSON.
    #[error("{place}: {error}")]
    Json {
        /// Which file, and line.
        place: String,
        /// Why.
        error: serde_json::Error,
    },
    /// An argument is unknown, or not modelled, or makes no sense.
    #[error("{key}: {problem}")]
    Argument {
        /// Which.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The latency tables cannot be read.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// The workload cannot be read.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The run cannot be played.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}

/// Plays the run in `dir`; of runs whose router draws, the one nearest to the middle of several.
///
/// # Errors
/// [`DynamoError`] names the file or argument.
pub fn dynamo_run(dir: &Path) -> Result<Report, DynamoError> {
    let path = dir.join("args.json");
    let text = std::fs::read_to_string(&path).map_err(|error| DynamoError::Io {
        path: path.clone(),
        error,
    })?;
    let args = serde_json::from_str(&text).map_err(|error| DynamoError::Json {
        place: path.display().to_string(),
        error,
    })?;
    typical::play(&|| args::read(&args, dir))
}
