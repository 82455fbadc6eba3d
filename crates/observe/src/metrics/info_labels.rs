//! Labels of gauges that describe the server and are always 1.

use super::settings::Settings;

/// Returns the labels of `vllm:kv_offload_config_info`.
pub(super) fn offload_config(settings: &Settings, _: usize) -> Option<Vec<(String, String)>> {
    let info = settings.offload.as_ref()?;
    let labels = [
        ("cpu_blocks_per_chunk", info.blocks_per_chunk.to_string()),
        ("cpu_kv_cache_size_bytes", info.bytes.to_string()),
        ("cpu_kv_cache_size_tokens", info.tokens.to_string()),
        ("cpu_num_chunks", info.chunks.to_string()),
    ];
    Some(labels.map(|(name, value)| (name.to_owned(), value)).to_vec())
}

/// Returns the labels of `vllm:simple_kv_offload_info`.
pub(super) fn simple_offload(settings: &Settings, _: usize) -> Option<Vec<(String, String)>> {
    let info = settings.offload.as_ref()?;
    let labels = [
        ("backend", "cpu".to_owned()),
        ("capacity_blocks", info.chunks.to_string()),
        ("lazy_offload", "False".to_owned()),
        ("page_cache", "False".to_owned()),
    ];
    Some(labels.map(|(name, value)| (name.to_owned(), value)).to_vec())
}

/// Returns the labels of `python_info`.
pub(super) fn python(_: &Settings, _: usize) -> Option<Vec<(String, String)>> {
    let labels = [
        ("implementation", "CPython"),
        ("major", "3"),
        ("minor", "12"),
        ("patchlevel", "12"),
        ("version", "3.12.12"),
    ];
    Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec())
}
