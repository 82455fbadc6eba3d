#![expect(
    private_interfaces,
    reason = "only this crate implements rules: the trait is public as the bound of public \
         schedulers"
)]

use super::destinations::Destinations;
use super::host::MockerOffload;
use super::{Mocker, MockerConfig, MockerRole};
use crate::latency::Batch;
use crate::sched::vllm::pass::{AdmissionTurn, Pass};
use crate::sched::vllm::seqs::{Seq, Slot};
use crate::sched::vllm::step::{Step, StepWork};
use crate::sched::vllm::{SchedulingRules, VllmConfig, keyed_tokens};
use crate::{BlockPlan, Outbox, SeqId, Sequence, SimTime, SubmitError, Transfer};
use vllm_sim_random::std_rng::StdRng;

/// Implements the scheduling rules of Dynamo's mocker.
#[derive(Debug)]
pub struct MockerRules {
    pub(super) role: MockerRole,
    pub(super) no_evict: bool,
    pub(super) accept: Vec<f64>,
    /// Random generator of draft acceptance, created on first use.
    pub(super) draws: Option<StdRng>,
    pub(super) offload: Option<Box<MockerOffload>>,
    pub(super) destinations: Destinations,
}

impl MockerRules {
    pub(super) fn new(config: &MockerConfig) -> Self {
        let offload = |tier| Box::new(MockerOffload::new(tier));
        Self {
            role: config.role,
            no_evict: config.no_evict,
            accept: config.accept.clone(),
            draws: None,
            offload: config.tier.map(offload),
            destinations: Destinations::default(),
        }
    }

    /// Returns whether the caller moves the KV cache of prompts from or to this engine.
    fn hands_over(&self) -> bool {
        self.role != MockerRole::Whole
    }
}

impl SchedulingRules for MockerRules {
    /// Unlimited, so sequences may preempt each other.
    const MAX_RECENT_PREEMPTIONS: u8 = u8::MAX;
    const PREEMPTION_SKIPS_A_TURN: bool = true;
    const INSTANT_STEPS_COME_FIRST: bool = true;
    const OVERSIZED_RUN_ALONE: bool = false;
    const RESERVES_NEXT_TOKEN: bool = false;
    const ABANDONED_STEPS_END: bool = true;
    const LOADED_PROMPTS_DECODE: bool = false;

    fn cost(&self, work: &StepWork, window: Option<u32>) -> Batch {
        let &StepWork {
            past,
            new,
            known,
            later,
            ..
        } = work;
        let mut batch = Batch::default();
        if self.role == MockerRole::Decode {
            // Prompts cost nothing.
            if !later && past + new >= known {
                batch.add_decode(known, 1, window);
            }
            return batch;
        }
        // Only prompt tokens are chunks. A sequence that emits a token decodes, unless this step
        // ends its prompt.
        let prompt = work.ready();
        let before = past.min(prompt);
        let fresh = (past + new).min(prompt) - before;
        if fresh > 0 {
            batch.add_chunk(fresh, before, window);
        }
        let emits = past + new >= known;
        if emits && !later && (fresh == 0 || known > work.prompt) {
            batch.add_decode(known, 1, window);
        }
        batch
    }

    /// Counts the prompt tokens of a sequence's work in a step; 0 if its prompt is already
    /// computed.
    fn prompt_tokens(&self, work: &StepWork) -> u32 {
        match work.past >= work.ready() {
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
        if !self.hands_over() {
            seq.transfer = Transfer::Local;
        }
    }

    /// Accepts every sequence, except one whose delivered prompt is larger than the KV cache. One
    /// that can never run is cancelled at the head of the queue.
    fn fits(engine: &Mocker, seq: &Sequence) -> Result<(), SubmitError> {
        let expected = engine.rules.hands_over() && seq.transfer == Transfer::RemotePrefill;
        let (needed, total) = (engine.pool.most_blocks(seq.prompt), engine.pool.usable());
        match expected && needed > total {
            true => Err(SubmitError::TooLarge { needed, total }),
            false => Ok(()),
        }
    }

    fn most_tokens(&self, config: &VllmConfig) -> u32 {
        match self.no_evict {
            true => {
                let room = config.num_gpu_blocks.saturating_mul(config.block_size);
                config.max_model_len.min(room)
            }
            false => config.max_model_len,
        }
    }

    fn expect_prompt(engine: &mut Mocker, slot: Slot, now: SimTime, out: &mut Outbox) -> bool {
        let remote = engine.seqs[slot].request.transfer == Transfer::RemotePrefill;
        let expected = engine.rules.hands_over() && remote;
        if expected {
            engine.wait_for_prompt(slot, now, out);
        }
        expected
    }

    fn take_reserved(&mut self) -> Vec<(SeqId, u32)> {
        std::mem::take(&mut self.destinations.reserved)
    }

    fn activate(engine: &mut Mocker, now: SimTime, id: SeqId, out: &mut Outbox) -> bool {
        engine.activate_prompt(now, id, out)
    }

    fn awaits_prompts(&self) -> bool {
        self.hands_over()
    }

    /// Returns whether sequences are tried when the token budget is used up: only without a prefix
    /// cache in host memory.
    fn admits_without_token_budget(&self) -> bool {
        self.offload.is_none()
    }

    fn stops_when_idle(&self) -> bool {
        self.offload.is_some()
    }

    fn must_cancel(engine: &mut Mocker, slot: Slot) -> bool {
        engine.never_fits(slot)
    }

    /// Returns whether a sequence must wait because prompts from other engines, which come first,
    /// still need KV blocks.
    fn yields_to_announced_prompts(&self, seq: &Seq) -> bool {
        self.destinations.is_pending() && seq.table.is_empty()
    }

    fn cached_prefix(engine: &Mocker, plan: &BlockPlan, known: u32) -> u32 {
        // With drafts, the last cached block is recomputed.
        let drop = match engine.rules.accept.is_empty() {
            true => 0,
            false => engine.config.block_size,
        };
        // TensorRT-LLM recomputes nothing if all blocks are cached.
        let known = known + u32::from(engine.rules.no_evict);
        let cached = engine.pool.cached_prefix(plan, keyed_tokens(plan, known));
        cached.saturating_sub(drop)
    }

    fn load(engine: &mut Mocker, slot: Slot, pass: &mut Pass) -> Option<AdmissionTurn> {
        engine.rules.offload.as_ref()?;
        engine.load_from_tier(slot, pass)
    }

    fn min_first_chunk(&self, seq: &Seq, past: u32, _new: u32) -> u32 {
        seq.prompt.saturating_sub(past)
    }

    fn may_join(engine: &Mocker, slot: Slot, cached: u32) -> bool {
        !engine.rules.no_evict || engine.can_run_to_end(slot, cached)
    }

    fn admitted(engine: &mut Mocker, slot: Slot) -> Option<u32> {
        engine.take_loaded(slot)
    }

    fn draws_after_scheduling(&self) -> bool {
        !self.accept.is_empty()
    }

    fn draw_tokens(engine: &mut Mocker, pass: &mut Pass) {
        engine.draw_all(pass);
    }

    fn offer(engine: &mut Mocker, step: &mut Step) {
        engine.offer_to_tier(step);
    }

    fn on_blocks_allocated(engine: &mut Mocker, slot: Slot, before: u32) {
        engine.fence(slot, before);
    }

    fn on_preempt(engine: &mut Mocker, slot: Slot) {
        engine.wait_for_store(slot);
    }

    fn takes_fetched_blocks(&self, running: usize) -> bool {
        !(self.hands_over() && running > 1) && self.offload.is_none()
    }

    fn step_ended(engine: &mut Mocker, now: SimTime, out: &mut Outbox) {
        engine.end_tier_copies(now, out);
        engine.submit_tier_copies(now, out);
    }

    fn step_reported(engine: &mut Mocker, now: SimTime, out: &mut Outbox) {
        engine.reserve_next(now, out);
    }

    fn next_copied(&self) -> Option<SimTime> {
        self.offload.as_ref()?.next_due()
    }

    fn end_copies(engine: &mut Mocker, now: SimTime, out: &mut Outbox) {
        engine.end_tier_copies(now, out);
    }

    fn left(engine: &mut Mocker, slot: Slot) {
        engine.rules.destinations.forget(slot);
        engine.leave_tier(slot);
    }
}
