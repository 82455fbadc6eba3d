//! Simulates draft tokens as Dynamo's mocker does: they use KV blocks, but no token budget.
//!
//! After a pass is scheduled, each decoding sequence gets blocks for its maximum output, with
//! preemptions if needed. Then the accepted drafts are drawn and unused blocks are freed. All draws
//! of a worker come from one generator, in batch order.
//!
//! **Source:** aisimulate-core 0.13.0 `scheduler/vllm/core.rs` (`emit_speculative_ready_tokens`),
//! `common/speculative.rs`.

use crate::kv::BlockAllocationRequest;
use crate::sched::vllm::seqs::{SequenceRunState, SequenceSlot};
use vllm_sim_random::std_rng::StdRng;

use super::{DynamoMockerRole, DynamoMockerScheduler};
use crate::sched::vllm::pass::SchedulingPass;

impl DynamoMockerScheduler {
    pub(super) fn sample_output_token_counts(&mut self, pass: &mut SchedulingPass) {
        if self.rules.accept.is_empty() {
            return;
        }
        let ready = loop {
            let ready = self.ready_to_draw(pass);
            let missing = |&slot: &SequenceSlot| {
                let seq = &self.seqs[slot];
                let all = self.pool.blocks_for_tokens(seq.known + self.max_drawn_tokens(slot));
                all.saturating_sub(seq.table.len())
            };
            let needed: u32 = ready.iter().map(missing).sum();
            if needed <= self.pool.free_block_count() {
                break ready;
            }
            // The last sequence would preempt itself forever, in vain.
            if self.preemption_candidates().count() == 1 && self.reclaim_fetched_blocks() {
                continue;
            }
            let Some(at) = self.preemption_victim() else {
                return;
            };
            let victim = self.running.remove(at);
            pass.preempted = true;
            self.preempt_sequence(victim, pass.now, pass.out);
        };
        for &slot in &ready {
            let tokens = self.seqs[slot].known + self.max_drawn_tokens(slot);
            let need = BlockAllocationRequest { tokens, ..BlockAllocationRequest::default() };
            let done = self.allocate_sequence_blocks(slot, &need, pass.step);
            debug_assert!(done, "there were enough blocks for all");
        }
        // A prefill worker makes one token per prompt, in the same step.
        let decodes = self.rules.role != DynamoMockerRole::Prefill;
        for &slot in &ready {
            let known = self.seqs[slot].known;
            if decodes {
                pass.step.batch.add_decoding_sequence(known, 1, self.window);
            }
        }
        for slot in ready {
            let drawn = if decodes { self.draw_token_count() } else { 1 };
            self.release_drawn_tokens(slot, drawn, pass);
        }
    }

    /// Returns the sequences of a scheduling pass that have computed all their tokens, so that
    /// draft tokens may follow.
    fn ready_to_draw(&self, pass: &SchedulingPass) -> Vec<SequenceSlot> {
        let slots = pass.step.entries.iter().map(|entry| entry.slot);
        let ready = slots.filter(|&slot| {
            let seq = &self.seqs[slot];
            seq.state == SequenceRunState::Running
                && seq.computed >= seq.known
                && seq.known < seq.total
        });
        ready.collect()
    }

    fn max_drawn_tokens(&self, slot: SequenceSlot) -> u32 {
        let seq = &self.seqs[slot];
        let most = match self.rules.role {
            DynamoMockerRole::Prefill => 1,
            DynamoMockerRole::Whole | DynamoMockerRole::Decode => {
                1 + self.rules.accept.len() as u32
            }
        };
        most.min(seq.total - seq.known)
    }

    fn draw_token_count(&mut self) -> u32 {
        let seed = self.config.seed;
        let draws = self.rules.draws.get_or_insert_with(|| StdRng::new(seed));
        let rates = self.rules.accept.iter();
        1 + rates.take_while(|&&rate| draws.draw_bool(rate)).count() as u32
    }

    fn release_drawn_tokens(&mut self, slot: SequenceSlot, drawn: u32, pass: &mut SchedulingPass) {
        let seq = &mut self.seqs[slot];
        let emit = drawn.min(seq.total - seq.known);
        seq.known += emit;
        seq.computed = seq.known - 1;
        seq.preemptions.recent = 0;
        let last = seq.known == seq.total;
        if last {
            seq.state = SequenceRunState::Draining;
        }
        let (plan, events) = (seq.plan.as_ref(), &mut pass.step.events);
        self.pool.cache_full_blocks(&mut seq.table, plan, seq.computed, &mut |event| {
            events.push(event);
        });
        self.pool.free_blocks_beyond(&mut seq.table, seq.known);
        seq.settled = seq.table.tokens_until_block_table_change();
        let mut entries = pass.step.entries.iter_mut();
        if let Some(entry) = entries.find(|entry| entry.slot == slot) {
            (entry.emit, entry.last) = (emit, last);
        }
    }
}
