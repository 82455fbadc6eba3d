//! Kernels of earlier vLLM versions.

use super::super::all_reduce;
use super::{FALLBACK_GPU, Gpu};

/// Minimum time per layer to launch the kernels of large prompt steps on Blackwell before vLLM
/// 0.12, in us.
const BLACKWELL_LAUNCH_BEFORE_V0_12_US: f64 = 743.0;
/// Factor of the memory time of fp8 products with more than 16 rows on Hopper before vLLM 0.12.
const FP8_MEMORY_FACTOR_BEFORE_V0_12: f64 = 1.25;

/// First vLLM version (major, minor) in which experts with block-scaled fp8 weights are as fast as
/// in the kernel tables of 0.24. In vLLM 0.14 they are as fast as other fp8 experts.
const FAST_BLOCK_FP8_EXPERTS_VERSION: (u32, u32) = (0, 15);
/// First vLLM version (major, minor) without the slow kernels of late 2025: fp8 matrix products of
/// more than 16 rows on Hopper, and the launch of prompt steps on Blackwell.
const FAST_KERNELS_VERSION: (u32, u32) = (0, 12);
/// First vLLM version (major, minor) whose kernel tables have fast all-reduces over eight H100 or
/// H200; the tables of 0.14 do not.
const FAST_HOPPER_ALL_REDUCE_VERSION: (u32, u32) = (0, 18);
/// First vLLM version (major, minor) with special kernels for MoE routers (gates) in fp32.
const FAST_FP32_ROUTER_VERSION: (u32, u32) = (0, 20);
/// Time of an expert router in fp32 before `FAST_FP32_ROUTER_VERSION`: (time for 64 tokens in us,
/// rate of large steps in TFLOP/s). Fitted to InferenceX points of MiniMax M2.5 with and without
/// TF32.
const FP32_ROUTER_BEFORE_V0_20: (f64, f64) = (23.6, 62.0);
/// Factor of the bandwidth of decode attention with an fp8 KV cache on Hopper before vLLM 0.12:
/// such a cache is read no faster than one in bf16.
const HOPPER_FP8_CACHE_BEFORE_V0_12: f64 = 0.5;
/// First vLLM version (major, minor) with fast kernels for bf16 matrix products and MXFP4 experts
/// on Hopper. Measurements exist for versions up to 0.18 and from 0.22.
const FAST_HOPPER_VERSION: (u32, u32) = (0, 20);
/// Factor of the arithmetic efficiency of bf16 matrix products on H100 and H200 before
/// `FAST_HOPPER_VERSION`.
pub(super) const HOPPER_BF16_FACTOR_BEFORE_V0_20: f64 = 0.591 / 0.76;

impl Gpu {
    /// Returns the performance of this GPU with the kernels of a vLLM version (major, minor).
    ///
    /// The factors of versions before 0.12 are fitted to InferenceX points of Llama 70B from
    /// October 2025. Those since 0.20 are fitted to `tests/fixtures/capacity`.
    pub fn with_kernels_of_vllm_version(&self, version: (u32, u32)) -> Self {
        let mut gpu = self.clone();
        if version < FAST_BLOCK_FP8_EXPERTS_VERSION {
            gpu.experts.fp8_block = gpu.experts.fp8;
        }
        if version < FAST_HOPPER_VERSION && gpu.is_hopper() {
            gpu.experts.mxfp4 = gpu.experts.int4;
            // GPUs without a fit have one arithmetic efficiency for all versions.
            if gpu.gemm.compute > FALLBACK_GPU.gemm.compute {
                gpu.gemm.compute *= HOPPER_BF16_FACTOR_BEFORE_V0_20;
            }
        }
        if version < FAST_HOPPER_ALL_REDUCE_VERSION {
            gpu.all_reduce = all_reduce::all_reduce_before_v0_18(gpu.all_reduce);
        }
        if version < FAST_FP32_ROUTER_VERSION && gpu.is_data_center_blackwell() {
            gpu.fp32_router = FP32_ROUTER_BEFORE_V0_20;
        }
        if version < FAST_KERNELS_VERSION {
            if gpu.is_data_center_blackwell() {
                gpu.eager_prefill_us.1 = BLACKWELL_LAUNCH_BEFORE_V0_12_US;
            } else if gpu.is_hopper() {
                gpu.fp8_memory_factor_above_16_rows = FP8_MEMORY_FACTOR_BEFORE_V0_12;
                gpu.fp8_cache_bandwidth = HOPPER_FP8_CACHE_BEFORE_V0_12;
            }
        }
        gpu
    }
}
