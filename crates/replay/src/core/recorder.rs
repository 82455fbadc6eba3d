//! Buffers the reports of independent workers and forwards them in the order of the event loop over
//! all workers.

use std::ops::Range;
use std::sync::Arc;

use vllm_sim_engine::SimTime;

use crate::outcome::{AdmissionOutcome, ReplaySink, RequestOutcome, RequestOutcomeFacts};

use super::report_position::{EventLoopPosition, PositionedReplaySink};

#[derive(Debug, Default)]
pub(super) struct ReplaySinkCallRecorder {
    wants_tokens: bool,
    report_position: EventLoopPosition,
    calls: Vec<(EventLoopPosition, RecordedCall)>,
    gaps: Vec<(u64, u64)>,
    requests: Vec<RecordedOutcome>,
    tokens: Vec<SimTime>,
    admissions: Vec<AdmissionOutcome>,
    preemptions: Vec<u64>,
    preempted: Vec<SimTime>,
    /// Converts the preemption indices of this worker to preemption indices of the whole
    /// deployment.
    preemption_numbers: Vec<u64>,
}

#[derive(Debug)]
enum RecordedCall {
    Gaps(Range<u32>),
    Request(u32),
    Preempted,
}

/// Copy of a [`RequestOutcome`]; independent workers have no handoffs, errors or HTTP responses.
#[derive(Debug)]
struct RecordedOutcome {
    facts: RequestOutcomeFacts,
    session_id: Option<Arc<str>>,
    request_id: Option<Arc<str>>,
    /// Ranges of the request's entries in the recorder's `tokens`, `admissions` and other lists.
    tokens: Range<u32>,
    admissions: Range<u32>,
    preemptions: Range<u32>,
    preempted: Range<u32>,
}

impl ReplaySinkCallRecorder {
    pub(super) fn new(sink: &dyn ReplaySink) -> Self {
        Self { wants_tokens: sink.wants_token_times(), ..Self::default() }
    }

    fn push_call(&mut self, call: RecordedCall) {
        let last = self.calls.last();
        debug_assert!(last.is_none_or(|(last, _)| *last <= self.report_position));
        self.calls.push((self.report_position, call));
    }

    fn clear(&mut self) {
        self.calls.clear();
        self.gaps.clear();
        self.requests.clear();
        self.tokens.clear();
        self.admissions.clear();
        self.preemptions.clear();
        self.preempted.clear();
    }

    /// Reads the data of a buffered sink call only to load the data into the CPU cache; the result
    /// has no meaning.
    fn prefetch_call(&self, call: u32) -> u64 {
        match self.calls[call as usize].1 {
            RecordedCall::Request(at) => {
                let found = &self.requests[at as usize];
                found.facts.session ^ found.facts.ended.as_nanos() ^ u64::from(found.preempted.end)
            }
            RecordedCall::Gaps(_) | RecordedCall::Preempted => 0,
        }
    }

    fn forward_call(
        &mut self,
        call: usize,
        totals: &mut InFlightRequestCounts,
        sink: &mut dyn ReplaySink,
    ) {
        match &self.calls[call].1 {
            RecordedCall::Gaps(range) => {
                for &(nanos, times) in slice_of_range(&self.gaps, range) {
                    sink.on_token_gaps(nanos, times);
                }
            }
            RecordedCall::Preempted => {
                self.preemption_numbers.push(totals.preemptions);
                totals.preemptions += 1;
            }
            RecordedCall::Request(at) => {
                let found = &self.requests[*at as usize];
                let own = found.preemptions.start as usize..found.preemptions.end as usize;
                for number in &mut self.preemptions[own] {
                    *number = self.preemption_numbers[*number as usize];
                }
                totals.in_flight -= 1;
                sink.on_request_finished(&RequestOutcome {
                    facts: found.facts,
                    session_id: found.session_id.as_ref(),
                    request_id: found.request_id.as_ref(),
                    tokens: slice_of_range(&self.tokens, &found.tokens),
                    admissions: slice_of_range(&self.admissions, &found.admissions),
                    preemptions: slice_of_range(&self.preemptions, &found.preemptions),
                    preempted: slice_of_range(&self.preempted, &found.preempted),
                    ..RequestOutcome::default()
                });
            }
        }
    }
}

fn append_and_get_range<T: Copy>(list: &mut Vec<T>, more: &[T]) -> Range<u32> {
    let from = list.len() as u32;
    list.extend_from_slice(more);
    from..list.len() as u32
}

fn slice_of_range<'a, T>(list: &'a [T], range: &Range<u32>) -> &'a [T] {
    &list[range.start as usize..range.end as usize]
}

impl ReplaySink for ReplaySinkCallRecorder {
    fn on_request_finished(&mut self, outcome: &RequestOutcome<'_>) {
        let recorded = RecordedOutcome {
            facts: outcome.facts,
            session_id: outcome.session_id.cloned(),
            request_id: outcome.request_id.cloned(),
            tokens: append_and_get_range(&mut self.tokens, outcome.tokens),
            admissions: append_and_get_range(&mut self.admissions, outcome.admissions),
            preemptions: append_and_get_range(&mut self.preemptions, outcome.preemptions),
            preempted: append_and_get_range(&mut self.preempted, outcome.preempted),
        };
        self.push_call(RecordedCall::Request(self.requests.len() as u32));
        self.requests.push(recorded);
    }

    fn on_token_gaps(&mut self, nanos: u64, times: u64) {
        let at = self.gaps.len() as u32;
        self.gaps.push((nanos, times));
        match self.calls.last_mut() {
            Some((report_position, RecordedCall::Gaps(range)))
                if *report_position == self.report_position =>
            {
                range.end = at + 1
            }
            _ => self.push_call(RecordedCall::Gaps(at..at + 1)),
        }
    }

    fn wants_token_times(&self) -> bool {
        self.wants_tokens
    }
}

impl PositionedReplaySink for ReplaySinkCallRecorder {
    fn set_position(&mut self, report_position: EventLoopPosition) {
        self.report_position = report_position;
    }

    fn count_preemption(&mut self) {
        self.push_call(RecordedCall::Preempted);
    }
}

#[derive(Debug, Default)]
pub(super) struct InFlightRequestCounts {
    pub in_flight: u64,
    pub most: u64,
    preemptions: u64,
}

impl InFlightRequestCounts {
    fn count_sent(&mut self) {
        self.in_flight += 1;
        self.most = self.most.max(self.in_flight);
    }
}

/// Number of buffered calls that are prefetched into the CPU cache, so that their cache misses
/// overlap.
const PREFETCHED_CALLS: usize = 16;

fn calls_in_event_order(parts: &[&mut ReplaySinkCallRecorder]) -> Vec<(SimTime, u32, u32)> {
    let calls = parts.iter().zip(0u32..).flat_map(|(part, at)| {
        let calls = part.calls.iter().zip(0u32..);
        calls.map(move |((report_position, _), call)| (report_position.at, at, call))
    });
    let mut order: Vec<(SimTime, u32, u32)> = calls.collect();
    // Small keys sort fast; few instants have calls of several workers.
    order.sort_unstable();
    for same in order.chunk_by_mut(|a, b| a.0 == b.0) {
        if same.iter().any(|(_, part, _)| *part != same[0].1) {
            same.sort_unstable_by_key(|&(_, part, call)| {
                (parts[part as usize].calls[call as usize].0, part, call)
            });
        }
    }
    order
}

/// Forwards the buffered reports of all workers to `sink` and clears them.
///
/// `sent` lists the requests sent in the same stretch of simulated time, in order; they update
/// `counts`.
pub(super) fn forward_recorded_sink_calls<'a>(
    parts: impl Iterator<Item = &'a mut ReplaySinkCallRecorder>,
    sent: &[EventLoopPosition],
    counts: &mut InFlightRequestCounts,
    sink: &mut dyn ReplaySink,
) {
    let mut parts: Vec<&mut ReplaySinkCallRecorder> = parts.collect();
    let mut sent = sent.iter().peekable();
    for some in calls_in_event_order(&parts).chunks(PREFETCHED_CALLS) {
        let read = some.iter().map(|&(_, part, call)| parts[part as usize].prefetch_call(call));
        std::hint::black_box(read.fold(0, |all, one| all ^ one));
        for &(_, part, call) in some {
            let part = &mut parts[part as usize];
            let report_position = part.calls[call as usize].0;
            while sent.next_if(|&&sent| sent <= report_position).is_some() {
                counts.count_sent();
            }
            part.forward_call(call as usize, counts, sink);
        }
    }
    sent.for_each(|_| counts.count_sent());
    parts.iter_mut().for_each(|part| part.clear());
}
