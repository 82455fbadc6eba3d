//! Efficiencies of GPU kernels, and their values that several GPUs share.

use super::super::all_reduce::{self, AllReduceTable};

/// Efficiency of one kind of GPU kernel.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct KernelEfficiency {
    /// Launch time of the kernel, in us.
    pub fixed: f64,
    /// Fraction of the memory bandwidth that the kernel reaches.
    pub memory: f64,
    /// Fraction of the arithmetic peak that the kernel reaches.
    pub compute: f64,
}

/// Efficiency of mixture-of-experts kernels by weight format: for up to 16 experts, and for 64 or
/// more.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ExpertKernelEfficiency {
    /// Efficiency of expert kernels with bf16 weights.
    pub bf16: [KernelEfficiency; 2],
    /// Efficiency of expert kernels with fp8 weights.
    pub fp8: [KernelEfficiency; 2],
    /// Efficiency of expert kernels with fp8 weights that have a scale per block.
    pub fp8_block: [KernelEfficiency; 2],
    /// Efficiency of expert kernels with fp4 weights and activations.
    pub fp4: [KernelEfficiency; 2],
    /// Efficiency of expert kernels with 4-bit integer weights and bf16 arithmetic.
    pub int4: [KernelEfficiency; 2],
    /// Efficiency of expert kernels with MXFP4 weights, as a fraction of the bf16 peak.
    pub mxfp4: [KernelEfficiency; 2],
}

pub(super) const fn kernel_efficiency(
    launch_us: f64,
    memory_fraction: f64,
    compute_fraction: f64,
) -> KernelEfficiency {
    KernelEfficiency { fixed: launch_us, memory: memory_fraction, compute: compute_fraction }
}

/// All-reduce times of GPUs with NVLink and without measurements, in us.
pub(super) const NVLINK_ALL_REDUCE: AllReduceTable =
    all_reduce::estimated_all_reduce_table([(5.5, 110.0), (6.0, 70.0), (7.0, 55.0)]);
/// All-reduce times of GPUs without NVLink and without measurements, in us.
pub(super) const PCIE_ALL_REDUCE: AllReduceTable = all_reduce::L40S_ALL_REDUCE;

pub(super) const DEFAULT_EXPERT_EFFICIENCY: ExpertKernelEfficiency = ExpertKernelEfficiency {
    bf16: [kernel_efficiency(28.0, 0.90, 0.60), kernel_efficiency(32.0, 0.80, 0.13)],
    fp8: [kernel_efficiency(40.0, 0.90, 0.45), kernel_efficiency(63.0, 0.66, 0.09)],
    fp8_block: [kernel_efficiency(33.5, 0.808, 0.181), kernel_efficiency(32.2, 0.932, 0.107)],
    // Unused without fp4 units.
    fp4: [kernel_efficiency(43.0, 0.88, 0.26), kernel_efficiency(59.0, 0.81, 0.18)],
    int4: INT4_EXPERT_EFFICIENCY,
    mxfp4: INT4_EXPERT_EFFICIENCY,
};
const INT4_EXPERT_EFFICIENCY: [KernelEfficiency; 2] =
    [kernel_efficiency(30.5, 0.907, 0.224), kernel_efficiency(41.8, 0.834, 0.155)];

/// Returns `experts` with the MXFP4 kernels that vLLM has on Hopper since 0.20, which are much
/// faster in arithmetic.
///
/// The fraction is fitted to prompts of gpt-oss-120b (`tests/fixtures/capacity`) with the time of
/// the API server: 0.52 to those on one H200, 0.47 to that on one H100.
pub(super) const fn with_hopper_mxfp4_efficiency(
    experts: ExpertKernelEfficiency,
) -> ExpertKernelEfficiency {
    let [few, many] = experts.int4;
    let few = KernelEfficiency { compute: HOPPER_MXFP4_COMPUTE, ..few };
    let many = KernelEfficiency { compute: HOPPER_MXFP4_COMPUTE, ..many };
    ExpertKernelEfficiency { mxfp4: [few, many], ..experts }
}
const HOPPER_MXFP4_COMPUTE: f64 = 0.50;

/// Expert-kernel efficiency of data-center Blackwell GPUs, whose newer kernels launch faster.
pub(super) const BLACKWELL_EXPERT_EFFICIENCY: ExpertKernelEfficiency = ExpertKernelEfficiency {
    bf16: [kernel_efficiency(12.2, 0.668, 0.304), kernel_efficiency(19.4, 0.931, 0.268)],
    fp8: [kernel_efficiency(13.9, 0.654, 0.310), kernel_efficiency(27.8, 0.930, 0.241)],
    fp8_block: [kernel_efficiency(52.3, 0.620, 0.220), kernel_efficiency(47.3, 0.893, 0.139)],
    fp4: [kernel_efficiency(25.8, 0.832, 0.248), kernel_efficiency(35.4, 0.975, 0.136)],
    // Marlin's kernels, as on other GPUs; not fitted.
    int4: INT4_EXPERT_EFFICIENCY,
    // vLLM multiplies MXFP4 by fp8 activations here; the fraction is of the bf16 peak.
    mxfp4: [kernel_efficiency(31.5, 1.0, 0.509), kernel_efficiency(31.5, 1.0, 0.509)],
};
