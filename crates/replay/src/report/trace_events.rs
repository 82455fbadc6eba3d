//! Writes a trace of a replay in the JSON format of Chrome, which Perfetto reads.
//!
//! A process is an engine: its first track has the engine's steps, and each request has a track of
//! its own. Times are microseconds of virtual time.
//!
//! Source: "Trace Event Format" of the Chromium project: metadata (`M`) and complete (`X`) events.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde_json::{Value, json};
use vllm_sim_engine::SimTime;

use crate::outcome::{EngineStep, PoolRole, ReplaySink, RequestOutcome};

use super::record::RequestOutcomeRecord;
use super::spans::{RequestPhase, spans_of_request};

/// Process id in the trace file for requests that reached no worker.
///
/// Ids begin at 1, because readers take 0 for the idle process of a kernel or for no thread.
const NO_WORKER: u64 = 1;
/// Category of all events in the trace file, which some trace viewers need.
const CATEGORY: &str = "vllm-sim";
/// Id of the track for an engine's steps in the trace file; request `n` has track `n` + 2.
const STEP_TRACK: u64 = 1;

/// Writes trace events of requests and steps; [`TraceEventWriter::finish_trace_file`] returns the
/// first error.
pub struct TraceEventWriter<W> {
    out: W,
    /// The process ids whose names are already written to the trace file.
    named: BTreeSet<u64>,
    failed: Option<io::Error>,
}

impl<W: Write> TraceEventWriter<W> {
    /// Creates a writer of trace events and writes the start of the file.
    ///
    /// # Errors
    /// Returns the error of `out` if the start cannot be written.
    pub fn new(mut out: W) -> io::Result<Self> {
        // The first event is no data, so that a comma precedes all others.
        out.write_all(
            b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n\
              {\"ph\":\"M\",\"cat\":\"__metadata\",\"pid\":1,\"tid\":1,\"ts\":0,\
              \"name\":\"process_name\",\"args\":{\"name\":\"no worker\"}}",
        )?;
        Ok(Self { out, named: BTreeSet::from([NO_WORKER]), failed: None })
    }

    /// Writes the end of the file and the buffered events, and returns the output.
    ///
    /// # Errors
    /// Returns the first error of this call or of an earlier event.
    pub fn finish_trace_file(mut self) -> io::Result<W> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn write_event(&mut self, event: &Value) {
        if self.failed.is_none() {
            self.failed = write!(self.out, ",\n{event}").err();
        }
    }

    fn name_track(&mut self, track: (u64, u64), name: &str) {
        self.write_metadata(track, "thread_name", name);
    }

    fn write_metadata(&mut self, (process, track): (u64, u64), kind: &str, name: &str) {
        self.write_event(
            &json!({"ph": "M", "cat": "__metadata", "pid": process, "tid": track, "ts": 0,
            "name": kind, "args": {"name": name}}),
        );
    }

    /// Returns the process id of a worker in the trace file, and writes the worker's name when it
    /// is used for the first time.
    fn process_of(&mut self, pool: PoolRole, worker: u32) -> u64 {
        let process = 2 + 2 * u64::from(worker) + u64::from(pool == PoolRole::Serving);
        if self.named.insert(process) {
            let name = format!("{} {worker}", pool.pool_role_page_label());
            self.write_metadata((process, STEP_TRACK), "process_name", &name);
            self.name_track((process, STEP_TRACK), "steps");
        }
        process
    }

    /// Writes a trace event that lasts from the first to the second of the given times.
    fn write_span(
        &mut self,
        (process, track): (u64, u64),
        name: &str,
        (from, to): (SimTime, SimTime),
        args: Value,
    ) {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let (from, to) = (from.as_nanos(), to.as_nanos().max(from.as_nanos()));
        self.write_event(&json!({"ph": "X", "cat": CATEGORY, "pid": process, "tid": track,
            "name": name, "ts": micros(from), "dur": micros(to - from), "args": args}));
    }

    /// Writes a request to the trace file with its phases on each worker; the worker on which the
    /// request ends comes last.
    fn write_request(&mut self, outcome: &RequestOutcome<'_>) {
        let record = RequestOutcomeRecord::from(outcome).to_request_record();
        let track = outcome.number.saturating_add(2);
        let spans = spans_of_request(outcome);
        let last = spans.last().map(|span| (span.pool, span.worker));
        let home = last.map_or(NO_WORKER, |(pool, worker)| self.process_of(pool, worker));
        let name = format!("request {}", record.uuid);
        self.name_track((home, track), &name);
        let args = json!({
            "session": outcome.session_id, "turn": outcome.turn, "status": record.terminal_status,
            "input_tokens": outcome.input, "output_tokens": outcome.output,
            "cached_tokens": record.reused_input_tokens, "preemptions": outcome.preempted.len(),
        });
        self.write_span((home, track), "request", (outcome.arrival, outcome.ended), args);
        for span in spans {
            let process = self.process_of(span.pool, span.worker);
            if process != home {
                self.name_track((process, track), &name);
            }
            let ends = span.phases.iter().skip(1).map(|(at, _)| *at).chain([span.end]);
            for ((from, phase), to) in span.phases.iter().zip(ends) {
                self.write_span((process, track), phase_name(*phase), (*from, to), json!({}));
            }
        }
    }
}

fn phase_name(phase: RequestPhase) -> &'static str {
    let found = RequestPhase::NAMED_REQUEST_PHASES.iter().find(|(_, other)| *other == phase);
    found.map_or("", |(name, _)| name)
}

impl<W: Write> ReplaySink for TraceEventWriter<W> {
    fn on_request_finished(&mut self, outcome: &RequestOutcome<'_>) {
        self.write_request(outcome);
    }

    fn wants_steps(&self) -> bool {
        true
    }

    fn on_step(&mut self, step: &EngineStep) {
        let process = self.process_of(step.pool, step.worker);
        let args =
            json!({"prompt_tokens": step.prompt_tokens, "output_tokens": step.output_tokens});
        self.write_span((process, STEP_TRACK), "step", (step.begun, step.ended), args);
    }
}
