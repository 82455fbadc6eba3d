//! Releases the outputs of steps, ends sequences, frees their KV blocks and slots, and handles
//! their timers.

use crate::{
    Outbox, PromptKvTransfer, Scheduler, SchedulerEvent, SequenceEndReason, SimTime,
    StepDraftCounts,
};

use super::seqs::{FetchStage, GrammarState, SequenceRunState, SequenceSlot, StepOutputUse};
use super::step::ScheduledStep;
use super::{BatchScheduler, SchedulingRules};

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Reports the output tokens of a step, and of the equal steps that it covers, and the sequences
    /// that end with it. Returns the number of tokens of one such step, and whether a sequence ended.
    pub(super) fn release_step_outputs(
        &mut self,
        step: &ScheduledStep,
        now: SimTime,
        out: &mut Outbox,
    ) -> (u32, bool) {
        out.reserve(step.entries.len() + 1);
        let has_encoder = self.encoder.is_some();
        let mut output_tokens = step.bulk_decodes;
        let mut ended = false;
        for entry in &step.entries {
            if has_encoder {
                self.release_computed_media(entry.slot);
            }
            let seq = &mut self.seqs[entry.slot];
            seq.in_flight -= 1;
            if seq.state == SequenceRunState::Dead {
                self.seqs.free_dead_slot(entry.slot);
                continue;
            }
            if seq.step.stale.record_ended_step() == StepOutputUse::Dropped {
                continue;
            }
            if entry.drafts.proposed > 0 {
                let StepDraftCounts { proposed, accepted } = entry.drafts;
                let rejected = u32::from(proposed.saturating_sub(accepted));
                seq.step.ahead = seq.step.ahead.saturating_sub(rejected);
                let event = SchedulerEvent::Drafts {
                    id: seq.id,
                    proposed: proposed.into(),
                    accepted: accepted.into(),
                };
                out.push_back((now, event));
            }
            if entry.emit > 0 {
                output_tokens += entry.emit;
                // Repeated steps emit one token of each sequence.
                let (id, n) = (seq.id, entry.emit + step.repeats);
                seq.released += n;
                let event = match step.repeats {
                    0 => SchedulerEvent::Tokens { id, n },
                    _ => SchedulerEvent::Decoded { id, n },
                };
                out.push_back((now, event));
            }
            if entry.last {
                ended = true;
                self.complete_sequence(entry.slot, now, out);
            }
        }
        if output_tokens > 0 {
            self.record_scheduling_progress();
        }
        if ended {
            let seqs = &self.seqs;
            self.running.retain(|&slot| {
                matches!(seqs[slot].state, SequenceRunState::Running | SequenceRunState::Draining)
            });
        }
        (output_tokens, ended)
    }

    /// Handles the emission of a sequence's last token. The caller removes the sequence from the
    /// running batch.
    pub(in crate::sched) fn complete_sequence(
        &mut self,
        slot: SequenceSlot,
        now: SimTime,
        out: &mut Outbox,
    ) {
        // The sequence may have been preempted while its last token was in flight.
        match self.seqs[slot].state {
            SequenceRunState::Waiting => self.waiting.remove_sequence(&self.seqs, slot),
            SequenceRunState::Fetching => self.fetching -= 1,
            _ => {}
        }
        if self.seqs[slot].state != SequenceRunState::Draining {
            self.seqs[slot].state = SequenceRunState::Resting;
        }
        self.lease_prefill_blocks(slot, now, out);
        let seq = &self.seqs[slot];
        if seq.request.tail.is_zero() {
            self.end_sequence(slot, SequenceEndReason::Finished, now, out);
            return;
        }
        let due = now + seq.request.tail;
        self.timers.schedule_item(due, (slot, seq.generation));
        // The sequence stays in the batch, but needs no cache.
        self.free_ended(slot);
    }

    /// Keeps the KV blocks of a finished prefill for the remote decode engine.
    fn lease_prefill_blocks(&mut self, slot: SequenceSlot, now: SimTime, out: &mut Outbox) {
        let seq = &mut self.seqs[slot];
        // A sequence preempted with its last token in flight may complete twice.
        let hands_over = seq.request.transfer == PromptKvTransfer::RemoteDecode
            && !seq.table.is_empty()
            && !self.leases.has_lease(seq.id);
        let Some(term) = self.config.transfer.lease.filter(|_| hands_over) else {
            return;
        };
        let (id, table) = (seq.id, std::mem::take(&mut seq.table));
        seq.settled = 0;
        let blocks = self.leases.lease_blocks(now, term, id, table);
        out.push_back((now, SchedulerEvent::Leased { id, blocks }));
    }

    /// Keeps the KV blocks of an aborted sequence until the fetch of its prompt has ended.
    ///
    /// **Source:** `delay_free_blocks` in `finish_requests`, `vllm/v1/core/sched/scheduler.py`.
    fn keep_loading(&mut self, slot: SequenceSlot, now: SimTime) {
        // A load that ends in a dummy step is reported later.
        let is_in_dummy = self.flight.front().is_some_and(|step| step.is_dummy);
        let seq = &mut self.seqs[slot];
        let rest = seq.load.ends.duration_since(now);
        if is_in_dummy || !rest.is_zero() {
            let table = std::mem::take(&mut seq.table);
            self.leases.lease_blocks(now, rest, seq.id, table);
        }
    }

    /// Frees the KV blocks whose leases end by `now`. Returns whether any blocks were freed.
    pub(super) fn expire_block_leases(&mut self, now: SimTime) -> bool {
        let mut freed_any = false;
        while let Some((_, freed)) = self.leases.expire_next_lease(now, &mut self.pool) {
            freed_any |= freed;
        }
        if freed_any {
            self.record_scheduling_progress();
        }
        freed_any
    }

    /// Frees the KV blocks whose leases end by `due` while no step runs, or else completes a copy that
    /// ends by then. Returns false if neither ends.
    pub(super) fn complete_transfer_while_idle(&mut self, due: SimTime, out: &mut Outbox) -> bool {
        let is_due = self.leases.next_lease_expiry().is_some_and(|at| at <= due);
        if !self.flight.is_empty() || !is_due {
            return self.complete_host_copies_while_idle(due, out);
        }
        if self.expire_block_leases(due) {
            self.request_scheduling_pass(due);
        }
        true
    }

    /// Frees the KV blocks of an ended sequence, or defers this until the steps in flight have
    /// ended.
    fn free_ended(&mut self, slot: SequenceSlot) {
        let seq = &mut self.seqs[slot];
        if seq.in_flight > 0 && self.config.defers_block_frees() {
            let table = std::mem::take(&mut seq.table);
            self.reports.deferred_frees.push_back((self.bulk.newest_step_number(), table));
        }
        self.free_sequence_blocks(slot);
    }

    /// Frees the KV blocks that had to wait for the end of step `ended` or of an earlier step.
    pub(in crate::sched) fn free_deferred_blocks(&mut self, ended: u64) {
        while self.reports.deferred_frees.front().is_some_and(|(at, _)| *at <= ended)
            && let Some((_, mut table)) = self.reports.deferred_frees.pop_front()
        {
            self.pool.release_block_table(&mut table);
            self.record_scheduling_progress();
        }
    }

    /// Frees the KV blocks and the slot of a sequence. The sequence must be in no queue except the
    /// running batch.
    pub(in crate::sched) fn end_sequence(
        &mut self,
        slot: SequenceSlot,
        end: SequenceEndReason,
        now: SimTime,
        out: &mut Outbox,
    ) {
        self.remove_sequence_from_host_cache(slot);
        self.free_ended(slot);
        self.record_scheduling_progress();
        R::on_sequence_left(self, slot);
        let id = self.seqs[slot].id;
        self.seqs.end_sequence(slot);
        out.push_back((now, SchedulerEvent::Ended { id, end }));
    }

    pub(in crate::sched) fn stop_sequence(
        &mut self,
        slot: SequenceSlot,
        end: SequenceEndReason,
        now: SimTime,
        out: &mut Outbox,
    ) {
        match self.seqs[slot].state {
            SequenceRunState::Waiting => self.waiting.remove_sequence(&self.seqs, slot),
            SequenceRunState::Fetching => {
                self.fetching -= 1;
                self.keep_loading(slot, now);
            }
            SequenceRunState::Running | SequenceRunState::Draining => {
                self.flush_bulk_decode(slot, now, out);
                self.bulk.remove_sequence(slot);
                self.running.retain(|&other| other != slot);
            }
            SequenceRunState::Resting => {}
            SequenceRunState::Free | SequenceRunState::Dead => return,
        }
        self.end_sequence(slot, end, now, out);
    }

    /// Requests a scheduling pass, which rejects sequences that can never run, if the engine would
    /// otherwise not wake up. Any pending event prevents the request, even if the event turns out
    /// to be outdated.
    pub(super) fn reschedule_stuck_sequences(&mut self, now: SimTime) {
        if self.next_wakeup().is_none() {
            self.request_scheduling_pass(now);
        }
    }

    /// Returns when the next lease or copy ends if no step runs. A dummy step of a data-parallel rank
    /// delays it, because vLLM's connector reports nothing with such a step.
    pub(super) fn next_transfer_end_while_idle(&self) -> Option<SimTime> {
        let end = SimTime::earliest([self.leases.next_lease_expiry(), self.next_host_copy_end()])?;
        Some(match self.config.lock_step {
            true => end.max(self.before_inputs.last_step),
            false => end,
        })
    }

    fn is_loading(&self, slot: SequenceSlot, generation: u32) -> bool {
        let seq = &self.seqs[slot];
        seq.generation == generation && seq.state == SequenceRunState::Fetching
    }

    /// Returns whether the next timer is that of a KV load which ends by `now`.
    pub(super) fn is_load_due(&self, now: SimTime) -> bool {
        let timer = self.timers.next_item().filter(|(at, _)| *at <= now);
        timer.is_some_and(|(_, &(slot, generation))| self.is_loading(slot, generation))
    }

    /// Returns whether a scheduling pass at `pass_at`, or new inputs, come before the loads, leases and
    /// copies that end at `due` while no step runs.
    ///
    /// **Source:** vLLM's engine core plans what has arrived before its connector reports ends
    /// (`step` in `vllm/v1/engine/core.py`).
    pub(super) fn defers_transfer_ends(
        &mut self,
        due: SimTime,
        now: SimTime,
        pass_at: Option<SimTime>,
    ) -> bool {
        if R::LEASES_END_FIRST || !self.flight.is_empty() {
            return false;
        }
        let has_timer = self.timers.next_due_time().is_some_and(|at| at <= due);
        let is_transfer = match has_timer {
            true => self.is_load_due(due),
            false => self.next_transfer_end_while_idle().is_some_and(|at| at <= due),
        };
        if !is_transfer {
            return false;
        }
        pass_at == Some(due)
            || (due == now && self.before_inputs.transfers.replace(now) != Some(now))
    }

    /// Handles an expired timer of a sequence, or keeps the end of a KV transfer during a pause or a
    /// dummy step for the next step.
    pub(super) fn handle_due_timer(
        &mut self,
        now: SimTime,
        slot: SequenceSlot,
        generation: u32,
        out: &mut Outbox,
    ) {
        let is_load = self.is_loading(slot, generation);
        let is_in_dummy = self.flight.front().is_some_and(|step| step.is_dummy);
        match is_load && (is_in_dummy || self.defers_kv_load_completion()) {
            true => self.reports.loads_in_pause.push((slot, generation)),
            false => self.handle_sequence_timer(now, slot, generation, out),
        }
    }

    /// Handles the end of a KV transfer or of the delay after a last token.
    pub(super) fn handle_sequence_timer(
        &mut self,
        now: SimTime,
        slot: SequenceSlot,
        generation: u32,
        out: &mut Outbox,
    ) {
        if self.seqs[slot].generation != generation {
            self.reschedule_stuck_sequences(now);
            return;
        }
        self.record_scheduling_progress();
        let seq = &mut self.seqs[slot];
        match seq.state {
            SequenceRunState::Fetching => {
                if let Some(failure) = seq.load.failure.take() {
                    self.report_kv_load_failure(slot, failure, now);
                    return;
                }
                self.fetching -= 1;
                seq.state = SequenceRunState::Waiting;
                (seq.load.is_here, seq.load.is_uncached) = (true, true);
                // The last prompt token is computed locally, for its logits.
                seq.computed = seq.prompt - 1;
                self.seqs.set_fetch_stage(slot, Some(FetchStage::Done));
                self.waiting.insert_sequence(&self.seqs, slot);
                self.request_scheduling_pass(now);
            }
            SequenceRunState::Draining | SequenceRunState::Resting => {
                self.stop_sequence(slot, SequenceEndReason::Finished, now, out);
                self.request_scheduling_pass(now);
            }
            SequenceRunState::Waiting if seq.request.grammar == GrammarState::Compiling => {
                seq.request.grammar = match seq.request.invalid_grammar {
                    true => GrammarState::Failed,
                    false => GrammarState::Ready,
                };
                self.request_scheduling_pass(now);
            }
            SequenceRunState::Free
            | SequenceRunState::Waiting
            | SequenceRunState::Running
            | SequenceRunState::Dead => {}
        }
    }
}
