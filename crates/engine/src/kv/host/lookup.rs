//! Looks up prompts in the prefix cache in host memory, in all layer groups.
//!
//! **Source:** vLLM 0.33 `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`
//! (`_lookup_complete_chunks`).

use super::arc::HostChunkUse;
use super::chunks::HostChunkState;
use super::{CopiedChunk, HostCache, HostCacheLookupResult, HostLoadCopy, OffloadConnector};
use crate::kv::LayerGroup;
use crate::{BlockKey, HostCacheEvent, PlannedKvBlocks, SchedulerEvent, SeqId, SimTime};

#[derive(Debug, Clone, Copy)]
pub(crate) struct HostCacheLookupRequest {
    pub(crate) id: SeqId,
    /// Number of the sequence's prompt tokens and, after a preemption, output tokens. At least one
    /// of these tokens is computed, not loaded.
    pub(crate) known: u32,
    pub(crate) from: u32,
    pub(crate) size: u32,
    /// Whether the sequence waits while other sequences load the same KV blocks, which it then
    /// finds on the GPU.
    pub(crate) shares_loads: bool,
}

impl HostCacheLookupRequest {
    /// Returns how many of a prompt's tokens need no computation if its first `blocks` KV blocks
    /// are found in host memory or on the GPU.
    pub(crate) fn reusable_prompt_tokens(&self, blocks: u32) -> u32 {
        blocks.saturating_mul(self.size).min(self.known - 1)
    }
}

impl LayerGroup {
    /// Returns the index of the first chunk of KV blocks in `first..end` that the layer group still
    /// reads after `tokens` tokens; at most the index of the last chunk in this range.
    fn first_needed_chunk(&self, (first, end): (u32, u32), tokens: u32) -> u32 {
        match self.has_full_attention() {
            true => first,
            false => self.blocks_outside_window(tokens).min(end.saturating_sub(1)).max(first),
        }
    }
}

impl HostCache {
    pub(super) fn chunk_key(
        &self,
        plan: &PlannedKvBlocks,
        group: usize,
        chunk: u32,
    ) -> Option<BlockKey> {
        let last = (u64::from(chunk) + 1) * u64::from(self.config.blocks_per_chunk) - 1;
        let key = plan.keys.get(usize::try_from(last).ok()?)?;
        Some(self.groups[group].salted_key(*key))
    }

    fn find_chunk(&self, plan: &PlannedKvBlocks, group: usize, chunk: u32) -> Option<u32> {
        self.chunks.find_chunk(self.chunk_key(plan, group, chunk)?)
    }

    /// Returns the number of full chunks of KV blocks in the first `blocks` KV blocks of a
    /// sequence.
    pub(super) fn full_chunk_count(&self, plan: &PlannedKvBlocks, blocks: u32) -> u32 {
        (plan.keys.len() as u32).min(blocks) / self.config.blocks_per_chunk
    }

    fn max_hit_blocks(&self, request: &HostCacheLookupRequest) -> u32 {
        // A state covers all previous tokens, so the last one cannot be recomputed from it.
        let has_state = self.groups.iter().any(|group| group.is_state);
        let all = self.config.rules == OffloadConnector::Native && !has_state;
        request.known.saturating_sub(u32::from(!all)) / request.size
    }

    /// Returns the end of the prefix-cache hit in host memory, as a chunk index: all layer groups
    /// have the chunks that they need before this end.
    fn hit_end_chunk(
        &self,
        plan: &PlannedKvBlocks,
        request: &HostCacheLookupRequest,
        (first, last): (u32, u32),
    ) -> u32 {
        let groups = || self.groups.iter().enumerate();
        let is_there = |group: usize, chunk| self.find_chunk(plan, group, chunk).is_some();
        let sees_all = |&chunk: &u32| {
            let mut full = groups().filter(|(_, group)| group.has_full_attention());
            full.all(|(at, _)| is_there(at, chunk))
        };
        let mut end = first + (first..last).take_while(sees_all).count() as u32;
        // Every longer hit needs a chunk missing in a window, so the hit ends there.
        while end > first {
            let tokens = request.reusable_prompt_tokens(end * self.config.blocks_per_chunk);
            let lacking = groups().filter_map(|(at, group)| {
                let from = group.first_needed_chunk((first, end), tokens);
                let mut chunks = (from..end).rev().filter(|_| !group.has_full_attention());
                chunks.find(|&chunk| !is_there(at, chunk))
            });
            match lacking.min() {
                Some(chunk) => end = chunk,
                None => break,
            }
        }
        end
    }

    fn chunks_to_load(
        &self,
        plan: &PlannedKvBlocks,
        request: &HostCacheLookupRequest,
        (first, end): (u32, u32),
    ) -> Vec<CopiedChunk> {
        let tokens = request.reusable_prompt_tokens(end * self.config.blocks_per_chunk);
        let all = self.groups.iter().enumerate().flat_map(|(at, group)| {
            let chunks = group.first_needed_chunk((first, end), tokens)..end;
            chunks.filter_map(move |chunk| {
                let id = self.find_chunk(plan, at, chunk)?;
                let group = group.index;
                Some(CopiedChunk { group, at: chunk, id })
            })
        });
        all.collect()
    }

    /// Looks up in host memory the KV blocks of a sequence that follow the sequence's blocks on the
    /// GPU.
    pub(crate) fn look_up_host_prefix(
        &mut self,
        now: SimTime,
        plan: &PlannedKvBlocks,
        request: &HostCacheLookupRequest,
        out: &mut impl FnMut(SchedulerEvent),
    ) -> HostCacheLookupResult {
        let size = self.config.blocks_per_chunk;
        let id = request.id;
        if self.config.rules == OffloadConnector::Native {
            // The sequence starts at its first token, and offers every chunk again.
            self.seqs.entry(id).or_default().offered = 0;
        }
        let (first, last) = (
            request.from / size,
            self.full_chunk_count(plan, self.max_hit_blocks(request)).max(request.from / size),
        );
        let mut waits = self.seqs.get(&id).is_some_and(|seq| seq.copies > 0);
        let end = match waits {
            true => first,
            false => self.hit_end_chunk(plan, request, (first, last)),
        };
        let needed = self.chunks_to_load(plan, request, (first, end));
        waits |= needed.iter().any(|chunk| match self.chunks.chunk_state(chunk.id) {
            HostChunkState::Ready => false,
            HostChunkState::Storing => true,
            HostChunkState::Loading => request.shares_loads,
        });
        let seq = self.seqs.entry(id).or_default();
        if waits {
            if seq.asked.is_none() {
                seq.asked = Some(now);
                self.deferred += 1;
            }
            return HostCacheLookupResult::Wait;
        }
        if let Some(since) = seq.asked.take() {
            self.deferred -= 1;
            let waited = now.duration_since(since);
            out(SchedulerEvent::Host(Box::new(HostCacheEvent::Answered { waited })));
        }
        let found = (end * size).saturating_sub(request.from);
        HostCacheLookupResult::Blocks(if found < size { 0 } else { found })
    }

    /// Starts to copy `blocks` KV blocks of a sequence from host memory to the GPU: the blocks that
    /// follow the sequence's blocks on the GPU.
    pub(crate) fn start_host_load(
        &mut self,
        now: SimTime,
        plan: &PlannedKvBlocks,
        request: &HostCacheLookupRequest,
        blocks: u32,
    ) {
        let size = self.config.blocks_per_chunk;
        let (first, end) = (request.from / size, (request.from + blocks) / size);
        let chunks = self.chunks_to_load(plan, request, (first, end));
        for chunk in &chunks {
            self.chunks.pin_chunk(chunk.id);
            let place = (chunk.at, chunk.group);
            self.chunks.record_chunk_use(request.id, chunk.id, place, HostChunkUse::Reused);
        }
        let uses: Vec<_> = chunks.iter().map(|chunk| (chunk.at, chunk.group, chunk.id)).collect();
        let uses = uses.into_iter().map(|(at, group, id)| ((at, group), self.chunks.chunk_key(id)));
        let uses: Vec<_> = uses.collect();
        self.record_chunk_uses(request.id, &uses);
        let takes = self.copy_duration(chunks.len(), self.config.chunk_time.1);
        let id = request.id;
        let copy = HostLoadCopy { id, chunks, generation: self.generation };
        self.loads.push(now, takes, copy);
        self.begun_loads += 1;
        let seq = self.seqs.entry(id).or_default();
        seq.offered = seq.offered.max(end);
        seq.copies += 1;
    }
}
