//! Virtual time: arrivals in, a log out, no threads and no sleep.

use crate::engine::{Event, Outbox, Scheduler, Sequence, SubmitError};
use crate::sim::SimTime;

/// What happened, and when.
pub type Log = Vec<(SimTime, Event)>;

/// Plays arrivals, which must be sorted by time, to the end and returns all that happened.
///
/// # Errors
/// The first refusal, with the log up to it.
pub fn run(
    engine: &mut dyn Scheduler,
    arrivals: impl IntoIterator<Item = (SimTime, Sequence)>,
) -> Result<Log, (SubmitError, Log)> {
    let mut out = Outbox::new();
    for (at, sequence) in arrivals {
        advance_to(engine, at, &mut out);
        if let Err(error) = engine.submit(at, sequence, &mut out) {
            return Err((error, out.into()));
        }
    }
    while let Some(at) = engine.next_wakeup() {
        engine.advance(at, &mut out);
    }
    Ok(out.into())
}

/// Lets everything happen that is due at or before `at`.
pub fn advance_to(engine: &mut dyn Scheduler, at: SimTime, out: &mut Outbox) {
    while let Some(due) = engine.next_wakeup().filter(|due| *due <= at) {
        engine.advance(due, out);
    }
}
