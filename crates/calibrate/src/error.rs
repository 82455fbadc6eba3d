use vllm_sim_replay::workload::WorkloadError;

use crate::validate::ValidateError;

/// Why nothing can be fitted.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A result file cannot be read.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A recorded run cannot be played.
    #[error(transparent)]
    Run(#[from] ValidateError),
    /// Something else, in words.
    #[error("{0}")]
    Other(String),
}
