//! Looks up prompts in the prefix cache in host memory, in all layer groups.
//!
//! **Source:** vLLM 0.33 `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`
//! (`_lookup_complete_chunks`).

use std::cmp::Reverse;

use super::arc::ChunkUse;
use super::chunks::ChunkState;
use super::{CopiedChunk, HostHit, HostRules, HostTier, LoadCopy};
use crate::kv::Group;
use crate::{BlockKey, BlockPlan, Event, HostEvent, SeqId, SimTime};

#[derive(Debug, Clone, Copy)]
pub(crate) struct HostRequest {
    pub(crate) id: SeqId,
    /// Number of prompt tokens and, after a preemption, output tokens; at least one is computed.
    pub(crate) known: u32,
    pub(crate) from: u32,
    pub(crate) size: u32,
}

impl HostRequest {
    /// Returns the number of tokens that need no computation if the first `blocks` KV blocks are
    /// present.
    pub(crate) fn tokens(&self, blocks: u32) -> u32 {
        blocks.saturating_mul(self.size).min(self.known - 1)
    }
}

impl Group {
    /// Returns the first of chunks `first..end` that the layer group reads after `tokens` tokens;
    /// at most the last one.
    fn needs_from(&self, (first, end): (u32, u32), tokens: u32) -> u32 {
        match self.sees_all() {
            true => first,
            false => self.passed(tokens).min(end.saturating_sub(1)).max(first),
        }
    }
}

impl HostTier {
    pub(super) fn key(&self, plan: &BlockPlan, group: usize, chunk: u32) -> Option<BlockKey> {
        let last = (u64::from(chunk) + 1) * u64::from(self.config.blocks_per_chunk) - 1;
        let key = plan.keys.get(usize::try_from(last).ok()?)?;
        Some(self.groups[group].key(*key))
    }

    fn find(&self, plan: &BlockPlan, group: usize, chunk: u32) -> Option<u32> {
        self.chunks.find(self.key(plan, group, chunk)?)
    }

    /// Returns the number of full chunks in the first `blocks` KV blocks of a block plan.
    pub(super) fn full(&self, plan: &BlockPlan, blocks: u32) -> u32 {
        (plan.keys.len() as u32).min(blocks) / self.config.blocks_per_chunk
    }

    fn most(&self, request: &HostRequest) -> u32 {
        // A state covers all previous tokens, so the last one cannot be recomputed from it.
        let has_state = self.groups.iter().any(|group| group.is_state);
        let all = self.config.rules == HostRules::Native && !has_state;
        request.known.saturating_sub(u32::from(!all)) / request.size
    }

    /// Returns the end of the hit in the host tier, as a chunk index: all layer groups have the
    /// chunks that they need before it.
    fn end(&self, plan: &BlockPlan, request: &HostRequest, (first, last): (u32, u32)) -> u32 {
        let groups = || self.groups.iter().enumerate();
        let is_there = |group: usize, chunk| self.find(plan, group, chunk).is_some();
        let sees_all = |&chunk: &u32| {
            let mut full = groups().filter(|(_, group)| group.sees_all());
            full.all(|(at, _)| is_there(at, chunk))
        };
        let mut end = first + (first..last).take_while(sees_all).count() as u32;
        // Every longer hit needs a chunk missing in a window, so the hit ends there.
        while end > first {
            let tokens = request.tokens(end * self.config.blocks_per_chunk);
            let lacking = groups().filter_map(|(at, group)| {
                let from = group.needs_from((first, end), tokens);
                let mut chunks = (from..end).rev().filter(|_| !group.sees_all());
                chunks.find(|&chunk| !is_there(at, chunk))
            });
            match lacking.min() {
                Some(chunk) => end = chunk,
                None => break,
            }
        }
        end
    }

    fn chunks_of(
        &self,
        plan: &BlockPlan,
        request: &HostRequest,
        (first, end): (u32, u32),
    ) -> Vec<CopiedChunk> {
        let tokens = request.tokens(end * self.config.blocks_per_chunk);
        let all = self.groups.iter().enumerate().flat_map(|(at, group)| {
            let chunks = group.needs_from((first, end), tokens)..end;
            chunks.filter_map(move |chunk| {
                let id = self.find(plan, at, chunk)?;
                let group = group.index;
                Some(CopiedChunk {
                    group,
                    at: chunk,
                    id,
                })
            })
        });
        all.collect()
    }

    /// Looks up in host memory the KV blocks of a plan that follow those on the GPU.
    pub(crate) fn look_up(
        &mut self,
        now: SimTime,
        plan: &BlockPlan,
        request: &HostRequest,
        out: &mut impl FnMut(Event),
    ) -> HostHit {
        let size = self.config.blocks_per_chunk;
        let id = request.id;
        let (first, last) = (
            request.from / size,
            self.full(plan, self.most(request)).max(request.from / size),
        );
        let mut waits = self.seqs.get(&id).is_some_and(|seq| seq.copies > 0);
        let end = match waits {
            true => first,
            false => self.end(plan, request, (first, last)),
        };
        let needed = self.chunks_of(plan, request, (first, end));
        waits |= needed
            .iter()
            .any(|chunk| self.chunks.state(chunk.id) != ChunkState::Ready);
        let seq = self.seqs.entry(id).or_default();
        if waits {
            if seq.asked.is_none() {
                seq.asked = Some(now);
                self.deferred += 1;
            }
            return HostHit::Wait;
        }
        if let Some(since) = seq.asked.take() {
            self.deferred -= 1;
            let waited = now.since(since);
            out(Event::Host(Box::new(HostEvent::Answered { waited })));
        }
        if self.config.rules == HostRules::Native {
            let epoch = self.epoch_of(id);
            self.touch(plan, last, epoch);
        }
        let found = (end * size).saturating_sub(request.from);
        HostHit::Blocks(if found < size { 0 } else { found })
    }

    pub(super) fn touch(&mut self, plan: &BlockPlan, chunks: u32, epoch: u64) {
        for at in 0..chunks {
            for group in 0..self.groups.len() {
                if let Some(id) = self.find(plan, group, at) {
                    self.chunks.touch(id, (epoch, Reverse(at)));
                }
            }
        }
    }

    /// Starts to copy `blocks` KV blocks, those after the blocks on the GPU, from host memory to
    /// the GPU.
    pub(crate) fn load(
        &mut self,
        now: SimTime,
        plan: &BlockPlan,
        request: &HostRequest,
        blocks: u32,
    ) {
        let size = self.config.blocks_per_chunk;
        let (first, end) = (request.from / size, (request.from + blocks) / size);
        let chunks = self.chunks_of(plan, request, (first, end));
        for chunk in &chunks {
            self.chunks.pin(chunk.id);
            let place = (chunk.at, chunk.group);
            self.chunks
                .used(request.id, chunk.id, place, ChunkUse::Reused);
        }
        let takes = self.takes(chunks.len(), self.config.chunk_time.1);
        let id = request.id;
        let copy = LoadCopy {
            id,
            chunks,
            generation: self.generation,
        };
        self.loads.push(now, takes, copy);
        let seq = self.seqs.entry(id).or_default();
        seq.offered = seq.offered.max(end);
        seq.copies += 1;
    }
}
