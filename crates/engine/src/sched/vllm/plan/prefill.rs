//! Decides how many prompt tokens a step computes, and in which steps.
//!
//! **Source:** vLLM 0.33 `vllm/v1/core/sched/scheduler.py` (`long_prefill_token_threshold`,
//! `prefill_schedule_interval`).

use crate::sched::vllm::pass::SchedulingPass;
use crate::sched::vllm::seqs::{ScheduledSequence, SequenceRunState, SequenceSlot};
use crate::sched::vllm::{BatchScheduler, SchedulingRules};

/// Returns whether a sequence with `computed_tokens` computed tokens must compute more than its
/// newest token.
pub(super) fn is_prefill(seq: &ScheduledSequence, computed_tokens: u32) -> bool {
    computed_tokens + 1 < seq.known
}

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Returns the maximum number of tokens that a step computes of one prompt.
    pub(super) fn max_prefill_chunk_tokens(&self) -> u32 {
        let all = self.seqs.len() as u32;
        if all <= 1 {
            return u32::MAX;
        }
        let share = match self.config.prefill.long_prefill_token_threshold_adaptive {
            true => self.config.max_num_batched_tokens / all.max(1),
            false => 0,
        };
        self.config.prefill.long_prefill_token_threshold.max(share)
    }

    /// Cuts a prompt chunk so that it ends where a Mamba state must be kept: at a block boundary,
    /// and at the last full block of the prompt.
    ///
    /// **Source:** `_mamba_block_aligned_split`; states are not taken out of the middle of a step.
    pub(super) fn align_prefill_chunk_to_blocks(
        &self,
        seq: &ScheduledSequence,
        past: u32,
        new: u32,
    ) -> u32 {
        let size = self.config.block_size;
        let all = seq.prompt.max(seq.known - 1);
        if past >= all {
            return new;
        }
        let floor = |tokens: u32| tokens / size * size;
        let mut end = past + new;
        if end < all {
            // vLLM counts the slots for drafting as part of a chunk, and such a prompt never starts
            // if they are what a block lacks.
            let room = self.config.max_sequence_tokens_per_step();
            let most = match self.config.prefill.long_prefill_token_threshold {
                0 => room,
                threshold => threshold.min(room),
            };
            // A block larger than any chunk is filled by several chunks.
            if floor(end) > past || size <= most {
                end = floor(end);
            }
        }
        let drop = match &self.config.speculation {
            Some(speculation) if speculation.drops_last_block => (seq.known, size),
            _ => (seq.known - 1, 0),
        };
        let stops = [
            if past.is_multiple_of(size) { 0 } else { floor(past) + size },
            floor(drop.0).saturating_sub(drop.1),
            floor(seq.table.longer_full_attention_hit_tokens(size)),
        ];
        let inside = stops.into_iter().filter(|&stop| past < stop && stop < end);
        inside.min().unwrap_or(end).saturating_sub(past)
    }

    /// Returns whether the next step must not compute prompt tokens (`prefill_schedule_interval`).
    #[inline]
    pub(super) fn is_prefill_throttled(&self) -> bool {
        let interval = self.config.prefill.prefill_schedule_interval;
        if interval <= 1 || self.cadence.was_short {
            return false;
        }
        // Data-parallel ranks prefill in the same steps.
        let is_due = match self.config.lock_step {
            true => self.cadence.wave_steps.is_multiple_of(interval.into()),
            false => self.cadence.since >= interval - 1,
        };
        if is_due {
            return false;
        }
        self.running.iter().any(|&slot| {
            let seq = &self.seqs[slot];
            matches!(seq.state, SequenceRunState::Running | SequenceRunState::Draining)
                && !seq.step.is_prefill_chunk
        })
    }

    /// Records for `prefill_schedule_interval` whether the scheduled step computes prompt tokens.
    #[inline]
    pub(super) fn record_prefill_step(&mut self, pass: &SchedulingPass) {
        if self.config.prefill.prefill_schedule_interval <= 1 {
            return;
        }
        if !pass.holds_prefill && !pass.preempted {
            let deferred = |&slot: &SequenceSlot| self.seqs[slot].step.is_deferred;
            self.cadence.was_short = !self.waiting.iter_from_back().all(|slot| deferred(&slot));
        }
        if !pass.step.is_empty() {
            self.cadence.since = match pass.has_prefill || pass.admits_prefill {
                false => self.cadence.since.saturating_add(1),
                true => 0,
            };
        }
    }
}
