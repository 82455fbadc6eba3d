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
mod bulk_decode;
mod cadence;
mod config;
mod encoder_cache;
mod ending;
mod load_failure;
mod offload;
pub(in crate::sched) mod pass;
mod plan;
mod prefix_cache_reset;
mod rules;
pub(in crate::sched) mod seqs;
pub(in crate::sched) mod step;
mod step_recorder;
mod step_time;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::VecDeque;
use std::ops::Range;

use crate::kv::{BlockPool, HostTier, KvConfig, Leases};
use crate::step_log::StepRecord;
use crate::{
    BlockUse, CachedBlock, Command, Draft, End, Event, Outbox, Scheduler, SeqId, Sequence,
    SequenceProgress, Stats, SubmitError,
};
use crate::{SimTime, TimerQueue};
use vllm_sim_random::{Purpose, stream};

use super::{Admitted, ConfigError};
use adapters::Adapters;
use bulk_decode::BulkDecode;
use cadence::PrefillCadence;
pub use config::{
    EncoderConfig, LoraConfig, PreemptionVictim, PrefillConfig, ReportingConfig, SchedulingPolicy,
    Speculation, TransferConfig, VllmConfig,
};
use encoder_cache::{EncoderCache, MediaRefs};
pub(in crate::sched) use rules::keyed_tokens;
pub use rules::{SchedulingRules, VllmRules};
use seqs::{SeqState, SequenceSlab, Slot, StepOutput, WaitingClass};
use step::Step;
use step_recorder::StepReports;
use waiting::WaitingQueue;

/// Schedules sequences with vLLM's rules.
pub type Vllm = BatchScheduler<VllmRules>;

/// Implements continuous batching with the rules of vLLM or of a scheduler derived from it.
#[derive(Debug)]
pub struct BatchScheduler<R: SchedulingRules> {
    pub(in crate::sched) config: VllmConfig,
    pub(in crate::sched) rules: R,
    pub(in crate::sched) pool: BlockPool,
    host: Option<Box<HostTier>>,
    pub(in crate::sched) seqs: SequenceSlab,
    pub(in crate::sched) waiting: WaitingQueue,
    pub(in crate::sched) running: Vec<Slot>,
    bulk: BulkDecode,
    /// Scheduled, unfinished steps; the first one is executing.
    pub(in crate::sched) flight: VecDeque<Box<Step>>,
    /// Cleared steps, kept to reuse their allocations.
    #[expect(
        clippy::vec_box,
        reason = "a step changes places several times, and is large"
    )]
    spare: Vec<Box<Step>>,
    pub(in crate::sched) reports: StepReports,
    plan_at: Option<SimTime>,
    paused: bool,
    /// Ends of KV transfers and of delays after last tokens, by slot and generation of the
    /// sequence.
    timers: TimerQueue<(Slot, u32)>,
    leases: Leases,
    pub(in crate::sched) fetching: usize,
    cadence: PrefillCadence,
    loras: Adapters,
    encoder: Option<Box<EncoderCache>>,
    pub(in crate::sched) window: Option<u32>,
    aligns_chunks: bool,
    watermark_blocks: u32,
    arrivals: u64,
    places: u64,
    stats: Stats,
}

impl Vllm {
    /// Creates an engine with vLLM's rules, without sequences.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting that cannot work.
    pub fn new(config: VllmConfig) -> Result<Self, ConfigError> {
        Self::with_rules(config, VllmRules)
    }
}

impl<R: SchedulingRules> BatchScheduler<R> {
    pub(in crate::sched) fn with_rules(config: VllmConfig, rules: R) -> Result<Self, ConfigError> {
        config.check()?;
        let pool = BlockPool::new(KvConfig {
            num_blocks: config.num_gpu_blocks.saturating_add(1),
            block_size: config.block_size,
            prefix_caching: config.enable_prefix_caching,
            events: config.reporting.kv_events,
        });
        let pool = pool.caching_late(u32::from(config.async_scheduling));
        let pool = match &config.layer_groups {
            None => pool,
            Some(groups) => pool.with_groups(groups, &config.group_limits()),
        };
        let host = |tier| {
            Box::new(HostTier::new(
                tier,
                pool.all_groups(),
                config.reporting.kv_events,
            ))
        };
        Ok(Self {
            host: config.host_tier.clone().map(host),
            window: config.latency.window(),
            bulk: BulkDecode::new(&config, &rules),
            aligns_chunks: config.aligns_chunks(),
            encoder: config.encoder.as_deref().map(EncoderCache::boxed),
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
            paused: false,
            timers: TimerQueue::default(),
            leases: Leases::default(),
            fetching: 0,
            cadence: PrefillCadence::default(),
            loras: Adapters::default(),
            arrivals: 0,
            places: 0,
            stats: Stats::default(),
        })
    }

    /// Returns the configuration of the engine.
    pub fn config(&self) -> &VllmConfig {
        &self.config
    }

    /// Returns the pool of the engine's KV blocks on the GPU.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    fn has_place(&self, more: usize) -> Result<(), SubmitError> {
        match self.config.max_waiting {
            Some(limit) if self.waiting.len() + more >= limit => {
                Err(SubmitError::QueueFull { limit })
            }
            _ => Ok(()),
        }
    }

    fn depth(&self) -> usize {
        if self.config.async_scheduling { 2 } else { 1 }
    }

    /// Requests a scheduling pass at `now` if there is work and no step is in flight. Inputs at the
    /// same time still join the pass.
    pub(in crate::sched) fn wake(&mut self, now: SimTime) {
        let work = !self.waiting.is_empty() || !self.running.is_empty();
        if self.flight.is_empty() && work && !self.paused && self.plan_at.is_none() {
            self.plan_at = Some(now);
        }
    }

    fn plan(&mut self, now: SimTime, out: &mut Outbox) {
        if self.paused {
            return;
        }
        while self.flight.len() < self.depth() {
            let mut step = self.spare.pop().unwrap_or_default();
            let before = out.len();
            let preempted = self.schedule(now, &mut step, out);
            self.reports.events.append(&mut step.events);
            self.record_plan(now, &step, out, before);
            if step.is_empty() {
                if !preempted && step.rejected.is_empty() {
                    self.reject_unschedulable(&mut step);
                }
                let freed = preempted || !step.rejected.is_empty();
                self.release(step, now, out);
                if freed && self.flight.is_empty() {
                    // The pass only preempted or rejected: use the freed blocks.
                    continue;
                }
                let is_idle = self.flight.is_empty() && self.seqs.len() == 0;
                self.reports.has_empty_step = self.depth() > 1 && !is_idle;
                break;
            }
            if std::mem::take(&mut self.reports.has_empty_step) {
                self.publish_alone(now, out);
            }
            if self.flight.is_empty() {
                self.start(&mut step, now);
            }
            self.bulk.scheduled(&mut step);
            let short = step.short;
            self.flight.push_back(step);
            if !short {
                self.enter_all();
            }
        }
    }

    /// Discards a step without sequences. Its KV block events are reported when a step ends.
    fn release(&mut self, mut step: Box<Step>, now: SimTime, out: &mut Outbox) {
        match self.flight.back_mut() {
            Some(last) => last.rejected.append(&mut step.rejected),
            None => self.publish_alone(now, out),
        }
        step.report_rejected(now, out);
        step.clear();
        self.spare.push(step);
    }

    fn finish_step(&mut self, out: &mut Outbox) {
        let Some(mut step) = self.flight.pop_front() else {
            return;
        };
        let now = step.end;
        let before = out.len();
        if !step.is_dummy {
            self.bulk.finished(&step);
            self.free_deferred(step.number);
        }
        self.cache_verified(&step);
        self.publish(now, out);
        let (output_tokens, ended) = self.release_outputs(&step, now, out);
        step.report_rejected(now, out);
        if self.encoder.is_some() {
            self.release_computed_media(&step);
        }
        if self.host.is_some() {
            self.end_copies(&mut step, now, out);
        }
        R::step_ended(self, now, out);
        if !step.is_dummy {
            let prompt_tokens = step.prompt_tokens;
            let event = Event::Step {
                prompt_tokens,
                output_tokens,
            };
            out.push_back((now, event));
            self.record_update(now, out, before);
        }
        step.clear();
        self.spare.push(step);
        if let Some(mut next) = self.flight.pop_front() {
            self.start(&mut next, now);
            self.flight.push_front(next);
        }
        self.reset_after_step(now, out);
        R::step_reported(self, now, out);
        match self.paused {
            false => self.plan_at = Some(now),
            // vLLM tells its workers in a step of their own which requests have ended.
            true => {
                self.reports.has_empty_step = self.depth() > 1 && ended && !self.flight.is_empty()
            }
        }
    }

    /// Reports the output tokens and ends of a step. Returns the number of tokens, and whether a
    /// sequence ended.
    fn release_outputs(&mut self, step: &Step, now: SimTime, out: &mut Outbox) -> (u32, bool) {
        out.reserve(step.entries.len() + 1);
        let mut output_tokens = step.bulk_decodes;
        let mut ended = false;
        for entry in &step.entries {
            let seq = &mut self.seqs[entry.slot];
            seq.in_flight -= 1;
            if seq.state == SeqState::Dead {
                self.seqs.free_dead(entry.slot);
                continue;
            }
            if seq.step.stale.take() == StepOutput::Dropped {
                continue;
            }
            if entry.drafts.proposed > 0 {
                let Draft { proposed, accepted } = entry.drafts;
                let rejected = u32::from(proposed.saturating_sub(accepted));
                seq.step.ahead = seq.step.ahead.saturating_sub(rejected);
                let event = Event::Drafts {
                    id: seq.id,
                    proposed: proposed.into(),
                    accepted: accepted.into(),
                };
                out.push_back((now, event));
            }
            if entry.emit > 0 {
                seq.released += entry.emit;
                output_tokens += entry.emit;
                let (id, n) = (seq.id, entry.emit);
                out.push_back((now, Event::Tokens { id, n }));
            }
            if entry.last {
                ended = true;
                self.complete(entry.slot, now, out);
            }
        }
        if ended {
            let seqs = &self.seqs;
            self.running
                .retain(|&slot| matches!(seqs[slot].state, SeqState::Running | SeqState::Draining));
        }
        (output_tokens, ended)
    }
}

impl<R: SchedulingRules> Scheduler for BatchScheduler<R> {
    fn submit(
        &mut self,
        now: SimTime,
        mut seq: Sequence,
        out: &mut Outbox,
    ) -> Result<(), SubmitError> {
        self.has_place(0)?;
        if self.flight.is_empty() && self.seqs.len() == 0 {
            // Without requests, vLLM's engine core empties its queue of steps.
            self.reports.has_empty_step = false;
        }
        self.rules.adjust_submission(&mut seq);
        R::fits(self, &seq)?;
        let order = self.arrivals as i64;
        let rank = match self.config.policy {
            SchedulingPolicy::Fcfs => (WaitingClass::Plain, 0, order),
            SchedulingPolicy::Priority => (WaitingClass::Plain, seq.priority, order),
        };
        let draws = self
            .config
            .speculation
            .as_ref()
            .map(|_| Box::new(stream(self.config.seed, seq.key, Purpose::Latency)));
        let most = self.rules.most_tokens(&self.config);
        let media = self.encoder.as_ref().and(seq.media.clone());
        let slot = self.seqs.insert(seq, most, self.arrivals);
        self.arrivals += 1;
        let seq = &mut self.seqs[slot];
        seq.media = media.map(MediaRefs::boxed);
        seq.rank = rank;
        seq.draws = draws;
        if R::expect_prompt(self, slot, now, out) {
            return Ok(());
        }
        self.waiting.insert(&self.seqs, slot);
        self.wake(now);
        Ok(())
    }

    fn admits(&self, job: &mut dyn Iterator<Item = &Sequence>) -> Result<(), SubmitError> {
        for (before, seq) in job.enumerate() {
            self.has_place(before)?;
            R::fits(self, seq)?;
        }
        Ok(())
    }

    fn abort(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) {
        if let Some(slot) = self.seqs.find(id) {
            self.stop(slot, End::Aborted, now, out);
            self.end_abandoned(now);
            self.wake(now);
        }
    }

    fn next_wakeup(&self) -> Option<SimTime> {
        // This runs several times per step.
        let earlier = |a: Option<SimTime>, b: Option<SimTime>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let end = self.flight.front().map(|step| step.end);
        let kept = earlier(self.timers.next_due(), self.leases.next_due());
        let soonest = earlier(earlier(end, self.plan_at), kept);
        match end {
            None => earlier(soonest, self.next_copied()),
            Some(_) => soonest,
        }
    }

    fn advance(&mut self, now: SimTime, out: &mut Outbox) {
        let mut may_plan = self.plan_at.is_some();
        while let Some(due) = self.next_wakeup().filter(|&due| due <= now) {
            if self.flight.front().is_some_and(|step| step.end == due) {
                // A pass requested before the end of this step runs first.
                if let Some(at) = self
                    .plan_at
                    .filter(|&at| at < due || (may_plan && at == due))
                {
                    self.plan_at = None;
                    may_plan = false;
                    self.plan(at, out);
                    continue;
                }
                let instant = self.flight.front().is_some_and(|step| step.begun == due);
                may_plan |= instant && R::INSTANT_STEPS_COME_FIRST;
                self.finish_step(out);
            } else if let Some((at, (slot, generation))) = self.timers.pop_due(due) {
                self.timer(at, slot, generation, out);
            } else if let Some((at, freed)) = self.leases.expire(due, &mut self.pool) {
                if freed {
                    self.wake(at);
                }
            } else if self.end_idle_copies(due, out) {
            } else if due < now || may_plan {
                self.plan_at = None;
                may_plan = false;
                self.plan(due, out);
            } else {
                break;
            }
        }
    }

    fn command(&mut self, now: SimTime, command: Command, out: &mut Outbox) -> bool {
        match command {
            Command::Pause => {
                self.flush_all(now, out);
                (self.paused, self.reports.has_empty_step) = (true, false);
                self.plan_at = None;
            }
            Command::Resume => {
                self.paused = false;
                // vLLM reads the command when the running step has ended.
                if self.flight.is_empty() {
                    self.plan_at = Some(now);
                }
            }
            Command::CancelAll => {
                for slot in self.seqs.living() {
                    self.stop(slot, End::Cancelled, now, out);
                }
                self.end_abandoned(now);
            }
            Command::ResetPrefixCache(reset) => return self.reset_cache(reset, now, out),
            Command::ResetHostTier => return self.reset_host(now, out),
            Command::ResetEncoderCache => return self.reset_encoder_cache(),
            Command::Caching(on) => self.pool.set_caching(on),
            Command::Release(id) => {
                let held = self.leases.release(id, &mut self.pool);
                self.wake(now);
                return held;
            }
            Command::Delays(delays) => {
                // Without a time per token, a configured bandwidth determines it: leave it
                // unchanged.
                self.config.transfer.fetch.0 = delays.kv_transfer.0;
                if !delays.kv_transfer_per_token.is_zero() {
                    self.config.transfer.fetch.1 = delays.kv_transfer_per_token;
                }
                let taken = self.config.latency.delay(&delays);
                if taken {
                    self.retime(now);
                }
                return taken;
            }
            Command::Bounds { running, waiting } => {
                self.config.max_num_seqs = running.max(1);
                self.config.max_waiting = waiting.map(|n| n as usize);
                self.wake(now);
            }
            Command::Speed(speed) => {
                self.config.speed.all = speed;
                self.retime(now);
            }
        }
        true
    }

    fn cached_blocks(&self) -> Vec<CachedBlock> {
        self.pool.cached_blocks()
    }

    fn progress(&self, id: SeqId) -> Option<SequenceProgress> {
        self.seqs.progress(id)
    }

    fn block_use(&self, numbers: Range<u32>) -> BlockUse {
        self.pool.block_use(numbers)
    }

    fn stats(&self) -> Stats {
        let (host_deferred, host) = self.host_counts();
        let media = self.encoder.as_ref().map_or(0, |encoder| encoder.deferred);
        let deferred = (host_deferred + self.loras.deferred + media).min(self.waiting.len());
        Stats {
            running: self.running.len(),
            waiting: self.waiting.len() - deferred,
            deferred: self.fetching + deferred,
            fetches: self.seqs.fetches,
            host,
            used_blocks: self.pool.used(),
            total_blocks: self.pool.usable(),
            ..self.stats
        }
    }

    fn take_admissions(&mut self, into: &mut Vec<Admitted>) {
        into.append(&mut self.reports.admissions);
    }

    fn take_step_log(&mut self, into: &mut Vec<StepRecord>) {
        into.extend(self.reports.log.iter_mut().flat_map(|log| log.drain(..)));
    }

    fn step_end(&self) -> Option<SimTime> {
        self.flight.front().map(|step| step.end)
    }

    fn extend_step(&mut self, end: SimTime) {
        if let Some(step) = self.flight.front_mut() {
            step.end = step.end.max(end);
        }
    }

    fn postpone(&mut self, now: SimTime) {
        self.plan_at = self.plan_at.map(|at| at.max(now));
    }

    fn take_reserved(&mut self) -> Vec<(SeqId, u32)> {
        self.rules.take_reserved()
    }

    fn activate(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) -> bool {
        R::activate(self, now, id, out)
    }

    fn is_in_lock_step(&self) -> bool {
        self.config.lock_step
    }

    fn steps_in_flight(&self) -> usize {
        self.flight.len()
    }

    fn running_step(&self) -> Option<(SimTime, u64)> {
        let step = self.flight.front()?;
        Some((step.begun, step.batch.tokens()))
    }

    fn own_step_end(&self, tokens: f64) -> SimTime {
        self.end_with_average_tokens(tokens)
    }

    fn add_dummy_step(&mut self, now: SimTime) {
        self.start_dummy(now);
    }

    fn end_step_at(&mut self, end: SimTime) {
        if let Some(step) = self.flight.front_mut() {
            step.end = end;
        }
    }
}
