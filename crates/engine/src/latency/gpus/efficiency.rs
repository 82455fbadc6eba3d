//! Efficiencies of GPU kernels, and their values that several GPUs share.

use super::super::all_reduce::{self, AllReduce};

/// Efficiency of one kind of GPU kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertEfficiency {
    /// Efficiency of expert kernels with bf16 weights.
    pub bf16: [KernelEfficiency; 2],
    /// Efficiency of expert kernels with fp8 weights.
    pub fp8: [KernelEfficiency; 2],
    /// Efficiency of expert kernels with fp8 weights that have a scale per block.
    pub fp8_block: [KernelEfficiency; 2],
    /// Efficiency of expert kernels with fp4 weights and activations.
    pub fp4: [KernelEfficiency; 2],
    /// Efficiency of expert kernels with 4-bit weights and bf16 arithmetic.
    pub int4: [KernelEfficiency; 2],
}

pub(super) const fn fit(fixed: f64, memory: f64, compute: f64) -> KernelEfficiency {
    KernelEfficiency { fixed, memory, compute }
}

/// All-reduce times of an interconnect: vLLM's custom all-reduce, and NCCL's for exchanges between
/// ranks.
pub(super) type Link = [AllReduce; 2];
pub(super) const NVLINK: Link = [
    all_reduce::guess([(5.5, 110.0), (6.0, 70.0), (7.0, 55.0)]),
    // Fitted to InferenceX points with attention data parallelism: 4.5 times as long as the
    // all-reduce, and 41 us for the wait for the slowest rank.
    all_reduce::guess([(65.8, 24.4), (68.0, 15.6), (72.5, 12.2)]),
];
pub(super) const PCIE: Link =
    [all_reduce::L40S, all_reduce::guess([(6.0, 11.0), (13.6, 1.5), (24.0, 0.7)])];

pub(super) const EXPERTS: ExpertEfficiency = ExpertEfficiency {
    bf16: [fit(28.0, 0.90, 0.60), fit(32.0, 0.80, 0.13)],
    fp8: [fit(40.0, 0.90, 0.45), fit(63.0, 0.66, 0.09)],
    fp8_block: [fit(39.3, 0.841, 0.174), fit(37.8, 0.97, 0.103)],
    // Unused without fp4 units.
    fp4: [fit(43.0, 0.88, 0.26), fit(59.0, 0.81, 0.18)],
    int4: [fit(35.4, 0.875, 0.236), fit(48.5, 0.805, 0.163)],
};

/// Expert-kernel efficiency of data-center Blackwell GPUs, whose newer kernels launch faster.
pub(super) const BLACKWELL_EXPERTS: ExpertEfficiency = ExpertEfficiency {
    bf16: [fit(12.2, 0.668, 0.304), fit(19.4, 0.931, 0.268)],
    fp8: [fit(13.9, 0.654, 0.310), fit(27.8, 0.930, 0.241)],
    fp8_block: [fit(54.6, 0.646, 0.181), fit(49.4, 0.930, 0.114)],
    fp4: [fit(27.4, 0.783, 0.245), fit(37.6, 0.918, 0.134)],
    // vLLM multiplies MXFP4 by fp8 activations here; the fraction is of the bf16 peak.
    int4: [fit(33.4, 0.97, 0.539), fit(33.4, 0.97, 0.539)],
};
