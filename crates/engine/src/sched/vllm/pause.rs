//! Pauses the scheduling of steps, or only the admission of sequences.
//!
//! **Source:** vLLM 0.33 `vllm/v1/core/sched/interface.py`.

use crate::{Outbox, SimTime};

use super::seqs::{SequenceSlot, WaitingClass};
use super::waiting::PauseState;
use super::{BatchScheduler, SchedulingRules};

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Pauses the scheduling of steps; steps in flight end.
    pub(super) fn pause_scheduling(&mut self, now: SimTime, out: &mut Outbox) {
        if self.pause != PauseState::Paused {
            self.flush_bulk_decodes(now, out);
            (self.pause, self.plan_at) = (PauseState::Paused, None);
            // vLLM reads the command when the running step has ended.
            self.reports.has_empty_step &= !self.flight.is_empty();
        }
    }

    /// Ends a pause of scheduling or of admissions.
    pub(super) fn resume_scheduling(&mut self, now: SimTime) {
        self.pause = PauseState::Running;
        if self.flight.is_empty() && !self.leases.is_empty() {
            // Requests whose blocks another engine still reads kept vLLM's loop going.
            self.reports.has_empty_step = self.config.async_scheduling;
        }
        if !self.flight.is_empty() && self.before_inputs.step == Some(now) {
            // vLLM reads both commands at the end of the step, and plans nothing during the pause.
            self.reports.has_empty_step = false;
        }
        // vLLM reads the command when the running step has ended.
        let is_read = self.flight.is_empty() || self.before_inputs.step == Some(now);
        if is_read && self.seqs.len() > 0 {
            self.plan_at = Some(now);
        }
    }

    /// Returns whether, considering a pause, a scheduling pass may find sequences to schedule.
    pub(super) fn may_schedule_step(&self) -> bool {
        match self.pause {
            PauseState::Running => true,
            PauseState::AdmissionPaused => self.has_unfinished_sequences(),
            PauseState::Paused => false,
        }
    }

    /// Returns whether the end of a KV load is handled only after the next step, because vLLM's
    /// engine core does not loop during a pause.
    pub(super) fn defers_kv_load_completion(&self) -> bool {
        self.pause == PauseState::Paused && self.flight.is_empty() && self.leases.is_empty()
    }

    /// Returns whether the pause state lets waiting sequences of the given class be admitted.
    pub(super) fn admits_waiting_class(&self, class: WaitingClass) -> bool {
        self.pause == PauseState::Running || class == WaitingClass::HoldsBlocks
    }

    /// Returns whether sequences that arrived before arrival number `arrivals` are unfinished.
    /// Sequences that a pause holds back do not count.
    ///
    /// **Source:** `get_num_unfinished_requests`, `vllm/v1/core/sched/scheduler.py`.
    pub(super) fn has_sequences_before(&self, arrivals: u64) -> bool {
        let is_before = |&slot: &SequenceSlot| self.seqs[slot].arrival < arrivals;
        let mut waiting = self.waiting.iter_from_back().filter(is_before);
        self.pause != PauseState::Paused
            && (self.fetching > 0
                || self.running.iter().any(is_before)
                || waiting.any(|slot| self.admits_waiting_class(self.seqs[slot].rank.0)))
    }

    /// Returns the number of waiting sequences that a pause of admissions holds back.
    pub(super) fn paused_sequence_count(&self) -> usize {
        if self.pause != PauseState::AdmissionPaused {
            return 0;
        }
        let waiting = self.waiting.iter_from_back();
        waiting.filter(|&slot| !self.admits_waiting_class(self.seqs[slot].rank.0)).count()
    }

    /// Returns whether there are sequences that a pause of admissions does not hold back.
    ///
    /// **Source:** `get_num_unfinished_requests`, `vllm/v1/core/sched/scheduler.py`.
    pub(super) fn has_unfinished_sequences(&self) -> bool {
        let first = || self.waiting.first_sequence_after(None);
        match self.pause {
            PauseState::Running => self.seqs.len() > 0,
            _ => {
                self.fetching > 0
                    || !self.running.is_empty()
                    || first().is_some_and(|((class, ..), _)| class == WaitingClass::HoldsBlocks)
            }
        }
    }
}
