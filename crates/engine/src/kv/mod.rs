//! Simulates the KV cache: the blocks of each sequence, and the prefixes that need no computation.
//!
//! [`BlockPool`] is vLLM's block pool without the memory: reference counts, a free queue in
//! eviction order, and a map from block keys to blocks. It does not hash; a [`Hasher`] computes the
//! keys of a [`BlockPlan`](super::BlockPlan) before submission.

mod cache;
mod cbor;
mod group_tables;
mod groups;
mod hash;
mod host;
mod lease;
mod mocker_tier;
mod pickle;
mod pool;
mod queue;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;

pub(crate) use groups::{Group, GroupLimits};
pub use groups::{LayerGroups, SparseLayerKind};
pub use hash::{
    BlockPlanBuilder, ExtraKeys, HashAlgo, HashConfig, Hasher, Lora, MediaSpan, UnknownHashAlgo,
};
pub use host::{HostCounts, HostEviction, HostRules, HostTierConfig};
pub(crate) use host::{HostHit, HostRequest, HostTier, LoadEnded, StoreCopy};
pub(crate) use lease::Leases;
pub use mocker_tier::MockerTierConfig;
pub(crate) use mocker_tier::{CopyId, MockerBlock, MockerTier};
pub use pool::{BlockCounts, BlockPool, KvConfig};
pub(crate) use pool::{BlockRequest, BlockTable};
