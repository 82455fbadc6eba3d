//! KV event messages and their encoding.
//!
//! llm-d-inference-sim leaves `extra_keys` empty, so its router's index cannot distinguish salted
//! blocks and image blocks from plain ones. Here llm-d's format carries the keys that this index
//! hashes: media identifiers and the cache salt. The index knows adapters by name.
//!
//! **Source:** `vllm/distributed/kv_events.py`; `pkg/kv-cache/kv_cache_sender.go` of
//! llm-d-inference-sim; `pkg/kvcache/kvblock/extra_keys.go` of llm-d-router.

use super::msgpack::MsgpackWriter;
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

    fn write_llmd_locality(self, w: &mut MsgpackWriter) {
        if self == Self::LocalCpu {
            w.write_map_entry("locality", |w| w.write_str("LOCAL"));
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
            Self::BlockStored(event) => {
                let window = event.kind.and_then(AttentionKind::sliding_window_tokens);
                let more = [
                    event.extra_keys.is_some(),
                    event.kind.is_some(),
                    window.is_some(),
                    event.medium == StorageMedium::LocalCpu,
                    event.session.is_some(),
                    event.lookahead.is_some(),
                ];
                // msgspec chooses the header for all 16 keys of vLLM 0.33, also for fewer.
                w.write_map16_header(9 + more.into_iter().filter(|there| *there).count() as u16);
                w.write_map_entry("type", |w| w.write_str("BlockStored"));
                w.write_map_entry("block_hashes", |w| {
                    w.write_array(&event.block_hashes, MsgpackWriter::write_block_hash)
                });
                w.write_map_entry("parent_block_hash", |w| {
                    w.write_option(event.parent_block_hash, MsgpackWriter::write_block_hash)
                });
                w.write_map_entry("token_ids", |w| {
                    w.write_array(event.token_ids, MsgpackWriter::write_token_id)
                });
                w.write_map_entry("block_size", |w| w.write_uint(event.block_size.into()));
                w.write_map_entry("lora_id", |w| {
                    w.write_option(event.lora_id, |w, id| w.write_uint(id.into()))
                });
                w.write_map_entry("medium", |w| w.write_str(event.medium.vllm_name()));
                w.write_map_entry("lora_name", |w| {
                    w.write_option(event.lora_name, MsgpackWriter::write_str)
                });
                if let Some(keys) = &event.extra_keys {
                    w.write_map_entry("extra_keys", |w| w.write_extra_keys(keys));
                }
                w.write_map_entry("group_idx", |w| w.write_uint(event.group.into()));
                if let Some(kind) = event.kind {
                    w.write_map_entry("kv_cache_spec_kind", |w| w.write_str(kind.vllm_name()));
                }
                if let Some(window) = window {
                    w.write_map_entry("kv_cache_spec_sliding_window", |w| {
                        w.write_uint(window.into())
                    });
                }
                event.medium.write_llmd_locality(w);
                if let Some(session) = event.session {
                    w.write_map_entry("session_id", |w| w.write_str(session));
                }
                if let Some(blocks) = &event.lookahead {
                    w.write_map_entry("lookahead_token_ids", |w| {
                        w.write_array(blocks, |w, tokens| {
                            w.write_array(tokens, MsgpackWriter::write_token_id)
                        });
                    });
                }
            }
            Self::BlockRemoved(hashes, medium, group) => {
                let copies = (*medium == StorageMedium::Gpu).then(|| copies.next()).flatten();
                let is_local = *medium == StorageMedium::LocalCpu;
                w.write_map_header(4 + usize::from(is_local) + usize::from(copies.is_some()));
                w.write_map_entry("type", |w| w.write_str("BlockRemoved"));
                w.write_map_entry("block_hashes", |w| {
                    w.write_array(hashes, MsgpackWriter::write_block_hash)
                });
                w.write_map_entry("medium", |w| w.write_str(medium.vllm_name()));
                w.write_map_entry("group_idx", |w| w.write_uint((*group).into()));
                medium.write_llmd_locality(w);
                if let Some(copies) = copies {
                    w.write_map_entry("remaining_copy_counts", |w| {
                        w.write_array(&[copies], |w, count| w.write_uint(count.into()))
                    });
                }
            }
            Self::AllBlocksCleared => {
                w.write_map_header(1);
                w.write_map_entry("type", |w| w.write_str("AllBlocksCleared"));
            }
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
                w.write_uint(event.block_size.into());
                w.write_option(event.lora_id, |w, id| w.write_uint(id.into()));
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
            Self::AllBlocksCleared => w.write_all_blocks_cleared(),
        }
    }

    fn write_llmd_map(&self, w: &mut MsgpackWriter) {
        match self {
            Self::BlockStored(event) => {
                let extra_keys = event.llmd_extra_keys_per_block();
                let more =
                    [event.lora_id.is_some(), event.lora_name.is_some(), extra_keys.is_some()];
                w.write_map_header(6 + more.into_iter().filter(|there| *there).count());
                w.write_map_entry("type", |w| w.write_str("BlockStored"));
                w.write_map_entry("block_hashes", |w| {
                    w.write_array(&event.block_hashes, MsgpackWriter::write_fixed_width_block_hash)
                });
                let parent = event.parent_block_hash;
                w.write_map_entry("parent_block_hash", |w| {
                    w.write_option(parent, MsgpackWriter::write_fixed_width_block_hash)
                });
                w.write_map_entry("token_ids", |w| {
                    w.write_array(event.token_ids, MsgpackWriter::write_fixed_width_token_id)
                });
                w.write_map_entry("block_size", |w| w.write_uint(event.block_size.into()));
                if let Some(id) = event.lora_id {
                    w.write_map_entry("lora_id", |w| w.write_uint(id.into()));
                }
                w.write_map_entry("medium", |w| w.write_str(event.medium.vllm_name()));
                if let Some(name) = event.lora_name {
                    w.write_map_entry("lora_name", |w| w.write_str(name));
                }
                if let Some(keys) = extra_keys {
                    w.write_map_entry("extra_keys", |w| w.write_llmd_extra_keys(&keys));
                }
            }
            Self::BlockRemoved(hashes, medium, _) => {
                w.write_map_header(3);
                w.write_map_entry("type", |w| w.write_str("BlockRemoved"));
                w.write_map_entry("block_hashes", |w| {
                    w.write_array(hashes, MsgpackWriter::write_fixed_width_block_hash)
                });
                w.write_map_entry("medium", |w| w.write_str(medium.vllm_name()));
            }
            Self::AllBlocksCleared => {
                w.write_map_header(1);
                w.write_map_entry("type", |w| w.write_str("AllBlocksCleared"));
            }
        }
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
