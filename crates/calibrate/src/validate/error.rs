use std::path::PathBuf;

use vllm_sim_engine::latency::{AiConfiguratorError, ModelShapeError, RooflineError};
use vllm_sim_engine::sched::SchedulerConfigError;

/// Reports why a recorded run's latencies cannot be predicted.
#[derive(Debug, thiserror::Error)]
pub enum RecordedRunValidationError {
    /// A file or folder of recorded runs, or a report, cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// Path of the file or folder that cannot be read or written.
        path: PathBuf,
        /// Error of the operating system while reading or writing the file or folder.
        error: std::io::Error,
    },
    /// The file of a recorded run is not JSON.
    #[error("{path}: {error}")]
    Json {
        /// Path of the file that describes the recorded run and is not JSON.
        path: PathBuf,
        /// Error of the JSON parser for the run's file.
        error: serde_json::Error,
    },
    /// A field of a recorded run is missing or invalid.
    #[error("run {run}: {field} {problem}")]
    Field {
        /// Id of the run with the invalid field.
        run: String,
        /// Path of the missing or invalid field in the JSON of the recorded run.
        field: String,
        /// Description of the problem with the missing or invalid field of the recorded run.
        problem: String,
    },
    /// The layer sizes of the run's model are invalid.
    #[error(transparent)]
    Shape(#[from] ModelShapeError),
    /// The roofline model cannot be built for the run's deployment.
    #[error(transparent)]
    Roofline(#[from] RooflineError),
    /// The kernel tables do not cover a run's deployment.
    #[error("run {run}: {error}")]
    Tables {
        /// Id of the run whose deployment the kernel tables do not cover.
        run: String,
        /// Error of the lookup in the kernel tables.
        error: AiConfiguratorError,
    },
    /// The simulated engine cannot be built, usually because the model leaves no memory for a KV
    /// cache.
    #[error("run {run}: {error}")]
    Engine {
        /// Id of the run whose engine cannot be built.
        run: String,
        /// Configuration error of the engine that cannot be built.
        error: SchedulerConfigError,
    },
    /// The folder of recorded runs contains no run.
    #[error("{0}: no *.json file")]
    Empty(PathBuf),
}
