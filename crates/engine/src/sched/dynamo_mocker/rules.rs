#![expect(
    private_interfaces,
    reason = "only this crate implements rules: the trait is public as the bound of public \
         schedulers"
)]

use super::destinations::IncomingPromptTransfers;
use super::host::DynamoMockerOffloadState;
use super::{DynamoMockerConfig, DynamoMockerRole, DynamoMockerScheduler};
use crate::latency::BatchWork;
use crate::sched::vllm::pass::{AdmissionOutcome, SchedulingPass};
use crate::sched::vllm::seqs::{ScheduledSequence, SequenceSlot};
use crate::sched::vllm::step::{ScheduledStep, SequenceStepWork};
use crate::sched::vllm::{SchedulingRules, VllmSchedulerConfig, tokens_with_block_keys};
use crate::{
    Outbox, PlannedKvBlocks, PromptKvTransfer, SeqId, Sequence, SequenceSubmitError, SimTime,
};
use vllm_sim_random::std_rng::StdRng;

/// Implements the scheduling rules of Dynamo's mocker.
#[derive(Debug)]
pub struct DynamoMockerRules {
    pub(super) role: DynamoMockerRole,
    pub(super) no_evict: bool,
    pub(super) accept: Vec<f64>,
    /// Random number generator for the acceptance of draft tokens, created on first use.
    pub(super) draws: Option<StdRng>,
    pub(super) offload: Option<Box<DynamoMockerOffloadState>>,
    pub(super) destinations: IncomingPromptTransfers,
}

impl DynamoMockerRules {
    pub(super) fn new(config: &DynamoMockerConfig) -> Self {
        let offload = |tier| Box::new(DynamoMockerOffloadState::new(tier));
        Self {
            role: config.role,
            no_evict: config.no_evict,
            accept: config.accept.clone(),
            draws: None,
            offload: config.tier.map(offload),
            destinations: IncomingPromptTransfers::default(),
        }
    }

    /// Returns whether the engine has a role in a disaggregated deployment, so that the caller
    /// transfers the KV cache of prompts to or from the engine.
    fn is_disaggregated(&self) -> bool {
        self.role != DynamoMockerRole::Whole
    }
}

impl SchedulingRules for DynamoMockerRules {
    /// Maximum number of preemptions of a sequence since its last token: unlimited, so that
    /// sequences may preempt each other.
    const MAX_RECENT_PREEMPTIONS: u8 = u8::MAX;
    const PREEMPTION_SKIPS_A_TURN: bool = true;
    const INSTANT_STEPS_COME_FIRST: bool = true;
    const LEASES_END_FIRST: bool = true;
    const HAS_API_SERVER: bool = false;
    const OVERSIZED_RUN_ALONE: bool = false;
    const WAITS_AFTER_VAIN_START: bool = false;
    const ABANDONED_STEPS_END: bool = true;
    const LOADED_PROMPTS_DECODE: bool = false;

    fn step_cost(&self, work: &SequenceStepWork, window: Option<u32>) -> BatchWork {
        let &SequenceStepWork { past, new, known, later, .. } = work;
        let mut batch = BatchWork::default();
        if self.role == DynamoMockerRole::Decode {
            // Prompts cost nothing.
            if !later && past + new >= known {
                batch.add_decoding_sequence(known, 1, window);
            }
            return batch;
        }
        // Only prompt tokens are chunks. A sequence that emits a token decodes, unless this step
        // ends its prompt.
        let prompt = work.loaded_prompt_tokens();
        let before = past.min(prompt);
        let fresh = (past + new).min(prompt) - before;
        if fresh > 0 {
            batch.add_prompt_chunk(fresh, before, window);
        }
        let emits = past + new >= known;
        if emits && !later && (fresh == 0 || known > work.prompt) {
            batch.add_decoding_sequence(known, 1, window);
        }
        batch
    }

    /// Counts the prompt tokens of a sequence's work in a step; 0 if an earlier step computed the
    /// prompt.
    fn prompt_tokens_of(&self, work: &SequenceStepWork) -> u32 {
        match work.past >= work.loaded_prompt_tokens() {
            true => 0,
            false => work.new,
        }
    }

    fn decodes_in_bulk(&self) -> bool {
        let Self {
            // These steps yield several tokens of one sequence.
            accept,
            draws: _,
            // Generated blocks wait for copies.
            offload,
            // These settings concern waiting sequences and prefill.
            role: _,
            no_evict: _,
            destinations: _,
        } = self;
        accept.is_empty() && offload.is_none()
    }

    fn adjust_submission(&self, seq: &mut Sequence) {
        if !self.is_disaggregated() {
            seq.transfer = PromptKvTransfer::Local;
        }
    }

    /// Accepts every submitted sequence, except a sequence whose prompt was computed by another
    /// engine and is larger than the KV cache. Other sequences that can never run are cancelled at
    /// the head of the waiting queue.
    fn check_fits(
        engine: &DynamoMockerScheduler,
        seq: &Sequence,
    ) -> Result<(), SequenceSubmitError> {
        let expected =
            engine.rules.is_disaggregated() && seq.transfer == PromptKvTransfer::RemotePrefill;
        let (needed, total) =
            (engine.pool.max_blocks_for_tokens(seq.prompt), engine.pool.usable_block_count());
        match expected && needed > total {
            true => Err(SequenceSubmitError::TooLarge { needed, total }),
            false => Ok(()),
        }
    }

    fn max_sequence_tokens(&self, config: &VllmSchedulerConfig) -> u32 {
        match self.no_evict {
            true => {
                let room = config.num_gpu_blocks.saturating_mul(config.block_size);
                config.max_model_len.min(room)
            }
            false => config.max_model_len,
        }
    }

    fn accept_remote_prompt(
        engine: &mut DynamoMockerScheduler,
        slot: SequenceSlot,
        now: SimTime,
        out: &mut Outbox,
    ) -> bool {
        let remote = engine.seqs[slot].request.transfer == PromptKvTransfer::RemotePrefill;
        let expected = engine.rules.is_disaggregated() && remote;
        if expected {
            engine.queue_remote_prompt(slot, now, out);
        }
        expected
    }

    fn take_reserved_prompts(&mut self) -> Vec<(SeqId, u32)> {
        std::mem::take(&mut self.destinations.reserved)
    }

    fn resume_transferred(
        engine: &mut DynamoMockerScheduler,
        now: SimTime,
        id: SeqId,
        out: &mut Outbox,
    ) -> bool {
        engine.resume_transferred_prompt(now, id, out)
    }

    fn awaits_remote_prompts(&self) -> bool {
        self.is_disaggregated()
    }

    /// Returns whether admission tries waiting sequences when the token budget is used up: only
    /// without a prefix cache in host memory.
    fn admits_without_token_budget(&self) -> bool {
        self.offload.is_none()
    }

    fn admission_stops_when_idle(&self) -> bool {
        self.offload.is_some()
    }

    fn can_never_run(engine: &mut DynamoMockerScheduler, slot: SequenceSlot) -> bool {
        engine.is_sequence_too_large(slot)
    }

    /// Returns whether a sequence must wait because prompts from other engines, which come first,
    /// still need KV blocks.
    fn yields_to_announced_prompts(&self, seq: &ScheduledSequence) -> bool {
        self.destinations.has_pending_sequences() && seq.table.is_empty()
    }

    fn cached_prefix_tokens(
        engine: &DynamoMockerScheduler,
        plan: &PlannedKvBlocks,
        known: u32,
    ) -> u32 {
        // With drafts, the last cached block is recomputed.
        let drop = match engine.rules.accept.is_empty() {
            true => 0,
            false => engine.config.block_size,
        };
        // TensorRT-LLM recomputes nothing if all blocks are cached.
        let known = known + u32::from(engine.rules.no_evict);
        let cached = engine.pool.cached_prefix_tokens(plan, tokens_with_block_keys(plan, known));
        cached.saturating_sub(drop)
    }

    fn load_from_other_host_cache(
        engine: &mut DynamoMockerScheduler,
        slot: SequenceSlot,
        pass: &mut SchedulingPass,
    ) -> Option<AdmissionOutcome> {
        engine.rules.offload.as_ref()?;
        engine.load_from_host_cache(slot, pass)
    }

    fn min_first_chunk(&self, seq: &ScheduledSequence, past: u32, _new: u32) -> u32 {
        seq.prompt.saturating_sub(past)
    }

    fn may_join_batch(engine: &DynamoMockerScheduler, slot: SequenceSlot, cached: u32) -> bool {
        !engine.rules.no_evict || engine.has_blocks_until_sequences_end(slot, cached)
    }

    fn on_sequence_admitted(engine: &mut DynamoMockerScheduler, slot: SequenceSlot) -> Option<u32> {
        engine.take_loaded_tokens(slot)
    }

    fn draws_after_scheduling(&self) -> bool {
        !self.accept.is_empty()
    }

    fn draw_output_token_counts(engine: &mut DynamoMockerScheduler, pass: &mut SchedulingPass) {
        engine.sample_output_token_counts(pass);
    }

    fn offer_step_blocks(engine: &mut DynamoMockerScheduler, step: &mut ScheduledStep) {
        engine.offer_to_host_cache(step);
    }

    fn on_blocks_allocated(engine: &mut DynamoMockerScheduler, slot: SequenceSlot, before: u32) {
        engine.delay_computation_for_host_reads(slot, before);
    }

    fn on_preempt(engine: &mut DynamoMockerScheduler, slot: SequenceSlot) {
        engine.delay_computation_for_host_store(slot);
    }

    fn takes_fetched_blocks(&self, running: usize) -> bool {
        !(self.is_disaggregated() && running > 1) && self.offload.is_none()
    }

    fn on_step_ended(engine: &mut DynamoMockerScheduler, now: SimTime, out: &mut Outbox) {
        engine.complete_mocker_copies(now, out);
        engine.start_host_copies(now, out);
    }

    fn on_step_reported(engine: &mut DynamoMockerScheduler, now: SimTime, out: &mut Outbox) {
        engine.reserve_next_prompt_blocks(now, out);
    }

    fn next_rule_copy_end(&self) -> Option<SimTime> {
        self.offload.as_ref()?.next_host_copy_end()
    }

    fn complete_rule_copies(engine: &mut DynamoMockerScheduler, now: SimTime, out: &mut Outbox) {
        engine.complete_mocker_copies(now, out);
    }

    fn on_sequence_left(engine: &mut DynamoMockerScheduler, slot: SequenceSlot) {
        engine.rules.destinations.remove_sequence(slot);
        engine.remove_sequence_from_mocker_cache(slot);
    }
}
