use crate::outcome::Sink;
use crate::sessions::{Counted, Sessions};
use crate::settings::Settings;
use crate::workload::WorkloadSource;

use super::{Core, ReplayError, Totals, lanes};

/// Plays a workload to its end.
///
/// # Errors
/// [`ReplayError`]; what was reported to the sink until then stays.
pub fn run(
    settings: &Settings,
    source: &mut dyn WorkloadSource,
    sink: &mut dyn Sink,
) -> Result<Totals, ReplayError> {
    if lanes::fits(settings, source) {
        return lanes::run(settings, source, sink);
    }
    let sessions = Sessions::new(Counted::new(source), settings.pace)?;
    let mut core = Core::new(settings, sessions, sink, 0)?;
    core.run()?;
    let end = settings.limit.filter(|_| core.living > 0);
    let end = end.unwrap_or(core.now);
    core.finish(end);
    Ok(core.totals)
}
