//! Simulates the KV cache: the blocks of each sequence, and the prefixes that need no computation.
//!
//! [`BlockPool`] is vLLM's block pool without the memory: reference counts, a free queue in
//! eviction order, and a map from block keys to blocks. It does not hash; a [`BlockHasher`]
//! computes the keys of a [`PlannedKvBlocks`](super::PlannedKvBlocks) before submission.

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
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;

pub(crate) use groups::{BlockAllocationRequest, LayerGroup, LayerGroupLimits};
pub use groups::{KvCacheLayerGroups, SparseLayerKind};
pub use hash::{
    BlockHashAlgorithm, BlockHashConfig, BlockHashExtraKeys, BlockHasher, HashedMediaSpan,
    LoraAdapter, PlannedKvBlocksBuilder,
};
pub(crate) use host::{
    EndedHostLoad, HostCache, HostCacheLookupRequest, HostCacheLookupResult, HostStoreCopy,
};
pub use host::{HostCacheChunkCounts, HostCacheConfig, HostCacheEvictionPolicy, OffloadConnector};
pub(crate) use lease::PrefillBlockLeases;
pub use mocker_tier::DynamoMockerHostCacheConfig;
pub(crate) use mocker_tier::{
    DynamoMockerHostBlockState, DynamoMockerHostCache, DynamoMockerHostCopyId,
};
pub(crate) use pool::BlockTable;
pub use pool::{BlockPool, BlockPoolConfig, KvBlockCounts};
