use std::path::PathBuf;

use vllm_sim_engine::latency::GridError;
use vllm_sim_replay::ReplayError;
use vllm_sim_replay::workload::WorkloadError;

/// Reports why a run cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum DynamoError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// A file or line is not JSON.
    #[error("{place}: {error}")]
    Json {
        /// File and line.
        place: String,
        /// Error of the JSON parser.
        error: serde_json::Error,
    },
    /// An argument is unknown, unsupported or invalid.
    #[error("{key}: {problem}")]
    Argument {
        /// Name of the argument.
        key: String,
        /// Description of the problem.
        problem: String,
    },
    /// The latency tables cannot be read.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// The workload cannot be read.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The replay failed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}
