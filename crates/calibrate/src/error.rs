use vllm_sim_replay::workload::WorkloadError;

use crate::validate::ValidateError;

/// Reports why a fit failed.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// A result file cannot be read.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A recorded run cannot be simulated.
    #[error(transparent)]
    Run(#[from] ValidateError),
    /// Other error, with a complete message.
    #[error("{0}")]
    Other(String),
}
