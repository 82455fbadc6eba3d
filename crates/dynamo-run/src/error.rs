use std::path::PathBuf;

use vllm_sim_engine::latency::StepTimeGridError;
use vllm_sim_replay::ReplayError;
use vllm_sim_replay::workload::WorkloadError;

/// Reports why a recorded Dynamo run cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum DynamoRunError {
    /// A file of the recorded Dynamo run cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// Path of the unreadable file of the Dynamo run.
        path: PathBuf,
        /// Error of the operating system while reading the file of the Dynamo run.
        error: std::io::Error,
    },
    /// A file of the Dynamo run, or a line of the file, is not JSON.
    #[error("{place}: {error}")]
    Json {
        /// Location of the invalid JSON: file and line.
        place: String,
        /// Error of the JSON parser at the location of the invalid JSON.
        error: serde_json::Error,
    },
    /// An argument of the run is unknown, unsupported or invalid.
    #[error("{key}: {problem}")]
    Argument {
        /// Name of the rejected argument of the Dynamo run.
        key: String,
        /// Description of the problem with the run's argument.
        problem: String,
    },
    /// The run's tables of measured step times cannot be read.
    #[error(transparent)]
    Grid(#[from] StepTimeGridError),
    /// The request trace of the Dynamo run cannot be read.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The simulation of the Dynamo run failed.
    #[error(transparent)]
    Replay(#[from] ReplayError),
}
