use vllm_sim_engine::SimTime;

use crate::outcome::ReplaySink;

/// Position of a call to a [`ReplaySink`] in the order of one event loop over all workers.
///
/// Ordered by instant, then by round, then worker events before sent requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EventLoopPosition {
    pub(super) at: SimTime,
    round: u32,
    sent: bool,
    /// Index of the worker whose events the sink call reports, or of the request if the call
    /// reports a sent request.
    number: u64,
}

impl EventLoopPosition {
    pub(super) fn worker_step_position(at: SimTime, round: u32, worker: u32) -> Self {
        Self { at, round, sent: false, number: worker.into() }
    }

    pub(super) fn sent_request_position(at: SimTime, round: u32, number: u64) -> Self {
        Self { at, round, sent: true, number }
    }
}

/// Extends [`ReplaySink`] by a position in the event loop for each call.
pub(super) trait PositionedReplaySink: ReplaySink {
    /// Sets the event-loop position of all sink calls that follow.
    fn set_position(&mut self, report_position: EventLoopPosition) {
        let _ = report_position;
    }

    fn count_preemption(&mut self) {}
}

impl PositionedReplaySink for dyn ReplaySink + '_ {}
