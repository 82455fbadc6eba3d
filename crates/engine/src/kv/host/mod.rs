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
mod uses;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::LayerGroup;
use crate::{
    BlockKey, HostCacheEvent, HostCopyDirection, PlannedKvBlocks, SchedulerEvent, SeqId, SimTime,
};
use arc::{ArcEvictionPolicy, HostChunkUse};
use chunks::{ChunkRecency, HostChunkState, HostChunks};
pub(crate) use lookup::HostCacheLookupRequest;
use offers::ChunkOfferCounts;
use uses::EndedHostCacheRequest;

/// Configures the prefix cache in host memory (`--kv-offloading-size`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCacheConfig {
    /// KV offloading connector of vLLM whose behavior is simulated.
    pub rules: OffloadConnector,
    /// Eviction policy of the chunks of KV blocks in host memory.
    pub eviction: HostCacheEvictionPolicy,
    /// Capacity of the prefix cache in host memory, in chunks of `blocks_per_chunk` KV blocks; at
    /// least 1.
    pub chunks: u32,
    /// Number of KV blocks per chunk in host memory, at least 1. Default: 1.
    pub blocks_per_chunk: u32,
    /// Size of a chunk of KV blocks in bytes, summed over all GPUs.
    pub chunk_bytes: u64,
    /// Whether KV blocks with generated tokens are copied to host memory too.
    pub outputs: bool,
    /// Number of times that requests must ask to store a chunk of KV blocks before it is copied to
    /// host memory, and maximum number of chunks that are counted. `None`: the first request copies
    /// a chunk. Default: `None`.
    pub threshold: Option<(u32, usize)>,
    /// Fixed time of a copy between GPU and host memory, in addition to the time per chunk.
    pub latency: Duration,
    /// Copy time per chunk of KV blocks: from GPU to host memory, and back.
    pub chunk_time: (Duration, Duration),
}

/// Selects one of vLLM's two connectors for KV offloading to host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OffloadConnector {
    /// `OffloadingConnector` stores all or none of the chunks of KV blocks that a request computes
    /// in a step. The recency of a chunk is that of the request that last used it. A hit may cover
    /// a whole prompt.
    #[default]
    Native,
    /// `SimpleCPUOffloadConnector` stores the chunks of KV blocks that fit. The recency of a chunk
    /// is that of the last copy that wrote or read it. A hit never includes the last token.
    Simple,
}

/// Selects the eviction policy of the prefix cache in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostCacheEvictionPolicy {
    /// The least recently used chunk of KV blocks is evicted first.
    #[default]
    Lru,
    /// Adaptive replacement cache of `OffloadingConnector`; separates chunks used by several
    /// requests from others.
    Arc,
}

/// Counts the chunks of KV blocks in host memory by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostCacheChunkCounts {
    /// Capacity of the prefix cache in host memory, in chunks.
    pub total: u32,
    /// Number of chunks of KV blocks in host memory, including those being written.
    pub used: u32,
    /// Number of chunks of KV blocks being written to host memory.
    pub storing: u32,
    /// Number of reads of chunks from host memory that are in progress.
    pub loading: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostCacheLookupResult {
    /// The lookup in host memory must be repeated later, because a copy of the prompt's KV blocks
    /// is in progress.
    Wait,
    Blocks(u32),
}

#[derive(Debug)]
pub(crate) struct HostStoreCopy {
    id: SeqId,
    plan: Arc<PlannedKvBlocks>,
    chunks: Vec<CopiedChunk>,
    blocks_per_chunk: u32,
    /// Ids of the KV blocks on the GPU that the copy reads; empty if the KV cache has several layer
    /// groups.
    sources: Vec<u32>,
    generation: u32,
}

impl HostStoreCopy {
    /// Sets the KV blocks on the GPU that the copy to host memory reads. `ids` are all GPU blocks
    /// of the sequence, in a model with a single layer group.
    pub(crate) fn set_source_blocks(&mut self, ids: &[u32]) {
        let size = self.blocks_per_chunk as usize;
        let blocks = self.chunks.iter().filter_map(|chunk| {
            let first = chunk.at as usize * size;
            ids.get(first..first + size)
        });
        self.sources = blocks.flatten().copied().collect();
    }

    fn reads_any_of(&self, blocks: &HashSet<u32>) -> bool {
        self.sources.iter().any(|block| blocks.contains(block))
    }
}

#[derive(Debug, Clone, Copy)]
struct CopiedChunk {
    group: u32,
    at: u32,
    id: u32,
}

#[derive(Debug)]
struct HostLoadCopy {
    id: SeqId,
    chunks: Vec<CopiedChunk>,
    generation: u32,
}

/// Queue of the copies of KV blocks in one direction between GPU and host memory, in order of their
/// end times.
#[derive(Debug)]
struct HostCopyQueue<T> {
    copies: VecDeque<(SimTime, Duration, T)>,
    tail: SimTime,
}

impl<T> HostCopyQueue<T> {
    fn new() -> Self {
        Self { copies: VecDeque::new(), tail: SimTime::ZERO }
    }

    /// Queues a copy between GPU and host memory that starts at `from` or later and lasts `takes`.
    /// Returns the end of the copy.
    fn push(&mut self, from: SimTime, takes: Duration, copy: T) -> SimTime {
        self.tail = self.tail.max(from) + takes;
        self.copies.push_back((self.tail, takes, copy));
        self.tail
    }

    /// Postpones the newest `count` copies between GPU and host memory, so that they start at
    /// `from` or later.
    fn postpone_newest(&mut self, count: usize, from: SimTime) {
        let first = self.copies.len().saturating_sub(count);
        let mut newest = self.copies.range_mut(first..).peekable();
        if let Some((end, takes, _)) = newest.peek() {
            let start = SimTime::ZERO + end.duration_since(SimTime::ZERO).saturating_sub(*takes);
            self.tail = from.max(start);
            for (end, takes, _) in newest {
                self.tail += *takes;
                *end = self.tail;
            }
        }
    }

    fn next_copy_end(&self) -> Option<SimTime> {
        self.copies.front().map(|(end, ..)| *end)
    }

    fn pop_finished_copy(&mut self, now: SimTime) -> Option<(SimTime, Duration, T)> {
        self.next_copy_end().filter(|end| *end <= now)?;
        self.copies.pop_front()
    }
}

#[derive(Debug, Default)]
struct HostSequenceState {
    /// Recency of the request's chunks of KV blocks in host memory: value of a counter at the
    /// request's first use; 0 if it has used none.
    epoch: u64,
    offered: u32,
    copies: u32,
    /// End time of the copy to host memory that was started last for the request.
    copied: SimTime,
    /// Start time of the request's lookup in host memory, while the lookup waits for copies.
    asked: Option<SimTime>,
    /// Chunks of KV blocks that the request stored, loaded or found, by position and layer group.
    used: BTreeMap<(u32, u32), BlockKey>,
    /// Whether the request has ended and is only kept until its copies end.
    ended: bool,
}

pub(crate) struct EndedHostLoad(pub(crate) SeqId);

#[derive(Debug)]
pub(crate) struct HostCache {
    config: HostCacheConfig,
    groups: Vec<LayerGroup>,
    chunks: HostChunks,
    seqs: HashMap<SeqId, HostSequenceState>,
    stores: HostCopyQueue<HostStoreCopy>,
    loads: HostCopyQueue<HostLoadCopy>,
    offers: ChunkOfferCounts,
    epoch: u64,
    generation: u32,
    pub(crate) deferred: usize,
    events: bool,
    ended: Vec<EndedHostCacheRequest>,
    /// End time of the last copy from each KV block on the GPU to host memory, and the request for
    /// which the block is copied.
    reads: HashMap<u32, (SimTime, SeqId)>,
    /// GPU KV blocks given to sequences in this scheduling pass, if ended requests may still store
    /// the previous content of such blocks.
    reused: HashSet<u32>,
    /// Number of loads of KV blocks from host memory that began in this scheduling pass.
    begun_loads: usize,
}

fn new_chunk_store(config: &HostCacheConfig) -> HostChunks {
    let arc = match config.eviction {
        HostCacheEvictionPolicy::Arc => {
            Some(Box::new(ArcEvictionPolicy::with_chunk_capacity(config.chunks)))
        }
        HostCacheEvictionPolicy::Lru => None,
    };
    HostChunks::with_chunk_capacity(config.chunks, arc)
}

impl HostCache {
    pub(crate) fn new(config: HostCacheConfig, groups: Vec<LayerGroup>, events: bool) -> Self {
        Self {
            chunks: new_chunk_store(&config),
            config,
            groups,
            seqs: HashMap::new(),
            stores: HostCopyQueue::new(),
            loads: HostCopyQueue::new(),
            offers: ChunkOfferCounts::default(),
            epoch: 0,
            generation: 0,
            deferred: 0,
            events,
            ended: Vec::new(),
            reads: HashMap::new(),
            reused: HashSet::new(),
            begun_loads: 0,
        }
    }

    pub(crate) fn chunk_counts(&self) -> HostCacheChunkCounts {
        HostCacheChunkCounts {
            total: self.config.chunks,
            used: self.chunks.chunk_count(),
            storing: self.chunks.storing,
            loading: self.chunks.loading,
        }
    }

    pub(crate) fn chunk_keys(&self) -> impl Iterator<Item = BlockKey> {
        self.chunks.chunk_event_ids().map(|(_, key)| key)
    }

    pub(crate) fn offloads_generated_blocks(&self) -> bool {
        self.config.outputs
    }

    fn next_use_counter(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    /// Returns the recency number of a sequence's chunks of KV blocks in host memory; the sequence
    /// gets the next number when it first uses a chunk.
    fn use_counter_of(&mut self, id: SeqId) -> u64 {
        let seq = self.seqs.entry(id).or_default();
        if seq.epoch == 0 {
            self.epoch += 1;
            seq.epoch = self.epoch;
        }
        seq.epoch
    }

    fn copy_duration(&self, chunks: usize, each: Duration) -> Duration {
        let chunks = u32::try_from(chunks).unwrap_or(u32::MAX);
        self.config.latency.saturating_add(each.saturating_mul(chunks))
    }

    /// Reserves room in host memory for the chunks of a sequence's first `blocks` full KV blocks,
    /// except chunks that are stored already. A step computes these blocks. Returns `None` if all
    /// chunks are stored or there is no room.
    pub(crate) fn offer_blocks_to_host(
        &mut self,
        id: SeqId,
        plan: &Arc<PlannedKvBlocks>,
        blocks: u32,
        is_kept: impl Fn(usize, u32) -> bool,
        out: &mut impl FnMut(SchedulerEvent),
    ) -> Option<HostStoreCopy> {
        let size = self.config.blocks_per_chunk;
        let end = self.full_chunk_count(plan, blocks);
        let from = self.seqs.get(&id).map_or(0, |seq| seq.offered);
        if from >= end {
            return None;
        }
        let (mut missing, mut present) = (Vec::new(), HashSet::new());
        let mut uses = Vec::new();
        let groups = self.groups.len();
        let all = (0..groups).flat_map(|group| (from..end).map(move |at| (group, at)));
        // Chunks of several blocks exist only with a single group, which keeps all blocks.
        let is_kept = |&(group, at): &(usize, u32)| size > 1 || is_kept(group, at);
        for (group, at) in all.filter(is_kept) {
            let Some(key) = self.chunk_key(plan, group, at) else {
                continue;
            };
            let threshold = self.config.threshold;
            let is_wanted = threshold
                .is_none_or(|(least, most)| self.offers.count_chunk_offer(key, most) >= least);
            match self.chunks.find_chunk(key) {
                None if !is_wanted => {}
                None => {
                    uses.push(((at, self.groups[group].index), key));
                    missing.push((group, at, key));
                }
                Some(chunk) => {
                    if self.chunks.chunk_state(chunk) != HostChunkState::Storing {
                        let place = (at, self.groups[group].index);
                        uses.push((place, key));
                        self.chunks.record_chunk_use(id, chunk, place, HostChunkUse::Reused);
                    }
                    present.insert(chunk);
                }
            }
        }
        let epoch = match self.config.rules {
            OffloadConnector::Native => {
                self.record_chunk_uses(id, &uses);
                self.seqs.get(&id).map_or(0, |seq| seq.epoch)
            }
            OffloadConnector::Simple => self.next_use_counter(),
        };
        if let Some(arc) = &mut self.chunks.arc {
            arc.record_missed_chunks(id, missing.iter().map(|&(.., key)| key));
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
        Some(self.reserve_chunks(id, plan, epoch, missing))
    }

    fn reserve_chunks(
        &mut self,
        seq: SeqId,
        plan: &Arc<PlannedKvBlocks>,
        epoch: u64,
        missing: Vec<(usize, u32, BlockKey)>,
    ) -> HostStoreCopy {
        let last = |at: u32| (at as usize + 1) * self.config.blocks_per_chunk as usize - 1;
        let mut chunks = Vec::with_capacity(missing.len());
        for (group, at, key) in missing {
            // A plan may contain a block twice.
            if self.chunks.find_chunk(key).is_some() {
                continue;
            }
            let hash = plan.hashes.get(last(at)).filter(|_| self.events).copied();
            let group = self.groups[group].index;
            let recency: ChunkRecency = (epoch, Reverse(at));
            let name = (group, plan.keys[last(at)]);
            let id = self.chunks.insert_chunk(key, name, hash, recency);
            self.chunks.record_chunk_use(seq, id, (at, group), HostChunkUse::Stored);
            chunks.push(CopiedChunk { group, at, id });
        }
        HostStoreCopy {
            id: seq,
            plan: Arc::clone(plan),
            chunks,
            blocks_per_chunk: self.config.blocks_per_chunk,
            sources: Vec::new(),
            generation: self.generation,
        }
    }

    /// Returns whether the scheduler has not yet asked to store some of the first `blocks` KV
    /// blocks of a sequence in host memory.
    pub(crate) fn has_blocks_unoffered_to_host(
        &self,
        id: SeqId,
        plan: &PlannedKvBlocks,
        blocks: u32,
    ) -> bool {
        let offered = self.seqs.get(&id).map_or(0, |seq| seq.offered);
        offered < self.full_chunk_count(plan, blocks)
    }

    /// Evicts chunks of KV blocks until the missing chunks of a request fit in host memory. If that
    /// is impossible, evicts none and returns `None`.
    fn make_room(
        &mut self,
        missing: &mut Vec<(usize, u32, BlockKey)>,
        kept: &HashSet<u32>,
        out: &mut impl FnMut(SchedulerEvent),
    ) -> Option<()> {
        let lacking = missing.len().saturating_sub(self.chunks.free_chunk_count() as usize);
        let victims = self.chunks.choose_chunks_to_evict(lacking, kept);
        if victims.len() < lacking {
            out(SchedulerEvent::Host(Box::new(HostCacheEvent::Refused)));
            if self.config.rules == OffloadConnector::Native {
                return None;
            }
            missing.truncate(self.chunks.free_chunk_count() as usize + victims.len());
        }
        if !missing.is_empty() {
            let chunks = missing.len() as u32;
            out(SchedulerEvent::Host(Box::new(HostCacheEvent::Allocated { chunks })));
        }
        let keys = victims.into_iter().map(|id| self.chunks.evict_chunk(id));
        let keys: Vec<_> = keys.collect();
        if self.events && !keys.is_empty() {
            out(SchedulerEvent::Host(Box::new(HostCacheEvent::Removed { keys })));
        }
        Some(())
    }

    /// Starts a copy to host memory, after the step that computed the KV blocks. Returns the end of
    /// the copy.
    pub(crate) fn start_host_store(&mut self, now: SimTime, copy: HostStoreCopy) -> SimTime {
        let takes = self.copy_duration(copy.chunks.len(), self.config.chunk_time.0);
        let (id, sources) = (copy.id, copy.sources.clone());
        let end = self.stores.push(now, takes, copy);
        self.reads.extend(sources.into_iter().map(|block| (block, (end, id))));
        if let Some(seq) = self.seqs.get_mut(&id) {
            seq.copied = end;
        }
        end
    }

    /// Postpones the loads of KV blocks that began in this scheduling pass to the time `from`, at
    /// which the copies have ended that the step must wait for.
    pub(crate) fn postpone_loads(&mut self, from: SimTime) {
        self.loads.postpone_newest(std::mem::take(&mut self.begun_loads), from);
    }

    pub(crate) fn next_host_copy_end(&self) -> Option<SimTime> {
        match (self.stores.next_copy_end(), self.loads.next_copy_end()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    pub(crate) fn last_host_store_end(&self, id: SeqId) -> SimTime {
        self.seqs.get(&id).map_or(SimTime::ZERO, |seq| seq.copied)
    }

    /// Completes the copies that end by `now`. Returns the sequences whose copy to the GPU has
    /// ended.
    pub(crate) fn complete_host_copies(
        &mut self,
        now: SimTime,
        out: &mut impl FnMut(SchedulerEvent),
    ) -> Vec<EndedHostLoad> {
        while let Some((end, took, copy)) = self.stores.pop_finished_copy(now) {
            for block in &copy.sources {
                // A later copy may read the block that reuses this place.
                if self.reads.get(block).is_some_and(|(last, _)| *last == end) {
                    self.reads.remove(block);
                }
            }
            self.complete_store(took, copy, out);
        }
        let mut loaded = Vec::new();
        while let Some((_, took, copy)) = self.loads.pop_finished_copy(now) {
            let chunks = copy.chunks.len();
            if copy.generation == self.generation {
                let epoch = match self.config.rules {
                    OffloadConnector::Native => None,
                    OffloadConnector::Simple => Some(self.next_use_counter()),
                };
                for chunk in &copy.chunks {
                    self.chunks.unpin_chunk(chunk.id);
                    if let Some(epoch) = epoch {
                        self.chunks.touch_chunk(chunk.id, (epoch, Reverse(chunk.at)));
                    }
                }
            }
            out(self.copy_event(HostCopyDirection::ToDevice, chunks, took));
            self.record_copy_end(copy.id);
            loaded.push(EndedHostLoad(copy.id));
        }
        loaded
    }

    fn complete_store(
        &mut self,
        took: Duration,
        copy: HostStoreCopy,
        out: &mut impl FnMut(SchedulerEvent),
    ) {
        let count = copy.chunks.len();
        if copy.generation == self.generation {
            for chunk in &copy.chunks {
                self.chunks.mark_chunk_stored(chunk.id);
            }
            if self.events && count > 0 {
                let chunks = copy.chunks.iter();
                let chunks = chunks.map(|chunk| (chunk.group, chunk.at)).collect();
                out(SchedulerEvent::Host(Box::new(HostCacheEvent::Stored {
                    plan: Arc::clone(&copy.plan),
                    chunks,
                    blocks_per_chunk: self.config.blocks_per_chunk,
                })));
            }
        }
        out(self.copy_event(HostCopyDirection::ToHost, count, took));
        self.record_copy_end(copy.id);
    }

    fn copy_event(
        &self,
        direction: HostCopyDirection,
        chunks: usize,
        took: Duration,
    ) -> SchedulerEvent {
        let bytes = self.config.chunk_bytes.saturating_mul(chunks as u64);
        SchedulerEvent::Host(Box::new(HostCacheEvent::Copied { direction, bytes, took }))
    }

    fn record_copy_end(&mut self, id: SeqId) {
        if let Some(seq) = self.seqs.get_mut(&id) {
            seq.copies -= 1;
            if seq.copies == 0 && seq.ended {
                self.seqs.remove(&id);
            }
        }
    }

    pub(crate) fn clear_host_chunks(&mut self) {
        self.chunks = new_chunk_store(&self.config);
        self.seqs.values_mut().for_each(|seq| (seq.epoch, seq.used) = (0, BTreeMap::new()));
        self.generation = self.generation.wrapping_add(1);
    }
}
