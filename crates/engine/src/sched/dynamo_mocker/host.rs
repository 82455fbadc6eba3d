//! Holds the scheduler's state for the mocker's prefix cache in host memory.

use std::collections::{HashMap, HashSet};

use crate::kv::{DynamoMockerHostCache, DynamoMockerHostCacheConfig, DynamoMockerHostCopyId};
use crate::{SeqId, SimTime};

#[derive(Debug)]
pub(super) struct DynamoMockerOffloadState {
    pub tier: DynamoMockerHostCache,
    pub seqs: HashMap<SeqId, SequenceOffloadState>,
    /// Ids of waiting sequences that the scheduler does not try to admit until a copy between GPU
    /// and host memory ends.
    pub waiting_for_copy: HashSet<SeqId>,
    /// Number of requests so far that had to wait for a copy from host memory; orders these
    /// requests in the waiting queue.
    pub waited: i64,
    /// Earliest start of the next step's computation: until then, copies still read GPU blocks that
    /// the computation writes.
    pub compute_after: SimTime,
}

#[derive(Debug, Default)]
pub(super) struct SequenceOffloadState {
    /// Number of the sequence's prompt blocks that were registered for a copy to host memory, or
    /// loaded from host memory.
    pub offered: u32,
    pub store: Option<DynamoMockerHostCopyId>,
    pub load: Option<DynamoMockerHostCopyId>,
    /// Number of the sequence's KV blocks on the GPU after the load from host memory, and number of
    /// KV blocks that all its tokens need. Set until the sequence runs.
    pub loaded: Option<(u32, u32)>,
}

impl DynamoMockerOffloadState {
    pub(super) fn new(config: DynamoMockerHostCacheConfig) -> Self {
        Self {
            tier: DynamoMockerHostCache::new(config),
            seqs: HashMap::new(),
            waiting_for_copy: HashSet::new(),
            waited: 0,
            compute_after: SimTime::ZERO,
        }
    }

    pub(super) fn next_host_copy_end(&self) -> Option<SimTime> {
        self.tier.next_host_copy_end()
    }

    pub(super) fn blocks_needed_after_loads(&self) -> u32 {
        let loads = self.seqs.values().filter_map(|seq| seq.loaded);
        loads.map(|(loaded, all)| all.saturating_sub(loaded)).sum()
    }
}
