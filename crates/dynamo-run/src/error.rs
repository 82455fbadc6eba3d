use std::path::PathBuf;

use vllm_sim_engine::latency::GridError;
use vllm_sim_replay::ReplayError;
use vllm_sim_replay::workload::WorkloadError;

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
