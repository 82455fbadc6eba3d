//! The making of one step.

mod admission;
mod drafts;
mod running;

use crate::SimTime;
use crate::kv::BlockRequest;
use crate::{Outbox, Transfer};
use vllm_sim_random::Draw;

use super::Vllm;
use super::config::Speculation;
use super::seqs::{Seq, SeqState, Slot};
use super::step::{Step, StepEntry, StepWork};

/// A step in the making.
pub(super) struct Pass<'a> {
    pub now: SimTime,
    /// Tokens that may still be computed.
    pub budget: u32,
    /// The running sequence that is looked at.
    at: usize,
    /// Somebody lost its blocks.
    preempted: bool,
    pub step: &'a mut Step,
    pub out: &'a mut Outbox,
}

impl Vllm {
    /// Fills `step`: running sequences first, then waiting ones. True: somebody was preempted.
    pub(super) fn schedule(&mut self, now: SimTime, step: &mut Step, out: &mut Outbox) -> bool {
        let budget = self.config.max_num_batched_tokens;
        let mut pass = Pass {
            now,
            budget,
            at: 0,
            preempted: false,
            step,
            out,
        };
        self.loras.begin();
        if !self.schedule_bulk(&mut pass) {
            self.schedule_running(&mut pass);
        }
        if !pass.preempted {
            self.schedule_waiting(&mut pass);
        }
        self.draw_tokens(&mut pass);
        pass.preempted
    }

    /// Tokens that a sequence computes in this step.
    pub(super) fn wanted(&self, slot: Slot, past: u32, budget: u32) -> u32 {
        let seq = &self.seqs[slot];
        let mut new = seq.known - past;
        if past >= seq.prompt && new == 1 {
            new += self.config.fed_drafts();
        }
        let threshold = self.config.long_prefill_token_threshold;
        if threshold > 0 && new > threshold {
            new = threshold;
        }
        // Drafts do not go beyond the last planned token.
        new.min(budget).min((seq.total - past).max(1))
    }

    /// Takes the blocks a sequence needs; what that does to the cache is reported with the step.
    pub(super) fn allocate(&mut self, slot: Slot, need: &BlockRequest, step: &mut Step) -> bool {
        let seq = &mut self.seqs[slot];
        let (plan, events) = (seq.plan.as_ref(), &mut step.events);
        let done = self
            .pool
            .allocate(&mut seq.table, plan, need, &mut |event| events.push(event));
        seq.settled = seq.table.settled();
        done
    }

    /// Gives back all blocks of a sequence.
    pub(super) fn free_blocks(&mut self, slot: Slot) {
        let seq = &mut self.seqs[slot];
        self.pool.release(&mut seq.table);
        seq.settled = 0;
    }

    /// Enters a sequence that has its blocks into the step.
    pub(super) fn emit(&mut self, slot: Slot, past: u32, new: u32, step: &mut Step) {
        let seq = &mut self.seqs[slot];
        let (prompt, known) = (seq.prompt, seq.known);
        // One query over a context that is there: vLLM and Dynamo's mocker alike run it as a decode.
        let fetched = seq.transfer == Transfer::RemotePrefill
            && seq.recent_preemptions == 0
            && past + 1 == prompt;
        let complete = past + new >= known;
        // What the mocker draws is drawn when the pass is complete.
        let later = self.config.speculation.as_ref().is_some_and(|s| s.free);
        let accepted = match &self.config.speculation {
            Some(speculation) if complete && !later => accepted(seq, speculation, past + new),
            _ => 0,
        };
        let emit = match complete && !later {
            true => (1 + accepted).min(seq.total - known),
            false => 0,
        };
        // Rejected drafts leave nothing behind.
        seq.computed = match complete && !later {
            true => known + emit.saturating_sub(1),
            false => past + new,
        };
        seq.known = known + emit;
        seq.in_flight += 1;
        if emit > 0 {
            seq.recent_preemptions = 0;
        }
        let last = complete && !later && seq.known == seq.total;
        if last {
            seq.state = SeqState::Draining;
        }
        let work = StepWork {
            slot,
            past,
            new,
            prompt,
            known,
            later,
            fetched,
        };
        let entry = StepEntry { slot, emit, last };
        step.push(entry, work, self.config.recompute, self.window);
    }

    /// A sequence with its adapter takes part.
    fn note_lora(&mut self, slot: Slot, step: &mut Step) {
        if self.config.max_loras > 0
            && let Some(lora) = self.seqs[slot].lora
            && self.loras.take(lora, self.config.kept_loras())
        {
            step.loading += self.config.lora_load;
        }
    }
}

/// How many drafts of this step are right; `fed` counts the tokens computed up to here, drafts
/// that the budget left out not among them.
fn accepted(seq: &mut Seq, speculation: &Speculation, fed: u32) -> u32 {
    let Some(draws) = &mut seq.draws else {
        return 0;
    };
    let drafts = fed.saturating_sub(seq.known) as usize;
    let right = speculation.accept.iter().take(drafts);
    right.take_while(|&&rate| draws.unit() < rate).count() as u32
}
