//! The events of one engine step.

use std::sync::Arc;

use super::encode::PrefillStats;
use super::stats::SchedulerStats;
use vllm_sim_engine::{SequenceEndReason, SimTime};

/// The events of one engine step, all at the same instant.
#[derive(Debug)]
pub(crate) struct EngineStepEvents {
    pub(crate) at: SimTime,
    pub(crate) events: Vec<(Arc<str>, EngineStepEvent)>,
    pub(crate) stats: Option<Box<SchedulerStats>>,
}

#[derive(Debug, Clone)]
pub(crate) enum EngineStepEvent {
    Scheduled { queued: SimTime, scheduled: SimTime, prefill: PrefillStats },
    Preempted(SimTime),
    Resumed(SimTime),
    Tokens(u32),
    Ended(SequenceEndReason),
}
