//! Defines the rules that differ between vLLM and schedulers derived from it.

#![expect(
    private_interfaces,
    reason = "only this crate implements rules: the trait is public as the bound of public \
         schedulers"
)]

use std::fmt::Debug;

use super::pass::{AdmissionOutcome, SchedulingPass};
use super::seqs::{ScheduledSequence, SequenceSlot};
use super::step::{ScheduledStep, SequenceStepWork};
use super::{BatchScheduler, VllmSchedulerConfig};
use crate::latency::BatchWork;
use crate::{Outbox, PlannedKvBlocks, SeqId, Sequence, SequenceSubmitError, SimTime};

/// Implements the scheduling rules in which batching schedulers differ. The defaults are vLLM's
/// rules.
pub trait SchedulingRules: Debug + Sized {
    /// Number of preemptions without a new token after which a sequence is preempted only if no
    /// other sequence can be preempted, with `PreemptionVictim::First`.
    const MAX_RECENT_PREEMPTIONS: u8 = 3;
    /// Decides whether the preemption of a sequence that is already in the step keeps the next
    /// running sequence out of the step. If true, a running sequence without KV blocks does not end
    /// the scheduling of the others.
    const PREEMPTION_SKIPS_A_TURN: bool = false;
    /// Decides whether the step after a step of zero duration is scheduled before new inputs are
    /// read.
    const INSTANT_STEPS_COME_FIRST: bool = false;
    /// Decides whether leases, loads and copies that end at the time of a scheduling pass take effect
    /// before the pass and before new inputs are read.
    const LEASES_END_FIRST: bool = false;
    /// Decides whether a prompt that exceeds the token budget and cannot be split runs alone in a
    /// step.
    const OVERSIZED_RUN_ALONE: bool = true;
    /// Decides whether a sequence that was preempted without a new token waits for progress before
    /// it starts again ([`progress`](super::progress)).
    const WAITS_AFTER_VAIN_START: bool = true;
    /// Decides whether a step ends early when all its sequences have ended. vLLM cannot stop a
    /// step.
    const ABANDONED_STEPS_END: bool = false;
    /// Decides whether the last token of a prompt loaded from host memory is computed as a decode.
    const LOADED_PROMPTS_DECODE: bool = true;
    /// Decides whether the API server time of the latency model, which is vLLM's, applies.
    const HAS_API_SERVER: bool = true;

    /// Returns the work that a sequence adds to the batch of a step, from which the step time
    /// follows.
    fn step_cost(&self, work: &SequenceStepWork, window: Option<u32>) -> BatchWork {
        let &SequenceStepWork { past, new, .. } = work;
        let mut batch = BatchWork::default();
        match work.is_decode() {
            true => batch.add_decoding_sequence(past + new, new, window),
            false => batch.add_prompt_chunk(new, past, window),
        }
        batch
    }

    /// Returns how many of the tokens that a sequence computes in a step count as prompt tokens.
    fn prompt_tokens_of(&self, work: &SequenceStepWork) -> u32 {
        match work.past >= work.prompt && work.past + 1 == work.known {
            true => 0,
            false => work.new,
        }
    }

    /// Returns whether all decode steps of a sequence are equal, so that they may be simulated in
    /// bulk, without bookkeeping per step.
    fn decodes_in_bulk(&self) -> bool {
        true
    }

    /// Changes a submitted sequence before its checks, such as to clear an unsupported KV transfer.
    fn adjust_submission(&self, _seq: &mut Sequence) {}

    /// Returns an error for a submitted sequence that can never run.
    fn check_fits(
        engine: &BatchScheduler<Self>,
        seq: &Sequence,
    ) -> Result<(), SequenceSubmitError> {
        // The last token is never computed. Draft tokens follow the one before.
        let tokens = seq.prompt.saturating_add(seq.output.saturating_sub(1));
        let tokens = tokens.saturating_add(engine.config.max_draft_kv_slots());
        let needed = engine.pool.max_blocks_for_tokens(tokens.min(engine.config.max_model_len));
        let total = engine.pool.usable_block_count();
        if needed > total {
            return Err(SequenceSubmitError::TooLarge { needed, total });
        }
        Ok(())
    }

    /// Returns the maximum length of a sequence, in tokens.
    fn max_sequence_tokens(&self, config: &VllmSchedulerConfig) -> u32 {
        config.max_model_len
    }

    /// Accepts a sequence whose prompt another engine computes, and whose KV cache the caller
    /// transfers later. Returns false for other sequences, which enter the waiting queue.
    fn accept_remote_prompt(
        _engine: &mut BatchScheduler<Self>,
        _slot: SequenceSlot,
        _now: SimTime,
        _out: &mut Outbox,
    ) -> bool {
        false
    }

    /// Returns the sequences whose prompts got KV blocks for a transfer since this function was
    /// last called, each with the number of prompt tokens to transfer.
    fn take_reserved_prompts(&mut self) -> Vec<(SeqId, u32)> {
        Vec::new()
    }

    /// Resumes a sequence whose prompt's KV cache was transferred from another engine; returns
    /// false if the sequence does not wait for a transfer.
    fn resume_transferred(
        _engine: &mut BatchScheduler<Self>,
        _now: SimTime,
        _id: SeqId,
        _out: &mut Outbox,
    ) -> bool {
        false
    }

    /// Returns whether the caller may still transfer the KV cache of prompts to waiting sequences,
    /// at any later time.
    fn awaits_remote_prompts(&self) -> bool {
        false
    }

    /// Returns whether waiting sequences may be admitted when the token budget of a step is used
    /// up.
    fn admits_without_token_budget(&self) -> bool {
        false
    }

    /// Returns whether the admission of waiting sequences stops at a sequence that finds no room,
    /// even if no sequence runs.
    fn admission_stops_when_idle(&self) -> bool {
        false
    }

    /// Returns whether a sequence at the head of the waiting queue can never run.
    fn can_never_run(engine: &mut BatchScheduler<Self>, slot: SequenceSlot) -> bool {
        // Its tokens need more blocks than there are.
        engine.pool.max_blocks_for_tokens(engine.seqs[slot].known)
            > engine.pool.usable_block_count()
    }

    /// Returns whether a waiting sequence must wait because prompts from other engines, which come
    /// first, still need KV blocks.
    fn yields_to_announced_prompts(&self, _seq: &ScheduledSequence) -> bool {
        false
    }

    /// Returns how many leading tokens of a sequence with `known` tokens are in the prefix cache.
    fn cached_prefix_tokens(
        engine: &BatchScheduler<Self>,
        plan: &PlannedKvBlocks,
        known: u32,
    ) -> u32 {
        // With drafts, the last cached block is recomputed as their input.
        let drop = match &engine.config.speculation {
            Some(speculation) if speculation.drops_last_block => engine.config.block_size,
            _ => 0,
        };
        let cached = engine.pool.cached_prefix_tokens(plan, tokens_with_block_keys(plan, known));
        cached.saturating_sub(drop)
    }

    /// Starts to load blocks from a prefix cache in host memory other than
    /// [`VllmSchedulerConfig::host_tier`]. Returns `None` if the admission continues without a
    /// load.
    fn load_from_other_host_cache(
        _engine: &mut BatchScheduler<Self>,
        _slot: SequenceSlot,
        _pass: &mut SchedulingPass,
    ) -> Option<AdmissionOutcome> {
        None
    }

    /// Returns how many of a sequence's `new` prompt tokens one step must compute if prompts cannot
    /// be split.
    fn min_first_chunk(&self, _seq: &ScheduledSequence, _past: u32, new: u32) -> u32 {
        new
    }

    /// Returns whether a waiting sequence with `cached` cached tokens may join the running
    /// sequences.
    fn may_join_batch(_engine: &BatchScheduler<Self>, _slot: SequenceSlot, _cached: u32) -> bool {
        true
    }

    /// Handles the admission of a sequence. Returns the number of tokens loaded from the prefix
    /// cache in host memory that these rules implement, if any.
    fn on_sequence_admitted(
        _engine: &mut BatchScheduler<Self>,
        _slot: SequenceSlot,
    ) -> Option<u32> {
        None
    }

    /// Returns whether a step's numbers of output tokens are chosen at random after the step is
    /// scheduled ([`Self::draw_output_token_counts`]).
    fn draws_after_scheduling(&self) -> bool {
        false
    }

    /// Chooses at random how many output tokens each sequence of a step gets.
    fn draw_output_token_counts(_engine: &mut BatchScheduler<Self>, _pass: &mut SchedulingPass) {}

    /// Registers the blocks of a step for the prefix cache in host memory that these rules
    /// implement; they are copied after the step.
    fn offer_step_blocks(_engine: &mut BatchScheduler<Self>, _step: &mut ScheduledStep) {}

    /// Handles the allocation of KV blocks to a sequence, which had `before` blocks until then.
    fn on_blocks_allocated(_engine: &mut BatchScheduler<Self>, _slot: SequenceSlot, _before: u32) {}

    /// Handles a sequence that is about to be preempted.
    fn on_preempt(_engine: &mut BatchScheduler<Self>, _slot: SequenceSlot) {}

    /// Returns whether a waiting sequence with a fetched prompt frees its blocks before the last of
    /// `running` sequences is preempted.
    fn takes_fetched_blocks(&self, _running: usize) -> bool {
        true
    }

    /// Handles the end of a step, before the scheduler reports it.
    fn on_step_ended(_engine: &mut BatchScheduler<Self>, _now: SimTime, _out: &mut Outbox) {}

    /// Handles a step whose events were reported, after the start of the next step.
    fn on_step_reported(_engine: &mut BatchScheduler<Self>, _now: SimTime, _out: &mut Outbox) {}

    /// Returns the end of the next copy to or from the prefix cache in host memory that these rules
    /// implement.
    fn next_rule_copy_end(&self) -> Option<SimTime> {
        None
    }

    /// Completes, while no step runs, copies to and from the prefix cache in host memory that these
    /// rules implement.
    fn complete_rule_copies(_engine: &mut BatchScheduler<Self>, _now: SimTime, _out: &mut Outbox) {}

    /// Handles a sequence that has finished or was aborted.
    fn on_sequence_left(_engine: &mut BatchScheduler<Self>, _slot: SequenceSlot) {}
}

/// Returns how many of a sequence's first `known` tokens belong to KV blocks whose keys are in
/// `plan`.
pub(in crate::sched) fn tokens_with_block_keys(plan: &PlannedKvBlocks, known: u32) -> u32 {
    known.saturating_sub(plan.lookahead.saturating_sub(1))
}

/// Implements vLLM's own scheduling rules.
#[derive(Debug)]
pub struct VllmSchedulingRules;

impl SchedulingRules for VllmSchedulingRules {
    fn admission_stops_when_idle(&self) -> bool {
        true
    }

    fn takes_fetched_blocks(&self, _running: usize) -> bool {
        false
    }
}
