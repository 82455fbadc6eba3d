use crate::outcome::Sink;
use crate::sessions::{NumberedSessions, Sessions};
use crate::settings::Settings;
use crate::workload::WorkloadSource;

use super::{Core, ReplayError, Totals, parallel};

/// Replays a workload to its end or to the time limit in `settings`, and reports requests to
/// `sink`.
///
/// # Errors
/// Returns [`ReplayError`] for invalid settings or an unreadable workload. Outcomes reported before
/// the error stay in the sink.
pub fn run(
    settings: &Settings,
    source: &mut dyn WorkloadSource,
    sink: &mut dyn Sink,
) -> Result<Totals, ReplayError> {
    if parallel::fits(settings, source) {
        return parallel::run(settings, source, sink);
    }
    let sessions = Sessions::new(NumberedSessions::new(source), settings.pace)?;
    let mut core = Core::new(settings, sessions, sink, 0)?;
    core.run()?;
    let end = settings.limit.filter(|_| core.in_flight > 0);
    let end = end.unwrap_or(core.now);
    core.finish(end);
    Ok(core.totals)
}
