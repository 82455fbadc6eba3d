//! Computes when engine steps end, publishes their KV events, and records the steps from the events
//! that they produce. Also empties the prefix cache on demand, which waits for the end of a step.
//!
//! **Source:** `reset_prefix_cache`, vLLM 0.33 `vllm/v1/core/sched/scheduler.py`.

use crate::latency::BatchWork;
use crate::step_log::{
    PlannedStep, ProcessedStep, ScheduledSequence, StepLogChange, StepLogRecord,
};
use crate::{Outbox, PrefixCacheResetScope, SchedulerEvent, SimTime, StepDraftCounts};

use super::seqs::SequenceSlot;
use super::step::ScheduledStep;
use super::{BatchScheduler, SchedulingRules, VllmSchedulerConfig};

impl<R: SchedulingRules> BatchScheduler<R> {
    pub(super) fn start_step(&self, step: &mut ScheduledStep, now: SimTime) {
        let mut computing = self.config.step_time(&step.batch);
        if !step.encoded.is_empty() {
            let inputs = step.encoded.iter().map(|(.., input)| *input);
            computing += self.config.media_encoding_time(inputs);
        }
        step.begun = now;
        // In a lock step, other ranks still wait for this step.
        let is_over = R::ABANDONED_STEPS_END && step.have_all_sequences_ended(&self.seqs);
        step.end = match is_over && !self.config.lock_step {
            true => now,
            false => now.max(step.copied) + step.loading + computing,
        };
        step.own_end = step.end;
    }

    /// Ends the running step at `now` if all its sequences have ended.
    pub(super) fn end_abandoned_step(&mut self, now: SimTime) {
        if R::ABANDONED_STEPS_END
            && !self.config.lock_step
            && let Some(step) = self.flight.front_mut()
            && step.have_all_sequences_ended(&self.seqs)
        {
            step.end = step.end.min(now);
        }
    }

    /// Recomputes the end of the running step after a change of the configuration.
    pub(super) fn recompute_step_end(&mut self, now: SimTime) {
        if let Some(mut step) = self.flight.pop_front() {
            let begun = step.begun;
            self.start_step(&mut step, begun);
            step.end = step.end.max(now);
            step.own_end = step.end;
            self.flight.push_front(step);
        }
    }

    /// Returns the time at which this rank's running step would end without waiting for slower
    /// ranks; the ranks compute `tokens` tokens on average.
    pub(super) fn step_end_with_average_tokens(&self, tokens: f64) -> SimTime {
        let Some(step) = self.flight.front() else {
            return SimTime::ZERO;
        };
        let VllmSchedulerConfig { latency, speed, .. } = &self.config;
        let alike = latency.distributed_expert_time(step.batch.computed_tokens() as f64, *speed);
        let among_others = latency.distributed_expert_time(tokens, *speed);
        let nanos = step.own_end.as_nanos() + among_others.as_nanos() as u64;
        SimTime::from_nanos(nanos - (alike.as_nanos() as u64).min(nanos)).max(step.begun)
    }

    /// Returns whether this data-parallel rank has fewer steps in flight than vLLM's would have. Dummy
    /// steps without duration are not repeated until something happens.
    pub(super) fn lacks_rank_step(&self) -> bool {
        match self.flight.front() {
            None => {
                let is_awake = self.cadence.is_awake || self.has_sequences_before(u64::MAX);
                is_awake && !self.config.step_time(&self.dummy_work()).is_zero()
            }
            Some(step) => self.config.async_scheduling && self.flight.len() == 1 && !step.is_dummy,
        }
    }

    /// Returns the work of a dummy step: as many kernels as a decode of one token (vLLM's
    /// `_dummy_run(1)`).
    fn dummy_work(&self) -> BatchWork {
        let mut work = BatchWork::default();
        work.add_decoding_sequence(1, 1, self.window);
        work
    }

    /// Starts a step without sequences, because other data-parallel ranks have work.
    pub(super) fn start_dummy_step(&mut self, now: SimTime) {
        let mut step = self.spare.pop().unwrap_or_default();
        (step.is_dummy, step.number) = (true, 0);
        self.cadence.is_awake = false;
        step.is_rank_idle = !self.has_sequences_before(u64::MAX);
        self.cadence.wave_steps += 1;
        step.batch = self.dummy_work();
        if self.flight.is_empty() {
            self.start_step(&mut step, now);
        }
        self.flight.push_back(step);
    }

    /// Records whether the ended step left a data-parallel rank idle, as a dummy step does. A rank
    /// that plans ahead has already planned the step after a step with sequences.
    pub(super) fn record_idle_rank(&mut self, step: &ScheduledStep) {
        if self.config.lock_step {
            let plans_ahead = self.config.async_scheduling;
            self.cadence.is_awake = false;
            self.cadence.was_idle = match step.is_dummy {
                // Steps without duration would be repeated at one instant.
                true => plans_ahead || step.is_rank_idle || step.begun == step.end,
                false => !plans_ahead && !self.has_sequences_before(step.arrivals),
            };
        }
    }

    /// Publishes the KV events that were gathered since the last publication.
    pub(super) fn publish_kv_events(&mut self, now: SimTime, out: &mut Outbox) {
        let events = &mut self.reports.events;
        if self.host.is_some() {
            // vLLM collects the events of its connector after those of the GPU.
            events.sort_by_key(|event| matches!(event, SchedulerEvent::Host(_)));
        }
        if !events.is_empty() {
            out.extend(events.drain(..).map(|event| (now, event)));
        }
    }

    /// Publishes KV events between two steps, and ends sequences whose grammar does not compile or
    /// whose prompt could not be loaded.
    pub(super) fn publish_kv_events_between_steps(&mut self, now: SimTime, out: &mut Outbox) {
        let before = out.len();
        self.publish_kv_events(now, out);
        self.end_failed_sequences(now, out);
        let ended = |(_, event): &(SimTime, SchedulerEvent)| event.ends_sequence_or_changes_cache();
        if out.iter().skip(before).any(ended) {
            self.record_processed_step(now, out, before);
        }
    }

    /// Records in the step log that a step was planned. The scheduling pass has added the events
    /// from index `first_event_index` of the outbox.
    pub(super) fn record_planned_step(
        &mut self,
        now: SimTime,
        step: &ScheduledStep,
        out: &Outbox,
        first_event_index: usize,
    ) {
        let Some(log) = &mut self.reports.log else {
            return;
        };
        let mut plan = PlannedStep::default();
        let mut work = step.work.iter().peekable();
        for entry in &step.entries {
            let seq = &self.seqs[entry.slot];
            // Plain decodes compute one token and have no work of their own.
            let own = work.next_if(|work| work.slot == entry.slot);
            let new = own.map_or(1, |work| work.new);
            // vLLM counts draft tokens as accepted until their step ends.
            let computed = (seq.computed + seq.step.ahead).saturating_sub(new);
            let id = seq.id;
            plan.scheduled.push(ScheduledSequence { id, computed, new });
        }
        for &(slot, at, _) in &step.encoded {
            let id = self.seqs[slot].id;
            match plan.encoded.last_mut().filter(|(last, _)| *last == id) {
                Some((_, items)) => items.push(at),
                None => plan.encoded.push((id, vec![at])),
            }
        }
        plan.preempted.append(&mut self.reports.reset_preempted);
        for (_, event) in out.iter().skip(first_event_index) {
            match event {
                SchedulerEvent::Scheduled { id, .. } => plan.admitted.push(*id),
                SchedulerEvent::Resumed { id } => plan.resumed.push(*id),
                SchedulerEvent::Preempted { id } => plan.preempted.push(*id),
                _ => {}
            }
        }
        if plan != PlannedStep::default() {
            log.push(StepLogRecord {
                at: now,
                change: StepLogChange::Planned(plan),
                used_blocks: self.pool.used_block_count(),
                first_group: self.pool.first_full_attention_group(),
            });
        }
    }

    /// Records in the step log that the output of a step was processed. The processing has added
    /// the events from index `first_event_index` of the outbox.
    pub(super) fn record_processed_step(
        &mut self,
        now: SimTime,
        out: &Outbox,
        first_event_index: usize,
    ) {
        let Some(log) = &mut self.reports.log else {
            return;
        };
        let mut update = ProcessedStep::default();
        for (_, event) in out.iter().skip(first_event_index) {
            match event {
                SchedulerEvent::Drafts { id, proposed, accepted } => {
                    let draft = StepDraftCounts {
                        proposed: u8::try_from(*proposed).unwrap_or(u8::MAX),
                        accepted: u8::try_from(*accepted).unwrap_or(u8::MAX),
                    };
                    update.drafts.push((*id, draft));
                }
                SchedulerEvent::Ended { id, end } => update.ended.push((*id, *end)),
                SchedulerEvent::Stored { .. }
                | SchedulerEvent::Removed { .. }
                | SchedulerEvent::Group(_)
                | SchedulerEvent::Cleared
                | SchedulerEvent::Host(_) => update.events.push(event.clone()),
                _ => {}
            }
        }
        log.push(StepLogRecord {
            at: now,
            change: StepLogChange::Updated(update),
            used_blocks: self.pool.used_block_count(),
            first_group: self.pool.first_full_attention_group(),
        });
    }

    /// Ends sequences whose grammar does not compile, and handles failed KV loads, if there are
    /// any.
    #[inline]
    pub(super) fn end_failed_sequences(&mut self, now: SimTime, out: &mut Outbox) {
        if self.seqs.fetches != [0; 3] || self.reports.has_pending_failures_or_loads() {
            self.handle_grammar_and_load_failures(now, out);
        }
    }

    /// Empties the prefix cache immediately or when the running step has ended; returns false if
    /// sequences prevent that.
    pub(super) fn reset_prefix_cache(
        &mut self,
        reset: PrefixCacheResetScope,
        now: SimTime,
        out: &mut Outbox,
    ) -> bool {
        if reset != PrefixCacheResetScope::Forget && self.before_inputs.step == Some(now) {
            // A step has just ended, and vLLM reads the command before it plans the next one.
            self.reports.resets.push(reset);
            self.reset_prefix_cache_after_step(now, out);
            return self.pool.used_block_count() == 0;
        }
        if reset != PrefixCacheResetScope::Forget && !self.flight.is_empty() {
            // vLLM reads the command when the running step has ended.
            let succeeds = match reset {
                PrefixCacheResetScope::Preempt => self.fetching == 0 && self.leases.is_empty(),
                _ => self.holds_nothing_after_step(),
            };
            if succeeds || reset == PrefixCacheResetScope::Preempt {
                self.reports.resets.push(reset);
            }
            return succeeds;
        }
        if reset == PrefixCacheResetScope::Preempt {
            self.preempt_for_reset(now, out);
            self.request_scheduling_pass(now);
        }
        if reset != PrefixCacheResetScope::Forget && self.pool.used_block_count() > 0 {
            return false;
        }
        // Steps in flight changed the cache first.
        let (pool, events) = (&mut self.pool, &mut self.reports.events);
        pool.clear_prefix_cache_keeping_blocks(&mut |event| events.push(event));
        true
    }

    /// Returns whether all sequences that hold KV blocks end with the running step.
    fn holds_nothing_after_step(&self) -> bool {
        let step = self.flight.front();
        let ends = |slot: &SequenceSlot| {
            let entries = step.into_iter().flat_map(|step| &step.entries);
            entries.filter(|entry| entry.last).any(|entry| entry.slot == *slot)
        };
        let mut waiting = self.waiting.iter_from_back();
        self.fetching == 0
            && self.leases.is_empty()
            && self.running.iter().all(ends)
            && waiting.all(|slot| self.seqs[slot].table.is_empty())
    }

    /// Preempts all running sequences, and records them for the step log.
    fn preempt_for_reset(&mut self, now: SimTime, out: &mut Outbox) {
        let before = out.len();
        self.preempt_all_running(now, out);
        if self.reports.log.is_some() {
            let preempted = out.iter().skip(before).filter_map(|(_, event)| match event {
                SchedulerEvent::Preempted { id } => Some(*id),
                _ => None,
            });
            self.reports.reset_preempted.extend(preempted);
        }
    }

    /// Performs the resets of the prefix cache that were requested during the step that has ended.
    pub(super) fn reset_prefix_cache_after_step(&mut self, now: SimTime, out: &mut Outbox) {
        for reset in std::mem::take(&mut self.reports.resets) {
            if reset == PrefixCacheResetScope::Preempt {
                self.preempt_for_reset(now, out);
            }
            if self.pool.used_block_count() == 0 {
                let (pool, events) = (&mut self.pool, &mut self.reports.events);
                pool.clear_prefix_cache_keeping_blocks(&mut |event| events.push(event));
            }
        }
    }
}
