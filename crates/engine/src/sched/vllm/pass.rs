//! The filling of one step.

use super::step::Step;
use crate::{Outbox, SimTime};

/// A step in the making.
pub(in crate::sched) struct Pass<'a> {
    pub now: SimTime,
    /// Tokens that may still be computed.
    pub budget: u32,
    /// The running sequence that is looked at.
    pub at: usize,
    /// Somebody lost its blocks.
    pub preempted: bool,
    /// Prompts wait for a later step.
    pub holds_prefill: bool,
    pub step: &'a mut Step,
    pub out: &'a mut Outbox,
}

/// The outcome of an attempt to admit a waiting sequence.
pub(in crate::sched) enum AdmissionTurn {
    /// The sequence runs, or is gone: try the next.
    Next,
    /// The sequence keeps its place; those behind it may be tried.
    Skip,
    /// Nobody else is tried.
    Stop,
}
