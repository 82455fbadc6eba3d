//! Decodes sequences in bulk if the caller needs no event per token
//! ([`SchedulerReportingConfig::run_lengths`]).
//!
//! A decoding sequence does the same in every step: it gains one token. In bulk, its counts follow
//! from the number of steps since it joined. The step in which it next needs more (a KV block, a
//! prefix-cache entry, its end) is computed in advance. The cost of a step is then independent of
//! the batch size.
//!
//! For a caller that needs the time of each token, only decode steps of zero duration are simulated
//! and reported together: one step covers several of the same instant.
//!
//! If tokens or blocks may not suffice for all sequences, all leave the bulk. The step is then
//! scheduled sequence by sequence, so the bulk never changes a decision.
//!
//! [`SchedulerReportingConfig::run_lengths`]: super::SchedulerReportingConfig::run_lengths

use crate::SimTime;
use crate::kv::BlockAllocationRequest;
use crate::{Outbox, SchedulerEvent, StepDraftCounts};

use super::config::VllmSchedulerConfig;
use super::pass::SchedulingPass;
use super::seqs::{SequenceRunState, SequenceSlot};
use super::step::{ScheduledStep, SequenceStepOutput};
use super::{BatchScheduler, SchedulingRules};

/// Number of future steps for which the checks of sequences decoded in bulk are listed by step; a
/// power of two. A sequence that needs no check within these steps is still checked when they end.
const LOOKAHEAD_STEPS: u64 = 256;

/// Number of scheduling passes after a failed attempt to decode sequences in bulk (for lack of
/// tokens or KV blocks), before the next attempt.
const COOLDOWN_PASSES: u8 = 16;

/// Tracks the sequences decoded in bulk, without bookkeeping or an event per token, and their batch
/// in the next step.
#[derive(Debug)]
pub(super) struct BulkDecode {
    allowed: bool,
    /// Whether a decode step of zero duration may cover several.
    repeats_instant_steps: bool,
    count: u32,
    context: u64,
    /// Sum of the context lengths of the sequences decoded in bulk (without bookkeeping per step),
    /// each clipped to the sliding window, in tokens.
    clipped: u64,
    /// Number of sequences decoded in bulk (without bookkeeping per step) that are shorter than the
    /// sliding window.
    growing: u32,
    window: u32,
    planned: u64,
    ended: u64,
    /// Sequences decoded in bulk that must be checked in a future step, because they need a KV
    /// block, fill a prefix-cache entry or end. Listed by step number modulo [`LOOKAHEAD_STEPS`];
    /// entries may be outdated.
    due: Vec<Vec<SequenceSlot>>,
    /// Running sequences with bookkeeping in every step, because they are not decoded in bulk. May
    /// include sequences whose last token is scheduled.
    active: Vec<SequenceSlot>,
    /// Highest admission number of the sequences decoded in bulk (without bookkeeping per step).
    last_place: u64,
    /// Number of scheduling passes before the scheduler may again decode sequences in bulk, without
    /// bookkeeping per step.
    cooldown: u8,
    todo: Vec<SequenceSlot>,
}

impl BulkDecode {
    pub(super) fn new(config: &VllmSchedulerConfig, rules: &impl SchedulingRules) -> Self {
        let alike = config.has_alike_decode_steps() && rules.decodes_in_bulk();
        let run_lengths = config.reporting.run_lengths;
        Self {
            allowed: alike && run_lengths,
            // Host copies and other data-parallel ranks go on with each step.
            repeats_instant_steps: alike
                && !run_lengths
                && config.host_tier.is_none()
                && !config.lock_step,
            count: 0,
            context: 0,
            clipped: 0,
            growing: 0,
            window: config.latency.sliding_window().unwrap_or(u32::MAX),
            planned: 0,
            ended: 0,
            due: Vec::new(),
            active: Vec::new(),
            last_place: 0,
            cooldown: 0,
            todo: Vec::new(),
        }
    }

    pub(super) fn add_admitted_sequence(&mut self, slot: SequenceSlot) {
        if self.allowed {
            self.active.push(slot);
        }
    }

    /// Removes a sequence from the list of running sequences that are not decoded in bulk. Called
    /// for a sequence that leaves the running batch before its last token is scheduled.
    pub(super) fn remove_sequence(&mut self, slot: SequenceSlot) {
        if self.allowed
            && let Some(at) = self.active.iter().position(|&other| other == slot)
        {
            self.active.swap_remove(at);
        }
    }

    /// Returns the number of the newest scheduled step.
    pub(super) fn newest_step_number(&self) -> u64 {
        self.planned
    }

    pub(super) fn record_finished_step(&mut self, step: &ScheduledStep) {
        self.ended = step.number;
    }

    fn register_need(&mut self, slot: SequenceSlot, at: u64) {
        if self.due.is_empty() {
            self.due.resize_with(LOOKAHEAD_STEPS as usize, Vec::new);
        }
        self.due[(at % LOOKAHEAD_STEPS) as usize].push(slot);
    }
}

impl<R: SchedulingRules> BatchScheduler<R> {
    pub(super) fn record_scheduled_step(&mut self, now: SimTime, step: &mut ScheduledStep) {
        let bulk = &mut self.bulk;
        bulk.planned += 1;
        step.number = bulk.planned;
        if step.bulk_decodes > 0 {
            bulk.context += u64::from(bulk.count);
            bulk.clipped += u64::from(bulk.growing);
        }
        let is_instant = bulk.repeats_instant_steps && self.config.decodes_instantly();
        if is_instant && self.runs_alone_at(now) {
            self.repeat_instant_decodes(step);
        }
    }

    /// Returns whether only the next step, and the one before it, have work at `now`.
    fn runs_alone_at(&self, now: SimTime) -> bool {
        self.waiting.is_empty()
            && self.timers.next_due_time().is_none_or(|due| due > now)
            && self.flight.front().is_none_or(|running| running.end <= now)
    }

    /// Makes a decode step of zero duration cover the equal steps after it: those before a sequence
    /// needs a KV block, adds a prefix-cache entry or ends.
    fn repeat_instant_decodes(&mut self, step: &mut ScheduledStep) {
        if !step.work.is_empty() || step.entries.len() < self.running.len() {
            return;
        }
        let late = u32::from(self.config.async_scheduling);
        let alike_steps = step.entries.iter().map(|entry| {
            let seq = &self.seqs[entry.slot];
            let settled = seq.settled.saturating_sub(seq.computed + late);
            settled.min((seq.total - seq.known).saturating_sub(1))
        });
        let repeats = alike_steps.min().unwrap_or(0).min(LOOKAHEAD_STEPS as u32);
        // Steps in flight together are planned together, so the later steps keep their places.
        step.repeats = repeats - repeats % self.max_steps_in_flight() as u32;
        if step.repeats == 0 {
            return;
        }
        for entry in &step.entries {
            let seq = &mut self.seqs[entry.slot];
            seq.known += step.repeats;
            seq.computed += step.repeats;
            seq.reset_recent_preemptions();
        }
    }

    /// Schedules all running sequences, those decoded in bulk together, if the token budget and the
    /// KV blocks suffice for all. Otherwise ends all bulk decoding and returns false.
    pub(super) fn schedule_bulk_decodes(&mut self, pass: &mut SchedulingPass) -> bool {
        if self.bulk.count == 0 {
            return false;
        }
        let number = self.bulk.planned + 1;
        let mut todo = std::mem::take(&mut self.bulk.todo);
        todo.clear();
        let due = &mut self.bulk.due[(number % LOOKAHEAD_STEPS) as usize];
        for slot in due.drain(..) {
            let seq = &mut self.seqs[slot];
            if seq.bulk.is_in && seq.bulk.due == number {
                // An outdated entry of the same slot may follow.
                seq.bulk.due = 0;
                todo.push(slot);
            }
        }
        let running = |&&slot: &&SequenceSlot| self.seqs[slot].state == SequenceRunState::Running;
        todo.extend(self.bulk.active.iter().filter(running));
        todo.sort_unstable_by_key(|&slot| self.seqs[slot].place);
        let enough = self.has_enough_for_all(&todo, pass.budget);
        if enough {
            // Sequences flushed here take their token like those outside the bulk.
            pass.budget -= self.bulk.count;
            for &slot in &todo {
                self.schedule_sequence(slot, pass);
            }
            let (bulk, batch) = (&self.bulk, &mut pass.step.batch);
            batch.decodes += bulk.count;
            batch.decode_tokens += bulk.count;
            batch.context += bulk.context;
            batch.clipped += bulk.clipped;
            pass.step.bulk_decodes = bulk.count;
        } else {
            self.flush_bulk_decodes(pass.now, pass.out);
        }
        self.bulk.todo = todo;
        enough
    }

    /// Returns whether the token budget and the KV blocks suffice for one step of all running
    /// sequences. `todo` lists, in scheduling order, the sequences that are not decoded in bulk or
    /// must be checked.
    fn has_enough_for_all(&self, todo: &[SequenceSlot], budget: u32) -> bool {
        let bulk = &self.bulk;
        let Some(mut rest) = budget.checked_sub(bulk.count) else {
            return false;
        };
        let age = |joined| (bulk.planned - joined) as u32;
        let missing =
            |tokens, slot: SequenceSlot| self.pool.max_new_blocks(&self.seqs[slot].table, tokens);
        let mut blocks = 0u32;
        for &slot in todo {
            let seq = &self.seqs[slot];
            if seq.bulk.is_in {
                let tokens = seq.computed + age(seq.bulk.joined) + 1;
                blocks = blocks.saturating_add(missing(tokens, slot));
                continue;
            }
            if seq.may_need_encoding() {
                return false;
            }
            let whole = self.tokens_to_schedule(slot, seq.computed, u32::MAX);
            let new = match rest {
                0 => 0,
                rest => self.tokens_to_schedule(slot, seq.computed, rest),
            };
            // A later sequence would get fewer tokens.
            if new < whole && seq.place < bulk.last_place {
                return false;
            }
            rest -= new;
            blocks = blocks.saturating_add(missing(seq.computed + new, slot));
        }
        blocks <= self.pool.free_block_count()
    }

    fn schedule_sequence(&mut self, slot: SequenceSlot, pass: &mut SchedulingPass) {
        let seq = &self.seqs[slot];
        if !seq.bulk.is_in {
            pass.step.short |= pass.budget == 0;
            if pass.budget > 0 {
                let (past, new) =
                    (seq.computed, self.tokens_to_schedule(slot, seq.computed, pass.budget));
                if new == 0 {
                    pass.step.short = true;
                    return;
                }
                self.allocate_sure_blocks(slot, (past, new), seq.known, pass.step);
                self.add_sequence_to_step(slot, past, new, pass.step);
                pass.budget -= new;
            }
            return;
        }
        let age = (self.bulk.planned - seq.bulk.joined) as u32;
        let (past, known) = (seq.computed + age, seq.known + age);
        if known + 1 == seq.total {
            self.flush_bulk_decode(slot, pass.now, pass.out);
            self.allocate_sure_blocks(slot, (past, 1), known, pass.step);
            self.add_sequence_to_step(slot, past, 1, pass.step);
            return;
        }
        if past >= seq.settled {
            self.allocate_sure_blocks(slot, (past, 1), known, pass.step);
        }
        if known == self.bulk.window {
            self.bulk.growing -= 1;
        }
        self.register_next_need(slot, self.bulk.planned + 1);
    }

    fn allocate_sure_blocks(
        &mut self,
        slot: SequenceSlot,
        (past, new): (u32, u32),
        known: u32,
        step: &mut ScheduledStep,
    ) {
        let tokens = past + new;
        let need = BlockAllocationRequest {
            tokens,
            cache: tokens.min(self.cacheable_tokens(slot, known)),
            processed: self.processed_tokens(slot, past),
            ..BlockAllocationRequest::default()
        };
        let done = self.allocate_sequence_blocks(slot, &need, step);
        debug_assert!(done, "there were enough blocks for all");
    }

    /// Schedules the check of a sequence decoded in bulk: in the first step after step `number`
    /// that needs a KV block, adds a prefix-cache entry or ends the sequence.
    fn register_next_need(&mut self, slot: SequenceSlot, number: u64) {
        let seq = &mut self.seqs[slot];
        let age = (number - seq.bulk.joined) as u32;
        let (computed, known) = (seq.computed + age, seq.known + age);
        // Steps before each need; a step computes one token.
        let settled = seq.settled.saturating_sub(computed);
        let last = (seq.total - known).saturating_sub(1);
        let window = match self.bulk.window.checked_sub(known) {
            Some(rest) if rest > 0 => rest,
            _ => u32::MAX,
        };
        let free = u64::from(settled.min(last).min(window));
        seq.bulk.due = number + 1 + free.min(LOOKAHEAD_STEPS - 2);
        let due = seq.bulk.due;
        self.bulk.register_need(slot, due);
    }

    /// Begins to decode sequences in bulk, without bookkeeping per step, if they only decode from
    /// now on. Called after a step that gave every sequence a token, so the token before a series
    /// of bulk steps was sampled in the previous step.
    pub(super) fn begin_bulk_decodes(&mut self) {
        if !self.bulk.allowed || self.bulk.active.is_empty() {
            return;
        }
        self.bulk.cooldown = self.bulk.cooldown.saturating_sub(1);
        let mut active = std::mem::take(&mut self.bulk.active);
        active.retain(|&slot| {
            let seq = &self.seqs[slot];
            if seq.state != SequenceRunState::Running {
                return false;
            }
            // A sequence that recomputes lost tokens may lack one token without having decoded
            // here.
            let made_one = seq.preemptions.recent == 0 && seq.computed >= seq.prompt;
            let decodes = made_one && seq.computed + 1 == seq.known;
            let waits = self.bulk.cooldown > 0 || seq.known >= seq.total;
            let behind = self.host.is_some() && self.has_prompt_blocks_not_offloaded(slot);
            if !decodes || waits || behind || seq.holds_embeddings() {
                return true;
            }
            self.enter_bulk(slot);
            false
        });
        self.bulk.active = active;
    }

    fn enter_bulk(&mut self, slot: SequenceSlot) {
        let bulk = &mut self.bulk;
        if bulk.count == 0 {
            bulk.last_place = 0;
        }
        let seq = &mut self.seqs[slot];
        seq.bulk.is_in = true;
        seq.bulk.joined = bulk.planned;
        bulk.last_place = bulk.last_place.max(seq.place);
        bulk.count += 1;
        bulk.context += u64::from(seq.known);
        bulk.clipped += u64::from(seq.known.min(bulk.window));
        bulk.growing += u32::from(seq.known < bulk.window);
        let number = bulk.planned;
        self.register_next_need(slot, number);
    }

    pub(super) fn flush_bulk_decodes(&mut self, now: SimTime, out: &mut Outbox) {
        for at in 0..self.running.len() {
            self.flush_bulk_decode(self.running[at], now, out);
        }
        self.bulk.cooldown = COOLDOWN_PASSES;
    }

    /// Ends the bulk decoding of a running sequence: updates its token counts for the steps so far,
    /// and reports its tokens. Does nothing if the sequence is not decoded in bulk.
    pub(super) fn flush_bulk_decode(&mut self, slot: SequenceSlot, now: SimTime, out: &mut Outbox) {
        let bulk = &mut self.bulk;
        let seq = &mut self.seqs[slot];
        if !std::mem::take(&mut seq.bulk.is_in) {
            return;
        }
        let age = (bulk.planned - seq.bulk.joined) as u32;
        seq.known += age;
        seq.computed += age;
        if age > 0 {
            seq.reset_recent_preemptions();
        }
        bulk.count -= 1;
        bulk.context -= u64::from(seq.known);
        bulk.clipped -= u64::from(seq.known.min(bulk.window));
        bulk.growing -= u32::from(seq.known < bulk.window);
        bulk.active.push(slot);
        for step in &mut self.flight {
            if step.number > seq.bulk.joined {
                step.bulk_decodes -= 1;
                step.entries.push(SequenceStepOutput {
                    slot,
                    emit: 1,
                    last: false,
                    drafts: StepDraftCounts::default(),
                });
                seq.in_flight += 1;
            }
        }
        let n = bulk.ended.saturating_sub(seq.bulk.joined) as u32;
        if n > 0 {
            seq.released += n;
            out.push_back((now, SchedulerEvent::Decoded { id: seq.id, n }));
        }
    }
}
