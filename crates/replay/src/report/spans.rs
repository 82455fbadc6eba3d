//! Keeps the phases of a sample of requests for the HTML page, in bounded memory.

use crate::outcome::{PoolRole, RequestOutcome};
use vllm_sim_engine::SimTime;
use vllm_sim_random::mix_u64_pair;

/// Phase of a request on a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestPhase {
    /// The request waits for a worker, passes its API server, or waits for capacity on the worker.
    Queue,
    /// Prefill phase: the worker computes the prompt.
    Prefill,
    /// Transfer phase: the prompt's KV cache is transferred to another worker.
    Transfer,
    /// Decode phase: the worker generates output tokens.
    Decode,
    /// The request is preempted, and waits to resume.
    Preempted,
}

impl RequestPhase {
    /// All phases of a request with their names in the HTML page.
    pub const NAMED_REQUEST_PHASES: [(&str, Self); 5] = [
        ("queue", Self::Queue),
        ("prefill", Self::Prefill),
        ("transferred", Self::Transfer),
        ("decode", Self::Decode),
        ("preempted", Self::Preempted),
    ];
}

/// Phases of one request on one worker.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestWorkerSpan {
    /// Pool of the worker to which the phases belong.
    pub pool: PoolRole,
    /// Index, in its pool, of the worker to which the phases belong.
    pub worker: u32,
    /// Index of the request in dispatch order.
    pub number: u64,
    /// Start and kind of each phase of the request; a phase lasts until the start of the next
    /// phase.
    pub phases: Vec<(SimTime, RequestPhase)>,
    /// End of the request's last phase on this worker.
    pub end: SimTime,
}

/// Phases on workers of all requests, or of a uniform sample of the requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampledRequestSpans {
    most: usize,
    /// Sampling interval `n`: one of every `n` requests is in the sample.
    pub one_of: u64,
    /// Number of all requests, of which [`Self::kept`] is a sample.
    pub seen: u64,
    /// Phases of the sampled requests.
    pub kept: Vec<RequestWorkerSpan>,
}

impl SampledRequestSpans {
    pub(super) fn new(max_spans: usize) -> Self {
        Self { most: max_spans, one_of: 1, ..Self::default() }
    }

    pub(super) fn add_request_spans(&mut self, outcome: &RequestOutcome<'_>) {
        if self.most == 0 {
            return;
        }
        self.add_if_sampled(outcome.number, || spans_of_request(outcome));
    }

    fn add_if_sampled(&mut self, number: u64, spans: impl FnOnce() -> Vec<RequestWorkerSpan>) {
        self.seen += 1;
        if !is_chosen(number, self.one_of) {
            return;
        }
        self.kept.extend(spans());
        while self.kept.len() > self.most {
            self.one_of *= 2;
            let one_of = self.one_of;
            self.kept.retain(|span| is_chosen(span.number, one_of));
        }
    }
}

/// Returns whether a request is in the sample. A hash decides, because every n-th request might
/// always be on the same worker.
fn is_chosen(number: u64, one_of: u64) -> bool {
    mix_u64_pair(0, number).is_multiple_of(one_of)
}

/// Returns the phases of a request on each of its workers, in order.
pub(super) fn spans_of_request(outcome: &RequestOutcome<'_>) -> Vec<RequestWorkerSpan> {
    let span = |pool, worker, phases: Vec<_>, end| RequestWorkerSpan {
        pool,
        worker,
        number: outcome.number,
        phases,
        end,
    };
    let mut spans = Vec::new();
    let mut from = outcome.arrival;
    let handoff = outcome.handoff.unwrap_or_default();
    if let Some(worker) = outcome.prefill_worker {
        let mut phases = vec![(from, RequestPhase::Queue)];
        let admitted = outcome.admissions.iter().filter(|a| a.pool == PoolRole::Prefill);
        phases.extend(admitted.map(|a| (a.at, RequestPhase::Prefill)));
        let held = handoff.held.unwrap_or(outcome.ended);
        phases.extend(handoff.held.map(|at| (at, RequestPhase::Transfer)));
        let released = handoff.released.or(handoff.activated);
        let end = released.unwrap_or(outcome.ended).max(held);
        from = handoff.reserved.unwrap_or(held);
        spans.push(span(PoolRole::Prefill, worker, phases, end.min(outcome.ended)));
    }
    let Some(worker) = outcome.worker else {
        return spans;
    };
    let waits = match outcome.prefill_worker {
        Some(_) => RequestPhase::Transfer,
        None => RequestPhase::Queue,
    };
    let mut phases = vec![(from, waits)];
    if outcome.prefill_worker.is_none() {
        // The prompt comes from a server outside of the run.
        phases.extend(handoff.reserved.map(|at| (at, RequestPhase::Transfer)));
    }
    let split = outcome.prefill_worker.is_some();
    let admitted = outcome.admissions.iter().filter(|a| a.pool == PoolRole::Serving);
    phases.extend(admitted.map(|a| {
        let made_some = split || outcome.first.is_some_and(|first| first <= a.at);
        let phase = match made_some {
            true => RequestPhase::Decode,
            false => RequestPhase::Prefill,
        };
        (a.at, phase)
    }));
    phases.extend(outcome.first.map(|at| (at, RequestPhase::Decode)));
    phases.extend(outcome.preempted.iter().map(|&at| (at, RequestPhase::Preempted)));
    // At equal times, the preemption comes first.
    phases.sort_by_key(|&(at, phase)| (at, phase != RequestPhase::Preempted));
    spans.push(span(PoolRole::Serving, worker, phases, outcome.ended));
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_sample_is_uniform_and_bounded() {
        let mut spans = SampledRequestSpans::new(500);
        for number in 0..100_000 {
            let span = RequestWorkerSpan {
                pool: PoolRole::Serving,
                worker: (number % 8) as u32,
                number,
                phases: Vec::new(),
                end: SimTime::ZERO,
            };
            spans.add_if_sampled(number, || vec![span]);
        }
        assert!((200..=500).contains(&spans.kept.len()));
        assert_eq!((spans.seen, spans.one_of), (100_000, 256));
        let on_first = spans.kept.iter().filter(|span| span.worker == 0).count();
        assert!((20..120).contains(&on_first), "{on_first}");
    }
}
