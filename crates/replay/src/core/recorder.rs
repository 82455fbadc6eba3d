//! Keeps what parts of a deployment report, and hands it on in the order of the loop over all of it.

use std::ops::Range;
use std::sync::Arc;

use vllm_sim_engine::SimTime;

use crate::outcome::{Admission, Outcome, Sink, WorkerChange};

use super::moment::{Moment, OrderedSink};

/// What one part reported.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    wants_tokens: bool,
    moment: Moment,
    calls: Vec<(Moment, Call)>,
    gaps: Vec<(u64, u64)>,
    requests: Vec<Recorded>,
    tokens: Vec<SimTime>,
    admissions: Vec<Admission>,
    preemptions: Vec<u64>,
    preempted: Vec<SimTime>,
    /// By the number that a preemption has here, the one that it has in the whole deployment.
    preemption_numbers: Vec<u64>,
}

#[derive(Debug)]
enum Call {
    Gaps(Range<usize>),
    Request(usize),
    Preempted,
}

#[derive(Debug)]
struct Recorded {
    outcome: Outcome<'static>,
    session_id: Option<Arc<str>>,
    request_id: Option<Arc<str>>,
    /// In the lists of the recorder.
    tokens: Range<usize>,
    admissions: Range<usize>,
    preemptions: Range<usize>,
    preempted: Range<usize>,
}

impl Recorder {
    pub(super) fn new(wants_tokens: bool) -> Self {
        Self {
            wants_tokens,
            ..Self::default()
        }
    }

    fn call(&mut self, call: Call) {
        self.calls.push((self.moment, call));
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

    fn hand_on(&mut self, call: usize, totals: &mut LiveCounts, sink: &mut dyn Sink) {
        match &self.calls[call].1 {
            Call::Gaps(range) => {
                for &(nanos, times) in &self.gaps[range.clone()] {
                    sink.gaps(nanos, times);
                }
            }
            Call::Preempted => {
                self.preemption_numbers.push(totals.preemptions);
                totals.preemptions += 1;
            }
            Call::Request(at) => {
                let found = &self.requests[*at];
                let preemptions = &mut self.preemptions[found.preemptions.clone()];
                for number in preemptions.iter_mut() {
                    *number = self.preemption_numbers[*number as usize];
                }
                totals.living -= 1;
                sink.request(&Outcome {
                    session_id: found.session_id.as_ref(),
                    request_id: found.request_id.as_ref(),
                    tokens: &self.tokens[found.tokens.clone()],
                    admissions: &self.admissions[found.admissions.clone()],
                    preemptions,
                    preempted: &self.preempted[found.preempted.clone()],
                    ..found.outcome
                });
            }
        }
    }
}

fn appended<T: Copy>(list: &mut Vec<T>, more: &[T]) -> Range<usize> {
    let from = list.len();
    list.extend_from_slice(more);
    from..list.len()
}

impl Sink for Recorder {
    fn request(&mut self, outcome: &Outcome<'_>) {
        let recorded = Recorded {
            outcome: outcome.without_lists(),
            session_id: outcome.session_id.cloned(),
            request_id: outcome.request_id.cloned(),
            tokens: appended(&mut self.tokens, outcome.tokens),
            admissions: appended(&mut self.admissions, outcome.admissions),
            preemptions: appended(&mut self.preemptions, outcome.preemptions),
            preempted: appended(&mut self.preempted, outcome.preempted),
        };
        self.call(Call::Request(self.requests.len()));
        self.requests.push(recorded);
    }

    fn gaps(&mut self, nanos: u64, times: u64) {
        let at = self.gaps.len();
        self.gaps.push((nanos, times));
        match self.calls.last_mut() {
            Some((moment, Call::Gaps(range))) if *moment == self.moment => range.end = at + 1,
            _ => self.call(Call::Gaps(at..at + 1)),
        }
    }

    fn wants_tokens(&self) -> bool {
        self.wants_tokens
    }

    /// Workers neither come nor go.
    fn worker(&mut self, _: SimTime, _: u32, _: bool, _: WorkerChange) {}
}

impl OrderedSink for Recorder {
    fn moment(&mut self, moment: Moment) {
        self.moment = moment;
    }

    fn preempted(&mut self) {
        self.call(Call::Preempted);
    }
}

/// What only the order of all parts tells.
#[derive(Debug, Default)]
pub(super) struct LiveCounts {
    /// Requests that are on their way.
    pub living: u64,
    /// The most at a time.
    pub most: u64,
    preemptions: u64,
}

impl LiveCounts {
    fn sent(&mut self) {
        self.living += 1;
        self.most = self.most.max(self.living);
    }
}

/// Hands on what all parts have reported, and forgets it. `sent` are the requests that were sent
/// meanwhile, in their order.
pub(super) fn hand_on<'a>(
    parts: impl Iterator<Item = &'a mut Recorder>,
    sent: &[Moment],
    counts: &mut LiveCounts,
    sink: &mut dyn Sink,
) {
    let mut parts: Vec<&mut Recorder> = parts.collect();
    let calls = parts.iter().zip(0u32..).flat_map(|(part, at)| {
        let calls = part.calls.iter().zip(0u32..);
        calls.map(move |((moment, _), call)| (*moment, at, call))
    });
    let mut order: Vec<(Moment, u32, u32)> = calls.collect();
    order.sort_unstable();
    let mut sent = sent.iter().peekable();
    for (moment, part, call) in order {
        while sent.next_if(|&&sent| sent <= moment).is_some() {
            counts.sent();
        }
        parts[part as usize].hand_on(call as usize, counts, sink);
    }
    sent.for_each(|_| counts.sent());
    parts.iter_mut().for_each(|part| part.clear());
}
