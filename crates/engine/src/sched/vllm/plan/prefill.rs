//! How much of a prompt a step may have, and in which steps.
//!
//! Source: vLLM 0.33 `vllm/v1/core/sched/scheduler.py` (`long_prefill_token_threshold`,
//! `prefill_schedule_interval`).

use super::Pass;
use crate::sched::vllm::Vllm;
use crate::sched::vllm::config::Admission;
use crate::sched::vllm::seqs::{Seq, SeqState};

/// Whether a sequence with so many tokens there lacks more than its newest one.
pub(super) fn is_prefill(seq: &Seq, past: u32) -> bool {
    past + 1 < seq.known
}

impl Vllm {
    /// Most tokens of one prompt in a step, where there is a threshold.
    pub(super) fn longest_chunk(&self) -> u32 {
        let all = self.seqs.len() as u32;
        // The mocker knows no exception.
        if all <= 1 && self.config.admission == Admission::Vllm {
            return u32::MAX;
        }
        let share = match self.config.long_prefill_token_threshold_adaptive {
            true => self.config.max_num_batched_tokens / all.max(1),
            false => 0,
        };
        self.config.long_prefill_token_threshold.max(share)
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
