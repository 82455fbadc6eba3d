//! Virtual time: arrivals in, a log out, no threads and no sleep; and [`Steps`], which knows when
//! the tokens of runs came out.

use std::time::Duration;

use vllm_sim_engine::{Event, Outbox, Scheduler, Sequence, SimTime, SubmitError};

/// What happened, and when.
pub(crate) type Log = Vec<(SimTime, Event)>;

/// Plays arrivals, which must be sorted by time, to the end and returns all that happened.
///
/// # Errors
/// The first refusal, with the log up to it.
pub(crate) fn run(
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
pub(crate) fn advance_to(engine: &mut dyn Scheduler, at: SimTime, out: &mut Outbox) {
    while let Some(due) = engine.next_wakeup().filter(|due| *due <= at) {
        engine.advance(due, out);
    }
}

/// The steps of one engine, by which runs of tokens are told: twelve bytes each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Steps {
    ends: Vec<SimTime>,
    /// Runs that begin with a step, less those that ended with the step before.
    runs: Vec<i32>,
    /// Runs that ended with the last step.
    over: i32,
}

impl Steps {
    /// A step ended ([`Event::Step`]).
    pub(crate) fn ended(&mut self, at: SimTime) {
        self.ends.push(at);
        self.runs.push(-std::mem::take(&mut self.over));
    }

    /// A run of `n` tokens ended with the last step ([`Event::Decoded`]): their instants.
    ///
    /// More than there were steps counts as all steps.
    pub(crate) fn run(&mut self, n: u32) -> &[SimTime] {
        let from = self.ends.len().saturating_sub(n as usize);
        if let Some(begins) = self.runs.get_mut(from) {
            *begins += 1;
            self.over += 1;
        }
        &self.ends[from..]
    }

    /// Each gap between two steps, and how many tokens of runs came after it.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = (Duration, u64)> {
        let mut tokens = 0;
        let counts = self.runs.iter().map(move |&change| {
            tokens += i64::from(change);
            tokens as u64
        });
        let starts = std::iter::once(SimTime::ZERO).chain(self.ends.iter().copied());
        let gaps = self
            .ends
            .iter()
            .zip(starts)
            .map(|(&end, start)| end.since(start));
        gaps.zip(counts).filter(|&(_, tokens)| tokens > 0)
    }
}
