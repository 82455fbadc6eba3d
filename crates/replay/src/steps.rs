//! Stores the token times of requests by engine step.
//!
//! Sequences of one batch share the gaps between its steps. One log of step ends per worker
//! therefore holds the times of all its tokens. Each gap is reported once, with the number of
//! sequences that had it.

use std::collections::VecDeque;

use vllm_sim_engine::SimTime;

use super::outcome::ReplaySink;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputTokenSpan {
    /// Span of `n` consecutive engine steps, each with one output token at its end.
    Steps {
        first: u64,
        n: u32,
    },
    Burst {
        at: SimTime,
        n: u32,
    },
}

/// Log of a worker's engine steps that a request in flight may still refer to.
#[derive(Debug, Default)]
pub(super) struct EngineStepLog {
    steps: VecDeque<LoggedStep>,
    /// Index of the oldest engine step in the log, among all steps of the worker.
    base: u64,
    /// End time of the newest engine step that was removed from the log.
    before: SimTime,
    /// Number of completed requests with a gap between tokens that ends at the newest engine step
    /// removed from the log.
    sharing: i64,
    /// Known part of the next logged step's `change`: how many more requests have a token gap that
    /// ends at this step than at the step before.
    ahead: i32,
    /// Whether the newest engine step in the log has output tokens but has not ended yet.
    open: bool,
}

#[derive(Debug, Clone, Copy)]
struct LoggedStep {
    end: SimTime,
    /// Number of requests with a token gap that ends at this engine step, minus the number of such
    /// requests for the previous step.
    change: i32,
}

impl EngineStepLog {
    /// Returns the index of the engine step in progress, which ends at `at`; adds the step to the
    /// log if it is missing.
    pub(super) fn current_step_number(&mut self, at: SimTime) -> u64 {
        if !self.open {
            self.push_step(at);
            self.open = true;
        }
        self.next_step_number() - 1
    }

    pub(super) fn close_step(&mut self, at: SimTime) {
        if !std::mem::take(&mut self.open) {
            self.push_step(at);
        }
    }

    fn push_step(&mut self, end: SimTime) {
        let change = std::mem::take(&mut self.ahead);
        self.steps.push_back(LoggedStep { end, change });
    }

    /// Returns the index of the engine step after the newest one that has ended.
    pub(super) fn next_unclosed_step(&self) -> u64 {
        self.next_step_number() - u64::from(self.open)
    }

    /// Returns the index of the engine step after the newest one in the log.
    pub(super) fn next_step_number(&self) -> u64 {
        self.base + self.steps.len() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn step_end_time(&self, step: u64) -> SimTime {
        let at = step.checked_sub(self.base);
        let step = at.and_then(|at| self.steps.get(at as usize));
        step.map_or(self.before, |step| step.end)
    }

    /// Records the inter-token latencies of a completed request with one token at the end of each
    /// of `n` steps.
    fn count_token_gaps(&mut self, first: u64, n: u32) {
        if n < 2 {
            return;
        }
        let at = first.saturating_sub(self.base) as usize;
        if let Some(step) = self.steps.get_mut(at + 1) {
            step.change += 1;
        }
        match self.steps.get_mut(at + n as usize) {
            Some(step) => step.change -= 1,
            None => self.ahead -= 1,
        }
    }

    /// Reports the token gaps that end at steps before `end_step`, and removes these steps from the
    /// log; no request may refer to them.
    pub(super) fn report_token_gaps_below_step(
        &mut self,
        end_step: u64,
        sink: &mut (impl ReplaySink + ?Sized),
    ) {
        while self.base < end_step {
            let Some(step) = self.steps.pop_front() else {
                return;
            };
            self.sharing += i64::from(step.change);
            if self.sharing > 0 {
                let gap = step.end.as_nanos() - self.before.as_nanos();
                sink.on_token_gaps(gap, self.sharing as u64);
            }
            self.before = step.end;
            self.base += 1;
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct OutputTokenTimes {
    spans: Vec<OutputTokenSpan>,
    made: u32,
}

impl OutputTokenTimes {
    pub(super) const fn output_token_count(&self) -> u32 {
        self.made
    }

    pub(super) fn clear_token_times(&mut self) {
        self.spans.clear();
        self.made = 0;
    }

    pub(super) fn oldest_referenced_step(&self) -> Option<u64> {
        self.spans.iter().find_map(|span| match *span {
            OutputTokenSpan::Steps { first, .. } => Some(first),
            OutputTokenSpan::Burst { .. } => None,
        })
    }

    /// Adds one output token at the end of each of `step_count` steps from `first_step` on.
    pub(super) fn add_step_tokens(&mut self, first_step: u64, step_count: u32) {
        self.made += step_count;
        match self.spans.last_mut() {
            Some(OutputTokenSpan::Steps { first: start, n: count })
                if *start + u64::from(*count) == first_step =>
            {
                *count += step_count
            }
            _ => self.spans.push(OutputTokenSpan::Steps { first: first_step, n: step_count }),
        }
    }

    pub(super) fn add_simultaneous_tokens(&mut self, at: SimTime, token_count: u32) {
        self.made += token_count;
        self.spans.push(OutputTokenSpan::Burst { at, n: token_count });
    }

    pub(super) fn token_times(&self, log: &EngineStepLog) -> impl Iterator<Item = SimTime> {
        self.spans.iter().flat_map(move |&span| {
            let n = match span {
                OutputTokenSpan::Steps { n, .. } | OutputTokenSpan::Burst { n, .. } => n,
            };
            (0..u64::from(n)).map(move |i| match span {
                OutputTokenSpan::Steps { first, .. } => log.step_end_time(first + i),
                OutputTokenSpan::Burst { at, .. } => at,
            })
        })
    }

    pub(super) fn last_token_time(&self, log: &EngineStepLog) -> Option<SimTime> {
        self.spans.last().map(|span| match *span {
            OutputTokenSpan::Steps { first, n } => log.step_end_time(first + u64::from(n) - 1),
            OutputTokenSpan::Burst { at, .. } => at,
        })
    }

    /// Reports a completed request's token gaps: gaps between spans of steps immediately, gaps
    /// within a span by the step log.
    pub(super) fn report_token_gaps(
        &self,
        log: &mut EngineStepLog,
        sink: &mut (impl ReplaySink + ?Sized),
    ) {
        let mut last: Option<SimTime> = None;
        for span in &self.spans {
            let (start, end, together) = match *span {
                OutputTokenSpan::Steps { first, n } => {
                    log.count_token_gaps(first, n);
                    let end = log.step_end_time(first + u64::from(n) - 1);
                    (log.step_end_time(first), end, 0)
                }
                OutputTokenSpan::Burst { at, n } => (at, at, n - 1),
            };
            if let Some(last) = last {
                sink.on_token_gaps(start.as_nanos() - last.as_nanos(), 1);
            }
            if together > 0 {
                sink.on_token_gaps(0, together.into());
            }
            last = Some(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::RequestOutcome;

    #[derive(Default)]
    struct Gaps(Vec<u64>);

    impl ReplaySink for Gaps {
        fn on_request_finished(&mut self, _: &RequestOutcome<'_>) {}
        fn on_token_gaps(&mut self, nanos: u64, times: u64) {
            self.0.extend(std::iter::repeat_n(nanos, times as usize));
        }
    }

    #[test]
    fn step_log_reports_all_gaps() {
        let mut log = EngineStepLog::default();
        let mut sink = Gaps::default();
        let ends: Vec<u64> = (1..40u64).map(|i| i * i * 10).collect();
        let mut expected = Vec::new();
        let mut living: Vec<(OutputTokenTimes, Vec<u64>)> = Vec::new();
        for (i, &end) in ends.iter().enumerate() {
            let at = SimTime::from_nanos(end);
            if i % 3 == 0 {
                living.push((OutputTokenTimes::default(), Vec::new()));
            }
            for (nth, (tokens, seen)) in living.iter_mut().enumerate() {
                // Some requests pause for a step; some produce two tokens in one.
                match (i + nth) % 11 {
                    0 => continue,
                    1 => {
                        tokens.add_simultaneous_tokens(at, 2);
                        seen.push(end);
                    }
                    _ => {
                        let step = log.current_step_number(at);
                        tokens.add_step_tokens(step, 1);
                    }
                }
                seen.push(end);
            }
            if i % 5 == 4 {
                let (tokens, seen) = living.remove(0);
                let told: Vec<u64> = tokens.token_times(&log).map(SimTime::as_nanos).collect();
                assert_eq!(told, seen);
                assert_eq!(
                    tokens.last_token_time(&log).map(SimTime::as_nanos),
                    seen.last().copied()
                );
                tokens.report_token_gaps(&mut log, &mut sink);
                expected.extend(seen.windows(2).map(|pair| pair[1] - pair[0]));
            }
            log.close_step(at);
            let oldest = living.iter().filter_map(|(tokens, _)| tokens.oldest_referenced_step());
            let oldest = oldest.min().unwrap_or(log.next_step_number());
            log.report_token_gaps_below_step(oldest, &mut sink);
        }
        log.report_token_gaps_below_step(u64::MAX, &mut sink);
        sink.0.sort_unstable();
        expected.sort_unstable();
        assert_eq!(sink.0, expected);
    }
}
