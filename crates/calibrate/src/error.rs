use vllm_sim_replay::workload::WorkloadError;

use crate::validate::RecordedRunValidationError;

/// Reports why fitting the roofline parameters failed.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A load generator's result file cannot be read.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A recorded run cannot be simulated.
    #[error(transparent)]
    Run(#[from] RecordedRunValidationError),
    /// The fit failed for any other reason; the text is the complete error message.
    #[error("{0}")]
    Other(String),
}
