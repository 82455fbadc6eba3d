//! Labels of `vllm:cache_config_info`: vLLM's CacheConfig as Python text.

use super::releases::{CACHE_CONFIG_SINCE, CACHE_CONFIG_UNTIL};
use super::settings::Settings;
use vllm_sim_wire::VllmVersion;

/// Returns the labels of `vllm:cache_config_info` of an engine, without `engine`.
pub(super) fn cache_config(settings: &Settings, engine: usize) -> Option<Vec<(String, String)>> {
    settings.cache_config.get(engine).cloned()
}

/// Values of vLLM's CacheConfig that depend on the configuration; other fields have the values of
/// the release for a plain model.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheConfig {
    /// Number of tokens per KV block.
    pub block_size: u32,
    /// Number of context-parallel GPUs, which share the tokens of a block.
    pub context_ranks: u32,
    /// Whether a flag sets the size of KV blocks.
    pub user_specified_block_size: bool,
    /// Number of KV blocks of one engine, including the null block.
    pub num_gpu_blocks: u32,
    /// Number of engines of this server. The labels report the blocks of all engines, but the
    /// tokens of one.
    pub data_parallel_size: u32,
    /// Value of `--num-gpu-blocks-override`.
    pub num_gpu_blocks_override: Option<u32>,
    /// Context length, in tokens; determines the maximum concurrency.
    pub max_model_len: u32,
    /// Value of `--enable-prefix-caching`.
    pub enable_prefix_caching: bool,
    /// Value of `--prefix-caching-hash-algo`.
    pub prefix_caching_hash_algo: String,
    /// Value of `--gpu-memory-utilization`, a fraction.
    pub gpu_memory_utilization: f64,
    /// Value of `--kv-cache-dtype`.
    pub cache_dtype: String,
    /// Size of the KV cache, in bytes; `None` if no flag sets it.
    pub kv_cache_memory_bytes: Option<u64>,
    /// Value of `--kv-offloading-size`, in GiB.
    pub kv_offloading_size: Option<f64>,
    /// Value of `--kv-offloading-backend`.
    pub kv_offloading_backend: &'static str,
    /// Size of the sliding window, in tokens, if all layers have the same one.
    pub sliding_window: Option<u32>,
    /// Number of requests of `max_model_len` tokens that fit into the KV cache, if several groups
    /// of layers share it.
    pub concurrency: Option<f64>,
    /// Value of `--prefix-cache-retention-interval`.
    pub retention_interval: Option<u32>,
    /// vLLM release whose labels are exposed.
    pub version: VllmVersion,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            block_size: 16,
            context_ranks: 1,
            user_specified_block_size: false,
            num_gpu_blocks: 1024,
            data_parallel_size: 1,
            num_gpu_blocks_override: None,
            max_model_len: 1024,
            enable_prefix_caching: true,
            prefix_caching_hash_algo: "sha256".to_owned(),
            gpu_memory_utilization: 0.92,
            cache_dtype: "auto".to_owned(),
            kv_cache_memory_bytes: None,
            kv_offloading_size: None,
            kv_offloading_backend: "native",
            sliding_window: None,
            concurrency: None,
            retention_interval: Some(0),
            version: VllmVersion::default(),
        }
    }
}

impl CacheConfig {
    /// Returns the KV cache capacity of one engine: in tokens, and in requests of `max_model_len`
    /// tokens.
    ///
    /// **Source:** vLLM 0.33 `vllm/v1/core/kv_cache_utils.py`, `get_kv_cache_capacity`.
    pub fn capacity(&self) -> (u64, f64) {
        let context = self.max_model_len.max(1);
        let request = context.div_ceil(self.block_size.max(1));
        let plain = || f64::from(self.num_gpu_blocks) / f64::from(request);
        let concurrency = self.concurrency.unwrap_or_else(plain);
        ((concurrency * f64::from(context)) as u64, concurrency)
    }

    /// Returns names and values of the labels of `vllm:cache_config_info`, without `engine`.
    pub fn labels(&self) -> Vec<(String, String)> {
        let blocks = u64::from(self.num_gpu_blocks) * u64::from(self.data_parallel_size);
        let (tokens, concurrency) = self.capacity();
        let changing = [
            ("block_size", (self.block_size / self.context_ranks.max(1)).to_string()),
            ("cache_dtype", self.cache_dtype.clone()),
            ("effective_attention_block_size", self.block_size.to_string()),
            ("enable_prefix_caching", truth(self.enable_prefix_caching)),
            ("gpu_memory_utilization", float(self.gpu_memory_utilization)),
            ("kv_cache_max_concurrency", float(concurrency)),
            ("kv_cache_memory_bytes", option(self.kv_cache_memory_bytes)),
            ("kv_cache_size_tokens", tokens.to_string()),
            ("kv_offloading_backend", self.kv_offloading_backend.to_owned()),
            (
                "kv_offloading_size",
                self.kv_offloading_size.map_or_else(|| "None".to_owned(), float),
            ),
            ("num_gpu_blocks", blocks.to_string()),
            ("num_gpu_blocks_override", option(self.num_gpu_blocks_override)),
            ("prefix_cache_retention_interval", option(self.retention_interval)),
            ("prefix_caching_hash_algo", self.prefix_caching_hash_algo.clone()),
            ("sliding_window", option(self.sliding_window)),
            ("user_specified_block_size", truth(self.user_specified_block_size)),
        ];
        let newer = |name: &str| {
            CACHE_CONFIG_SINCE.iter().any(|(n, since)| *n == name && *since > self.version)
        };
        let fixed = FIXED.iter().map(|(n, v)| (*n, (*v).to_owned()));
        let gone = CACHE_CONFIG_UNTIL.iter().filter(|(_, until, _)| self.version <= *until);
        let gone = gone.map(|(n, _, v)| (*n, (*v).to_owned()));
        let all = changing.into_iter().chain(fixed).filter(|(n, _)| !newer(n)).chain(gone);
        all.map(|(n, v)| (n.to_owned(), v)).collect()
    }
}

const FIXED: [(&str, &str); 21] = [
    ("_block_size_resolved", "True"),
    ("cache_hit_alignment_tokens", "None"),
    ("enable_mamba_shared_prefix_checkpoint", "False"),
    ("hash_block_size", "None"),
    ("is_attention_free", "False"),
    ("kv_cache_dtype_skip_layers", "[]"),
    ("kv_cache_layout", "None"),
    ("kv_sharing_fast_prefill", "False"),
    ("mamba_block_size", "None"),
    ("mamba_cache_dtype", "auto"),
    ("mamba_cache_mode", "none"),
    ("mamba_page_size_padded", "None"),
    ("mamba_ssm_cache_dtype", "float32"),
    ("num_cpu_blocks", "None"),
    ("prefix_match_unit", "None"),
    ("replayssm_buffer_len", "16"),
    ("simple_cpu_offload_num_blocks", "None"),
    ("skip_page_size_padded", "None"),
    ("swa_bounded_replay", "True"),
    ("use_kda_recoverssm", "False"),
    ("use_replayssm", "False"),
];

fn truth(b: bool) -> String {
    if b { "True" } else { "False" }.to_owned()
}

fn option<T: ToString>(v: Option<T>) -> String {
    v.map_or_else(|| "None".to_owned(), |v| v.to_string())
}

/// Formats a float like Python's `repr`, in the range of configuration values.
fn float(v: f64) -> String {
    format!("{v:?}")
}
