//! Sources of step times.

use std::path::PathBuf;

/// The source of the step times of batching schedulers.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum LatencySource {
    /// The delays of the pool: a prefill takes the first-token delay, a decode step the gap.
    #[default]
    Delays,
    /// Dynamo's built-in polynomials.
    Polynomial,
    /// Measured grid: an NPZ file or a profiler's folder.
    Profile(PathBuf),
    /// config.json + GPU + tensor parallel size.
    Roofline {
        /// Fitted coefficients written by `vllm-sim calibrate`.
        coefficients: Option<PathBuf>,
    },
    /// NVIDIA's kernel tables, for the same.
    Aic(KernelTables),
}

/// Which of NVIDIA's kernel tables.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KernelTables {
    /// The folder of the tables; `None`: the Python environment.
    pub folder: Option<PathBuf>,
    /// Of the backend; `None`: the newest that they answer for.
    pub version: Option<String>,
    /// Coefficients of the roofline, of which the overheads count.
    pub coefficients: Option<PathBuf>,
}

impl LatencySource {
    /// Returns whether model, GPU and tensor parallel size say how long steps take.
    pub fn knows_gpu(&self) -> bool {
        matches!(self, Self::Roofline { .. } | Self::Aic(_))
    }
}
