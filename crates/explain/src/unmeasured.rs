//! Lists the settings of a deployment that no recorded run has.

use vllm_sim_config::EngineConfig;
use vllm_sim_engine::latency::{CudaGraphs, QuantizationScheme};

/// Returns the flags of the settings that change the latencies of a deployment, and that no recorded
/// run has. `weights` is the storage format of the model's weights.
///
/// Source: the runs of `docs/fidelity.md`. Those of models in bf16 have a KV cache in bf16, those of
/// quantized models one in fp8 or bf16.
pub fn unmeasured_setting_flags(
    engine: &EngineConfig,
    weights: QuantizationScheme,
) -> Vec<&'static str> {
    let dtype = engine.memory.kv_cache_dtype.as_str();
    let is_measured_cache = match dtype {
        "auto" | "bfloat16" => true,
        "fp8" | "fp8_e4m3" => weights != QuantizationScheme::None,
        _ => false,
    };
    let parallel = &engine.parallel;
    [
        (engine.speculative.is_some(), "--speculative-config"),
        (!is_measured_cache, "--kv-cache-dtype"),
        (engine.memory.cpu_offload_gib > 0.0, "--cpu-offload-gb"),
        (engine.kv_offload.is_some(), "a KV cache in CPU memory (--kv-offloading-size)"),
        (engine.graphs == CudaGraphs::NO_CUDA_GRAPHS, "--enforce-eager"),
        (parallel.pipeline > 1, "--pipeline-parallel-size"),
        (parallel.prefill_context > 1, "--prefill-context-parallel-size"),
        (parallel.context > 1, "--decode-context-parallel-size"),
    ]
    .into_iter()
    .filter_map(|(is_set, flag)| is_set.then_some(flag))
    .collect()
}
