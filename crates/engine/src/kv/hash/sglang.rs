//! Keys of SGLang's pages in KV events.
//!
//! **Source:** SGLang 0.5.23 `srt/mem_cache/utils.py` (`hash_str_to_int64`,
//! `compute_node_event_hash_values`), `srt/disaggregation/kv_events.py`
//! (`kv_event_namespace_seed`, `namespaced_block_hash`).

use sha2::{Digest as _, Sha256};

/// Returns the hash that precedes the first KV cache page of prompts with a cache salt.
pub(super) fn cache_salt_digest(salt: &str) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update(b"sglang-cache-salt-v1\0");
    digest.update(salt.as_bytes());
    digest.finalize().into()
}

/// Returns the key of a KV cache page: the first 64 bits of its hash, hashed again with the name of
/// the LoRA adapter.
///
/// SGLang uses a random id for each load of an adapter in place of its name.
pub(super) fn sglang_page_key(hash: &[u8; 32], adapter: Option<&str>) -> u64 {
    let Some(adapter) = adapter else {
        return first_u64(hash);
    };
    let mut seed = Sha256::new();
    seed.update(b"sglang-kv-event-namespace-v1");
    seed.update([1]);
    seed.update((adapter.len() as u64).to_le_bytes());
    seed.update(adapter.as_bytes());
    // There is no salt in the second part.
    seed.update([0]);
    let mut digest = Sha256::new();
    digest.update(seed.finalize());
    digest.update(first_u64(hash).to_be_bytes());
    first_u64(&digest.finalize().into())
}

fn first_u64(hash: &[u8; 32]) -> u64 {
    hash[..8].iter().fold(0, |key, &byte| key << 8 | u64::from(byte))
}
