//! Holds the state of one scheduling pass: the token budget left and the step it fills.

use super::step::ScheduledStep;
use crate::{Outbox, SimTime};

pub(in crate::sched) struct SchedulingPass<'a> {
    pub now: SimTime,
    pub budget: u32,
    pub at: usize,
    pub preempted: bool,
    pub holds_prefill: bool,
    pub step: &'a mut ScheduledStep,
    pub out: &'a mut Outbox,
}

/// Outcome of an attempt to admit a waiting sequence.
pub(in crate::sched) enum AdmissionOutcome {
    /// The sequence was admitted or removed; the next one is tried.
    Next,
    /// The sequence keeps its place in the waiting queue; later ones may be tried.
    Skip,
    Stop,
}
