//! Labels of `vllm:cache_config_info`: the fields of vLLM's CacheConfig.

use super::upstream::{CACHE_CONFIG_SINCE, CACHE_CONFIG_UNTIL};
use crate::release::first_vllm_release_of;
use vllm_sim_wire::VllmVersion;

/// Returns the labels of `vllm:cache_config_info` in an imitated release, without the label
/// `engine`.
///
/// `fields` are those that depend on the configuration, as Python text; others have the values of
/// the release for a plain model.
pub fn cache_config_labels(
    fields: impl IntoIterator<Item = (&'static str, String)>,
    version: VllmVersion,
) -> Vec<(String, String)> {
    let fixed = FIXED.map(|(name, value)| (name, value.to_owned()));
    let exists = |name: &str| first_vllm_release_of(CACHE_CONFIG_SINCE, name) <= version;
    let labels = fields.into_iter().chain(fixed).filter(|(name, _)| exists(name));
    let removed = CACHE_CONFIG_UNTIL.iter().filter(|(_, until, _)| version <= *until);
    let removed = removed.map(|(name, _, value)| (*name, (*value).to_owned()));
    labels.chain(removed).map(|(name, value)| (name.to_owned(), value)).collect()
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
