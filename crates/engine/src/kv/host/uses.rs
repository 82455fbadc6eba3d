//! Records which requests use chunks of KV blocks, for the order of their eviction.

use std::cmp::Reverse;
use std::sync::Arc;

use super::{HostCache, HostStoreCopy, OffloadConnector};
use crate::{BlockKey, PlannedKvBlocks, SchedulerEvent, SeqId, SimTime};

/// A request that has ended; its use of chunks of KV blocks in host memory is recorded in the next
/// scheduling pass.
#[derive(Debug)]
pub(super) struct EndedHostCacheRequest {
    id: SeqId,
    plan: Option<Arc<PlannedKvBlocks>>,
    /// Number of the ended request's KV blocks that may be stored in host memory.
    blocks: u32,
    /// Ids of the ended request's KV blocks on the GPU; empty if the KV cache has several layer
    /// groups.
    sources: Vec<u32>,
}

impl HostCache {
    /// Records that a request uses chunks of KV blocks for the first time; `uses` has the position
    /// and key of each chunk.
    ///
    /// **Source:** `_record_request_cache_access`, vLLM 0.33 `vllm/v1/kv_offload/cpu/manager.py`.
    pub(super) fn record_chunk_uses(&mut self, id: SeqId, uses: &[((u32, u32), BlockKey)]) {
        let used = &mut self.seqs.entry(id).or_default().used;
        let is_new = |(place, key): &&((u32, u32), BlockKey)| used.insert(*place, *key).is_none();
        let fresh: Vec<_> = uses.iter().filter(is_new).copied().collect();
        if fresh.is_empty() {
            return;
        }
        let epoch = self.use_counter_of(id);
        for ((at, _), key) in fresh {
            if let Some(chunk) = self.chunks.find_chunk(key) {
                self.chunks.touch_chunk(chunk, (epoch, Reverse(at)));
            }
        }
    }

    /// Records the end of a sequence, whose first `blocks` KV blocks may be stored in host memory.
    /// `sources` are the sequence's blocks on the GPU.
    pub(crate) fn record_sequence_end(
        &mut self,
        id: SeqId,
        plan: Option<&Arc<PlannedKvBlocks>>,
        blocks: u32,
        sources: &[u32],
    ) {
        let Some(seq) = self.seqs.get_mut(&id) else {
            return;
        };
        if seq.asked.take().is_some() {
            self.deferred -= 1;
        }
        let sources = sources.iter().take(blocks as usize).copied().collect();
        self.ended.push(EndedHostCacheRequest { id, plan: plan.cloned(), blocks, sources });
    }

    /// Records that a scheduling pass gives KV blocks on the GPU to a sequence. Returns the end
    /// time of the last copy for an ended request that still reads these blocks.
    ///
    /// **Source:** `_block_id_to_pending_jobs` and `update_state_after_alloc`, vLLM 0.33
    /// `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`.
    pub(crate) fn record_reuse_returning_read_end(&mut self, block_ids: &[u32]) -> SimTime {
        if !self.ended.is_empty() {
            self.reused.extend(block_ids);
        }
        if self.reads.is_empty() {
            return SimTime::ZERO;
        }
        let reads = block_ids.iter().filter_map(|block| self.reads.get(block));
        let ends = reads.filter(|(_, id)| self.has_request_ended(*id)).map(|(end, _)| *end);
        ends.max().unwrap_or(SimTime::ZERO)
    }

    fn has_request_ended(&self, id: SeqId) -> bool {
        self.seqs.get(&id).is_none_or(|seq| seq.ended)
            || self.ended.iter().any(|request| request.id == id)
    }

    /// Finishes ended requests after a scheduling pass has stored the chunks of its own requests in
    /// host memory. The chunks of ended requests count as used once more, from the last to the
    /// first, and those not yet stored get their last chance to be stored. Returns the copies that
    /// must end before the step begins, because the step reuses their GPU blocks, and the other
    /// copies.
    ///
    /// **Source:** `_build_store_jobs` and `_build_connector_meta`, vLLM 0.33
    /// `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`.
    pub(crate) fn offload_blocks_of_ended_requests(
        &mut self,
        out: &mut impl FnMut(SchedulerEvent),
    ) -> (Vec<HostStoreCopy>, Vec<HostStoreCopy>) {
        let ended = std::mem::take(&mut self.ended);
        let is_native = self.config.rules == OffloadConnector::Native && self.groups.len() == 1;
        let mut copies = Vec::new();
        for request in &ended {
            if let Some(plan) = request.plan.as_ref().filter(|_| is_native) {
                let blocks = request.blocks;
                let copy = self.offer_blocks_to_host(request.id, plan, blocks, |_, _| true, out);
                copies.extend(copy.map(|mut copy| {
                    copy.set_source_blocks(&request.sources);
                    copy
                }));
            }
        }
        for EndedHostCacheRequest { id, .. } in ended {
            self.finish_request(id);
        }
        let reused = std::mem::take(&mut self.reused);
        copies.into_iter().partition(|copy| copy.reads_any_of(&reused))
    }

    fn finish_request(&mut self, id: SeqId) {
        if let Some(arc) = &mut self.chunks.arc {
            arc.reorder_chunks_after_request(id);
        }
        let Some(seq) = self.seqs.get_mut(&id) else {
            return;
        };
        seq.ended = true;
        let used = std::mem::take(&mut seq.used);
        if seq.copies == 0 {
            self.seqs.remove(&id);
        }
        if self.config.rules == OffloadConnector::Native {
            let epoch = self.next_use_counter();
            for ((at, _), key) in used {
                if let Some(chunk) = self.chunks.find_chunk(key) {
                    self.chunks.touch_chunk(chunk, (epoch, Reverse(at)));
                }
            }
        }
    }
}
