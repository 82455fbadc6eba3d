//! Buffers the reports of independent workers and forwards them in the order of the event loop over
//! all workers.

use std::ops::Range;
use std::sync::Arc;

use vllm_sim_engine::SimTime;

use crate::outcome::{Admission, Outcome, PoolRole, Sink, Status, WorkerChange};

use super::report_position::{OrderedSink, ReportPosition};

#[derive(Debug, Default)]
pub(super) struct Recorder {
    wants_tokens: bool,
    report_position: ReportPosition,
    calls: Vec<(ReportPosition, Call)>,
    gaps: Vec<(u64, u64)>,
    requests: Vec<Recorded>,
    /// Values of all fields of an [`Outcome`] that [`Recorded`] leaves out.
    ///
    /// They are equal for all requests: independent workers have no prefill workers and no router
    /// queue.
    common_fields: Option<Outcome<'static>>,
    tokens: Vec<SimTime>,
    admissions: Vec<Admission>,
    preemptions: Vec<u64>,
    preempted: Vec<SimTime>,
    /// Maps the preemption numbers of this worker to those of the whole deployment.
    preemption_numbers: Vec<u64>,
}

#[derive(Debug)]
enum Call {
    Gaps(Range<u32>),
    Request(u32),
    Preempted,
}

/// Fields of an [`Outcome`] that differ between requests, kept small for the CPU cache.
#[derive(Debug)]
struct Recorded {
    session: u64,
    number: u64,
    turn: u32,
    status: Status,
    session_id: Option<Arc<str>>,
    request_id: Option<Arc<str>>,
    arrival: SimTime,
    ended: SimTime,
    first: Option<SimTime>,
    second: Option<SimTime>,
    last: Option<SimTime>,
    input: u32,
    requested: u32,
    output: u32,
    worker: Option<u32>,
    /// Ranges of the request's entries in the recorder's `tokens`, `admissions` and other lists.
    tokens: Range<u32>,
    admissions: Range<u32>,
    preemptions: Range<u32>,
    preempted: Range<u32>,
}

impl Recorder {
    pub(super) fn new(sink: &dyn Sink) -> Self {
        Self {
            wants_tokens: sink.wants_tokens(),
            ..Self::default()
        }
    }

    fn call(&mut self, call: Call) {
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

    /// Reads the data of a buffered call to prefetch it into the CPU cache; the result has no
    /// meaning.
    fn read(&self, call: u32) -> u64 {
        match self.calls[call as usize].1 {
            Call::Request(at) => {
                let found = &self.requests[at as usize];
                found.session ^ found.ended.nanos() ^ u64::from(found.preempted.end)
            }
            Call::Gaps(_) | Call::Preempted => 0,
        }
    }

    fn forward_reports(&mut self, call: usize, totals: &mut LiveCounts, sink: &mut dyn Sink) {
        match &self.calls[call].1 {
            Call::Gaps(range) => {
                for &(nanos, times) in listed(&self.gaps, range) {
                    sink.gaps(nanos, times);
                }
            }
            Call::Preempted => {
                self.preemption_numbers.push(totals.preemptions);
                totals.preemptions += 1;
            }
            Call::Request(at) => {
                let found = &self.requests[*at as usize];
                let own = found.preemptions.start as usize..found.preemptions.end as usize;
                for number in &mut self.preemptions[own] {
                    *number = self.preemption_numbers[*number as usize];
                }
                totals.in_flight -= 1;
                let Some(common_fields) = &self.common_fields else {
                    return;
                };
                sink.request(&Outcome {
                    session: found.session,
                    number: found.number,
                    turn: found.turn,
                    status: found.status,
                    session_id: found.session_id.as_ref(),
                    request_id: found.request_id.as_ref(),
                    arrival: found.arrival,
                    ended: found.ended,
                    first: found.first,
                    second: found.second,
                    last: found.last,
                    input: found.input,
                    requested: found.requested,
                    output: found.output,
                    worker: found.worker,
                    tokens: listed(&self.tokens, &found.tokens),
                    admissions: listed(&self.admissions, &found.admissions),
                    preemptions: listed(&self.preemptions, &found.preemptions),
                    preempted: listed(&self.preempted, &found.preempted),
                    ..*common_fields
                });
            }
        }
    }
}

fn appended<T: Copy>(list: &mut Vec<T>, more: &[T]) -> Range<u32> {
    let from = list.len() as u32;
    list.extend_from_slice(more);
    from..list.len() as u32
}

fn listed<'a, T>(list: &'a [T], range: &Range<u32>) -> &'a [T] {
    &list[range.start as usize..range.end as usize]
}

impl Sink for Recorder {
    fn request(&mut self, outcome: &Outcome<'_>) {
        self.common_fields
            .get_or_insert_with(|| outcome.without_lists());
        let recorded = Recorded {
            session: outcome.session,
            number: outcome.number,
            turn: outcome.turn,
            status: outcome.status,
            session_id: outcome.session_id.cloned(),
            request_id: outcome.request_id.cloned(),
            arrival: outcome.arrival,
            ended: outcome.ended,
            first: outcome.first,
            second: outcome.second,
            last: outcome.last,
            input: outcome.input,
            requested: outcome.requested,
            output: outcome.output,
            worker: outcome.worker,
            tokens: appended(&mut self.tokens, outcome.tokens),
            admissions: appended(&mut self.admissions, outcome.admissions),
            preemptions: appended(&mut self.preemptions, outcome.preemptions),
            preempted: appended(&mut self.preempted, outcome.preempted),
        };
        self.call(Call::Request(self.requests.len() as u32));
        self.requests.push(recorded);
    }

    fn gaps(&mut self, nanos: u64, times: u64) {
        let at = self.gaps.len() as u32;
        self.gaps.push((nanos, times));
        match self.calls.last_mut() {
            Some((report_position, Call::Gaps(range)))
                if *report_position == self.report_position =>
            {
                range.end = at + 1
            }
            _ => self.call(Call::Gaps(at..at + 1)),
        }
    }

    fn wants_tokens(&self) -> bool {
        self.wants_tokens
    }

    /// The number of workers is fixed.
    fn worker(&mut self, _: SimTime, _: u32, _: PoolRole, _: WorkerChange) {}
}

impl OrderedSink for Recorder {
    fn report_position(&mut self, report_position: ReportPosition) {
        self.report_position = report_position;
    }

    fn preempted(&mut self) {
        self.call(Call::Preempted);
    }
}

#[derive(Debug, Default)]
pub(super) struct LiveCounts {
    pub in_flight: u64,
    pub most: u64,
    preemptions: u64,
}

impl LiveCounts {
    fn sent(&mut self) {
        self.in_flight += 1;
        self.most = self.most.max(self.in_flight);
    }
}

/// Number of buffered calls that are read ahead, so that their cache misses overlap.
const READ_AHEAD: usize = 16;

fn in_order(parts: &[&mut Recorder]) -> Vec<(SimTime, u32, u32)> {
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
pub(super) fn forward_reports<'a>(
    parts: impl Iterator<Item = &'a mut Recorder>,
    sent: &[ReportPosition],
    counts: &mut LiveCounts,
    sink: &mut dyn Sink,
) {
    let mut parts: Vec<&mut Recorder> = parts.collect();
    let mut sent = sent.iter().peekable();
    for some in in_order(&parts).chunks(READ_AHEAD) {
        let read = some
            .iter()
            .map(|&(_, part, call)| parts[part as usize].read(call));
        std::hint::black_box(read.fold(0, |all, one| all ^ one));
        for &(_, part, call) in some {
            let part = &mut parts[part as usize];
            let report_position = part.calls[call as usize].0;
            while sent.next_if(|&&sent| sent <= report_position).is_some() {
                counts.sent();
            }
            part.forward_reports(call as usize, counts, sink);
        }
    }
    sent.for_each(|_| counts.sent());
    parts.iter_mut().for_each(|part| part.clear());
}
