//! Checks whether sequences can run to their end without preemption.

use super::DynamoMockerScheduler;
use crate::sched::vllm::seqs::SequenceSlot;

impl DynamoMockerScheduler {
    /// Returns whether the existing KV blocks suffice to run a waiting sequence and all running
    /// sequences to their ends.
    pub(super) fn has_blocks_until_sequences_end(&self, slot: SequenceSlot, cached: u32) -> bool {
        self.blocks_until_end(slot, cached) <= self.unpromised_free_blocks()
    }

    /// Returns the number of KV blocks that a sequence needs until its end, not counting prefix
    /// blocks that other sequences hold.
    fn blocks_until_end(&self, slot: SequenceSlot, cached: u32) -> u32 {
        let seq = &self.seqs[slot];
        let held = seq.plan.as_ref().map_or(0, |plan| {
            self.pool.cached_prefix_blocks_in_use(plan, cached / self.config.block_size)
        });
        self.pool.blocks_for_tokens(seq.total) - held
    }

    /// Returns the number of free KV blocks that no running sequence will need before its end.
    fn unpromised_free_blocks(&self) -> u32 {
        let needs = self.running.iter().map(|&slot| {
            let seq = &self.seqs[slot];
            let whole = self.pool.blocks_for_tokens(seq.total);
            whole.saturating_sub(seq.table.len())
        });
        self.pool.free_block_count().saturating_sub(needs.sum())
    }

    pub(super) fn is_sequence_too_large(&mut self, slot: SequenceSlot) -> bool {
        let seq = &self.seqs[slot];
        // After the first admission, the blocks of its next step count: those of all draft tokens
        // and of one more. Without room for them a sequence would preempt all others, then itself,
        // forever.
        let next = match (seq.admitted, self.rules.accept.len() as u32) {
            (true, drafts) if drafts > 0 => drafts + 1,
            _ => 0,
        };
        let tokens = match self.rules.no_evict {
            true => seq.total.max(seq.known + 1),
            false => (seq.known + next).min(seq.total.max(seq.known)),
        };
        if self.pool.max_blocks_for_tokens(tokens) > self.pool.usable_block_count() {
            return true;
        }
        let too_long = !seq.admitted && seq.prompt >= self.config.max_model_len;
        let budget = self.config.max_num_batched_tokens;
        let (prompt, computed, starts) = (seq.prompt, seq.computed, seq.table.is_empty());
        if self.config.prefill.enable_chunked_prefill || !self.running.is_empty() || too_long {
            return too_long;
        }
        let past = match starts {
            true => self.look_up_cached_prefix(slot),
            false => computed,
        };
        prompt.saturating_sub(past) > budget
    }
}
