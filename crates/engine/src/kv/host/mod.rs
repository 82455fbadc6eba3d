//! A second prefix cache in the memory of the host, behind the blocks of the GPU.
//!
//! Blocks are copied to it as soon as a step has computed them, whether or not the GPU will lose
//! them, and back where a prompt begins with what is there and not on the GPU. Copies of one
//! direction follow each other, the two directions do not disturb each other; their ends are seen
//! when a step ends, or at once while no step runs.
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
use crate::{BlockKey, BlockPlan, Event, HostEvent, SeqId, SimTime};
use chunks::{ChunkState, HostChunks, Recency};
pub(crate) use lookup::HostRequest;
use offers::Offers;

/// A cache in the memory of the host (`--kv-offloading-size`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTierConfig {
    /// Whose rules.
    pub rules: HostRules,
    /// Which chunks leave first.
    pub eviction: HostEviction,
    /// Chunks that it holds, at least 1.
    pub chunks: u32,
    /// Blocks of a chunk, at least 1. Default 1.
    pub blocks_per_chunk: u32,
    /// Bytes of a chunk, all GPUs together.
    pub chunk_bytes: u64,
    /// Whether blocks with generated tokens are kept too.
    pub outputs: bool,
    /// How often a chunk is offered before it is stored, and of how many chunks that is counted; `None`:
    /// it is stored at once. Default none.
    pub threshold: Option<(u32, usize)>,
    /// What a copy takes before its first byte.
    pub latency: Duration,
    /// What a chunk takes to the host, and back.
    pub chunk_time: (Duration, Duration),
}

/// What decides between the two tiers that vLLM has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostRules {
    /// `OffloadingConnector`: a step's chunks of a request are stored all or none, recency is that
    /// of the request, and a hit may cover a whole prompt.
    #[default]
    Native,
    /// `SimpleCPUOffloadConnector`: what finds room is stored, recency is that of the copy, and the
    /// last token is never part of a hit.
    Simple,
}

/// Which chunks leave a [`HostTier`] first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HostEviction {
    /// Those that were used longest ago.
    #[default]
    Lru,
    /// Those of the adaptive replacement cache of `OffloadingConnector`, which keeps what several
    /// requests used apart from the rest.
    Arc,
}

/// Chunks of a [`HostTier`] by what they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostCounts {
    /// That it can hold.
    pub total: u32,
    /// That it holds, those being written included.
    pub used: u32,
    /// That are being written.
    pub storing: u32,
    /// Times that they are being read.
    pub loading: u32,
}

/// What a request finds behind its hit on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostHit {
    /// A copy is under way: it is to ask again.
    Wait,
    /// So many blocks more.
    Blocks(u32),
}

/// Chunks on their way to the host.
#[derive(Debug)]
pub(crate) struct StoreCopy {
    id: SeqId,
    plan: Arc<BlockPlan>,
    chunks: Vec<CopiedChunk>,
    generation: u32,
}

/// A chunk that is copied.
#[derive(Debug, Clone, Copy)]
struct CopiedChunk {
    /// The number of its group in events.
    group: u32,
    /// Its number in the plan.
    at: u32,
    /// Its number in the tier.
    id: u32,
}

/// Chunks on their way to the GPU.
#[derive(Debug)]
struct LoadCopy {
    id: SeqId,
    chunks: Vec<CopiedChunk>,
    generation: u32,
}

/// Copies of one direction, the first one first.
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

    /// A copy that takes so long begins when it may and those before it are done; when it ends.
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

/// What the tier knows of a sequence.
#[derive(Debug, Default)]
struct HostSequence {
    /// Recency of all its chunks; 0: it has used none.
    epoch: u64,
    /// Chunks of its plan that were stored or loaded.
    offered: u32,
    /// Copies of its blocks that have not ended.
    copies: u32,
    /// When the last of those that have begun ends.
    copied: SimTime,
    /// Since when it waits for an answer.
    asked: Option<SimTime>,
    /// It is over, and stays for its copies alone.
    ended: bool,
}

/// A copy to the GPU ended: whose it was.
pub(crate) struct Loaded(pub(crate) SeqId);

/// The cache in the memory of the host.
#[derive(Debug)]
pub(crate) struct HostTier {
    config: HostTierConfig,
    /// The groups of layers, each with chunks of its own.
    groups: Vec<Group>,
    chunks: HostChunks,
    seqs: HashMap<SeqId, HostSequence>,
    stores: CopyLane<StoreCopy>,
    loads: CopyLane<LoadCopy>,
    offers: Offers,
    epoch: u64,
    /// How often it was emptied.
    generation: u32,
    /// Sequences that wait for an answer.
    pub(crate) deferred: usize,
    /// Whether anybody wants events of what it holds.
    events: bool,
}

fn new_chunks(config: &HostTierConfig) -> HostChunks {
    HostChunks::new(config.chunks, config.eviction == HostEviction::Arc)
}

impl HostTier {
    /// An empty tier for blocks of these groups.
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

    /// Chunks by what they do.
    pub(crate) fn counts(&self) -> HostCounts {
        HostCounts {
            total: self.config.chunks,
            used: self.chunks.len(),
            storing: self.chunks.storing,
            loading: self.chunks.loading,
        }
    }

    /// The last block of each chunk in it, in no order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = BlockKey> {
        self.chunks.names().map(|(_, key)| key)
    }

    /// Whether blocks with generated tokens are kept too.
    pub(crate) fn keeps_outputs(&self) -> bool {
        self.config.outputs
    }

    fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    /// The epoch of a sequence that uses a chunk.
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

    /// A step computes a plan up to `blocks` full blocks: what is not here is to be stored when it
    /// ends. `None`: nothing, or there is no room for it.
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
        // A chunk of several blocks is of the only group, which keeps all.
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
                        self.chunks.used(id, chunk, place, true);
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
        Some(self.bring_in(id, plan, epoch, missing))
    }

    /// Chunks come in, to be written.
    fn bring_in(
        &mut self,
        seq: SeqId,
        plan: &Arc<BlockPlan>,
        epoch: u64,
        missing: Vec<(usize, u32, BlockKey)>,
    ) -> StoreCopy {
        let last = |at: u32| (at as usize + 1) * self.config.blocks_per_chunk as usize - 1;
        let mut chunks = Vec::with_capacity(missing.len());
        for (group, at, key) in missing {
            // A plan may name a block twice.
            if self.chunks.find(key).is_some() {
                continue;
            }
            let hash = plan.hashes.get(last(at)).filter(|_| self.events).copied();
            let group = self.groups[group].index;
            let recency: Recency = (epoch, Reverse(at));
            let name = (group, plan.keys[last(at)]);
            let id = self.chunks.insert(key, name, hash, recency);
            self.chunks.used(seq, id, (at, group), false);
            chunks.push(CopiedChunk { group, at, id });
        }
        StoreCopy {
            id: seq,
            plan: Arc::clone(plan),
            chunks,
            generation: self.generation,
        }
    }

    /// Whether blocks of a sequence that has `blocks` full ones are still to be offered.
    pub(crate) fn is_behind(&self, id: SeqId, plan: &BlockPlan, blocks: u32) -> bool {
        let offered = self.seqs.get(&id).map_or(0, |seq| seq.offered);
        offered < self.full(plan, blocks)
    }

    /// Evicts others until what is missing has room; `None`: that cannot be, and all stay.
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

    /// The step that computed these blocks has ended: they are copied from `now` on.
    pub(crate) fn store(&mut self, now: SimTime, copy: StoreCopy) {
        let takes = self.takes(copy.chunks.len(), self.config.chunk_time.0);
        let id = copy.id;
        let end = self.stores.push(now, takes, copy);
        if let Some(seq) = self.seqs.get_mut(&id) {
            seq.copied = end;
        }
    }

    /// Whether blocks are on their way to the GPU.
    pub(crate) fn is_loading(&self) -> bool {
        self.loads.next_due().is_some()
    }

    /// When the next copy ends.
    pub(crate) fn next_due(&self) -> Option<SimTime> {
        match (self.stores.next_due(), self.loads.next_due()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// When the copies of the blocks of a sequence have ended that have begun.
    pub(crate) fn copied(&self, id: SeqId) -> SimTime {
        self.seqs.get(&id).map_or(SimTime::ZERO, |seq| seq.copied)
    }

    /// Ends the copies that are over at `now`; those whose blocks have come to the GPU.
    pub(crate) fn complete(&mut self, now: SimTime, out: &mut impl FnMut(Event)) -> Vec<Loaded> {
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
            out(self.copied_event(false, chunks, took));
            self.copy_ended(copy.id);
            loaded.push(Loaded(copy.id));
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
        out(self.copied_event(true, count, took));
        self.copy_ended(copy.id);
    }

    fn copied_event(&self, to_host: bool, chunks: usize, took: Duration) -> Event {
        let bytes = self.config.chunk_bytes.saturating_mul(chunks as u64);
        Event::Host(Box::new(HostEvent::Copied {
            to_host,
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

    /// A sequence is over: its chunks have been used once more, its head last.
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

    /// Forgets all that it holds. Copies that have begun go on.
    pub(crate) fn clear(&mut self) {
        self.chunks = new_chunks(&self.config);
        self.generation = self.generation.wrapping_add(1);
    }
}
