//! KV event messages and their encoding.
//!
//! llm-d-inference-sim leaves `extra_keys` empty, so its router's index cannot distinguish salted
//! blocks and image blocks from plain ones. Here llm-d's format carries the keys that this index
//! hashes: media identifiers and the cache salt. The index knows adapters by name.
//!
//! **Source:** `vllm/distributed/kv_events.py`; `pkg/kv-cache/kv_cache_sender.go` of
//! llm-d-inference-sim; `pkg/kvcache/kvblock/extra_keys.go` of llm-d-router.

use super::msgpack::{MsgpackMap, MsgpackWriter};
use super::upstream::SINCE;
pub use crate::compat::KvEventFormat;
use crate::release::first_vllm_release_of;
use vllm_sim_wire::VllmVersion;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum BlockHash<'a> {
    Int(u64),
    Bytes(&'a [u8]),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ExtraKey<'a> {
    Text(&'a str),
    Media(&'a str, i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockStored<'a> {
    pub(super) block_hashes: Vec<BlockHash<'a>>,
    pub(super) parent_block_hash: Option<BlockHash<'a>>,
    pub(super) token_ids: &'a [u32],
    pub(super) block_size: u32,
    /// Number of the LoRA adapter for which the KV blocks were computed, starting at 1.
    pub(super) lora_id: Option<u32>,
    pub(super) lora_name: Option<&'a str>,
    /// Extra hash keys of each stored KV block; `None`: the field is null.
    pub(super) extra_keys: Option<Vec<Option<Vec<ExtraKey<'a>>>>>,
    pub(super) group: u32,
    pub(super) kind: Option<AttentionKind>,
    pub(super) medium: StorageMedium,
    /// Session of the request that stored or reused the blocks; only in vLLM's format.
    pub(super) session: Option<&'a str>,
    /// Tokens after each stored KV block that the block's hash includes as lookahead; `None`
    /// without lookahead.
    pub(super) lookahead: Option<Vec<&'a [u32]>>,
}

/// Attention kind of a group of layers, for KV events.
///
/// **Source:** vLLM 0.33 `vllm/v1/kv_cache_interface.py`, `KVCacheSpecKind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AttentionKind {
    /// Attention kind in KV events: layers with full attention.
    #[default]
    Full,
    /// Attention kind in KV events: layers with multi-head latent attention.
    Mla,
    /// Attention kind in KV events: layers with sliding-window attention; the number is the window,
    /// in tokens.
    Window(u32),
    /// Attention kind in KV events: Mamba layers, which keep a state instead of keys and values.
    Mamba,
}

impl AttentionKind {
    const fn vllm_name(self) -> &'static str {
        match self {
            Self::Full => "full_attention",
            Self::Mla => "mla_attention",
            Self::Window(_) => "sliding_window",
            Self::Mamba => "mamba",
        }
    }

    const fn sliding_window_tokens(self) -> Option<u32> {
        match self {
            Self::Window(tokens) => Some(tokens),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum StorageMedium {
    Gpu,
    Cpu,
    /// Storage medium of a KV event's blocks: CPU memory with the locality `LOCAL`.
    LocalCpu,
}

impl StorageMedium {
    const fn vllm_name(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Cpu | Self::LocalCpu => "CPU",
        }
    }

    fn write_locality(self, map: &mut MsgpackMap<'_>) {
        if self == Self::LocalCpu {
            map.write_text("locality", "LOCAL");
        }
    }
}

impl<'a> BlockStored<'a> {
    /// Returns the extra hash keys of each block, without the LoRA adapter, as llm-d's events list
    /// them; `None` if no block has any.
    fn llmd_extra_keys_per_block(&self) -> Option<Vec<Vec<&'a str>>> {
        // The adapter's name is the first key of each of its blocks.
        let adapter = usize::from(self.lora_name.is_some());
        let blocks = self.extra_keys.iter().flatten().map(|keys| {
            let keys = keys.iter().flatten().skip(adapter);
            let names = keys.map(|key| match *key {
                ExtraKey::Text(text) => text,
                ExtraKey::Media(identifier, _) => identifier,
            });
            names.collect::<Vec<_>>()
        });
        let blocks: Vec<_> = blocks.collect();
        let tainted = blocks.iter().any(|keys| !keys.is_empty());
        tainted.then_some(blocks)
    }

    fn write_vllm_fields(&self, map: &mut MsgpackMap<'_>) {
        let write_hash = MsgpackWriter::write_block_hash;
        map.write_text("type", "BlockStored");
        map.write_list("block_hashes", &self.block_hashes, write_hash);
        map.write_nullable("parent_block_hash", self.parent_block_hash, write_hash);
        map.write_list("token_ids", self.token_ids, MsgpackWriter::write_u32);
        map.write_number("block_size", self.block_size);
        map.write_nullable("lora_id", self.lora_id, MsgpackWriter::write_u32);
        map.write_text("medium", self.medium.vllm_name());
        map.write_nullable("lora_name", self.lora_name, MsgpackWriter::write_str);
        if let Some(keys) = &self.extra_keys {
            map.write_entry("extra_keys", |w| w.write_extra_keys(keys));
        }
        map.write_number("group_idx", self.group);
        map.write_text_if_set("kv_cache_spec_kind", self.kind.map(AttentionKind::vllm_name));
        if let Some(window) = self.kind.and_then(AttentionKind::sliding_window_tokens) {
            map.write_number("kv_cache_spec_sliding_window", window);
        }
        self.medium.write_locality(map);
        map.write_text_if_set("session_id", self.session);
        if let Some(blocks) = &self.lookahead {
            map.write_list("lookahead_token_ids", blocks, |w, tokens| {
                w.write_array(tokens, MsgpackWriter::write_u32)
            });
        }
    }
}

/// KV event behaviour of open pull requests of vLLM (`--preview`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvEventPreviewFeatures {
    /// Whether `BlockRemoved` has `remaining_copy_counts` (vllm-project/vllm#48933).
    pub remaining_copy_counts: bool,
    /// Whether the removal of a KV block is announced only when its last copy is removed
    /// (vllm-project/vllm#55092).
    pub removal_after_last_copy: bool,
}

/// First vLLM release whose KV events name the session of a stored block.
const SESSION_SINCE: VllmVersion = first_vllm_release_of(SINCE, "BlockStored.session_id");

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KvEvent<'a> {
    BlockStored(BlockStored<'a>),
    BlockRemoved(Vec<BlockHash<'a>>, StorageMedium, u32),
    AllBlocksCleared,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct KvEventBatch<'a> {
    /// Time of the KV event message, in Unix seconds.
    pub(super) ts: f64,
    pub(super) events: &'a [KvEvent<'a>],
    pub(super) data_parallel_rank: u32,
    /// Number of remaining copies for each removed GPU block; empty if the message does not report
    /// them.
    pub(super) remaining_copies: &'a [u32],
}

impl KvEventBatch<'_> {
    pub(super) fn encode_batch_as_msgpack(&self, format: KvEventFormat) -> Vec<u8> {
        let mut w = MsgpackWriter::new();
        w.write_array_header(3);
        w.write_float(self.ts);
        w.write_array_header(self.events.len());
        let mut copies = self.remaining_copies.iter().copied();
        for event in self.events {
            match format {
                KvEventFormat::LlmdArray => event.write_llmd_array(&mut w),
                KvEventFormat::LlmdMap => event.write_llmd_map(&mut w),
                _ => event.write_vllm(&mut w, &mut copies),
            }
        }
        w.write_uint(u64::from(self.data_parallel_rank));
        w.into_msgpack_bytes()
    }
}

impl KvEvent<'_> {
    /// Removes those fields of a KV event that the vLLM release `version` does not send.
    pub(super) fn clear_newer_fields(&mut self, version: VllmVersion) {
        if let Self::BlockStored(event) = self
            && version < SESSION_SINCE
        {
            event.session = None;
        }
    }

    fn write_vllm(&self, w: &mut MsgpackWriter, copies: &mut impl Iterator<Item = u32>) {
        match self {
            // msgspec chooses the header for all 16 keys of vLLM 0.33, also for fewer.
            Self::BlockStored(event) => w.write_map16(|map| event.write_vllm_fields(map)),
            Self::BlockRemoved(hashes, medium, group) => w.write_map(|map| {
                map.write_text("type", "BlockRemoved");
                map.write_list("block_hashes", hashes, MsgpackWriter::write_block_hash);
                map.write_text("medium", medium.vllm_name());
                map.write_number("group_idx", *group);
                medium.write_locality(map);
                let copies = (*medium == StorageMedium::Gpu).then(|| copies.next()).flatten();
                if let Some(copies) = copies {
                    map.write_list("remaining_copy_counts", &[copies], MsgpackWriter::write_u32);
                }
            }),
            Self::AllBlocksCleared => w.write_map(|map| map.write_text("type", "AllBlocksCleared")),
        }
    }

    fn write_llmd_array(&self, w: &mut MsgpackWriter) {
        match self {
            Self::BlockStored(event) => {
                w.write_array_header(9);
                w.write_str("BlockStored");
                w.write_array(&event.block_hashes, MsgpackWriter::write_fixed_width_block_hash);
                w.write_fixed_width_block_hash(
                    event.parent_block_hash.unwrap_or(BlockHash::Int(0)),
                );
                w.write_array(event.token_ids, MsgpackWriter::write_fixed_width_token_id);
                w.write_u32(event.block_size);
                w.write_option(event.lora_id, MsgpackWriter::write_u32);
                w.write_str(event.medium.vllm_name());
                w.write_option(event.lora_name, MsgpackWriter::write_str);
                w.write_option(event.llmd_extra_keys_per_block(), |w, keys| {
                    w.write_llmd_extra_keys(&keys)
                });
            }
            Self::BlockRemoved(hashes, medium, _) => {
                w.write_array_header(3);
                w.write_str("BlockRemoved");
                w.write_array(hashes, MsgpackWriter::write_fixed_width_block_hash);
                w.write_str(medium.vllm_name());
            }
            Self::AllBlocksCleared => {
                w.write_array_header(1);
                w.write_str("AllBlocksCleared");
            }
        }
    }

    fn write_llmd_map(&self, w: &mut MsgpackWriter) {
        let write_hash = MsgpackWriter::write_fixed_width_block_hash;
        w.write_map(|map| match self {
            Self::BlockStored(event) => {
                map.write_text("type", "BlockStored");
                map.write_list("block_hashes", &event.block_hashes, write_hash);
                map.write_nullable("parent_block_hash", event.parent_block_hash, write_hash);
                let write_token = MsgpackWriter::write_fixed_width_token_id;
                map.write_list("token_ids", event.token_ids, write_token);
                map.write_number("block_size", event.block_size);
                if let Some(id) = event.lora_id {
                    map.write_number("lora_id", id);
                }
                map.write_text("medium", event.medium.vllm_name());
                map.write_text_if_set("lora_name", event.lora_name);
                if let Some(keys) = event.llmd_extra_keys_per_block() {
                    map.write_entry("extra_keys", |w| w.write_llmd_extra_keys(&keys));
                }
            }
            Self::BlockRemoved(hashes, medium, _) => {
                map.write_text("type", "BlockRemoved");
                map.write_list("block_hashes", hashes, write_hash);
                map.write_text("medium", medium.vllm_name());
            }
            Self::AllBlocksCleared => map.write_text("type", "AllBlocksCleared"),
        });
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    /// Compares lengths and integers of every width with the digest of msgspec 0.22's output.
    #[test]
    fn large_events_are_written_as_msgspec_does() {
        let tokens: Vec<u32> = (0..70_000).map(|i| i * 3).collect();
        let (name, salt, identifier) = ("n".repeat(300), "s".repeat(70_000), "x".repeat(40));
        let keys = vec![
            ExtraKey::Text(&salt),
            ExtraKey::Media(&identifier, -200),
            ExtraKey::Media("y", -40_000),
            ExtraKey::Media("z", -(1 << 31) - 1),
            ExtraKey::Media("z", -(1 << 31)),
            ExtraKey::Media("w", -33),
            ExtraKey::Media("w", -32),
        ];
        let plain = BlockStored {
            block_hashes: (0..35_000).map(BlockHash::Int).collect(),
            parent_block_hash: None,
            token_ids: &tokens,
            block_size: 2,
            lora_id: None,
            lora_name: None,
            extra_keys: Some(vec![None; 35_000]),
            group: 0,
            kind: Some(AttentionKind::Full),
            medium: StorageMedium::Gpu,
            session: None,
            lookahead: None,
        };
        let named = BlockStored {
            block_hashes: vec![BlockHash::Int(1)],
            token_ids: &[1, 2],
            lora_name: Some(&name),
            extra_keys: Some(vec![Some(keys)]),
            ..plain.clone()
        };
        let batch = KvEventBatch {
            ts: 1.0,
            events: &[KvEvent::BlockStored(plain), KvEvent::BlockStored(named)],
            data_parallel_rank: 300,
            remaining_copies: &[],
        };
        let digest = Sha256::digest(batch.encode_batch_as_msgpack(KvEventFormat::Vllm));
        let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "5ec60cb7cf4647969ca5b65734f2e8d788850fdc9794f797c73d329e9258d2f9");
    }
}
