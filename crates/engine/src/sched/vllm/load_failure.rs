//! Simulates failed KV cache loads from another engine or from host memory.
//!
//! **Source:** vLLM 0.33 `vllm/v1/core/sched/scheduler.py` (`_handle_invalid_blocks`,
//! `_update_waiting_for_remote_kv`).

use crate::{
    LoadFailure, LoadFailurePolicy, Outbox, PromptTransfer, SchedulerEvent, SequenceEndReason,
    SimTime,
};

use super::seqs::{FetchStage, SequenceRunState, SequenceSlot};
use super::{BatchScheduler, SchedulingRules};

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Ends a sequence after a failed KV load, or requeues it to compute the part of the prompt
    /// after the first bad block.
    pub(super) fn handle_load_failure(
        &mut self,
        slot: SequenceSlot,
        failure: LoadFailure,
        now: SimTime,
        out: &mut Outbox,
    ) {
        let seq = &mut self.seqs[slot];
        let remote = seq.request.transfer == PromptTransfer::RemotePrefill;
        let expected = match remote {
            true => seq.prompt,
            false => seq.cached + seq.load.tokens,
        };
        let blocks = seq.load.tokens / self.config.block_size;
        let good = (f64::from(blocks) * f64::from(failure.loaded)) as u32;
        let (cached, loaded) = match (self.pool.has_layer_groups(), remote) {
            // vLLM reports bad blocks for a single layer group only, so all groups are recomputed.
            (true, _) => (0, 0),
            // NIXL drops all that it should have fetched.
            (false, true) => (seq.cached, 0),
            (false, false) => (seq.cached, good * self.config.block_size),
        };
        let event = SchedulerEvent::LoadFailed {
            id: seq.id,
            tokens: expected - cached - loaded,
            policy: failure.policy,
            remote,
        };
        out.push_back((now, event));
        if failure.policy == LoadFailurePolicy::Fail {
            self.stop_sequence(slot, SequenceEndReason::Failed, now, out);
            self.request_scheduling_pass(now);
            return;
        }
        (seq.cached, seq.load.tokens, seq.computed) = (cached, loaded, cached + loaded);
        (seq.state, seq.load.is_here, seq.load.is_lost) = (SequenceRunState::Waiting, true, true);
        self.fetching -= 1;
        if cached + loaded == 0 {
            // Other sequences may have cached its first blocks in the meantime.
            self.free_sequence_blocks(slot);
        }
        self.seqs.set_fetch_stage(slot, Some(FetchStage::Done));
        self.waiting.insert_sequence(&self.seqs, slot);
        self.request_scheduling_pass(now);
    }
}
