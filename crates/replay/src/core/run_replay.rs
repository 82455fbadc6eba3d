use crate::outcome::ReplaySink;
use crate::sessions::{NumberedSessions, SessionQueue};
use crate::settings::ReplaySettings;
use crate::workload::WorkloadSource;
use vllm_sim_engine::SimTime;

use super::{EventLoop, ReplayError, ReplayTotals, parallel};

/// Replays a workload to its end or to the time limit in `settings`, and reports requests to
/// `sink`.
///
/// # Errors
/// Returns [`ReplayError`] for invalid settings or an unreadable workload. Outcomes reported before
/// the error stay in the sink.
pub fn run_replay(
    settings: &ReplaySettings,
    source: &mut dyn WorkloadSource,
    sink: &mut dyn ReplaySink,
) -> Result<ReplayTotals, ReplayError> {
    if parallel::workers_are_independent(settings, source) && !sink.wants_steps() {
        return parallel::run_workers_in_parallel(settings, source, sink);
    }
    let sessions = SessionQueue::new(NumberedSessions::new(source), settings.pace)?;
    let mut core = EventLoop::new(settings, sessions, sink, 0)?;
    core.run_until(settings.limit.unwrap_or(SimTime::MAX))?;
    let end = settings.limit.filter(|_| core.in_flight > 0);
    let end = end.unwrap_or(core.now);
    core.report_unfinished_requests(end);
    Ok(core.totals)
}
