//! vLLM's CacheConfig of a server: capacity of the KV cache for the log, fields for `/metrics`.

use super::setup::{block_hash_config, kv_block_count};
use vllm_sim_config::Config;
use vllm_sim_engine::kv::{BlockHashAlgorithm, SparseLayerKind};

/// Returns the KV cache capacity of one engine: in tokens, and in requests of `--max-model-len`
/// tokens.
///
/// **Source:** vLLM 0.33 `vllm/v1/core/kv_cache_utils.py`, `get_kv_cache_capacity`.
pub(super) fn kv_cache_tokens_and_concurrency(config: &Config) -> (u64, f64) {
    let engine = &config.engine;
    let context = config.model.max_model_len.max(1);
    let request = context.div_ceil(engine.block_size.max(1));
    let plain = || f64::from(kv_block_count(config)) / f64::from(request);
    // Several groups of layers share the KV cache.
    let concurrency = engine.kv_cache.as_ref().map(|size| size.concurrency);
    let concurrency = concurrency.unwrap_or_else(plain);
    ((concurrency * f64::from(context)) as u64, concurrency)
}

/// Returns the fields of vLLM's CacheConfig that depend on the configuration, each value as Python
/// text.
pub(super) fn cache_config_fields(config: &Config) -> [(&'static str, String); 16] {
    let engine = &config.engine;
    let (cache, memory) = (&engine.prefix_cache, &engine.memory);
    let (_, engines) = engine.parallel.local_ranks;
    // The blocks are those of all engines, the tokens those of one.
    let blocks = u64::from(kv_block_count(config)) * u64::from(engines);
    let (tokens, concurrency) = kv_cache_tokens_and_concurrency(config);
    let algo = block_hash_config(config).map_or(BlockHashAlgorithm::Sha256, |_| cache.hash_algo);
    let sliding_window = engine.kv_cache.as_ref().and_then(|size| match size.plan.sparse {
        SparseLayerKind::Window(tokens)
            if size.plan.full_groups == 0 && size.plan.sparse_groups > 0 =>
        {
            Some(tokens)
        }
        _ => None,
    });
    // Context-parallel GPUs share the tokens of a block.
    let block_size = engine.block_size / engine.parallel.context.max(1);
    [
        ("block_size", block_size.to_string()),
        ("cache_dtype", memory.kv_cache_dtype.clone()),
        ("effective_attention_block_size", engine.block_size.to_string()),
        ("enable_prefix_caching", python_bool(cache.is_enabled())),
        ("gpu_memory_utilization", python_float(memory.gpu_memory_utilization)),
        ("kv_cache_max_concurrency", python_float(concurrency)),
        ("kv_cache_memory_bytes", python_option(memory.kv_cache_memory_bytes)),
        ("kv_cache_size_tokens", tokens.to_string()),
        ("kv_offloading_backend", memory.kv_offloading.1.to_owned()),
        ("kv_offloading_size", python_option(memory.kv_offloading.0.map(python_float))),
        ("num_gpu_blocks", blocks.to_string()),
        ("num_gpu_blocks_override", python_option(memory.num_blocks)),
        ("prefix_cache_retention_interval", python_option(cache.retention_interval)),
        ("prefix_caching_hash_algo", algo.to_string()),
        ("sliding_window", python_option(sliding_window)),
        ("user_specified_block_size", python_bool(memory.block_size_typed)),
    ]
}

fn python_bool(value: bool) -> String {
    if value { "True" } else { "False" }.to_owned()
}

fn python_option(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "None".to_owned(), |value| value.to_string())
}

/// Formats a float like Python's `repr`, in the range of configuration values.
fn python_float(value: f64) -> String {
    format!("{value:?}")
}
