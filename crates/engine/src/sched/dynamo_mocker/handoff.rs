//! Receives the KV cache of prompts that another engine computed, coordinated by the caller.
//!
//! The caller announces a sequence. When there is room, the blocks of its prompt are reserved;
//! cached ones need no transfer. After the transfer the caller activates the sequence, which then
//! waits to run with its prompt computed.
//!
//! **Source:** aisimulate-core 0.13.0 `scheduler/vllm/core.rs` (destinations).

use crate::SimTime;
use crate::kv::BlockAllocationRequest;
use crate::{Outbox, SeqId};

use super::DynamoMockerScheduler;
use crate::sched::vllm::seqs::{SequenceRunState, SequenceSlot};

impl DynamoMockerScheduler {
    pub(super) fn queue_remote_prompt(
        &mut self,
        slot: SequenceSlot,
        now: SimTime,
        out: &mut Outbox,
    ) {
        self.seqs[slot].state = SequenceRunState::Fetching;
        self.fetching += 1;
        self.rules.destinations.pending.push_back(slot);
        if self.flight.is_empty() {
            self.reserve_next_prompt_blocks(now, out);
        }
    }

    pub(super) fn reserve_next_prompt_blocks(&mut self, now: SimTime, out: &mut Outbox) {
        let Some(&slot) = self.rules.destinations.pending.front() else {
            return;
        };
        if self.running.len() >= self.config.max_num_seqs as usize {
            return;
        }
        let seq = &mut self.seqs[slot];
        let prompt = seq.prompt;
        // No prompt token is computed here, so the last block may also be a cached one.
        let cached = seq
            .plan
            .as_ref()
            .map_or(0, |plan| self.pool.cached_prefix_tokens(plan, prompt.saturating_add(1)));
        let need = BlockAllocationRequest {
            prefix: cached,
            tokens: prompt,
            ..BlockAllocationRequest::default()
        };
        let plan = seq.plan.as_ref();
        let done = self.pool.allocate_blocks(&mut seq.table, plan, &need, &mut |event| {
            out.push_back((now, event));
        });
        if done {
            self.rules.destinations.pending.pop_front();
            let size = self.config.block_size;
            let missing = (self.pool.blocks_for_tokens(prompt) - cached / size) * size;
            let id = self.seqs[slot].id;
            self.rules.destinations.reserved.push((id, missing));
        }
    }

    /// Resumes a sequence whose prompt's KV cache was transferred from another engine; returns
    /// false if the sequence does not wait for a transfer.
    pub(super) fn resume_transferred_prompt(
        &mut self,
        now: SimTime,
        id: SeqId,
        out: &mut Outbox,
    ) -> bool {
        let Some(slot) = self.seqs.find_slot(id) else {
            return false;
        };
        let seq = &mut self.seqs[slot];
        if seq.state != SequenceRunState::Fetching || seq.table.is_empty() {
            return false;
        }
        self.fetching -= 1;
        (seq.state, seq.load.is_here) = (SequenceRunState::Waiting, true);
        (seq.computed, seq.cached) = (seq.prompt, 0);
        let (plan, upto) = (seq.plan.as_ref(), seq.prompt);
        self.pool.cache_full_blocks(&mut seq.table, plan, upto, &mut |event| {
            out.push_back((now, event));
        });
        seq.settled = seq.table.tokens_until_block_table_change();
        self.waiting.insert_sequence(&self.seqs, slot);
        self.reserve_next_prompt_blocks(now, out);
        self.request_scheduling_pass(now);
        true
    }
}
