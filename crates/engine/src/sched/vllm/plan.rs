//! Schedules the sequences of one step.

mod admission;
mod media;
mod prefill;
mod running;

use crate::SimTime;
use crate::kv::BlockAllocationRequest;
use crate::{Outbox, PromptKvTransfer, StepDraftCounts};
use vllm_sim_random::DrawRandom;

use super::config::SpeculativeDecodingConfig;
use super::pass::SchedulingPass;
use super::seqs::{ScheduledSequence, SequenceRunState, SequenceSlot};
use super::step::{ScheduledStep, SequenceStepOutput, SequenceStepWork};
use super::{BatchScheduler, SchedulingRules};

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Fills `step` with running, then waiting sequences. Returns true if a sequence was preempted.
    pub(in crate::sched) fn schedule_step(
        &mut self,
        now: SimTime,
        step: &mut ScheduledStep,
        out: &mut Outbox,
    ) -> bool {
        let speculation = self.config.speculation.as_ref();
        let mut pass = SchedulingPass {
            now,
            budget: self.config.max_scheduled_tokens(),
            input_budget: self.config.max_num_batched_tokens,
            input_slots: speculation.map_or(0, |speculation| speculation.input_slots),
            at: 0,
            preempted: false,
            has_prefill: false,
            has_running: false,
            admits_prefill: false,
            holds_prefill: false,
            step,
            out,
        };
        self.loras.begin_scheduling_pass();
        if let Some(encoder) = &mut self.encoder {
            encoder.begin_scheduling_pass();
        }
        self.pool.begin_scheduling_pass();
        pass.holds_prefill = self.is_prefill_throttled();
        if !self.schedule_bulk_decodes(&mut pass) {
            self.schedule_running_sequences(&mut pass);
        }
        pass.has_running = !pass.step.is_empty();
        if !pass.preempted && !self.waiting.is_empty() {
            self.schedule_waiting_sequences(&mut pass);
        }
        R::draw_output_token_counts(self, &mut pass);
        if self.host.is_some() {
            self.offer_step_blocks_to_host(pass.step, now);
        }
        R::offer_step_blocks(self, pass.step);
        self.record_prefill_step(&pass);
        pass.preempted
    }

    pub(in crate::sched) fn tokens_to_schedule(
        &self,
        slot: SequenceSlot,
        past: u32,
        budget: u32,
    ) -> u32 {
        let seq = &self.seqs[slot];
        let mut new = seq.known - past;
        let drafts = self.config.drafts_per_step();
        if drafts > 0
            && new == 1
            && !seq.step.is_prefill_chunk
            && seq.state != SequenceRunState::Waiting
        {
            // With asynchronous scheduling, drafts are scheduled before they are known.
            let own = seq.submitted_drafts().filter(|_| !self.config.async_scheduling);
            new += own.map_or(drafts, |draft| u32::from(draft.proposed));
        }
        if self.config.prefill.long_prefill_token_threshold > 0 {
            new = new.min(self.max_prefill_chunk_tokens());
        }
        let mut new = new.min(budget);
        if drafts > 0 {
            // One place of the context is for the token sampled in the step.
            let room = self.config.max_model_len.saturating_sub(past + seq.step.ahead);
            new = new.min(room.saturating_sub(1));
        }
        match self.aligns_chunks {
            true => self.align_prefill_chunk_to_blocks(seq, past, new),
            false => new,
        }
    }

    /// Returns how many of a sequence's tokens belong to steps that have ended. `past` also counts
    /// the tokens of steps in flight.
    pub(in crate::sched) fn processed_tokens(&self, slot: SequenceSlot, past: u32) -> u32 {
        let seq = &self.seqs[slot];
        let flying = self.flight.back().filter(|step| {
            self.pool.has_layer_groups()
                && (seq.in_flight > 0 || (seq.bulk.is_in && step.number > seq.bulk.joined))
        });
        flying.map_or(past, |step| {
            let own = step.work.iter().find(|work| work.slot == slot);
            past.saturating_sub(1).min(own.map_or(u32::MAX, |work| work.past))
        })
    }

    /// Returns how many of the `known` tokens of a sequence may enter the prefix cache when the
    /// next step is planned.
    #[inline]
    pub(in crate::sched) fn cacheable_tokens(&self, slot: SequenceSlot, known: u32) -> u32 {
        let seq = &self.seqs[slot];
        seq.tokens_with_keys(seq.known_tokens_at_planning(known, self.flight.len() as u32))
    }

    /// Adds to the prefix cache the KV blocks that are full after a step has verified its draft
    /// tokens.
    ///
    /// **Source:** `cache_blocks` in `update_from_output`, `vllm/v1/core/sched/scheduler.py`.
    pub(in crate::sched) fn cache_verified_blocks(&mut self, step: &ScheduledStep) {
        let has_drafts = self.config.drafts_per_step() > 0;
        if !(self.config.async_scheduling || has_drafts) || !self.config.enable_prefix_caching {
            return;
        }
        let mut work = step.work.iter();
        for entry in &step.entries {
            let seq = &mut self.seqs[entry.slot];
            if seq.computed < seq.settled {
                // No block is full.
                continue;
            }
            // Plain decodes have no work of their own. The others have it in the order of entries.
            let own = work.clone().position(|work| work.slot == entry.slot);
            let own = own.and_then(|at| work.nth(at));
            // The next step caches the others when it is planned.
            let is_due = seq.in_flight == 1 || has_drafts;
            let is_running =
                matches!(seq.state, SequenceRunState::Running | SequenceRunState::Draining);
            if !is_due || entry.emit == 0 || seq.step.stale.has_stale_steps() || !is_running {
                continue;
            }
            let computed = match own {
                Some(own) => own.known + entry.emit - 1,
                None => seq.computed,
            };
            let (plan, events) = (seq.plan.as_ref(), &mut self.reports.events);
            let known = plan.map_or(0, |plan| plan.lookahead);
            let upto = computed.min((seq.released + entry.emit).saturating_sub(known));
            self.pool
                .cache_full_blocks(&mut seq.table, plan, upto, &mut |event| events.push(event));
            seq.settled = seq.table.tokens_until_block_table_change();
        }
    }

    /// Allocates KV blocks for a sequence. Prefix-cache events are reported with the step.
    pub(in crate::sched) fn allocate_sequence_blocks(
        &mut self,
        slot: SequenceSlot,
        need: &BlockAllocationRequest,
        step: &mut ScheduledStep,
    ) -> bool {
        let seq = &mut self.seqs[slot];
        let held = seq.table.len();
        let (plan, events) = (seq.plan.as_ref(), &mut step.events);
        let done =
            self.pool.allocate_blocks(&mut seq.table, plan, need, &mut |event| events.push(event));
        seq.settled = seq.table.tokens_until_block_table_change();
        let held = held.max(need.prefix / self.config.block_size);
        self.delay_step_for_host_reads(slot, held, step);
        R::on_blocks_allocated(self, slot, held);
        done
    }

    pub(in crate::sched) fn free_sequence_blocks(&mut self, slot: SequenceSlot) {
        let seq = &mut self.seqs[slot];
        self.pool.release_block_table(&mut seq.table);
        seq.settled = 0;
        if seq.media.is_some() {
            self.release_all_media(slot);
        }
    }

    pub(in crate::sched) fn add_sequence_to_step(
        &mut self,
        slot: SequenceSlot,
        past: u32,
        new: u32,
        step: &mut ScheduledStep,
    ) {
        if self.seqs[slot].media.is_some() {
            self.schedule_media_encoding(slot, step);
        }
        let seq = &mut self.seqs[slot];
        let (prompt, known) = (seq.prompt, seq.known);
        // One query token after a loaded context runs as a decode.
        let loaded = seq.load.tokens > 0 && R::LOADED_PROMPTS_DECODE;
        let fetched = (seq.request.transfer == PromptKvTransfer::RemotePrefill || loaded)
            && seq.preemptions.recent == 0
            && past + 1 == prompt
            && !seq.load.is_lost;
        let complete = past + new >= known;
        let later = self.rules.draws_after_scheduling();
        let drafts = match &self.config.speculation {
            Some(speculation) if complete && !later => {
                draw_verified_drafts(seq, speculation, past + new - known)
            }
            _ => StepDraftCounts::default(),
        };
        let emit = match complete && !later {
            true => (1 + u32::from(drafts.accepted)).min(seq.total - known),
            false => 0,
        };
        // Rejected drafts leave no computed tokens.
        seq.computed = match complete && !later {
            true => known + emit.saturating_sub(1),
            false => past + new,
        };
        seq.known = known + emit;
        seq.step.ahead = (past + seq.step.ahead + new).saturating_sub(seq.computed);
        seq.step.is_prefill_chunk = !complete;
        seq.in_flight += 1;
        if emit > 0 {
            seq.reset_recent_preemptions();
        }
        let last = complete && !later && seq.known == seq.total;
        if last {
            seq.state = SequenceRunState::Draining;
        }
        let work = SequenceStepWork { slot, past, new, prompt, known, later, fetched };
        let entry = SequenceStepOutput { slot, emit, last, drafts };
        let cost = self.rules.step_cost(&work, self.window);
        let prompt_tokens = self.rules.prompt_tokens_of(&work);
        step.push_sequence(entry, work, cost, prompt_tokens);
    }

    fn record_lora_use(&mut self, slot: SequenceSlot, step: &mut ScheduledStep) {
        if self.config.loras.max_loras > 0
            && let Some(lora) = self.seqs[slot].request.lora
            && self.loras.mark_lora_used(lora, self.config.loaded_lora_capacity())
        {
            step.loading += self.config.loras.load_time;
        }
    }
}

/// Returns the number of draft tokens that a step verifies and the number accepted. Padding is
/// never accepted.
fn draw_verified_drafts(
    seq: &mut ScheduledSequence,
    speculation: &SpeculativeDecodingConfig,
    fed: u32,
) -> StepDraftCounts {
    let fed = u8::try_from(fed).unwrap_or(u8::MAX);
    if std::mem::take(&mut seq.step.is_padded) || fed == 0 {
        return StepDraftCounts { proposed: fed, accepted: 0 };
    }
    if let Some(own) = seq.submitted_drafts() {
        return StepDraftCounts { proposed: fed, accepted: own.accepted.min(fed) };
    }
    let Some(draws) = &mut seq.draws else {
        return StepDraftCounts::default();
    };
    let rates = speculation.accept.iter().take(fed.into());
    // A configuration has at most 64 drafts.
    let proposed = rates.len().min(u8::MAX.into()) as u8;
    let right = rates.take_while(|&&rate| draws.draw_unit_f64() < rate).count();
    StepDraftCounts { proposed, accepted: right as u8 }
}
