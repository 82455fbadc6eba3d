//! Simulates a second prefix cache in host memory.
//!
//! Blocks are copied to it after the step that computed them, whether or not the GPU will evict
//! them. They are copied back if a prompt begins with blocks that are missing on the GPU. Copies of
//! one direction run one after another; the two directions are independent. The end of a copy takes
//! effect at the end of a step, or immediately while no step runs.
//!
//! **Source:** vLLM 0.33 `vllm/v1/kv_offload/cpu/{manager,gpu_worker}.py`,
//! `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`,
//! `vllm/v1/simple_kv_offload/manager.py`.

mod arc;
mod chunks;
mod lookup;
mod offers;

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Group;
use crate::{BlockKey, BlockPlan, CopyDirection, Event, HostEvent, SeqId, SimTime};
use arc::{ArcPolicy, ChunkUse};
use chunks::{ChunkState, HostChunks, Recency};
pub(crate) use lookup::HostRequest;
use offers::Offers;

/// Configures the prefix cache in host memory (`--kv-offloading-size`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTierConfig {
    /// vLLM connector whose behavior is simulated.
    pub rules: HostRules,
    /// Eviction policy of the chunks in host memory.
    pub eviction: HostEviction,
    /// Capacity of the prefix cache in host memory, in chunks of `blocks_per_chunk` KV blocks; at
    /// least 1.
    pub chunks: u32,
    /// Number of KV blocks per chunk, at least 1. Default: 1.
    pub blocks_per_chunk: u32,
    /// Size of a chunk in bytes, summed over all GPUs.
    pub chunk_bytes: u64,
    /// Whether KV blocks with generated tokens are copied to host memory too.
    pub outputs: bool,
    /// Number of offers of a chunk before it is copied to host memory, and maximum number of chunks
    /// whose offers are counted; `None`: copied at the first offer. Default: `None`.
    pub threshold: Option<(u32, usize)>,
    /// Fixed time of a copy between GPU and host memory, in addition to the time per chunk.
    pub latency: Duration,
    /// Copy time per chunk: from GPU to host memory, and back.
    pub chunk_time: (Duration, Duration),
}

/// Selects one of vLLM's two connectors for KV offloading to host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostRules {
    /// `OffloadingConnector`: of the chunks that a request computes in a step, all are stored or
    /// none. The last use of a chunk is that of the request. A hit may cover a whole prompt.
    #[default]
    Native,
    /// `SimpleCPUOffloadConnector`: the chunks that fit are stored. The last use of a chunk is that
    /// of the copy. A hit never includes the last token.
    Simple,
}

/// Selects the eviction policy of the prefix cache in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostEviction {
    /// The least recently used chunk is evicted first.
    #[default]
    Lru,
    /// Adaptive replacement cache of `OffloadingConnector`; separates chunks used by several
    /// requests from others.
    Arc,
}

/// Counts the chunks in host memory by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostCounts {
    /// Capacity of host memory, in chunks.
    pub total: u32,
    /// Number of stored chunks, including those being written.
    pub used: u32,
    /// Number of chunks being written to host memory.
    pub storing: u32,
    /// Number of reads of chunks in progress.
    pub loading: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostHit {
    /// A copy of the prompt's chunks is in progress; look up again later.
    Wait,
    Blocks(u32),
}

#[derive(Debug)]
pub(crate) struct StoreCopy {
    id: SeqId,
    plan: Arc<BlockPlan>,
    chunks: Vec<CopiedChunk>,
    generation: u32,
}

#[derive(Debug, Clone, Copy)]
struct CopiedChunk {
    group: u32,
    at: u32,
    id: u32,
}

#[derive(Debug)]
struct LoadCopy {
    id: SeqId,
    chunks: Vec<CopiedChunk>,
    generation: u32,
}

/// Queue of the copies in one direction between GPU and host memory, in order of their ends.
#[derive(Debug)]
struct CopyLane<T> {
    copies: VecDeque<(SimTime, Duration, T)>,
    tail: SimTime,
}

impl<T> CopyLane<T> {
    fn new() -> Self {
        Self {
            copies: VecDeque::new(),
            tail: SimTime::ZERO,
        }
    }

    /// Queues a copy that takes `takes` and starts at `from` or later. Returns the end of the copy.
    fn push(&mut self, from: SimTime, takes: Duration, copy: T) -> SimTime {
        self.tail = self.tail.max(from) + takes;
        self.copies.push_back((self.tail, takes, copy));
        self.tail
    }

    fn next_due(&self) -> Option<SimTime> {
        self.copies.front().map(|(end, ..)| *end)
    }

    fn pop_due(&mut self, now: SimTime) -> Option<(SimTime, Duration, T)> {
        self.next_due().filter(|end| *end <= now)?;
        self.copies.pop_front()
    }
}

#[derive(Debug, Default)]
struct HostSequence {
    /// Time of last use for all chunks of the request, as a counter value; 0 if it has used none.
    epoch: u64,
    offered: u32,
    copies: u32,
    /// End of the request's last started copy to host memory.
    copied: SimTime,
    /// Start of the request's lookup, while the lookup waits for copies.
    asked: Option<SimTime>,
    /// Whether the request has ended and its entry remains only for its copies.
    ended: bool,
}

pub(crate) struct LoadEnded(pub(crate) SeqId);

#[derive(Debug)]
pub(crate) struct HostTier {
    config: HostTierConfig,
    groups: Vec<Group>,
    chunks: HostChunks,
    seqs: HashMap<SeqId, HostSequence>,
    stores: CopyLane<StoreCopy>,
    loads: CopyLane<LoadCopy>,
    offers: Offers,
    epoch: u64,
    generation: u32,
    pub(crate) deferred: usize,
    events: bool,
}

fn new_chunks(config: &HostTierConfig) -> HostChunks {
    let arc = match config.eviction {
        HostEviction::Arc => Some(Box::new(ArcPolicy::new(config.chunks))),
        HostEviction::Lru => None,
    };
    HostChunks::new(config.chunks, arc)
}

impl HostTier {
    pub(crate) fn new(config: HostTierConfig, groups: Vec<Group>, events: bool) -> Self {
        Self {
            chunks: new_chunks(&config),
            config,
            groups,
            seqs: HashMap::new(),
            stores: CopyLane::new(),
            loads: CopyLane::new(),
            offers: Offers::default(),
            epoch: 0,
            generation: 0,
            deferred: 0,
            events,
        }
    }

    pub(crate) fn counts(&self) -> HostCounts {
        HostCounts {
            total: self.config.chunks,
            used: self.chunks.len(),
            storing: self.chunks.storing,
            loading: self.chunks.loading,
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = BlockKey> {
        self.chunks.names().map(|(_, key)| key)
    }

    pub(crate) fn keeps_outputs(&self) -> bool {
        self.config.outputs
    }

    fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    /// Returns the counter value for the last use of a sequence's chunks, assigned at its first use
    /// of a chunk.
    fn epoch_of(&mut self, id: SeqId) -> u64 {
        let seq = self.seqs.entry(id).or_default();
        if seq.epoch == 0 {
            self.epoch += 1;
            seq.epoch = self.epoch;
        }
        seq.epoch
    }

    fn takes(&self, chunks: usize, each: Duration) -> Duration {
        let chunks = u32::try_from(chunks).unwrap_or(u32::MAX);
        self.config
            .latency
            .saturating_add(each.saturating_mul(chunks))
    }

    /// Reserves room in host memory for the chunks not stored yet among the first `blocks` full
    /// blocks of a plan, which a step computes. Returns `None` if all are stored or there is no
    /// room.
    pub(crate) fn offer(
        &mut self,
        id: SeqId,
        plan: &Arc<BlockPlan>,
        blocks: u32,
        is_kept: impl Fn(usize, u32) -> bool,
        out: &mut impl FnMut(Event),
    ) -> Option<StoreCopy> {
        let size = self.config.blocks_per_chunk;
        let end = self.full(plan, blocks);
        let from = self.seqs.get(&id).map_or(0, |seq| seq.offered);
        if from >= end {
            return None;
        }
        let epoch = match self.config.rules {
            HostRules::Native => self.epoch_of(id),
            HostRules::Simple => self.next_epoch(),
        };
        let (mut missing, mut present) = (Vec::new(), HashSet::new());
        let groups = self.groups.len();
        let all = (0..groups).flat_map(|group| (from..end).map(move |at| (group, at)));
        // Chunks of several blocks exist only with a single group, which keeps all blocks.
        let is_kept = |&(group, at): &(usize, u32)| size > 1 || is_kept(group, at);
        for (group, at) in all.filter(is_kept) {
            let Some(key) = self.key(plan, group, at) else {
                continue;
            };
            let threshold = self.config.threshold;
            let is_wanted =
                threshold.is_none_or(|(least, most)| self.offers.count(key, most) >= least);
            match self.chunks.find(key) {
                None if !is_wanted => {}
                None => missing.push((group, at, key)),
                Some(chunk) => {
                    if self.config.rules == HostRules::Native {
                        self.chunks.touch(chunk, (epoch, Reverse(at)));
                    }
                    if self.chunks.state(chunk) != ChunkState::Storing {
                        let place = (at, self.groups[group].index);
                        self.chunks.used(id, chunk, place, ChunkUse::Reused);
                    }
                    present.insert(chunk);
                }
            }
        }
        if let Some(arc) = &mut self.chunks.arc {
            arc.missed(id, missing.iter().map(|&(.., key)| key));
        }
        let never = missing.len() > self.config.chunks as usize;
        if self.make_room(&mut missing, &present, out).is_none() {
            if never {
                self.seqs.entry(id).or_default().offered = end;
            }
            return None;
        }
        let seq = self.seqs.entry(id).or_default();
        seq.offered = end;
        if missing.is_empty() {
            return None;
        }
        seq.copies += 1;
        Some(self.insert_chunks(id, plan, epoch, missing))
    }

    fn insert_chunks(
        &mut self,
        seq: SeqId,
        plan: &Arc<BlockPlan>,
        epoch: u64,
        missing: Vec<(usize, u32, BlockKey)>,
    ) -> StoreCopy {
        let last = |at: u32| (at as usize + 1) * self.config.blocks_per_chunk as usize - 1;
        let mut chunks = Vec::with_capacity(missing.len());
        for (group, at, key) in missing {
            // A plan may contain a block twice.
            if self.chunks.find(key).is_some() {
                continue;
            }
            let hash = plan.hashes.get(last(at)).filter(|_| self.events).copied();
            let group = self.groups[group].index;
            let recency: Recency = (epoch, Reverse(at));
            let name = (group, plan.keys[last(at)]);
            let id = self.chunks.insert(key, name, hash, recency);
            self.chunks.used(seq, id, (at, group), ChunkUse::Stored);
            chunks.push(CopiedChunk { group, at, id });
        }
        StoreCopy {
            id: seq,
            plan: Arc::clone(plan),
            chunks,
            generation: self.generation,
        }
    }

    /// Returns whether some of the first `blocks` KV blocks of a sequence were not yet offered for
    /// storing.
    pub(crate) fn has_unstored_blocks(&self, id: SeqId, plan: &BlockPlan, blocks: u32) -> bool {
        let offered = self.seqs.get(&id).map_or(0, |seq| seq.offered);
        offered < self.full(plan, blocks)
    }

    /// Evicts chunks until the missing ones fit in host memory. If that is impossible, evicts none
    /// and returns `None`.
    fn make_room(
        &mut self,
        missing: &mut Vec<(usize, u32, BlockKey)>,
        kept: &HashSet<u32>,
        out: &mut impl FnMut(Event),
    ) -> Option<()> {
        let lacking = missing.len().saturating_sub(self.chunks.room() as usize);
        let victims = self.chunks.victims(lacking, kept);
        if victims.len() < lacking {
            out(Event::Host(Box::new(HostEvent::Refused)));
            if self.config.rules == HostRules::Native {
                return None;
            }
            missing.truncate(self.chunks.room() as usize + victims.len());
        }
        if !missing.is_empty() {
            let chunks = missing.len() as u32;
            out(Event::Host(Box::new(HostEvent::Allocated { chunks })));
        }
        let keys = victims.into_iter().map(|id| self.chunks.evict(id));
        let keys: Vec<_> = keys.collect();
        if self.events && !keys.is_empty() {
            out(Event::Host(Box::new(HostEvent::Removed { keys })));
        }
        Some(())
    }

    /// Starts a copy to host memory, after the step that computed the KV blocks.
    pub(crate) fn store(&mut self, now: SimTime, copy: StoreCopy) {
        let takes = self.takes(copy.chunks.len(), self.config.chunk_time.0);
        let id = copy.id;
        let end = self.stores.push(now, takes, copy);
        if let Some(seq) = self.seqs.get_mut(&id) {
            seq.copied = end;
        }
    }

    pub(crate) fn is_loading(&self) -> bool {
        self.loads.next_due().is_some()
    }

    pub(crate) fn next_due(&self) -> Option<SimTime> {
        match (self.stores.next_due(), self.loads.next_due()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub(crate) fn copied(&self, id: SeqId) -> SimTime {
        self.seqs.get(&id).map_or(SimTime::ZERO, |seq| seq.copied)
    }

    /// Completes the copies that end by `now`. Returns the sequences whose copy to the GPU has
    /// ended.
    pub(crate) fn complete(&mut self, now: SimTime, out: &mut impl FnMut(Event)) -> Vec<LoadEnded> {
        while let Some((_, took, copy)) = self.stores.pop_due(now) {
            self.stored(took, copy, out);
        }
        let mut loaded = Vec::new();
        while let Some((_, took, copy)) = self.loads.pop_due(now) {
            let chunks = copy.chunks.len();
            if copy.generation == self.generation {
                let epoch = match self.config.rules {
                    HostRules::Native => None,
                    HostRules::Simple => Some(self.next_epoch()),
                };
                for chunk in &copy.chunks {
                    self.chunks.unpin(chunk.id);
                    if let Some(epoch) = epoch {
                        self.chunks.touch(chunk.id, (epoch, Reverse(chunk.at)));
                    }
                }
            }
            out(self.copied_event(CopyDirection::ToDevice, chunks, took));
            self.copy_ended(copy.id);
            loaded.push(LoadEnded(copy.id));
        }
        loaded
    }

    fn stored(&mut self, took: Duration, copy: StoreCopy, out: &mut impl FnMut(Event)) {
        let count = copy.chunks.len();
        if copy.generation == self.generation {
            for chunk in &copy.chunks {
                self.chunks.stored(chunk.id);
            }
            if self.events && count > 0 {
                let chunks = copy.chunks.iter();
                let chunks = chunks.map(|chunk| (chunk.group, chunk.at)).collect();
                out(Event::Host(Box::new(HostEvent::Stored {
                    plan: Arc::clone(&copy.plan),
                    chunks,
                    blocks_per_chunk: self.config.blocks_per_chunk,
                })));
            }
        }
        out(self.copied_event(CopyDirection::ToHost, count, took));
        self.copy_ended(copy.id);
    }

    fn copied_event(&self, direction: CopyDirection, chunks: usize, took: Duration) -> Event {
        let bytes = self.config.chunk_bytes.saturating_mul(chunks as u64);
        Event::Host(Box::new(HostEvent::Copied {
            direction,
            bytes,
            took,
        }))
    }

    fn copy_ended(&mut self, id: SeqId) {
        if let Some(seq) = self.seqs.get_mut(&id) {
            seq.copies -= 1;
            if seq.copies == 0 && seq.ended {
                self.seqs.remove(&id);
            }
        }
    }

    /// Handles the end of a sequence: marks its chunks as used once more, from the last to the
    /// first.
    pub(crate) fn ended(&mut self, id: SeqId, plan: Option<&Arc<BlockPlan>>) {
        let Some(seq) = self.seqs.get_mut(&id) else {
            return;
        };
        if seq.asked.take().is_some() {
            self.deferred -= 1;
        }
        seq.ended = true;
        let offered = seq.offered;
        if seq.copies == 0 {
            self.seqs.remove(&id);
        }
        if let Some(arc) = &mut self.chunks.arc {
            arc.finished(id);
        }
        if let Some(plan) = plan
            && self.config.rules == HostRules::Native
        {
            let epoch = self.next_epoch();
            self.touch(plan, offered, epoch);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.chunks = new_chunks(&self.config);
        self.generation = self.generation.wrapping_add(1);
    }
}
