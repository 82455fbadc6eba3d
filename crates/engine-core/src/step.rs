//! The events of an engine in one step.

use std::sync::Arc;

use super::encode::PrefillStats;
use super::stats::SchedulerStats;
use vllm_sim_engine::{End, SimTime};

/// The events of one step, all at the same instant.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) at: SimTime,
    pub(crate) events: Vec<(Arc<str>, StepEvent)>,
    pub(crate) stats: Option<Box<SchedulerStats>>,
}

/// An event of one request.
#[derive(Debug)]
pub(crate) enum StepEvent {
    /// The request left the waiting queue for the first time.
    Scheduled {
        queued: SimTime,
        scheduled: SimTime,
        prefill: PrefillStats,
    },
    /// The request went back to the waiting queue.
    Preempted(SimTime),
    /// The request left the waiting queue again.
    Resumed(SimTime),
    /// This number of tokens was released.
    Tokens(u32),
    /// The request ended.
    Ended(End),
}
