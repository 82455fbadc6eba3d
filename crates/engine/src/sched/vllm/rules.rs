//! Rules in which schedulers that batch as vLLM does differ.

#![expect(
    private_interfaces,
    reason = "nobody outside makes rules: the trait is public as the bound of public schedulers"
)]

use std::fmt::Debug;

use super::pass::{AdmissionTurn, Pass};
use super::seqs::{Seq, Slot};
use super::step::{Step, StepWork};
use super::{BatchScheduler, VllmConfig};
use crate::latency::Batch;
use crate::{BlockPlan, Outbox, SeqId, Sequence, SimTime, SubmitError};

/// Decides where schedulers that batch as vLLM does differ. The defaults are vLLM's rules.
pub trait SchedulingRules: Debug + Sized {
    /// Preemptions without a token after which a sequence is no first victim any more.
    const MAX_RECENT_PREEMPTIONS: u8 = 3;
    /// Decides whether a victim that had its turn in a step takes another's with it; those behind a sequence
    /// without blocks have theirs then.
    const VICTIM_COSTS_A_TURN: bool = false;
    /// Decides whether a step that takes no time is followed by the next one before inputs are taken.
    const INSTANT_STEPS_COME_FIRST: bool = false;
    /// Decides whether what a sequence computes runs alone where it is more than the budget and cannot be cut.
    const OVERSIZED_RUN_ALONE: bool = true;
    /// Decides whether a sequence joins only with room for its next token while ended ones, or those whose
    /// prompts are fetched, hold blocks.
    const RESERVES_NEXT_TOKEN: bool = true;
    /// Decides whether the last token of a prompt that was loaded from the host runs as a decode.
    const LOADED_PROMPTS_DECODE: bool = true;

    /// Returns the work that a sequence adds to the batch of a step.
    fn cost(&self, work: &StepWork, window: Option<u32>) -> Batch {
        let &StepWork { past, new, .. } = work;
        let mut batch = Batch::default();
        match work.decodes() {
            true => batch.add_decode(past + new, new, window),
            false => batch.add_chunk(new, past, window),
        }
        batch
    }

    /// Tokens of a step that count as those of prompts.
    fn prompt_tokens(&self, work: &StepWork) -> u32 {
        match work.past >= work.prompt && work.past + 1 == work.known {
            true => 0,
            false => work.new,
        }
    }

    /// Returns whether a sequence that decodes does the same in every step.
    fn decodes_in_bulk(&self) -> bool {
        true
    }

    /// Changes a sequence that is submitted.
    fn take_in(&self, _seq: &mut Sequence) {}

    /// Refuses a sequence that can never run.
    fn fits(engine: &BatchScheduler<Self>, seq: &Sequence) -> Result<(), SubmitError> {
        // The last token is never computed, unless as a draft.
        let last = u32::from(engine.config.drafts() == 0);
        let tokens = seq.prompt.saturating_add(seq.output.saturating_sub(last));
        let needed = engine
            .pool
            .most_blocks(tokens.min(engine.config.max_model_len));
        let total = engine.pool.usable();
        if needed > total {
            return Err(SubmitError::TooLarge { needed, total });
        }
        Ok(())
    }

    /// Most tokens of a sequence.
    fn most_tokens(&self, config: &VllmConfig) -> u32 {
        config.max_model_len
    }

    /// Takes a sequence whose prompt is announced by somebody above; false: it waits as others do.
    fn expect_prompt(
        _engine: &mut BatchScheduler<Self>,
        _slot: Slot,
        _now: SimTime,
        _out: &mut Outbox,
    ) -> bool {
        false
    }

    /// Sequences that got the blocks of their prompts, and how many tokens of these are missing.
    fn take_reserved(&mut self) -> Vec<(SeqId, u32)> {
        Vec::new()
    }

    /// The prompt of a sequence is here; false: nobody waits for it.
    fn activate(
        _engine: &mut BatchScheduler<Self>,
        _now: SimTime,
        _id: SeqId,
        _out: &mut Outbox,
    ) -> bool {
        false
    }

    /// Returns whether prompts may come from somebody above, without a deadline.
    fn awaits_prompts(&self) -> bool {
        false
    }

    /// Returns whether waiting sequences are looked at when a step has no tokens left.
    fn looks_without_tokens(&self) -> bool {
        false
    }

    /// Returns whether nobody behind a sequence without room is tried, even if nothing runs.
    fn stops_when_idle(&self) -> bool {
        false
    }

    /// Returns whether a sequence at the head of the queue can never run.
    fn must_cancel(engine: &mut BatchScheduler<Self>, slot: Slot) -> bool {
        // It outgrew all blocks.
        engine.pool.most_blocks(engine.seqs[slot].known) > engine.pool.usable()
    }

    /// Returns whether a waiting sequence leaves its turn to prompts that are announced.
    fn gives_way_to_announced(&self, _seq: &Seq) -> bool {
        false
    }

    /// Cached tokens at the front of one that has `known`.
    fn cached_prefix(engine: &BatchScheduler<Self>, plan: &BlockPlan, known: u32) -> u32 {
        // With drafts the last cached block is computed again, for their input.
        let drop = match &engine.config.speculation {
            Some(speculation) if speculation.drops_last_block => engine.config.block_size,
            _ => 0,
        };
        let cached = engine.pool.cached_prefix(plan, named_tokens(plan, known));
        cached.saturating_sub(drop)
    }

    /// The part of an admission that a memory of the host has beside [`VllmConfig::host_tier`]: what
    /// becomes of the sequence, or `None` when it goes on with what it has.
    fn load(
        _engine: &mut BatchScheduler<Self>,
        _slot: Slot,
        _pass: &mut Pass,
    ) -> Option<AdmissionTurn> {
        None
    }

    /// Of what a sequence is to compute, the tokens that one step must have if it cannot be cut.
    fn uncut(&self, _seq: &Seq, _past: u32, new: u32) -> u32 {
        new
    }

    /// Returns whether a sequence may join at all, so many of its tokens being cached.
    fn may_join(_engine: &BatchScheduler<Self>, _slot: Slot, _cached: u32) -> bool {
        true
    }

    /// A sequence runs; tokens that came from the host, where the rules have one of their own.
    fn admitted(_engine: &mut BatchScheduler<Self>, _slot: Slot) -> Option<u32> {
        None
    }

    /// Returns whether what a sequence makes is drawn when the step is complete ([`Self::draw_tokens`]).
    fn draws_later(&self) -> bool {
        false
    }

    /// Makes the tokens of a step whose sequences draw.
    fn draw_tokens(_engine: &mut BatchScheduler<Self>, _pass: &mut Pass) {}

    /// Offers the blocks of a step for a copy after its end.
    fn offer(_engine: &mut BatchScheduler<Self>, _step: &mut Step) {}

    /// A sequence got blocks beside `before` that it had.
    fn got_blocks(_engine: &mut BatchScheduler<Self>, _slot: Slot, _before: u32) {}

    /// A sequence is about to give its blocks to others.
    fn preempting(_engine: &mut BatchScheduler<Self>, _slot: Slot) {}

    /// Returns whether one that waits with a fetched prompt gives its blocks before the last of so many running
    /// ones loses its own.
    fn takes_fetched_blocks(&self, _running: usize) -> bool {
        true
    }

    /// A step has ended, and is reported next.
    fn step_ended(_engine: &mut BatchScheduler<Self>, _now: SimTime, _out: &mut Outbox) {}

    /// A step was reported, and the next one runs.
    fn step_reported(_engine: &mut BatchScheduler<Self>, _now: SimTime, _out: &mut Outbox) {}

    /// Returns the end of the next copy of the rules.
    fn next_copied(&self) -> Option<SimTime> {
        None
    }

    /// Ends copies while no step runs.
    fn end_copies(_engine: &mut BatchScheduler<Self>, _now: SimTime, _out: &mut Outbox) {}

    /// A sequence is over.
    fn left(_engine: &mut BatchScheduler<Self>, _slot: Slot) {}
}

/// Of so many tokens, those that names of blocks cover.
pub(in crate::sched) fn named_tokens(plan: &BlockPlan, known: u32) -> u32 {
    known.saturating_sub(plan.lookahead.saturating_sub(1))
}

/// vLLM's own rules.
#[derive(Debug)]
pub struct VllmRules;

impl SchedulingRules for VllmRules {}
