//! Records the newest requests and steps of a server, for a trace that Perfetto and Chrome show.
//!
//! Recording starts with the first look at the dashboard, and goes on for ten minutes after the
//! latest. Before that, the engines have no further observer.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use vllm_sim_engine::driver::{EngineObserver, LiveEngine, SequenceRecord};
use vllm_sim_engine::{EngineStats, SchedulerEvent, SeqId, SequenceEndReason, SimTime};
use vllm_sim_replay::outcome::{
    AdmissionOutcome, EngineStep, PoolRole, PrefillHandoffTimes, ReplaySink, RequestOutcome,
    RequestOutcomeFacts, RequestStatus,
};
use vllm_sim_replay::report::TraceEventWriter;

/// Maximum number of ended requests in a server's trace, divided equally among its ranks.
const MAX_REQUESTS: usize = 5_000;
/// Maximum number of engine steps in a server's trace, divided equally among its ranks.
const MAX_STEPS: usize = 50_000;
/// Maximum length of a request id in the trace, in characters; clients choose these ids.
const MAX_ID_LENGTH: usize = 128;
/// Maximum number of admissions and of preemptions that the trace records per request.
const MAX_CHANGES: usize = 64;
/// Duration of the trace recording after the last poll of a dashboard.
const RECORDING_TIME: Duration = Duration::from_secs(600);

/// Trace of the newest ended requests and steps of a server.
#[derive(Default)]
pub(crate) struct LiveRequestTrace {
    /// Traces of the data-parallel ranks; unset until the first recording starts.
    ranks: OnceLock<Vec<Arc<Mutex<RankTrace>>>>,
    /// End time of the trace recording, in nanoseconds of the engines' clock.
    ends: Arc<AtomicU64>,
}

impl LiveRequestTrace {
    /// Starts the recording of requests and steps, or extends it; the recording ends after
    /// [`RECORDING_TIME`].
    pub(crate) fn start_or_extend_trace_recording(&self, engines: &[LiveEngine]) {
        let now = engines.first().map_or(SimTime::ZERO, LiveEngine::now);
        self.ends.store((now + RECORDING_TIME).as_nanos(), Ordering::Relaxed);
        self.ranks.get_or_init(|| {
            let numbers = Arc::new(AtomicU64::new(0));
            let traces = engines.iter().zip(0..).map(|(engine, worker)| {
                let trace = Arc::new(Mutex::new(RankTrace {
                    max_requests: (MAX_REQUESTS / engines.len()).max(1),
                    max_steps: (MAX_STEPS / engines.len()).max(1),
                    requests: VecDeque::new(),
                    steps: VecDeque::new(),
                }));
                engine.add_observer(Box::new(TraceRecorder {
                    worker,
                    trace: trace.clone(),
                    ends: self.ends.clone(),
                    numbers: numbers.clone(),
                    changes: HashMap::new(),
                }));
                trace
            });
            traces.collect()
        });
    }

    /// Returns the trace as JSON, in the format of `vllm-sim replay --trace-out`.
    ///
    /// # Errors
    /// The error of the writer; writing to memory does not fail.
    pub(crate) fn recorded_trace_json(&self) -> io::Result<Vec<u8>> {
        let mut writer = TraceEventWriter::new(Vec::new())?;
        for rank in self.ranks.get().into_iter().flatten() {
            // The engine records into the trace under its own lock: hold this one only to copy.
            let (steps, requests) = {
                let trace = rank.lock();
                (trace.steps.clone(), trace.requests.clone())
            };
            steps.iter().for_each(|step| writer.on_step(step));
            requests.iter().for_each(|request| writer.on_request_finished(&request.outcome()));
        }
        writer.finish_trace_file()
    }
}

struct RankTrace {
    max_requests: usize,
    max_steps: usize,
    requests: VecDeque<Arc<EndedRequest>>,
    steps: VecDeque<EngineStep>,
}

impl RankTrace {
    fn add_step(&mut self, step: EngineStep) {
        if self.steps.len() >= self.max_steps {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    fn add_request(&mut self, request: EndedRequest) {
        if self.requests.len() >= self.max_requests {
            self.requests.pop_front();
        }
        self.requests.push_back(Arc::new(request));
    }
}

/// Ended request; each choice of a client's request counts as a request.
struct EndedRequest {
    facts: RequestOutcomeFacts,
    id: Arc<str>,
    changes: SequenceChanges,
}

impl EndedRequest {
    fn outcome(&self) -> RequestOutcome<'_> {
        RequestOutcome {
            facts: self.facts,
            request_id: Some(&self.id),
            admissions: &self.changes.admissions,
            preempted: &self.changes.preempted,
            handoff: self.changes.handoff,
            ..RequestOutcome::default()
        }
    }
}

/// Admissions, preemptions and KV transfer of a live sequence, which the engine's record of the
/// sequence does not contain.
#[derive(Default)]
struct SequenceChanges {
    admissions: Vec<AdmissionOutcome>,
    preempted: Vec<SimTime>,
    handoff: Option<PrefillHandoffTimes>,
}

/// Observer of one engine: records its requests and steps for the trace.
struct TraceRecorder {
    worker: u32,
    trace: Arc<Mutex<RankTrace>>,
    ends: Arc<AtomicU64>,
    numbers: Arc<AtomicU64>,
    changes: HashMap<SeqId, SequenceChanges>,
}

impl TraceRecorder {
    fn is_recording(&self, at: SimTime) -> bool {
        at.as_nanos() <= self.ends.load(Ordering::Relaxed)
    }

    fn record_change(&mut self, at: SimTime, event: &SchedulerEvent, record: &SequenceRecord) {
        let Some(id) = event.sequence_id() else {
            return;
        };
        let changes = self.changes.entry(id).or_default();
        let admissions = &mut changes.admissions;
        match event {
            SchedulerEvent::Scheduled { .. } | SchedulerEvent::Resumed { .. }
                if admissions.len() < MAX_CHANGES =>
            {
                let again = matches!(event, SchedulerEvent::Resumed { .. });
                admissions.push(AdmissionOutcome { again, ..admission(at, record) });
            }
            SchedulerEvent::Preempted { .. } if changes.preempted.len() < MAX_CHANGES => {
                changes.preempted.push(at);
            }
            SchedulerEvent::Fetched { took, .. } => {
                changes.handoff = Some(PrefillHandoffTimes {
                    reserved: Some(at),
                    activated: Some(at + *took),
                    ..PrefillHandoffTimes::default()
                });
            }
            _ => {}
        }
    }

    fn record_end(
        &self,
        at: SimTime,
        end: SequenceEndReason,
        record: &SequenceRecord,
        changes: SequenceChanges,
    ) {
        let has_output = record.output > 0;
        let mut changes = changes;
        if has_output && changes.admissions.is_empty() {
            // The sequence was admitted before recording began.
            changes.admissions.push(admission(record.scheduled, record));
        }
        let id = &record.request_id;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.trace.lock().add_request(EndedRequest {
            facts: RequestOutcomeFacts {
                session: number,
                number,
                worker: Some(self.worker),
                status: match end {
                    SequenceEndReason::Finished => RequestStatus::Completed,
                    SequenceEndReason::Failed => RequestStatus::Failed,
                    SequenceEndReason::Aborted
                    | SequenceEndReason::Cancelled
                    | SequenceEndReason::Threshold => RequestStatus::Rejected,
                },
                arrival: record.arrived,
                ended: at,
                input: record.prompt,
                requested: record.max_tokens,
                output: record.output,
                first: has_output.then_some(record.first),
                last: has_output.then_some(record.last),
                ranks: 1,
                ..RequestOutcomeFacts::default()
            },
            id: match id.char_indices().nth(MAX_ID_LENGTH) {
                Some((cut, _)) => id[..cut].into(),
                None => id.clone(),
            },
            changes,
        });
    }
}

/// Returns the trace entry for a sequence's first admission to the engine's running batch.
fn admission(at: SimTime, record: &SequenceRecord) -> AdmissionOutcome {
    let reused = record.cached.saturating_add(record.external);
    AdmissionOutcome { at, reused, host: None, again: false, pool: PoolRole::Serving }
}

impl EngineObserver for TraceRecorder {
    fn on_sequence_event(
        &mut self,
        at: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        _: SimTime,
    ) {
        match event {
            SchedulerEvent::Tokens { .. } | SchedulerEvent::Decoded { .. } => {}
            SchedulerEvent::Ended { id, end } => {
                let changes = self.changes.remove(id).unwrap_or_default();
                if self.is_recording(at) {
                    self.record_end(at, *end, record, changes);
                }
            }
            _ if self.is_recording(at) => self.record_change(at, event, record),
            _ => {}
        }
    }

    fn on_engine_event(&mut self, at: SimTime, event: &SchedulerEvent) {
        if let SchedulerEvent::Step { begun, prompt_tokens, output_tokens, count } = event
            && self.is_recording(at)
        {
            let step = EngineStep {
                pool: PoolRole::Serving,
                worker: self.worker,
                begun: *begun,
                ended: at,
                prompt_tokens: *prompt_tokens,
                output_tokens: *output_tokens,
            };
            let mut trace = self.trace.lock();
            (0..*count).for_each(|_| trace.add_step(step));
        }
    }

    fn on_engine_stats(&mut self, _: &EngineStats) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_keeps_the_newest_requests_and_steps() {
        let mut trace = RankTrace {
            max_requests: 2,
            max_steps: 3,
            requests: VecDeque::new(),
            steps: VecDeque::new(),
        };
        let at = |ms: u64| SimTime::from_nanos(ms * 1_000_000);
        for ms in 0..5 {
            trace.add_step(EngineStep {
                pool: PoolRole::Serving,
                worker: 0,
                begun: at(ms),
                ended: at(ms + 1),
                prompt_tokens: 0,
                output_tokens: 1,
            });
            let facts = RequestOutcomeFacts { number: ms, ended: at(ms + 1), ..Default::default() };
            let changes = SequenceChanges::default();
            trace.add_request(EndedRequest { facts, id: "id".into(), changes });
        }
        let numbers: Vec<u64> = trace.requests.iter().map(|request| request.facts.number).collect();
        assert_eq!(numbers, [3, 4]);
        let begun: Vec<SimTime> = trace.steps.iter().map(|step| step.begun).collect();
        assert_eq!(begun, [at(2), at(3), at(4)]);
    }
}
