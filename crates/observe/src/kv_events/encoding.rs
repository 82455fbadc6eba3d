//! Settings of the encoding of KV events.

use super::message::{AttentionKind, KvEventFormat, KvEventPreviewFeatures};
use vllm_sim_wire::VllmVersion;

/// Message format and options for an engine's KV cache events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvEventEncoding {
    /// Format of KV event messages, named after the program that publishes it.
    pub format: KvEventFormat,
    /// Form of block hashes in KV events: integer or bytes.
    pub hashes: KvEventHashFormat,
    /// Level of detail of KV events about blocks in CPU memory.
    pub host: HostKvEventDetail,
    /// Layer groups of the model, each with a separate KV cache.
    pub groups: KvEventLayerGroups,
    /// vLLM release whose KV event fields are sent.
    pub version: VllmVersion,
    /// Enabled behaviour of open pull requests of vLLM (`--preview`).
    pub preview: KvEventPreviewFeatures,
}

/// Layer groups of a model, each with a separate KV cache; they determine the group index and kind
/// in KV events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KvEventLayerGroups {
    /// Index of the main layer group (the first with full attention), whose KV events have no group
    /// index.
    pub main: u32,
    /// Attention kind of the main layer group (the first with full attention) and of the groups
    /// after it.
    pub main_kind: AttentionKind,
    /// Attention kind of the layer groups before the main group, which is the first with full
    /// attention.
    pub sparse_kind: AttentionKind,
}

impl KvEventLayerGroups {
    pub(super) const fn attention_kind_of_group(&self, group: u32) -> AttentionKind {
        if group < self.main { self.sparse_kind } else { self.main_kind }
    }
}

/// Level of detail of KV events about blocks stored in CPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostKvEventDetail {
    /// KV events about CPU memory have only block hashes, one event per offloaded chunk (vLLM's
    /// `OffloadingConnector`).
    #[default]
    Names,
    /// KV events about CPU memory have block hashes, parent hashes and tokens
    /// (`self_describing_kv_events`).
    Tokens,
    /// KV events about CPU memory have all fields of GPU events, plus the locality `LOCAL`
    /// (`SimpleCPUOffloadConnector`).
    Local,
}

/// Form of block hashes in KV events (`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvEventHashFormat {
    /// KV events have the last 64 bits of a block hash, as an integer.
    #[default]
    Int,
    /// KV events have the complete block hash; the number is its length in bytes.
    Bytes(usize),
}
