//! Schedules the sequences of one step.

mod admission;
mod media;
mod prefill;
mod running;

use crate::SimTime;
use crate::kv::BlockAllocationRequest;
use crate::{Outbox, PromptTransfer, StepDrafts};
use vllm_sim_random::DrawRandom;

use super::config::SpeculationConfig;
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
        let budget = self.config.max_num_batched_tokens;
        let mut pass = SchedulingPass {
            now,
            budget,
            at: 0,
            preempted: false,
            holds_prefill: false,
            step,
            out,
        };
        self.loras.begin_pass();
        if let Some(encoder) = &mut self.encoder {
            encoder.begin_pass();
        }
        self.pool.begin_scheduling_pass();
        pass.holds_prefill = self.is_prefill_held_back();
        if !self.schedule_bulk(&mut pass) {
            self.schedule_running(&mut pass);
        }
        if !pass.preempted {
            self.schedule_waiting(&mut pass);
        }
        R::draw_output_token_counts(self, &mut pass);
        if self.host.is_some() {
            self.offer_step_to_host(pass.step);
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
        if past >= seq.prompt && new == 1 {
            let own = seq.submitted_drafts().map(|draft| u32::from(draft.proposed));
            new += own.unwrap_or_else(|| self.config.drafts_per_step());
        }
        if self.config.prefill.long_prefill_token_threshold > 0 {
            new = new.min(self.max_chunk_tokens());
        }
        // Drafts after the last planned token would be dropped, so they are not computed.
        let new = new.min(budget).min((seq.total - past).max(1));
        match self.aligns_chunks {
            true => self.align_chunk_to_blocks(seq, past, new),
            false => new,
        }
    }

    /// Returns the number of tokens of a sequence whose steps have ended. `past` also counts those
    /// in flight.
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
        seq.settled = seq.table.settled_tokens();
        R::on_blocks_allocated(self, slot, held.max(need.prefix / self.config.block_size));
        done
    }

    pub(in crate::sched) fn free_sequence_blocks(&mut self, slot: SequenceSlot) {
        let seq = &mut self.seqs[slot];
        self.pool.release_table(&mut seq.table);
        seq.settled = 0;
        if seq.media.is_some() {
            self.release_all_media(slot);
        }
    }

    pub(in crate::sched) fn add_to_step(
        &mut self,
        slot: SequenceSlot,
        past: u32,
        new: u32,
        step: &mut ScheduledStep,
    ) {
        if self.seqs[slot].media.is_some() {
            self.schedule_media_encoding(slot, past, new, step);
        }
        let seq = &mut self.seqs[slot];
        let (prompt, known) = (seq.prompt, seq.known);
        // One query token after a loaded context runs as a decode.
        let loaded = seq.load.tokens > 0 && R::LOADED_PROMPTS_DECODE;
        let fetched = (seq.request.transfer == PromptTransfer::RemotePrefill || loaded)
            && seq.preemptions.recent == 0
            && past + 1 == prompt
            && !seq.load.is_lost;
        let complete = past + new >= known;
        let later = self.rules.draws_after_scheduling();
        let drafts = match &self.config.speculation {
            Some(speculation) if complete && !later && past >= prompt && past + 1 == known => {
                // vLLM schedules all drafts of a request, even close to its limit.
                let to_limit = past + new == seq.total && seq.total < self.config.max_model_len;
                let fed = if to_limit { u32::MAX } else { new - 1 };
                draw_verified_drafts(seq, speculation, fed)
            }
            _ => StepDrafts::default(),
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
            && self.loras.use_lora(lora, self.config.loaded_lora_capacity())
        {
            step.loading += self.config.loras.load_time;
        }
    }
}

/// Returns the number of draft tokens that a step verifies, at most `fed`, and the number accepted.
fn draw_verified_drafts(
    seq: &mut ScheduledSequence,
    speculation: &SpeculationConfig,
    fed: u32,
) -> StepDrafts {
    let fed = u8::try_from(fed).unwrap_or(u8::MAX);
    if let Some(own) = seq.submitted_drafts() {
        return StepDrafts { proposed: own.proposed.min(fed), accepted: own.accepted.min(fed) };
    }
    let Some(draws) = &mut seq.draws else {
        return StepDrafts::default();
    };
    let rates = speculation.accept.iter().take(fed.into());
    // A configuration has at most 64 drafts.
    let proposed = rates.len().min(u8::MAX.into()) as u8;
    let right = rates.take_while(|&&rate| draws.draw_unit_f64() < rate).count();
    StepDrafts { proposed, accepted: right as u8 }
}
