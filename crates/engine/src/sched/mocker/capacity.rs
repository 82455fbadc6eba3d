//! Checks whether sequences can run to their end without preemption.

use super::Mocker;
use crate::sched::vllm::seqs::Slot;

impl Mocker {
    /// Returns whether a waiting sequence and all running ones can end with the existing KV blocks.
    pub(super) fn can_run_to_end(&self, slot: Slot, cached: u32) -> bool {
        self.footprint(slot, cached) <= self.promised_free()
    }

    /// Returns the number of KV blocks that a sequence needs until its end, without the prefix
    /// blocks that other sequences hold.
    fn footprint(&self, slot: Slot, cached: u32) -> u32 {
        let seq = &self.seqs[slot];
        let held = seq.plan.as_ref().map_or(0, |plan| {
            self.pool.held_prefix(plan, cached / self.config.block_size)
        });
        self.pool.blocks_for(seq.total) - held
    }

    /// Returns the number of free KV blocks that no running sequence will need.
    fn promised_free(&self) -> u32 {
        let needs = self.running.iter().map(|&slot| {
            let seq = &self.seqs[slot];
            let whole = self.pool.blocks_for(seq.total);
            whole.saturating_sub(seq.table.len())
        });
        self.pool.free().saturating_sub(needs.sum())
    }

    pub(super) fn never_fits(&mut self, slot: Slot) -> bool {
        let seq = &self.seqs[slot];
        // After the first admission, the blocks of its next step count: those of all draft tokens and
        // of one more. Without room for them a sequence would preempt all others, then itself, forever.
        let next = match (seq.admitted, self.rules.accept.len() as u32) {
            (true, drafts) if drafts > 0 => drafts + 1,
            _ => 0,
        };
        let tokens = match self.rules.no_evict {
            true => seq.total.max(seq.known + 1),
            false => (seq.known + next).min(seq.total.max(seq.known)),
        };
        if self.pool.most_blocks(tokens) > self.pool.usable() {
            return true;
        }
        let too_long = !seq.admitted && seq.prompt >= self.config.max_model_len;
        let budget = self.config.max_num_batched_tokens;
        let (prompt, computed, starts) = (seq.prompt, seq.computed, seq.table.is_empty());
        if self.config.prefill.enable_chunked_prefill || !self.running.is_empty() || too_long {
            return too_long;
        }
        let past = match starts {
            true => self.look_up(slot),
            false => computed,
        };
        prompt.saturating_sub(past) > budget
    }
}
