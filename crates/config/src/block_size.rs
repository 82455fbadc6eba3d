//! Block size of the KV cache, in tokens.

use super::choices::SchedulerKind;
use super::cli_mode::CliMode;
use super::error::ConfigError;
use super::flags::{engine, kv};
use super::model::{ModelConfig, kv_cache_dtype};
use super::values::FlagValues;
use vllm_sim_engine::latency::{self, Gpu, KvCachePlan, ModelShape, kv_bytes_per_value};

const LLMD_BLOCK_SIZES_TOKENS: [i64; 5] = [8, 16, 32, 64, 128];
/// Names of GPUs on which FlashInfer computes the gated delta nets of models, so that states exist
/// at multiples of 64 tokens.
const FLASHINFER_GDN_GPUS: [&str; 7] =
    ["H100", "H200", "GH200", "B200", "B300", "RTX-PRO-6000", "RTX-5090"];

pub(super) fn kv_block_size_tokens(
    v: &FlagValues,
    scheduler: SchedulerKind,
    model: &ModelConfig,
) -> Result<u32, ConfigError> {
    let flag = &kv::BLOCK_SIZE;
    let llmds = v.cli_mode == CliMode::Llmd && scheduler == SchedulerKind::Pool;
    let typed = v.get_integer(flag)?;
    if llmds && typed.is_some_and(|size| !LLMD_BLOCK_SIZES_TOKENS.contains(&size)) {
        return Err(v.unsupported_value_error(
            "token block size should be one of the following: 8, 16, 32, 64, 128",
            flag,
        ));
    }
    let size = v.get(flag)?;
    let vllms = v.cli_mode == CliMode::Vllm && scheduler == SchedulerKind::Vllm;
    let gpu = v.get(&engine::GPU)?.as_deref().and_then(latency::find_gpu);
    let Some(shape) = model.shape().ok().filter(|_| vllms) else {
        return Ok(size);
    };
    if shape.state.is_some() {
        return raise_to_hold_mamba_state(v, (model, &shape), gpu, size);
    }
    let (false, Some(gpu)) = (v.is_flag_set(flag), gpu) else {
        return Ok(size);
    };
    let backend = v.get(&engine::ATTENTION_BACKEND)?.unwrap_or_default();
    let (size, rule) =
        smallest_backend_block_size(model, &shape, gpu, &backend.to_ascii_uppercase());
    v.record_value_derived_by_rule(flag, size, rule);
    Ok(size)
}

/// Returns the KV cache block size, in tokens, raised if needed so that a Mamba state fits into a
/// block.
///
/// **Source:** vLLM 0.33 `vllm/platforms/interface.py`, `_align_hybrid_block_size`, and
/// `FLASHINFER_GDN_CHECKPOINT_ALIGNMENT`.
fn raise_to_hold_mamba_state(
    v: &FlagValues,
    (model, shape): (&ModelConfig, &ModelShape),
    gpu: Option<&Gpu>,
    size: u32,
) -> Result<u32, ConfigError> {
    let caching = v.get(&kv::ENABLE_PREFIX_CACHING)?.unwrap_or(true);
    // If no GPU is set, an H100 is assumed.
    let flashinfer = gpu.is_none_or(|gpu| FLASHINFER_GDN_GPUS.iter().any(|n| gpu.name.contains(n)));
    let is_delta_net = shape.state.is_some_and(|state| !state.checkpoints);
    let step = match caching && flashinfer && is_delta_net {
        true => size.next_multiple_of(64),
        false => size.next_multiple_of(16),
    };
    let tp = v.get(&engine::TENSOR_PARALLEL_SIZE)?;
    let width = kv_bytes_per_value(&kv_cache_dtype(v, model)?, shape.head_dim).unwrap_or(2.0);
    let grown =
        KvCachePlan::min_block_size_for_recurrent_state(shape, tp, width, step).unwrap_or(size);
    if grown > size {
        let rule = "a block of attention layers must be at least as large as a state of the other \
             layers";
        v.record_value_derived_by_rule(&kv::BLOCK_SIZE, grown, rule);
    }
    Ok(grown.max(size))
}

/// Returns the smallest KV cache block size, from 16 tokens on, that the attention backend
/// supports, and the reason.
///
/// **Source:** vLLM 0.33 `vllm/platforms/interface.py`, `update_block_size_for_backend`, and the
/// sizes that `vllm/v1/attention/backends` support.
fn smallest_backend_block_size(
    model: &ModelConfig,
    shape: &ModelShape,
    gpu: &Gpu,
    backend: &str,
) -> (u32, &'static str) {
    let hf_config = model.hf_config.as_ref();
    let sparse = hf_config.is_some_and(|config| config["index_topk"].is_u64());
    let blackwell = gpu.is_data_center_blackwell();
    match (shape.mla.is_some(), blackwell) {
        (true, _) if sparse => (64, "sparse MLA takes blocks of 64"),
        (true, _) if backend == "FLASHMLA" => (64, "FlashMLA takes blocks of 64"),
        (true, true) if backend == "CUTLASS_MLA" => (128, "CUTLASS MLA takes blocks of 128"),
        (true, true) => (32, "FlashInfer MLA takes blocks of 32 or 64"),
        (false, true) if shape.head_dim == 256 => {
            (128, "FlashAttention 4 takes blocks of 128 with heads of 256")
        }
        _ => (16, "the attention backend takes vLLM's usual 16"),
    }
}
