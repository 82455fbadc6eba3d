//! Implements continuous batching as vLLM v1 does.
//!
//! A step first schedules running sequences (one token each, or a chunk of the prompt), then
//! waiting ones, within one token budget. With asynchronous scheduling two steps are in flight.
//! When one ends, the next starts immediately, and a third is scheduled from the current queue.
//! Tokens are released at the end of their step.
//!
//! At one instant a step ends, then inputs are taken, then the next step is scheduled. So
//! [`Scheduler::advance`] leaves scheduling that is due exactly at `now` to the next call, and
//! [`Scheduler::next_wakeup`] returns `now` for it.
//!
//! **Source:** `vllm/v1/core/sched/scheduler.py`, `vllm/v1/engine/core.py`.

mod adapters;
mod arrival;
mod bulk_decode;
mod cadence;
mod config;
mod encoder_cache;
mod ending;
mod load_failure;
mod offload;
pub(in crate::sched) mod pass;
mod pause;
mod plan;
mod progress;
mod rules;
pub(in crate::sched) mod seqs;
pub(in crate::sched) mod step;
mod step_end;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::kv::{BlockPool, BlockPoolConfig, HostCache, PrefillBlockLeases};
use crate::step_log::StepLogRecord;
use crate::{
    CachedBlock, EngineCommand, EngineStats, KvBlockUsage, Outbox, Scheduler, SchedulerEvent,
    SeqId, Sequence, SequenceEndReason, SequenceProgress, SequenceSubmitError,
};
use crate::{SimTime, TimerQueue};

use super::{AdmittedSequence, SchedulerConfigError};
use adapters::LoraSlots;
use bulk_decode::BulkDecode;
use cadence::{EndsBeforeInputs, PrefillThrottleState};
pub use config::{
    ChunkedPrefillConfig, EncoderSchedulingConfig, LoraConfig, PreemptionVictim,
    PrefillTransferConfig, SchedulerReportingConfig, SchedulingPolicy, SpeculativeDecodingConfig,
    VllmSchedulerConfig,
};
use encoder_cache::EncoderCache;
pub(in crate::sched) use rules::tokens_with_block_keys;
pub use rules::{SchedulingRules, VllmSchedulingRules};
use seqs::{SequenceSlab, SequenceSlot};
use step::{ScheduledStep, StepReports};
use waiting::{PauseState, WaitingQueue};

/// Schedules sequences with vLLM's rules.
pub type VllmScheduler = BatchScheduler<VllmSchedulingRules>;

/// Implements continuous batching with the rules of vLLM or of a scheduler derived from it.
#[derive(Debug)]
pub struct BatchScheduler<R: SchedulingRules> {
    pub(in crate::sched) config: VllmSchedulerConfig,
    pub(in crate::sched) rules: R,
    pub(in crate::sched) pool: BlockPool,
    host: Option<Box<HostCache>>,
    pub(in crate::sched) seqs: SequenceSlab,
    pub(in crate::sched) waiting: WaitingQueue,
    pub(in crate::sched) running: Vec<SequenceSlot>,
    bulk: BulkDecode,
    /// Scheduled, unfinished steps; the first one is executing.
    pub(in crate::sched) flight: VecDeque<Box<ScheduledStep>>,
    /// Cleared steps, kept to reuse their allocations.
    #[expect(clippy::vec_box, reason = "a step changes places several times, and is large")]
    spare: Vec<Box<ScheduledStep>>,
    pub(in crate::sched) reports: StepReports,
    plan_at: Option<SimTime>,
    before_inputs: EndsBeforeInputs,
    pause: PauseState,
    /// End times of KV transfers and of the delays after last tokens, by slot and generation of the
    /// sequence.
    timers: TimerQueue<(SequenceSlot, u32)>,
    leases: PrefillBlockLeases,
    pub(in crate::sched) fetching: usize,
    cadence: PrefillThrottleState,
    loras: LoraSlots,
    encoder: Option<Box<EncoderCache>>,
    pub(in crate::sched) window: Option<u32>,
    aligns_chunks: bool,
    watermark_blocks: u32,
    counts: ChangeCounts,
    stats: EngineStats,
}

/// Counts the arrivals and admissions of sequences and the events of scheduling progress.
#[derive(Debug, Default)]
struct ChangeCounts {
    arrivals: u64,
    admissions: u64,
    /// Counter of events after which a sequence that was preempted without a new token may start
    /// again.
    progress: u64,
}

impl VllmScheduler {
    /// Creates an engine with vLLM's rules, without sequences.
    ///
    /// # Errors
    /// [`SchedulerConfigError`] names the setting that cannot work.
    pub fn new(config: VllmSchedulerConfig) -> Result<Self, SchedulerConfigError> {
        Self::with_rules(config, VllmSchedulingRules)
    }
}

impl<R: SchedulingRules> BatchScheduler<R> {
    pub(in crate::sched) fn with_rules(
        config: VllmSchedulerConfig,
        rules: R,
    ) -> Result<Self, SchedulerConfigError> {
        config.check_config()?;
        let pool = BlockPool::new(BlockPoolConfig {
            num_blocks: config.num_gpu_blocks.saturating_add(1),
            block_size: config.block_size,
            prefix_caching: config.enable_prefix_caching,
            events: config.reporting.kv_events,
        });
        let pool = pool.with_block_caching_delay(u32::from(config.async_scheduling));
        let pool = match &config.layer_groups {
            None => pool,
            Some(groups) => pool.with_layer_groups(groups, &config.layer_group_limits()),
        };
        let host = |tier| {
            Box::new(HostCache::new(tier, pool.all_layer_groups(), config.reporting.kv_events))
        };
        Ok(Self {
            host: config.host_tier.clone().map(host),
            window: config.latency.sliding_window(),
            bulk: BulkDecode::new(&config, &rules),
            aligns_chunks: config.aligns_chunks_to_blocks(),
            encoder: config.encoder.as_deref().map(EncoderCache::new_boxed),
            // vLLM counts its null block too: `vllm/v1/core/kv_cache_manager.py`.
            watermark_blocks: (config.watermark * (f64::from(config.num_gpu_blocks) + 1.0)) as u32,
            reports: StepReports::new(&config),
            config,
            rules,
            pool,
            seqs: SequenceSlab::default(),
            waiting: WaitingQueue::default(),
            running: Vec::new(),
            flight: VecDeque::new(),
            spare: Vec::new(),
            plan_at: None,
            before_inputs: EndsBeforeInputs::default(),
            pause: PauseState::Running,
            timers: TimerQueue::default(),
            leases: PrefillBlockLeases::default(),
            fetching: 0,
            cadence: PrefillThrottleState::default(),
            loras: LoraSlots::default(),
            counts: ChangeCounts::default(),
            stats: EngineStats::default(),
        })
    }

    /// Returns the configuration of the engine.
    pub fn config(&self) -> &VllmSchedulerConfig {
        &self.config
    }

    /// Returns the pool of the engine's KV blocks on the GPU.
    pub fn block_pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Returns an error if the queue has no room for a sequence after `more` others. Of the
    /// sequences in the API server those count that will find no place in the batch.
    fn check_queue_room(&self, more: usize) -> Result<(), SequenceSubmitError> {
        let free = (self.config.max_num_seqs as usize).saturating_sub(self.running.len());
        let coming = self.waiting.in_api_server.len().saturating_sub(free);
        match self.config.max_waiting {
            Some(limit) if self.waiting.len() + coming + more >= limit => {
                Err(SequenceSubmitError::QueueFull { limit })
            }
            _ => Ok(()),
        }
    }

    fn max_steps_in_flight(&self) -> usize {
        if self.config.async_scheduling { 2 } else { 1 }
    }

    /// Requests a scheduling pass at `now` if there is work and no step is in flight. Inputs at the
    /// same time still join the pass.
    pub(in crate::sched) fn request_scheduling_pass(&mut self, now: SimTime) {
        let work = !self.waiting.is_empty() || !self.running.is_empty();
        if self.flight.is_empty() && work && self.plan_at.is_none() && self.may_schedule_step() {
            self.plan_at = Some(now);
        }
    }

    fn schedule_steps(&mut self, now: SimTime, out: &mut Outbox) {
        self.before_inputs.step = None;
        self.cadence.is_awake = self.config.lock_step && self.has_sequences_before(u64::MAX);
        if self.flight.is_empty() && !self.reports.failed_loads.is_empty() {
            self.publish_kv_events_between_steps(now, out);
        }
        if !self.may_schedule_step() {
            // Without requests to run, vLLM's engine core empties its queue of steps.
            self.reports.has_empty_step &= !self.flight.is_empty();
            return;
        }
        while self.flight.len() < self.max_steps_in_flight() {
            let mut step = self.spare.pop().unwrap_or_default();
            step.arrivals = self.counts.arrivals;
            let before = out.len();
            let preempted = self.schedule_step(now, &mut step, out);
            self.reports.events.append(&mut step.events);
            self.record_planned_step(now, &step, out, before);
            if step.is_empty() {
                if !preempted && step.rejected.is_empty() {
                    self.reject_unschedulable_sequence(&mut step);
                }
                let freed = preempted || !step.rejected.is_empty();
                self.discard_empty_step(step, now, out);
                if self.config.lock_step && (!self.flight.is_empty() || self.lacks_rank_step()) {
                    // All ranks run a step before the next pass.
                    self.plan_at = None;
                } else if freed && self.flight.is_empty() {
                    // The pass only preempted or rejected: use the freed blocks.
                    continue;
                }
                // Requests whose blocks another engine still reads also keep vLLM's loop going.
                let is_idle = self.flight.is_empty()
                    && !self.has_unfinished_sequences()
                    && self.leases.is_empty();
                self.reports.has_empty_step = self.max_steps_in_flight() > 1 && !is_idle;
                break;
            }
            if std::mem::take(&mut self.reports.has_empty_step) {
                self.expire_block_leases(now);
                self.publish_kv_events_between_steps(now, out);
            }
            if self.flight.is_empty() {
                self.start_step(&mut step, now);
            }
            self.cadence.wave_steps += 1;
            self.record_scheduled_step(now, &mut step);
            let short = step.short;
            self.flight.push_back(step);
            if !short {
                self.begin_bulk_decodes();
            }
        }
    }

    /// Discards a step without sequences. Its KV block events are reported when a step ends.
    fn discard_empty_step(&mut self, mut step: Box<ScheduledStep>, now: SimTime, out: &mut Outbox) {
        match self.flight.back_mut() {
            Some(last) if !last.is_dummy => last.rejected.append(&mut step.rejected),
            _ => {
                if self.expire_block_leases(now) {
                    self.request_scheduling_pass(now);
                }
                self.publish_kv_events_between_steps(now, out);
            }
        }
        self.start_host_copies_of_empty_step(&mut step, now);
        step.report_rejected_sequences(now, out);
        step.clear();
        self.spare.push(step);
    }

    fn finish_step(&mut self, out: &mut Outbox) {
        let Some(mut step) = self.flight.pop_front() else {
            return;
        };
        let now = step.end;
        (self.before_inputs.step, self.before_inputs.last_step) = (Some(now), now);
        let before = out.len();
        if !step.is_dummy {
            self.bulk.record_finished_step(&step);
            self.free_deferred_blocks(step.number);
        }
        self.cache_verified_blocks(&step);
        self.publish_kv_events(now, out);
        let (output_tokens, ended) = self.release_step_outputs(&step, now, out);
        if !step.is_dummy {
            self.end_failed_sequences(now, out);
        }
        self.record_idle_rank(&step);
        step.report_rejected_sequences(now, out);
        if self.host.is_some() {
            self.advance_host_copies(&mut step, now, out);
        }
        R::on_step_ended(self, now, out);
        if !step.is_dummy {
            self.expire_block_leases(now);
            let prompt_tokens = step.prompt_tokens;
            let begun = step.begun;
            let count = step.repeats + 1;
            let event = SchedulerEvent::Step { begun, prompt_tokens, output_tokens, count };
            out.push_back((now, event));
            self.record_processed_step(now, out, before);
        }
        step.clear();
        self.spare.push(step);
        if let Some(mut next) = self.flight.pop_front() {
            self.start_step(&mut next, now);
            self.flight.push_front(next);
        }
        self.reset_prefix_cache_after_step(now, out);
        R::on_step_reported(self, now, out);
        match self.pause == PauseState::Paused {
            false => self.plan_at = Some(now),
            // vLLM tells its workers in a step of their own which requests have ended.
            true => {
                let goes_on = ended || !self.leases.is_empty();
                self.reports.has_empty_step =
                    self.max_steps_in_flight() > 1 && goes_on && !self.flight.is_empty()
            }
        }
    }
}

impl<R: SchedulingRules> Scheduler for BatchScheduler<R> {
    fn front_end_delay(&self, seq: &Sequence) -> Duration {
        self.api_server_time(seq)
    }

    fn submit(
        &mut self,
        now: SimTime,
        mut seq: Sequence,
        out: &mut Outbox,
    ) -> Result<(), SequenceSubmitError> {
        self.check_queue_room(0)?;
        self.rules.adjust_submission(&mut seq);
        R::check_fits(self, &seq)?;
        match seq.front_end_delay.is_zero() {
            true => self.queue_sequence(now, seq, out),
            false => self.waiting.in_api_server.schedule_item(now + seq.front_end_delay, seq),
        }
        Ok(())
    }

    fn check_submissions(
        &self,
        job: &mut dyn Iterator<Item = &Sequence>,
    ) -> Result<(), SequenceSubmitError> {
        for (before, seq) in job.enumerate() {
            self.check_queue_room(before)?;
            R::check_fits(self, seq)?;
        }
        Ok(())
    }

    fn abort(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) {
        if self.waiting.in_api_server.take_matching_item(|seq| seq.id == id).is_some() {
            out.push_back((now, SchedulerEvent::Ended { id, end: SequenceEndReason::Aborted }));
        } else if let Some(slot) = self.seqs.find_slot(id) {
            self.stop_sequence(slot, SequenceEndReason::Aborted, now, out);
            self.end_abandoned_step(now);
            self.request_scheduling_pass(now);
        }
    }

    fn next_wakeup(&self) -> Option<SimTime> {
        // This runs several times per step.
        let end = self.flight.front().map(|step| step.end);
        let (timer, arrival) =
            (self.timers.next_due_time(), self.waiting.in_api_server.next_due_time());
        let soonest = SimTime::earliest([end, self.plan_at, timer, arrival]);
        match end {
            None => SimTime::earliest([soonest, self.next_transfer_end_while_idle()]),
            // Leases and copies that end in a step take effect at its end.
            Some(_) => soonest,
        }
    }

    fn advance(&mut self, now: SimTime, out: &mut Outbox) {
        let mut may_plan = self.plan_at.is_some();
        while let Some(due) = self.next_wakeup().filter(|&due| due <= now) {
            if self.flight.front().is_some_and(|step| step.end == due) {
                // A pass requested before the end of this step runs first.
                if let Some(at) = self.plan_at.filter(|&at| at < due || (may_plan && at == due)) {
                    self.plan_at = None;
                    may_plan = false;
                    self.schedule_steps(at, out);
                    continue;
                }
                let instant = self.flight.front().is_some_and(|step| step.begun == due);
                may_plan |= instant && R::INSTANT_STEPS_COME_FIRST;
                self.finish_step(out);
                continue;
            }
            if let Some((at, seq)) = self.waiting.in_api_server.pop_due_item(due) {
                self.queue_sequence(at, seq, out);
                continue;
            }
            let waits = self.defers_transfer_ends(due, now, self.plan_at.filter(|_| may_plan));
            if !waits && let Some((at, (slot, generation))) = self.timers.pop_due_item(due) {
                self.handle_due_timer(at, slot, generation, out);
                // vLLM's connector reports ends of loads and leases together.
                if !R::LEASES_END_FIRST && self.flight.is_empty() && self.expire_block_leases(at) {
                    self.request_scheduling_pass(at);
                }
            } else if !waits && self.complete_transfer_while_idle(due, out) {
            } else if self.plan_at == Some(due) && (due < now || may_plan) {
                self.plan_at = None;
                may_plan = false;
                self.schedule_steps(due, out);
            } else {
                break;
            }
        }
    }

    fn apply_command(&mut self, now: SimTime, command: EngineCommand, out: &mut Outbox) -> bool {
        match command {
            EngineCommand::Pause => self.pause_scheduling(now, out),
            EngineCommand::PauseAdmission => {
                self.pause = PauseState::AdmissionPaused;
                self.request_scheduling_pass(now);
            }
            EngineCommand::Resume => self.resume_scheduling(now),
            EngineCommand::CancelAll => {
                self.cancel_sequences_in_api_server(now, out);
                for slot in self.seqs.live_slots() {
                    self.stop_sequence(slot, SequenceEndReason::Cancelled, now, out);
                }
                self.end_abandoned_step(now);
            }
            EngineCommand::ResetPrefixCache(reset) => {
                return self.reset_prefix_cache(reset, now, out);
            }
            EngineCommand::ResetHostTier => return self.reset_host_cache(now, out),
            EngineCommand::ResetEncoderCache => return self.reset_encoder_cache(),
            EngineCommand::Caching(on) => self.pool.set_prefix_caching(on),
            EngineCommand::Release(id) => {
                let held = self.leases.has_lease(id);
                self.leases.schedule_lease_expiry(id, now);
                let plans_first = !R::LEASES_END_FIRST && self.plan_at == Some(now);
                // vLLM's connector reports ends of loads and leases together.
                let waits = !self.flight.is_empty() || plans_first || self.is_load_due(now);
                if !waits && self.expire_block_leases(now) {
                    self.request_scheduling_pass(now);
                }
                return held;
            }
            EngineCommand::Delays(delays) => {
                // Without a time per token, a configured bandwidth determines it: leave it
                // unchanged.
                self.config.transfer.fetch.0 = delays.kv_transfer.0;
                if !delays.kv_transfer_per_token.is_zero() {
                    self.config.transfer.fetch.1 = delays.kv_transfer_per_token;
                }
                let taken = self.config.latency.replace_token_delays(&delays);
                if taken {
                    self.recompute_step_end(now);
                }
                return taken;
            }
            EngineCommand::Bounds { running, waiting } => {
                self.config.max_num_seqs = running.max(1);
                self.config.max_waiting = waiting.map(|n| n as usize);
                self.request_scheduling_pass(now);
            }
            EngineCommand::Speed(speed) => {
                self.config.speed.all = speed;
                self.recompute_step_end(now);
            }
            EngineCommand::StepPause(_) => return false,
        }
        true
    }

    fn cached_blocks(&self) -> Vec<CachedBlock> {
        self.pool.cached_blocks()
    }

    fn sequence_progress(&self, id: SeqId) -> Option<SequenceProgress> {
        self.seqs.sequence_progress(id)
    }

    fn block_usage(&self, numbers: Range<u32>) -> KvBlockUsage {
        self.pool.kv_block_usage(numbers)
    }

    fn stats(&self) -> EngineStats {
        let (host_deferred, host) = self.deferred_sequences_and_chunk_counts();
        let media = self.encoder.as_ref().map_or(0, |encoder| encoder.deferred);
        let deferred = (host_deferred + self.loras.deferred + media).min(self.waiting.len());
        EngineStats {
            running: self.running.len(),
            waiting: self.waiting.len() - deferred,
            in_api_server: self.waiting.in_api_server.len(),
            deferred: self.fetching + deferred,
            held: self.paused_sequence_count(),
            fetches: self.seqs.fetches,
            host,
            used_blocks: self.pool.used_block_count(),
            total_blocks: self.pool.usable_block_count(),
            ..self.stats
        }
    }

    fn empty_token_slots(&self) -> u64 {
        self.seqs.tables().map(|(table, tokens)| self.pool.empty_token_slots(table, tokens)).sum()
    }

    #[inline]
    fn take_admissions(&mut self, into: &mut Vec<AdmittedSequence>) {
        into.append(&mut self.reports.admissions);
    }

    fn take_step_log(&mut self, into: &mut Vec<StepLogRecord>) {
        into.extend(self.reports.log.iter_mut().flat_map(|log| log.drain(..)));
    }

    fn running_step_end(&self) -> Option<SimTime> {
        self.flight.front().map(|step| step.end)
    }

    fn extend_step_to(&mut self, end: SimTime) {
        if let Some(step) = self.flight.front_mut() {
            step.end = step.end.max(end);
        }
    }

    fn postpone_pass_to(&mut self, now: SimTime) {
        self.plan_at = self.plan_at.map(|at| at.max(now));
    }

    fn take_reserved_prompts(&mut self) -> Vec<(SeqId, u32)> {
        self.rules.take_reserved_prompts()
    }

    fn resume_transferred(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) -> bool {
        R::resume_transferred(self, now, id, out)
    }

    fn is_in_lock_step(&self) -> bool {
        self.config.lock_step
    }

    fn needs_dummy_step(&self) -> bool {
        self.lacks_rank_step()
    }

    fn was_idle_after_step(&self) -> bool {
        self.cadence.was_idle
    }

    fn steps_in_flight(&self) -> usize {
        self.flight.len()
    }

    fn running_step(&self) -> Option<(SimTime, u64)> {
        let step = self.flight.front()?;
        Some((step.begun, step.batch.computed_tokens()))
    }

    fn own_step_end_at_tokens(&self, tokens: f64) -> SimTime {
        self.step_end_with_average_tokens(tokens)
    }

    fn add_dummy_step(&mut self, now: SimTime) {
        self.start_dummy_step(now);
    }

    fn end_wave(&mut self) {
        self.cadence.wave_steps = self.flight.len() as u64;
    }

    fn end_step_at(&mut self, end: SimTime) {
        if let Some(step) = self.flight.front_mut() {
            step.end = end;
        }
    }
}
