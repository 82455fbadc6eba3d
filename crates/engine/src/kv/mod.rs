//! Simulates the KV cache: the blocks of each sequence, and the prefixes that need no computation.
//!
//! [`BlockPool`] is vLLM's block pool without the memory: reference counts, a free queue in
//! eviction order, and a map from block keys to blocks. It does not hash; a [`BlockHasher`] computes the
//! keys of a [`BlockPlan`](super::BlockPlan) before submission.

mod block_lists;
mod cbor;
mod group_tables;
mod groups;
mod hash;
mod host;
mod lease;
mod mocker_tier;
mod pickle;
mod pool;
mod sglang_hash;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;

pub(crate) use groups::{BlockAllocationRequest, LayerGroup, LayerGroupLimits};
pub use groups::{LayerGroups, SparseLayerKind};
pub use hash::{
    BlockHashConfig, BlockHasher, BlockPlanBuilder, ExtraKeys, HashAlgo, LoraAdapter, MediaSpan,
    UnknownHashAlgo,
};
pub(crate) use host::{EndedLoad, HostCache, HostLookupRequest, HostLookupResult, HostStoreCopy};
pub use host::{HostCacheConfig, HostChunkCounts, HostEvictionPolicy, OffloadConnector};
pub(crate) use lease::BlockLeases;
pub use mocker_tier::MockerHostCacheConfig;
pub(crate) use mocker_tier::{HostCopyId, MockerHostBlockState, MockerHostCache};
pub(crate) use pool::BlockTable;
pub use pool::{BlockCounts, BlockPool, BlockPoolConfig};
