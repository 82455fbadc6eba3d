//! Implements continuous batching as SGLang does.
//!
//! A pass is either prefill (prompt chunks) or decode (one token per running sequence). Prompts are
//! admitted while the cache can hold them plus a fraction of the expected output. If decoding still
//! exceeds the cache, the sequence with the least output is retracted. Prefixes are shared in a
//! radix tree of pages.
//!
//! At one instant a pass ends, then inputs are taken, then the next pass starts. So
//! [`Scheduler::advance`] leaves a start that is due exactly at `now` to the next call, and
//! [`Scheduler::next_wakeup`] returns `now` for it.
//!
//! **Source:** sglang 0.5.6 `srt/managers/{scheduler,schedule_batch,schedule_policy}.py`, as
//! modelled by aisimulate-core `scheduler/sglang`. Adapters and priorities are not modelled.

mod config;
mod handoff;
mod pass;
mod radix;
mod seqs;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use std::time::Duration;

use crate::latency::BatchWork;
use crate::{
    BlockKey, CachedBlock, EngineCommand, EngineStats, KvBlockUsage, Outbox, PrefixCacheResetScope,
    PromptKvTransfer, Scheduler, SchedulerEvent, SeqId, Sequence, SequenceEndReason,
    SequenceProgress, SequenceSubmitError,
};
use crate::{MAX_SIMULATED_DELAY, SimTime, TimerQueue};
use vllm_sim_random::std_rng::StdRng;

use super::{AdmittedSequence, SchedulerConfigError};
pub use config::{SglangConfig, SglangSchedulePolicy};
use handoff::IncomingPromptTransfers;
use radix::RadixTree;
use seqs::{SequenceSlab, SequenceSlot};

/// Fraction of the remaining output tokens for which admission initially reserves room.
const INIT_NEW_TOKEN_RATIO: f64 = 0.7;
/// Minimum of the fraction of output tokens for which admission reserves room, relative to the
/// initial fraction.
const MIN_NEW_TOKEN_RATIO: f64 = 0.14;
/// Number of decode passes in which the fraction of output tokens for which admission reserves room
/// falls from the initial to the minimum.
const NEW_TOKEN_RATIO_DECAY_STEPS: f64 = 600.0;

/// Schedules sequences as SGLang does.
#[derive(Debug)]
pub struct SglangScheduler {
    config: SglangConfig,
    radix: RadixTree,
    /// Full hash of each cached page, if block plans have full hashes.
    hashes: HashMap<BlockKey, [u8; 32]>,
    seqs: SequenceSlab,
    waiting: VecDeque<SequenceSlot>,
    destinations: IncomingPromptTransfers,
    running: Vec<SequenceSlot>,
    pass: Option<ForwardPass>,
    spare: ForwardPass,
    plan_at: Option<SimTime>,
    paused: bool,
    /// Whether the end of the running pass retracts all sequences.
    retracts_all: bool,
    /// Pause before each forward pass of the engine.
    step_pause: Duration,
    /// End times of the delays after the sequences' last tokens, by slot and generation of the
    /// sequence.
    tails: TimerQueue<(SequenceSlot, u32)>,
    /// Random number generator for the acceptance of draft tokens, created on first use.
    draws: Option<StdRng>,
    ratio: f64,
    /// Number of passes left in which no prompt may be prefilled.
    rounds_without_prefill: u32,
    arrivals: u64,
    epoch: u32,
    stats: EngineStats,
    admissions: Vec<AdmittedSequence>,
}

#[derive(Debug, Default)]
struct ForwardPass {
    slots: Vec<SequenceSlot>,
    prefill: bool,
    begun: SimTime,
    end: SimTime,
    batch: BatchWork,
    /// Number of prompt tokens that the pass computed, including recomputed output.
    prompt_tokens: u32,
    events: Vec<SchedulerEvent>,
    rejected: Vec<SeqId>,
}

impl ForwardPass {
    fn clear(&mut self) {
        self.slots.clear();
        self.events.clear();
        self.rejected.clear();
        self.batch = BatchWork::default();
        self.prompt_tokens = 0;
        self.prefill = false;
    }
}

impl SglangScheduler {
    /// Creates an SGLang engine without sequences.
    ///
    /// # Errors
    /// [`SchedulerConfigError`] names the setting that cannot work.
    pub fn new(config: SglangConfig) -> Result<Self, SchedulerConfigError> {
        config.check_config()?;
        Ok(Self {
            radix: RadixTree::with_free_pages(config.num_pages),
            ratio: INIT_NEW_TOKEN_RATIO * config.schedule_conservativeness,
            config,
            hashes: HashMap::new(),
            seqs: SequenceSlab::default(),
            waiting: VecDeque::new(),
            destinations: IncomingPromptTransfers::default(),
            running: Vec::new(),
            pass: None,
            spare: ForwardPass::default(),
            plan_at: None,
            paused: false,
            retracts_all: false,
            step_pause: Duration::ZERO,
            tails: TimerQueue::default(),
            draws: None,
            rounds_without_prefill: 0,
            arrivals: 0,
            epoch: 0,
            stats: EngineStats::default(),
            admissions: Vec::new(),
        })
    }

    /// Returns the configuration of the engine.
    pub fn config(&self) -> &SglangConfig {
        &self.config
    }

    fn check_submission(&self, seq: &Sequence, more: usize) -> Result<(), SequenceSubmitError> {
        if let Some(limit) = self.config.max_waiting
            && self.waiting.len() + more >= limit
        {
            return Err(SequenceSubmitError::QueueFull { limit });
        }
        // Admission needs room for the whole sequence and one more page.
        let tokens = seq.prompt.saturating_add(seq.output).min(self.config.max_model_len);
        let (needed, total) =
            (self.config.pages_for_tokens(tokens).saturating_add(1), self.config.num_pages);
        match needed > total {
            true => Err(SequenceSubmitError::TooLarge { needed, total }),
            false => Ok(()),
        }
    }

    fn request_pass(&mut self, now: SimTime) {
        let work = !self.waiting.is_empty()
            || !self.running.is_empty()
            || self.destinations.has_transferred_sequences();
        if self.pass.is_none() && work && !self.paused && self.plan_at.is_none() {
            self.plan_at = Some(now);
        }
    }

    fn start_pass(&mut self, now: SimTime, out: &mut Outbox) {
        if self.paused || self.pass.is_some() {
            return;
        }
        let mut pass = std::mem::take(&mut self.spare);
        self.plan_forward_pass(now, &mut pass, out);
        if pass.slots.is_empty() {
            out.extend(pass.events.drain(..).map(|event| (now, event)));
            report_rejected(&mut pass, now, out);
            self.spare = pass;
            return;
        }
        pass.begun = now;
        let computing = self.config.latency.step_time(&pass.batch, self.config.speed);
        pass.end = now + computing.saturating_add(self.step_pause);
        self.pass = Some(pass);
    }

    /// Ends the running pass at `now` if all its sequences have ended.
    fn end_abandoned_pass(&mut self, now: SimTime) {
        if let Some(pass) = &mut self.pass
            && pass.slots.iter().all(|&slot| self.seqs[slot].dead)
        {
            pass.end = pass.end.min(now);
        }
    }

    /// Recomputes the end of the running pass after a change of the configuration.
    fn recompute_pass_end(&mut self, now: SimTime) {
        let config = &self.config;
        if let Some(pass) = &mut self.pass {
            let computing = config.latency.step_time(&pass.batch, config.speed);
            pass.end = (pass.begun + computing.saturating_add(self.step_pause)).max(now);
        }
        self.end_abandoned_pass(now);
    }

    fn finish_pass(&mut self, out: &mut Outbox) {
        let Some(mut pass) = self.pass.take() else {
            return;
        };
        let now = pass.end;
        let output_tokens = if pass.prefill {
            self.finish_prefill_pass(&mut pass, now, out)
        } else {
            self.finish_decode_pass(&mut pass, now, out)
        };
        report_rejected(&mut pass, now, out);
        let prompt_tokens = pass.prompt_tokens;
        let begun = pass.begun;
        let event = SchedulerEvent::Step { begun, prompt_tokens, output_tokens, count: 1 };
        out.push_back((now, event));
        pass.clear();
        self.spare = pass;
        if std::mem::take(&mut self.retracts_all) {
            self.retract_all_sequences(now, out);
        }
        self.reserve_next_prompt_pages(now, out);
        if !self.paused {
            self.plan_at = Some(now);
        }
    }

    /// Handles the release of a sequence's last token. The caller has removed the sequence from its
    /// queue.
    fn complete_sequence(&mut self, slot: SequenceSlot, now: SimTime, out: &mut Outbox) {
        let seq = &mut self.seqs[slot];
        if seq.lends {
            seq.held = true;
            let (id, end) = (seq.id, SequenceEndReason::Finished);
            out.push_back((now, SchedulerEvent::Ended { id, end }));
            return;
        }
        if seq.tail.is_zero() {
            self.end_sequence(slot, SequenceEndReason::Finished, now, out);
        } else {
            // The sequence stays in the batch, but needs no cache.
            seq.drained = true;
            let due = now + seq.tail;
            self.tails.schedule_item(due, (slot, seq.generation));
            self.release_pages(slot);
        }
    }

    fn end_sequence(
        &mut self,
        slot: SequenceSlot,
        end: SequenceEndReason,
        now: SimTime,
        out: &mut Outbox,
    ) {
        self.release_pages(slot);
        let (id, held) = (self.seqs[slot].id, self.seqs[slot].held);
        self.seqs.end_sequence(slot);
        // A sequence held for another engine has already ended.
        if !held {
            out.push_back((now, SchedulerEvent::Ended { id, end }));
        }
    }

    fn stop_sequence(
        &mut self,
        slot: SequenceSlot,
        end: SequenceEndReason,
        now: SimTime,
        out: &mut Outbox,
    ) {
        self.running.retain(|&other| other != slot);
        self.waiting.retain(|&other| other != slot);
        self.destinations.remove_sequence(slot);
        self.end_sequence(slot, end, now, out);
    }

    fn release_pages(&mut self, slot: SequenceSlot) {
        let seq = &mut self.seqs[slot];
        self.radix.release_pages(seq.pages - seq.shared);
        self.radix.unlock_path_to_root(seq.node);
        seq.node = RadixTree::root_node();
        (seq.pages, seq.shared, seq.stored) = (0, 0, 0);
        seq.holds = false;
    }

    /// Moves the full pages of a sequence into the radix tree.
    fn share_full_pages(&mut self, slot: SequenceSlot, events: &mut Vec<SchedulerEvent>) {
        let seq = &mut self.seqs[slot];
        let full = seq.stored / self.config.page_size;
        let known = seq.page_keys(full).len() as u32;
        // Pages on a path from before a reset could never be found.
        let old = seq.epoch != self.epoch;
        if !self.config.enable_prefix_caching || old || known <= seq.shared {
            return;
        }
        let Some(plan) = &seq.plan else {
            return;
        };
        let from = seq.shared;
        let fresh = &plan.keys[from as usize..known as usize];
        let (end, new) = self.radix.insert_pages(seq.node, fresh);
        if end != seq.node {
            self.radix.lock_path_to_root(end);
            self.radix.unlock_path_to_root(seq.node);
            seq.node = end;
        }
        // Another sequence computed the same pages; keep its copies.
        self.radix.release_pages(known - from - new);
        seq.shared = known;
        if self.config.kv_events && new > 0 {
            for i in known - new..known {
                if let (Some(&key), Some(&hash)) =
                    (plan.keys.get(i as usize), plan.hashes.get(i as usize))
                {
                    self.hashes.insert(key, hash);
                }
            }
            let plan = Arc::clone(plan);
            events.push(SchedulerEvent::Stored { plan, from: known - new, to: known });
        }
    }

    fn take_pages(&mut self, pages: u32, events: &mut Vec<SchedulerEvent>) -> bool {
        let mut removed = Vec::new();
        let wanted = self.config.kv_events;
        let hashes = &mut self.hashes;
        let taken = self.radix.allocate_pages(pages, &mut |key| {
            if wanted {
                removed.push((key, hashes.remove(&key)));
            }
        });
        if !removed.is_empty() {
            events.push(SchedulerEvent::Removed { keys: removed });
        }
        taken
    }
}

fn report_rejected(pass: &mut ForwardPass, now: SimTime, out: &mut Outbox) {
    let end = SequenceEndReason::Cancelled;
    out.extend(pass.rejected.drain(..).map(|id| (now, SchedulerEvent::Ended { id, end })));
}

impl Scheduler for SglangScheduler {
    fn submit(
        &mut self,
        now: SimTime,
        seq: Sequence,
        out: &mut Outbox,
    ) -> Result<(), SequenceSubmitError> {
        self.check_submission(&seq, 0)?;
        let transfer = seq.transfer;
        let slot = self.seqs.insert_sequence(seq, self.config.max_model_len, self.arrivals);
        self.arrivals += 1;
        if self.config.handoff && transfer == PromptKvTransfer::RemotePrefill {
            self.queue_remote_prompt(slot, now, out);
            return Ok(());
        }
        self.seqs[slot].lends = self.config.handoff && transfer == PromptKvTransfer::RemoteDecode;
        self.waiting.push_back(slot);
        self.request_pass(now);
        Ok(())
    }

    fn check_submissions(
        &self,
        job: &mut dyn Iterator<Item = &Sequence>,
    ) -> Result<(), SequenceSubmitError> {
        for (before, seq) in job.enumerate() {
            self.check_submission(seq, before)?;
        }
        Ok(())
    }

    fn abort(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) {
        if let Some(slot) = self.seqs.find_slot(id) {
            self.stop_sequence(slot, SequenceEndReason::Aborted, now, out);
            self.end_abandoned_pass(now);
            self.request_pass(now);
        }
    }

    fn next_wakeup(&self) -> Option<SimTime> {
        let end = self.pass.as_ref().map(|pass| pass.end);
        let fetched = self.destinations.next_prompt_transfer_end();
        SimTime::earliest([end, self.plan_at, self.tails.next_due_time(), fetched])
    }

    fn advance(&mut self, now: SimTime, out: &mut Outbox) {
        let mut may_plan = self.plan_at.is_some();
        while let Some(due) = self.next_wakeup().filter(|&due| due <= now) {
            if let Some(pass) = self.pass.as_ref().filter(|pass| pass.end == due) {
                // A pass of zero duration ends before other inputs are handled.
                may_plan |= pass.begun == due;
                self.finish_pass(out);
            } else if let Some((at, (slot, generation))) = self.tails.pop_due_item(due) {
                let seq = &self.seqs[slot];
                if seq.generation == generation && !seq.dead {
                    self.stop_sequence(slot, SequenceEndReason::Finished, at, out);
                    self.request_pass(at);
                }
            } else if self.end_due_prompt_transfer(due, out) {
                // The next iteration handles the events that are due then.
            } else if due < now || may_plan {
                self.plan_at = None;
                may_plan = false;
                self.start_pass(due, out);
            } else {
                break;
            }
        }
    }

    fn apply_command(&mut self, now: SimTime, command: EngineCommand, out: &mut Outbox) -> bool {
        match command {
            EngineCommand::Pause => {
                self.paused = true;
                self.plan_at = None;
            }
            EngineCommand::PauseAdmission => return false,
            EngineCommand::Resume => {
                self.paused = false;
                self.request_pass(now);
            }
            EngineCommand::CancelAll => {
                for slot in self.seqs.live_slots() {
                    self.stop_sequence(slot, SequenceEndReason::Cancelled, now, out);
                }
                self.end_abandoned_pass(now);
            }
            EngineCommand::ResetPrefixCache(reset) => {
                if reset == PrefixCacheResetScope::WhenIdle
                    && self.radix.available_pages() < self.config.num_pages
                {
                    return false;
                }
                if reset == PrefixCacheResetScope::Preempt {
                    self.retracts_all = self.pass.is_some();
                    if !self.retracts_all {
                        self.retract_all_sequences(now, out);
                    }
                }
                if let Some(pass) = &mut self.pass {
                    out.extend(pass.events.drain(..).map(|event| (now, event)));
                }
                self.radix.clear_cache_keeping_locked_pages();
                self.epoch = self.epoch.wrapping_add(1);
                self.hashes.clear();
                if self.config.kv_events {
                    out.push_back((now, SchedulerEvent::Cleared));
                }
            }
            EngineCommand::Caching(on) => self.config.enable_prefix_caching = on,
            EngineCommand::ResetHostTier | EngineCommand::ResetEncoderCache => return false,
            EngineCommand::Release(id) => return self.free_pages_of_fetched_prompt(now, id, out),
            EngineCommand::Delays(delays) => {
                let taken = self.config.latency.replace_token_delays(&delays);
                if taken {
                    self.recompute_pass_end(now);
                }
                return taken;
            }
            EngineCommand::Bounds { running, waiting } => {
                self.config.max_num_seqs = running.max(1);
                self.config.max_waiting = waiting.map(|n| n as usize);
                self.request_pass(now);
            }
            EngineCommand::Speed(speed) => {
                self.config.speed.all = speed;
                self.recompute_pass_end(now);
            }
            EngineCommand::StepPause(pause) => self.step_pause = pause.min(MAX_SIMULATED_DELAY),
        }
        true
    }

    fn cached_blocks(&self) -> Vec<CachedBlock> {
        self.radix.cached_pages()
    }

    fn sequence_progress(&self, id: SeqId) -> Option<SequenceProgress> {
        let seq = &self.seqs[self.seqs.find_slot(id)?];
        // A drained sequence has no pages.
        (!seq.drained).then_some(SequenceProgress { computed: seq.stored, waits_for_kv: false })
    }

    fn block_usage(&self, numbers: Range<u32>) -> KvBlockUsage {
        self.radix.kv_page_usage(self.config.num_pages, numbers)
    }

    fn stats(&self) -> EngineStats {
        let total = self.config.num_pages;
        let prefilled = self.pass.as_ref().filter(|pass| pass.prefill);
        let prefilled = prefilled.map_or(&[][..], |pass| &pass.slots).iter();
        EngineStats {
            running: self.running.len() + prefilled.filter(|&&s| !self.seqs[s].dead).count(),
            waiting: self.waiting.len(),
            used_blocks: total - self.radix.available_pages(),
            total_blocks: total,
            ..self.stats
        }
    }

    fn take_admissions(&mut self, into: &mut Vec<AdmittedSequence>) {
        into.append(&mut self.admissions);
    }

    fn running_step_end(&self) -> Option<SimTime> {
        self.pass.as_ref().map(|pass| pass.end)
    }

    fn extend_step_to(&mut self, end: SimTime) {
        if let Some(pass) = &mut self.pass {
            pass.end = pass.end.max(end);
        }
    }

    fn postpone_pass_to(&mut self, now: SimTime) {
        self.plan_at = self.plan_at.map(|at| at.max(now));
    }

    fn take_reserved_prompts(&mut self) -> Vec<(SeqId, u32)> {
        std::mem::take(&mut self.destinations.reserved)
    }

    fn resume_transferred(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) -> bool {
        self.resume_transferred_prompt(now, id, out)
    }
}
