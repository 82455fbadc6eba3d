//! Holds the state of one scheduling pass: the token budget left and the step it fills.

use super::step::Step;
use crate::{Outbox, SimTime};

pub(in crate::sched) struct Pass<'a> {
    pub now: SimTime,
    pub budget: u32,
    pub at: usize,
    pub preempted: bool,
    pub holds_prefill: bool,
    pub step: &'a mut Step,
    pub out: &'a mut Outbox,
}

/// Outcome of an attempt to admit a waiting sequence.
pub(in crate::sched) enum AdmissionTurn {
    /// The sequence was admitted or removed; the next one is tried.
    Next,
    /// The sequence keeps its place in the waiting queue; later ones may be tried.
    Skip,
    Stop,
}
