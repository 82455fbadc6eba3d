//! What an engine did in one step.

use std::sync::Arc;

use super::encode::PrefillStats;
use super::stats::SchedulerStats;
use vllm_sim_engine::{End, SimTime};

/// One step: everything that came out at one instant.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) at: SimTime,
    pub(crate) events: Vec<(Arc<str>, StepEvent)>,
    pub(crate) stats: Option<Box<SchedulerStats>>,
}

/// What happened to one request.
#[derive(Debug)]
pub(crate) enum StepEvent {
    /// It left the queue for the first time.
    Scheduled {
        queued: SimTime,
        scheduled: SimTime,
        prefill: PrefillStats,
    },
    /// It went back to the queue.
    Preempted(SimTime),
    /// It left the queue again.
    Resumed(SimTime),
    /// So many tokens came out.
    Tokens(u32),
    /// It is over.
    Ended(End),
}
