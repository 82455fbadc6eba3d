//! Simulates the prefix cache in host memory of Dynamo's mocker (`native_host_offload`), one per
//! rank.
//!
//! Prompt blocks are copied to it after the pass that computed them; those of a request and pass
//! are stored all or none. Copies of one direction run one after another.
//!
//! **Source:** aisimulate-core 0.13.0 `src/engine/host_offload/tier.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use crate::{BlockKey, SeqId, SimTime};

/// Configures the prefix cache in host memory of Dynamo's mocker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DynamoMockerHostCacheConfig {
    /// Capacity of host memory, in KV blocks; at least 1.
    pub blocks: u32,
    /// Fixed time before a copy between GPU and host memory transfers data; other copies in the
    /// same direction proceed during that time.
    pub latency: Duration,
    /// Copy time per KV block, in nanoseconds: from GPU to host memory, and back.
    pub block_ns: (f64, f64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DynamoMockerHostBlockState {
    Missing,
    Busy,
    Ready,
}

pub(crate) type DynamoMockerHostCopyId = u64;

/// Copy of KV blocks between GPU and host memory. Of copies that end at the same time, copies to
/// host memory end first.
#[derive(Debug)]
pub(crate) struct DynamoMockerHostCopy {
    pub(crate) seq: SeqId,
    pub(crate) to_host: bool,
    keys: Vec<BlockKey>,
    sources: Vec<u32>,
}

#[derive(Debug, Default)]
struct MockerHostCacheEntry {
    storing: bool,
    pins: u32,
    /// Recency of the KV block in host memory: value of a counter at its last use; `None` while the
    /// block cannot be evicted.
    used: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct DynamoMockerHostCache {
    config: DynamoMockerHostCacheConfig,
    entries: HashMap<BlockKey, MockerHostCacheEntry>,
    /// Evictable KV blocks in host memory, least recently used first.
    oldest: BTreeSet<(u64, BlockKey)>,
    clock: u64,
    copies: BTreeMap<(SimTime, bool, DynamoMockerHostCopyId), DynamoMockerHostCopy>,
    ends: HashMap<DynamoMockerHostCopyId, SimTime>,
    /// Copies of KV blocks to host memory that start at the end of the current scheduling pass.
    prepared: Vec<(DynamoMockerHostCopyId, DynamoMockerHostCopy)>,
    /// End time of the last queued copy of KV blocks in each direction: to host memory, and to the
    /// GPU.
    tails: (SimTime, SimTime),
    /// For each KV block on the GPU, the end time of the last copy to host memory that reads the
    /// block.
    read: HashMap<u32, SimTime>,
    next: DynamoMockerHostCopyId,
}

impl DynamoMockerHostCache {
    pub(crate) fn new(config: DynamoMockerHostCacheConfig) -> Self {
        Self {
            config,
            entries: HashMap::new(),
            oldest: BTreeSet::new(),
            clock: 0,
            copies: BTreeMap::new(),
            ends: HashMap::new(),
            prepared: Vec::new(),
            tails: (SimTime::ZERO, SimTime::ZERO),
            read: HashMap::new(),
            next: 0,
        }
    }

    pub(crate) fn host_block_state(&self, key: BlockKey) -> DynamoMockerHostBlockState {
        match self.entries.get(&key) {
            None => DynamoMockerHostBlockState::Missing,
            Some(entry) if entry.storing || entry.pins > 0 => DynamoMockerHostBlockState::Busy,
            Some(_) => DynamoMockerHostBlockState::Ready,
        }
    }

    /// Marks the KV blocks of a prompt in host memory as used, the last block first, so that the
    /// first block is evicted last. Skips blocks that are being copied.
    pub(crate) fn mark_prompt_blocks_used(&mut self, keys: &[BlockKey]) {
        for key in keys.iter().rev() {
            if self.host_block_state(*key) == DynamoMockerHostBlockState::Ready {
                self.clock += 1;
                self.make_evictable(*key);
            }
        }
    }

    fn make_evictable(&mut self, key: BlockKey) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        if let Some(before) = entry.used.replace(self.clock) {
            self.oldest.remove(&(before, key));
        }
        self.oldest.insert((self.clock, key));
    }

    /// Prepares the copy to host memory of the prompt blocks that host memory does not hold yet.
    /// Returns `None` if host memory has no room for all of them.
    pub(crate) fn prepare_host_store(
        &mut self,
        seq: SeqId,
        blocks: &[(BlockKey, u32)],
    ) -> Option<DynamoMockerHostCopyId> {
        let kept: HashSet<BlockKey> = blocks.iter().map(|(key, _)| *key).collect();
        let mut missing: Vec<(BlockKey, u32)> = Vec::new();
        for (key, block) in blocks {
            let known = missing.iter().any(|(other, _)| other == key);
            if !known && !self.entries.contains_key(key) {
                missing.push((*key, *block));
            }
        }
        let room = (self.config.blocks as usize).saturating_sub(self.entries.len());
        let lacking = missing.len().saturating_sub(room);
        let may = self.oldest.iter().filter(|(_, key)| !kept.contains(key));
        let victims: Vec<(u64, BlockKey)> = may.take(lacking).copied().collect();
        if victims.len() < lacking {
            return None;
        }
        for victim in victims {
            self.oldest.remove(&victim);
            self.entries.remove(&victim.1);
        }
        for (key, _) in &missing {
            let entry = MockerHostCacheEntry { storing: true, ..MockerHostCacheEntry::default() };
            self.entries.insert(*key, entry);
        }
        let id = self.next_copy_id();
        let (keys, sources) = missing.into_iter().unzip();
        let copy = DynamoMockerHostCopy { seq, to_host: true, keys, sources };
        self.prepared.push((id, copy));
        Some(id)
    }

    fn next_copy_id(&mut self) -> DynamoMockerHostCopyId {
        self.next += 1;
        self.next
    }

    pub(crate) fn start_prepared_host_stores(&mut self, now: SimTime) {
        for (id, copy) in std::mem::take(&mut self.prepared) {
            let end = self.start_copy(now, id, copy);
            for block in &self.copies[&(end, false, id)].sources {
                self.read.insert(*block, end);
            }
        }
    }

    fn start_copy(
        &mut self,
        from: SimTime,
        id: DynamoMockerHostCopyId,
        copy: DynamoMockerHostCopy,
    ) -> SimTime {
        let (tail, block) = match copy.to_host {
            true => (&mut self.tails.0, self.config.block_ns.0),
            false => (&mut self.tails.1, self.config.block_ns.1),
        };
        let takes = (copy.keys.len() as f64 * block).round() as u64;
        let begins = (*tail).max(from + self.config.latency);
        *tail = begins + Duration::from_nanos(takes);
        let end = *tail;
        self.copies.insert((end, !copy.to_host, id), copy);
        self.ends.insert(id, end);
        end
    }

    /// Returns the time at which the last copy from the GPU KV blocks `blocks` ends.
    pub(crate) fn last_block_read_end(&self, blocks: &[u32]) -> SimTime {
        let ends = blocks.iter().filter_map(|block| self.read.get(block));
        ends.copied().max().unwrap_or(SimTime::ZERO)
    }

    /// Starts to copy a sequence's KV blocks `keys` from host memory to the GPU, at `from` or
    /// later.
    pub(crate) fn start_host_load(
        &mut self,
        seq: SeqId,
        keys: Vec<BlockKey>,
        from: SimTime,
    ) -> DynamoMockerHostCopyId {
        for key in &keys {
            if let Some(entry) = self.entries.get_mut(key) {
                entry.pins += 1;
                if let Some(used) = entry.used.take() {
                    self.oldest.remove(&(used, *key));
                }
            }
        }
        let id = self.next_copy_id();
        let copy = DynamoMockerHostCopy { seq, to_host: false, keys, sources: Vec::new() };
        self.start_copy(from, id, copy);
        id
    }

    /// Cancels a copy from host memory to the GPU. Later copies in that direction still wait for
    /// the planned end of the cancelled copy.
    pub(crate) fn cancel_host_load(&mut self, id: DynamoMockerHostCopyId) {
        let Some(end) = self.ends.remove(&id) else {
            return;
        };
        if let Some(copy) = self.copies.remove(&(end, true, id)) {
            self.unpin_blocks(&copy.keys);
        }
    }

    pub(crate) fn host_copy_end_time(&self, id: DynamoMockerHostCopyId) -> Option<SimTime> {
        self.ends.get(&id).copied()
    }

    pub(crate) fn is_host_copy_unfinished(&self, id: DynamoMockerHostCopyId) -> bool {
        self.ends.contains_key(&id) || self.prepared.iter().any(|(other, _)| *other == id)
    }

    pub(crate) fn next_host_copy_end(&self) -> Option<SimTime> {
        self.copies.first_key_value().map(|((end, ..), _)| *end)
    }

    /// Completes and returns the next copy between GPU and host memory that ends at or before
    /// `now`.
    pub(crate) fn pop_finished_host_copy(&mut self, now: SimTime) -> Option<DynamoMockerHostCopy> {
        self.next_host_copy_end().filter(|end| *end <= now)?;
        let ((end, _, id), copy) = self.copies.pop_first()?;
        self.ends.remove(&id);
        if !copy.to_host {
            self.unpin_blocks(&copy.keys);
            return Some(copy);
        }
        for block in &copy.sources {
            // A later copy may read the block that reuses this place.
            if self.read.get(block) == Some(&end) {
                self.read.remove(block);
            }
        }
        self.clock += 1;
        for key in &copy.keys {
            if let Some(entry) = self.entries.get_mut(key) {
                entry.storing = false;
            }
            self.make_evictable(*key);
        }
        Some(copy)
    }

    /// Ends reads of KV blocks in host memory. Blocks without further reads become evictable, all
    /// with the same time of last use.
    fn unpin_blocks(&mut self, keys: &[BlockKey]) {
        self.clock += 1;
        for key in keys {
            let Some(entry) = self.entries.get_mut(key) else {
                continue;
            };
            entry.pins -= 1;
            if entry.pins == 0 && !entry.storing {
                self.make_evictable(*key);
            }
        }
    }
}
