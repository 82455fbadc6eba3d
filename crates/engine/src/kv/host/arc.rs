//! Implements the `arc` eviction policy of the prefix cache in host memory.
//!
//! **Source:** vLLM 0.33 `vllm/v1/kv_offload/cpu/policies/arc.py`, `cpu/manager.py`.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{BlockKey, SeqId};

/// Kind of a request's use of a chunk of KV blocks in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostChunkUse {
    /// The request added the chunk of KV blocks to host memory.
    Stored,
    /// The request found the chunk of KV blocks in host memory.
    Reused,
}

#[derive(Debug, Default)]
struct KeyList {
    stamps: HashMap<BlockKey, u64>,
    order: BTreeMap<u64, BlockKey>,
    clock: u64,
}

impl KeyList {
    fn len(&self) -> usize {
        self.stamps.len()
    }

    fn contains(&self, key: BlockKey) -> bool {
        self.stamps.contains_key(&key)
    }

    fn push(&mut self, key: BlockKey) {
        self.clock += 1;
        if let Some(before) = self.stamps.insert(key, self.clock) {
            self.order.remove(&before);
        }
        self.order.insert(self.clock, key);
    }

    fn remove(&mut self, key: BlockKey) -> bool {
        let stamp = self.stamps.remove(&key);
        stamp.is_some_and(|stamp| self.order.remove(&stamp).is_some())
    }

    fn keep_newest(&mut self, most: u32) {
        while self.len() > most as usize
            && let Some((_, key)) = self.order.pop_first()
        {
            self.stamps.remove(&key);
        }
    }

    fn oldest_first(&self) -> impl Iterator<Item = BlockKey> {
        self.order.values().copied()
    }
}

#[derive(Debug, Default)]
struct RequestChunkAccesses {
    /// Keys of the chunks of KV blocks that the request wanted to store and host memory did not
    /// hold, each key once.
    missed: HashSet<BlockKey>,
    /// Keys of the chunks of KV blocks that the request used, by position in the prompt.
    used: BTreeMap<(u32, u32), (BlockKey, HostChunkUse)>,
}

/// Adaptive replacement cache of chunks of KV blocks, which separates chunks used by one request
/// (`recent`) from chunks used by several requests. The target size of `recent` grows and shrinks
/// with evictions that were too early.
#[derive(Debug, Default)]
pub(super) struct ArcEvictionPolicy {
    capacity: u32,
    recent: KeyList,
    /// Target size of `recent`, the list of chunks of KV blocks that only one request has used, in
    /// chunks.
    target: f64,
    frequent: KeyList,
    ghosts: [KeyList; 2],
    requests: HashMap<SeqId, RequestChunkAccesses>,
}

impl ArcEvictionPolicy {
    pub(super) fn with_chunk_capacity(capacity_chunks: u32) -> Self {
        Self { capacity: capacity_chunks, ..Self::default() }
    }

    /// Records the chunks of KV blocks that a request did not find in host memory and wants to
    /// store there, in prompt order from the start.
    pub(super) fn record_missed_chunks(&mut self, id: SeqId, keys: impl Iterator<Item = BlockKey>) {
        let seen = &mut self.requests.entry(id).or_default().missed;
        let new: Vec<_> = keys.filter(|key| seen.insert(*key)).collect();
        for key in new.into_iter().rev() {
            self.adapt_recent_target(key);
        }
    }

    fn adapt_recent_target(&mut self, key: BlockKey) {
        let [recent, frequent] = &mut self.ghosts;
        let ratio = frequent.len() as f64 / recent.len() as f64;
        if recent.contains(key) {
            self.target = (self.target + ratio.max(1.0)).min(f64::from(self.capacity));
            recent.push(key);
        } else if frequent.contains(key) {
            self.target = (self.target - ratio.recip().max(1.0)).max(0.0);
            frequent.push(key);
        }
    }

    pub(super) fn record_chunk_use(
        &mut self,
        id: SeqId,
        place: (u32, u32),
        key: BlockKey,
        how: HostChunkUse,
    ) {
        let used = &mut self.requests.entry(id).or_default().used;
        used.entry(place).or_insert((key, how));
    }

    /// Marks the chunks of KV blocks that an ended request used as recently used. The last chunk is
    /// marked first, so that it is evicted first.
    pub(super) fn reorder_chunks_after_request(&mut self, id: SeqId) {
        let used = self.requests.remove(&id).unwrap_or_default().used;
        for (key, how) in used.into_values().rev() {
            if how == HostChunkUse::Stored && self.recent.contains(key) {
                self.recent.push(key);
            } else if self.recent.remove(key) || self.frequent.contains(key) {
                self.frequent.push(key);
            }
        }
    }

    pub(super) fn insert_recent_chunk(&mut self, key: BlockKey) {
        self.recent.push(key);
        for ghosts in &mut self.ghosts {
            ghosts.remove(key);
        }
    }

    /// Returns the first `n` chunks of KV blocks, in the order of eviction, for which `may` returns
    /// true. Returns `None` if there are fewer.
    pub(super) fn choose_chunks_to_evict(
        &self,
        n: usize,
        may: impl Fn(BlockKey) -> bool,
    ) -> Option<Vec<BlockKey>> {
        let mut recent = self.recent.oldest_first().filter(|key| may(*key));
        let mut frequent = self.frequent.oldest_first().filter(|key| may(*key));
        let mut left = self.recent.len();
        let mut victims = Vec::with_capacity(n);
        for _ in 0..n {
            let is_over = left >= self.target as usize;
            let mut taken = is_over.then(|| recent.next()).flatten();
            left -= usize::from(taken.is_some());
            taken = taken.or_else(|| frequent.next());
            victims.push(match taken {
                Some(key) => key,
                None => {
                    let key = recent.next()?;
                    left -= 1;
                    key
                }
            });
        }
        Some(victims)
    }

    pub(super) fn record_chunk_eviction(&mut self, key: BlockKey) {
        let from = usize::from(!self.recent.remove(key));
        self.frequent.remove(key);
        self.ghosts[from].push(key);
        self.ghosts[from].keep_newest(self.capacity);
    }
}
