//! Simulates failed KV cache loads from another engine or from host memory.
//!
//! **Source:** vLLM 0.33 `vllm/v1/core/sched/scheduler.py` (`_handle_invalid_blocks`,
//! `_update_waiting_for_remote_kv`).

use crate::{
    InjectedKvLoadFailure, KvLoadFailurePolicy, Outbox, PromptKvTransfer, SchedulerEvent,
    SequenceEndReason, SimTime,
};

use super::seqs::{FetchStage, SequenceRunState, SequenceSlot};
use super::{BatchScheduler, SchedulingRules};

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Handles the failed KV load of a waiting sequence when the running step has ended, as vLLM
    /// does.
    pub(super) fn report_kv_load_failure(
        &mut self,
        slot: SequenceSlot,
        failure: InjectedKvLoadFailure,
        now: SimTime,
    ) {
        let generation = self.seqs[slot].generation;
        self.reports.failed_loads.push((slot, generation, failure));
        if self.flight.is_empty() {
            // Without a running step, after the other loads that end now.
            self.plan_at.get_or_insert(now);
        }
    }

    /// Ends sequences whose grammar does not compile, and handles failed KV loads.
    pub(super) fn handle_grammar_and_load_failures(&mut self, now: SimTime, out: &mut Outbox) {
        // Loads that end with the step belong to its output.
        while self.seqs.fetches[FetchStage::Begun as usize] > 0
            && let Some((at, (slot, generation))) = self.timers.pop_due_item(now)
        {
            self.handle_sequence_timer(at, slot, generation, out);
        }
        for (slot, generation) in std::mem::take(&mut self.reports.loads_in_pause) {
            self.handle_sequence_timer(now, slot, generation, out);
        }
        // vLLM has them in sets, without an order.
        self.reports.invalid_grammars.sort_by_key(|&(slot, _)| self.seqs[slot].arrival);
        self.reports.failed_loads.sort_by_key(|&(slot, ..)| self.seqs[slot].arrival);
        for (slot, generation) in std::mem::take(&mut self.reports.invalid_grammars) {
            if self.seqs[slot].generation == generation {
                self.stop_sequence(slot, SequenceEndReason::Failed, now, out);
            }
        }
        for (slot, generation, failure) in std::mem::take(&mut self.reports.failed_loads) {
            let seq = &self.seqs[slot];
            if seq.generation == generation && seq.state == SequenceRunState::Fetching {
                self.handle_load_failure(slot, failure, now, out);
            }
        }
    }

    /// Ends a sequence after a failed KV load, or requeues it to compute the part of the prompt
    /// after the first block that was not loaded.
    fn handle_load_failure(
        &mut self,
        slot: SequenceSlot,
        failure: InjectedKvLoadFailure,
        now: SimTime,
        out: &mut Outbox,
    ) {
        let seq = &mut self.seqs[slot];
        let remote = seq.request.transfer == PromptKvTransfer::RemotePrefill;
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
        if failure.policy == KvLoadFailurePolicy::Fail {
            self.stop_sequence(slot, SequenceEndReason::Failed, now, out);
            self.request_scheduling_pass(now);
            return;
        }
        (seq.cached, seq.load.tokens, seq.computed) = (cached, loaded, cached + loaded);
        (seq.state, seq.load.is_here, seq.load.is_lost) = (SequenceRunState::Waiting, true, true);
        seq.load.is_uncached = true;
        self.fetching -= 1;
        self.seqs.set_fetch_stage(slot, Some(FetchStage::Done));
        self.waiting.insert_sequence(&self.seqs, slot);
        self.request_scheduling_pass(now);
    }
}
