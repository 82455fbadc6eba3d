//! Sources from which the durations of engine steps are computed.

use std::path::PathBuf;

/// Source of the step durations of batching schedulers.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum StepLatencySource {
    /// Step times are from the delays of the pool scheduler: a prefill takes the time to first
    /// token, a decode step the inter-token latency.
    #[default]
    Delays,
    /// Step times are from the built-in polynomials of Dynamo's mocker.
    Polynomial,
    /// Step times are from a grid of measured step times: an NPZ file or a profiler's folder.
    Profile(PathBuf),
    /// Step times are from a roofline model, computed from `config.json`, GPU and tensor-parallel
    /// size.
    Roofline {
        /// File of roofline coefficients fitted by `vllm-sim calibrate`.
        coefficients: Option<PathBuf>,
    },
    /// Step times are sums of kernel times from NVIDIA's AIConfigurator, by model, GPU and
    /// tensor-parallel size.
    Aic(KernelTableSource),
}

/// Location and version of the kernel-time tables of NVIDIA's AIConfigurator.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KernelTableSource {
    /// Folder of the kernel-time tables; `None`: search the Python environment.
    pub folder: Option<PathBuf>,
    /// Engine version of the kernel-time tables; `None`: the newest in the folder.
    pub version: Option<String>,
    /// File of roofline coefficients, of which only the overheads apply.
    pub coefficients: Option<PathBuf>,
}

impl StepLatencySource {
    /// Returns whether step times follow from model, GPU and tensor-parallel size.
    pub fn step_times_depend_on_gpu(&self) -> bool {
        matches!(self, Self::Roofline { .. } | Self::Aic(_))
    }
}
