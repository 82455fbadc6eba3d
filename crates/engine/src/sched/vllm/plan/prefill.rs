//! How much of a prompt a step may have, and in which steps.
//!
//! Source: vLLM 0.33 `vllm/v1/core/sched/scheduler.py` (`long_prefill_token_threshold`,
//! `prefill_schedule_interval`).

use crate::sched::vllm::pass::Pass;
use crate::sched::vllm::seqs::{Seq, SeqState};
use crate::sched::vllm::{BatchScheduler, SchedulingRules};

/// Whether a sequence with so many tokens there lacks more than its newest one.
pub(super) fn is_prefill(seq: &Seq, past: u32) -> bool {
    past + 1 < seq.known
}

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Most tokens of one prompt in a step, where there is a threshold.
    pub(super) fn longest_chunk(&self) -> u32 {
        let all = self.seqs.len() as u32;
        if all <= 1 {
            return u32::MAX;
        }
        let share = match self.config.long_prefill_token_threshold_adaptive {
            true => self.config.max_num_batched_tokens / all.max(1),
            false => 0,
        };
        self.config.long_prefill_token_threshold.max(share)
    }

    /// A chunk of `new` tokens of a prompt, cut so that it ends where a state is to be found later:
    /// where a block ends, and at the last block that a prompt fills.
    ///
    /// **Source:** `_mamba_block_aligned_split`; states are not taken out of the middle of a step.
    pub(super) fn aligned(&self, seq: &Seq, past: u32, new: u32) -> u32 {
        let size = self.config.block_size;
        let all = seq.prompt.max(seq.known - 1);
        if past >= all {
            return new;
        }
        let floor = |tokens: u32| tokens / size * size;
        let mut end = past + new;
        if end < all {
            let most = match self.config.long_prefill_token_threshold {
                0 => self.config.max_num_batched_tokens,
                threshold => threshold.min(self.config.max_num_batched_tokens),
            };
            // A block that no chunk can fill is filled by several.
            if floor(end) > past || size <= most {
                end = floor(end);
            }
        }
        let drop = match &self.config.speculation {
            Some(speculation) if speculation.drops_last_block => (seq.known, size),
            _ => (seq.known - 1, 0),
        };
        let stops = [
            if past.is_multiple_of(size) {
                0
            } else {
                floor(past) + size
            },
            floor(drop.0).saturating_sub(drop.1),
            floor(seq.table.parting(size)),
        ];
        let inside = stops.into_iter().filter(|&stop| past < stop && stop < end);
        inside.min().unwrap_or(end).saturating_sub(past)
    }

    /// Whether the next step leaves prompts to a later one.
    #[inline]
    pub(super) fn holds_prefill(&self) -> bool {
        let interval = self.config.prefill_schedule_interval;
        if interval <= 1 || self.cadence.was_short || self.cadence.since >= interval - 1 {
            return false;
        }
        self.running.iter().any(|&slot| {
            let seq = &self.seqs[slot];
            seq.state == SeqState::Running && !is_prefill(seq, seq.computed)
        })
    }

    /// A step was made.
    #[inline]
    pub(super) fn note_prefill(&mut self, pass: &Pass) {
        if self.config.prefill_schedule_interval <= 1 || pass.step.is_empty() {
            return;
        }
        if !pass.holds_prefill {
            self.cadence.was_short = !self.waiting.is_empty();
        }
        self.cadence.since = match pass.step.prompt_tokens {
            0 => self.cadence.since.saturating_add(1),
            _ => 0,
        };
    }
}
