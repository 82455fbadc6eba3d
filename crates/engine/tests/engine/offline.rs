//! Runs engines in virtual time, from arrivals to a log, without threads or sleep. [`StepSeries`]
//! computes the times of tokens in runs.

use std::time::Duration;

use vllm_sim_engine::{Outbox, Scheduler, SchedulerEvent, Sequence, SequenceSubmitError, SimTime};

/// Events with their times.
pub(crate) type Log = Vec<(SimTime, SchedulerEvent)>;

/// Runs arrivals, sorted by time, to the end and returns all events.
///
/// # Errors
/// Returns the first rejection, with the log up to it.
pub(crate) fn run(
    engine: &mut dyn Scheduler,
    arrivals: impl IntoIterator<Item = (SimTime, Sequence)>,
) -> Result<Log, (SequenceSubmitError, Log)> {
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

/// Runs everything due at or before `at`.
pub(crate) fn advance_to(engine: &mut dyn Scheduler, at: SimTime, out: &mut Outbox) {
    while let Some(due) = engine.next_wakeup().filter(|due| *due <= at) {
        engine.advance(due, out);
    }
}

/// Records the steps of one engine, to resolve runs of tokens; twelve bytes each.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepSeries {
    ends: Vec<SimTime>,
    /// Number of runs that begin with a step, minus those that ended with the step before.
    runs: Vec<i32>,
    /// Number of runs that ended with the last step.
    over: i32,
}

impl StepSeries {
    /// Records the end of a step ([`SchedulerEvent::Step`]).
    pub(crate) fn ended(&mut self, at: SimTime) {
        self.ends.push(at);
        self.runs.push(-std::mem::take(&mut self.over));
    }

    /// Records a run of `n` tokens that ended with the last step ([`SchedulerEvent::Decoded`]) and returns
    /// their times.
    ///
    /// A number above that of all steps counts as all steps.
    pub(crate) fn run(&mut self, n: u32) -> &[SimTime] {
        let from = self.ends.len().saturating_sub(n as usize);
        if let Some(begins) = self.runs.get_mut(from) {
            *begins += 1;
            self.over += 1;
        }
        &self.ends[from..]
    }

    /// Iterates over the gaps between steps and the number of run tokens after each.
    pub(crate) fn gaps(&self) -> impl Iterator<Item = (Duration, u64)> {
        let mut tokens = 0;
        let counts = self.runs.iter().map(move |&change| {
            tokens += i64::from(change);
            tokens as u64
        });
        let starts = std::iter::once(SimTime::ZERO).chain(self.ends.iter().copied());
        let gaps = self.ends.iter().zip(starts).map(|(&end, start)| end.duration_since(start));
        gaps.zip(counts).filter(|&(_, tokens)| tokens > 0)
    }
}
