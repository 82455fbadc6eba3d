//! Holds the state of one scheduling pass: the token budget left and the step it fills.

use super::step::ScheduledStep;
use crate::{Outbox, SimTime};

pub(in crate::sched) struct SchedulingPass<'a> {
    pub now: SimTime,
    pub budget: u32,
    /// Number of tokens that may still be added to the step's input batch. Each sequence also takes
    /// `input_slots` of these tokens for drafting.
    pub input_budget: u32,
    pub input_slots: u32,
    pub at: usize,
    pub preempted: bool,
    pub holds_prefill: bool,
    /// Whether the step of this pass computes a part of a running sequence's prompt.
    pub has_prefill: bool,
    /// Whether the step of this pass has a sequence that was already running.
    pub has_running: bool,
    /// Whether the step of this pass computes a part of the prompt of a newly admitted sequence.
    pub admits_prefill: bool,
    pub step: &'a mut ScheduledStep,
    pub out: &'a mut Outbox,
}

impl SchedulingPass<'_> {
    /// Returns the maximum number of tokens that the step can still compute of the next sequence.
    #[inline]
    pub(in crate::sched) fn max_next_sequence_tokens(&self) -> u32 {
        match self.input_slots {
            0 => self.budget,
            slots => self.budget.min(self.input_budget.saturating_sub(slots)),
        }
    }

    #[inline]
    pub(in crate::sched) fn spend_tokens(&mut self, new: u32) {
        self.budget = self.budget.saturating_sub(new);
        self.input_budget = self.input_budget.saturating_sub(new + self.input_slots);
    }

    pub(in crate::sched) fn restore_tokens(&mut self, new: u32) {
        self.budget += new;
        self.input_budget += new + self.input_slots;
    }
}

/// Outcome of an attempt to admit a waiting sequence.
pub(in crate::sched) enum AdmissionOutcome {
    /// The waiting sequence was admitted or removed; the next waiting sequence is tried.
    Next,
    /// The waiting sequence keeps its place in the queue; later sequences may be tried.
    Skip,
    Stop,
}
