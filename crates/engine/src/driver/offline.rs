//! Virtual time: arrivals in, a log out, no threads and no sleep.
//!
//! Two ways to listen. With [`run`] every token is an [`Event::Tokens`] of the log. A replay of
//! millions of tokens asks its engines for run lengths (`VllmConfig::run_lengths`) and hears of a
//! whole run at its end, as [`Event::Decoded`]; per engine it keeps [`Steps`], which knows when
//! each of these tokens came out and how often each gap between two tokens occurred:
//!
//! ```text
//! Event::Step { .. }         steps.ended(at)
//! Event::Tokens { id, n }    n tokens at `at`, as ever (first tokens, last tokens, bursts)
//! Event::Decoded { id, n }   steps.run(n): the instants of n tokens; their gaps are counted
//! ```
//!
//! Within one step all `Tokens` come before its `Step`; a `Decoded` stands between the `Step` it
//! ends with and the next. A token before a run came out in the step before the run, so the gap in
//! front of each token of a run is that step's own. Gaps in front of a token told by `Tokens` are
//! the listener's to count.

use std::time::Duration;

use crate::SimTime;
use crate::{Event, Outbox, Scheduler, Sequence, SubmitError};

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

/// The steps of one engine, by which runs of tokens are told: twelve bytes each.
#[derive(Debug, Clone, Default)]
pub struct Steps {
    ends: Vec<SimTime>,
    /// Runs that begin with a step, less those that ended with the step before.
    runs: Vec<i32>,
    /// Runs that ended with the last step.
    over: i32,
}

impl Steps {
    /// A step ended ([`Event::Step`]).
    pub fn ended(&mut self, at: SimTime) {
        self.ends.push(at);
        self.runs.push(-std::mem::take(&mut self.over));
    }

    /// A run of `n` tokens ended with the last step ([`Event::Decoded`]): their instants.
    ///
    /// More than there were steps counts as all steps.
    pub fn run(&mut self, n: u32) -> &[SimTime] {
        let from = self.ends.len().saturating_sub(n as usize);
        if let Some(begins) = self.runs.get_mut(from) {
            *begins += 1;
            self.over += 1;
        }
        &self.ends[from..]
    }

    /// When each step ended.
    pub fn ends(&self) -> &[SimTime] {
        &self.ends
    }

    /// Each gap between two steps, and how many tokens of runs came after it.
    pub fn gaps(&self) -> impl Iterator<Item = (Duration, u64)> {
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
