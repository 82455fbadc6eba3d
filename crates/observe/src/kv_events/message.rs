//! KV event messages and their encoding.
//!
//! llm-d-inference-sim leaves `extra_keys` empty, so its router's index cannot distinguish salted
//! blocks and image blocks from plain ones. Here llm-d's format carries the keys that this index
//! hashes: media identifiers and the cache salt. The index knows adapters by name.
//!
//! **Source:** `vllm/distributed/kv_events.py`; `pkg/kv-cache/kv_cache_sender.go` of
//! llm-d-inference-sim; `pkg/kvcache/kvblock/extra_keys.go` of llm-d-router.

use super::msgpack::Writer;

/// Format of KV events, named after the program that publishes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EventFormat {
    /// vLLM 0.32 and later: each KV event is a map.
    #[default]
    Vllm,
    /// llm-d-inference-sim: each event is an array (its default).
    LlmdArray,
    /// llm-d-inference-sim with `use-vllm-map-event-format`.
    LlmdMap,
}

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
    /// Number of the block's LoRA adapter, from 1.
    pub(super) lora_id: Option<u32>,
    pub(super) lora_name: Option<&'a str>,
    /// Extra hash keys of each block; `None`: the field is null.
    pub(super) extra_keys: Option<Vec<Option<Vec<ExtraKey<'a>>>>>,
    pub(super) group: u32,
    pub(super) kind: Option<SpecKind>,
    pub(super) medium: Medium,
    /// Tokens after each block that its lookahead hash includes; `None` without lookahead.
    pub(super) lookahead: Option<Vec<&'a [u32]>>,
}

/// Attention kind of a group of layers, for KV events.
///
/// **Source:** vLLM 0.33 `vllm/v1/kv_cache_interface.py`, `KVCacheSpecKind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SpecKind {
    /// Layers with full attention.
    #[default]
    Full,
    /// Layers with multi-head latent attention.
    Mla,
    /// Layers with sliding-window attention; the number is the window, in tokens.
    Window(u32),
    /// Mamba layers, which keep a state instead of keys and values.
    Mamba,
}

impl SpecKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Full => "full_attention",
            Self::Mla => "mla_attention",
            Self::Window(_) => "sliding_window",
            Self::Mamba => "mamba",
        }
    }

    const fn window(self) -> Option<u32> {
        match self {
            Self::Window(tokens) => Some(tokens),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Medium {
    Gpu,
    Cpu,
    /// Storage medium: CPU memory with the locality `LOCAL`.
    LocalCpu,
}

impl Medium {
    const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Cpu | Self::LocalCpu => "CPU",
        }
    }

    fn write_locality(self, w: &mut Writer) {
        if self == Self::LocalCpu {
            w.entry("locality", |w| w.text("LOCAL"));
        }
    }
}

impl<'a> BlockStored<'a> {
    /// Returns the extra keys of each block that llm-d's index hashes; `None` if no block has any.
    fn media_and_salt(&self) -> Option<Vec<Vec<&'a str>>> {
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KvEvent<'a> {
    BlockStored(BlockStored<'a>),
    BlockRemoved(Vec<BlockHash<'a>>, Medium, u32),
    AllBlocksCleared,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct KvEventBatch<'a> {
    /// Time of the KV event message, in Unix seconds.
    pub(super) ts: f64,
    pub(super) events: &'a [KvEvent<'a>],
    pub(super) data_parallel_rank: u32,
}

impl KvEventBatch<'_> {
    pub(super) fn encode(&self, format: EventFormat) -> Vec<u8> {
        let mut w = Writer::new();
        w.array(3);
        w.float(self.ts);
        w.array(self.events.len());
        for event in self.events {
            match format {
                EventFormat::Vllm => event.write_vllm(&mut w),
                EventFormat::LlmdArray => event.write_llmd_array(&mut w),
                EventFormat::LlmdMap => event.write_llmd_map(&mut w),
            }
        }
        w.uint(u64::from(self.data_parallel_rank));
        w.into_bytes()
    }
}

impl KvEvent<'_> {
    fn write_vllm(&self, w: &mut Writer) {
        match self {
            Self::BlockStored(event) => {
                let window = event.kind.and_then(SpecKind::window);
                let more = [
                    event.extra_keys.is_some(),
                    event.kind.is_some(),
                    window.is_some(),
                    event.medium == Medium::LocalCpu,
                    event.lookahead.is_some(),
                ];
                w.map(9 + more.into_iter().filter(|there| *there).count());
                w.entry("type", |w| w.text("BlockStored"));
                w.entry("block_hashes", |w| {
                    w.each(&event.block_hashes, Writer::hash)
                });
                w.entry("parent_block_hash", |w| {
                    w.option(event.parent_block_hash, Writer::hash)
                });
                w.entry("token_ids", |w| w.each(event.token_ids, Writer::token));
                w.entry("block_size", |w| w.uint(event.block_size.into()));
                w.entry("lora_id", |w| {
                    w.option(event.lora_id, |w, id| w.uint(id.into()))
                });
                w.entry("medium", |w| w.text(event.medium.name()));
                w.entry("lora_name", |w| w.option(event.lora_name, Writer::text));
                if let Some(keys) = &event.extra_keys {
                    w.entry("extra_keys", |w| w.extra_keys(keys));
                }
                w.entry("group_idx", |w| w.uint(event.group.into()));
                if let Some(kind) = event.kind {
                    w.entry("kv_cache_spec_kind", |w| w.text(kind.name()));
                }
                if let Some(window) = window {
                    w.entry("kv_cache_spec_sliding_window", |w| w.uint(window.into()));
                }
                event.medium.write_locality(w);
                if let Some(blocks) = &event.lookahead {
                    w.entry("lookahead_token_ids", |w| {
                        w.each(blocks, |w, tokens| w.each(tokens, Writer::token));
                    });
                }
            }
            Self::BlockRemoved(hashes, medium, group) => {
                w.map(4 + usize::from(*medium == Medium::LocalCpu));
                w.entry("type", |w| w.text("BlockRemoved"));
                w.entry("block_hashes", |w| w.each(hashes, Writer::hash));
                w.entry("medium", |w| w.text(medium.name()));
                w.entry("group_idx", |w| w.uint((*group).into()));
                medium.write_locality(w);
            }
            Self::AllBlocksCleared => {
                w.map(1);
                w.entry("type", |w| w.text("AllBlocksCleared"));
            }
        }
    }

    fn write_llmd_array(&self, w: &mut Writer) {
        match self {
            Self::BlockStored(event) => {
                w.array(9);
                w.text("BlockStored");
                w.each(&event.block_hashes, Writer::wide_hash);
                w.wide_hash(event.parent_block_hash.unwrap_or(BlockHash::Int(0)));
                w.each(event.token_ids, Writer::wide_token);
                w.uint(event.block_size.into());
                w.option(event.lora_id, |w, id| w.uint(id.into()));
                w.text(event.medium.name());
                w.option(event.lora_name, Writer::text);
                w.option(event.media_and_salt(), |w, keys| w.llmd_extra_keys(&keys));
            }
            Self::BlockRemoved(hashes, medium, _) => {
                w.array(3);
                w.text("BlockRemoved");
                w.each(hashes, Writer::wide_hash);
                w.text(medium.name());
            }
            Self::AllBlocksCleared => w.cleared(),
        }
    }

    fn write_llmd_map(&self, w: &mut Writer) {
        match self {
            Self::BlockStored(event) => {
                let extra_keys = event.media_and_salt();
                let more = [
                    event.lora_id.is_some(),
                    event.lora_name.is_some(),
                    extra_keys.is_some(),
                ];
                w.map(6 + more.into_iter().filter(|there| *there).count());
                w.entry("type", |w| w.text("BlockStored"));
                w.entry("block_hashes", |w| {
                    w.each(&event.block_hashes, Writer::wide_hash)
                });
                let parent = event.parent_block_hash;
                w.entry("parent_block_hash", |w| w.option(parent, Writer::wide_hash));
                w.entry("token_ids", |w| w.each(event.token_ids, Writer::wide_token));
                w.entry("block_size", |w| w.uint(event.block_size.into()));
                if let Some(id) = event.lora_id {
                    w.entry("lora_id", |w| w.uint(id.into()));
                }
                w.entry("medium", |w| w.text(event.medium.name()));
                if let Some(name) = event.lora_name {
                    w.entry("lora_name", |w| w.text(name));
                }
                if let Some(keys) = extra_keys {
                    w.entry("extra_keys", |w| w.llmd_extra_keys(&keys));
                }
            }
            Self::BlockRemoved(hashes, medium, _) => {
                w.map(3);
                w.entry("type", |w| w.text("BlockRemoved"));
                w.entry("block_hashes", |w| w.each(hashes, Writer::wide_hash));
                w.entry("medium", |w| w.text(medium.name()));
            }
            Self::AllBlocksCleared => {
                w.map(1);
                w.entry("type", |w| w.text("AllBlocksCleared"));
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
            kind: Some(SpecKind::Full),
            medium: Medium::Gpu,
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
        };
        let digest = Sha256::digest(batch.encode(EventFormat::Vllm));
        let hex: String = digest.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "5f4b4995dc784459ea291540cdb05ff4bd3e9971585e7f50b939090c40e946a7"
        );
    }
}
