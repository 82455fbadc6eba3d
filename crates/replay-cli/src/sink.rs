use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, Result};

use vllm_sim_engine::SimTime;
use vllm_sim_replay::outcome::{
    EngineStep, LoggedStepRecord, PoolRole, ReplaySink, RequestOutcome, WorkerChange, WorkerSample,
};
use vllm_sim_replay::report::{
    self, KeptRequestRecords, ReplayReport, ReplayRunTotals, ReportCollector, RequestRowWriter,
    RowFileFormat, TraceEventWriter,
};
use vllm_sim_replay::{ReplaySettings, ReplayTotals};

use super::options::ReportArgs;
use vllm_sim_command_line::UsageError;
use vllm_sim_command_line::output_files::AtomicFile;
use vllm_sim_command_line::progress;

/// Maximum number of requests drawn in the HTML page; if there are more, the page draws a sample.
const MAX_DRAWN_REQUESTS: usize = 10_000;

/// Number of requests at and above which records are kept only with `--no-per-request=false`.
const RECORDS_OFF_BY_DEFAULT_FROM: usize = 1_000_000;

/// Creates the report sink of a replay. If `keep_request_records` is true, the sink keeps request
/// records unless `--no-per-request` is given.
pub(super) fn create_report_sink<'a>(
    args: &ReportArgs,
    keep_request_records: bool,
    watch: Option<&'a mut OutcomeWatcher<'a>>,
) -> Result<ReportSink<'a>> {
    let options = report::ReportOptions {
        slo: args.latency_slo()?,
        records: match args.no_per_request {
            Some(false) if keep_request_records => KeptRequestRecords::All,
            None if keep_request_records => KeptRequestRecords::Below(RECORDS_OFF_BY_DEFAULT_FROM),
            _ => KeptRequestRecords::None,
        },
        drawn_requests: if args.html.is_some() { MAX_DRAWN_REQUESTS } else { 0 },
        ..report::ReportOptions::default()
    };
    Ok(ReportSink {
        collector: ReportCollector::new(options),
        watch,
        ended: false,
        rows: args.per_request.as_deref().map(open_request_rows).transpose()?,
        trace: args
            .trace_out
            .as_deref()
            .map(|path| open_output("--trace-out", path, TraceEventWriter::new))
            .transpose()?,
        step_log: args
            .step_log
            .as_deref()
            .map(|path| {
                open_output("--step-log", path, |out| Ok(StepLogWriter { out, written: Ok(()) }))
            })
            .transpose()?,
    })
}

pub(super) fn replay_run_totals(
    settings: &ReplaySettings,
    gpus: (u32, u32),
    totals: &ReplayTotals,
) -> ReplayRunTotals {
    let scaling = &settings.pool.scaling;
    let fixed = scaling.schedule.is_empty() && scaling.rule.is_none();
    let seconds = totals.ended.as_secs_f64();
    let prefill = settings.prefill.as_ref().map(|pool| pool.engines.len());
    ReplayRunTotals {
        requests: totals.requests,
        prefill_worker_seconds: match (fixed, prefill) {
            (_, None) => 0.0,
            (true, Some(workers)) => workers as f64 * seconds,
            (false, Some(_)) => totals.prefill_worker_seconds,
        },
        decode_worker_seconds: (!fixed).then_some(totals.worker_seconds),
        workers: settings.pool.engines.len() as u32,
        gpus,
        prefill_tokens: totals.prefill_tokens,
    }
}

/// Opens the output file of `flag`; `writer` wraps the file's writer.
fn open_output<W>(
    flag: &str,
    path: &Path,
    writer: impl FnOnce(BufWriter<File>) -> io::Result<W>,
) -> Result<(W, AtomicFile)> {
    let open = || {
        let draft = AtomicFile::open_for_atomic_write(path)?;
        Ok((writer(BufWriter::new(draft.clone_temporary_file_handle()?))?, draft))
    };
    let opened: io::Result<_> = open();
    opened.with_context(|| format!("{flag}: {}", path.display()))
}

fn open_request_rows(path: &Path) -> Result<(RequestRowWriter, AtomicFile)> {
    let form = RowFileFormat::from_file_extension(path)
        .map_err(|problem| UsageError(format!("--per-request: {problem}")))?;
    open_output("--per-request", path, |out| RequestRowWriter::new(Box::new(out), form))
}

/// Writer of the step logs of all engines, one JSON object per line.
struct StepLogWriter {
    out: BufWriter<File>,
    /// Result of writing the step log: the first error, if a write failed.
    written: io::Result<()>,
}

impl StepLogWriter {
    fn write_record(&mut self, record: &LoggedStepRecord) {
        let pool = match record.pool {
            PoolRole::Prefill => "prefill",
            PoolRole::Serving => "serving",
        };
        let mut line = record.record.clone();
        (line["pool"], line["worker"]) = (pool.into(), record.worker.into());
        if self.written.is_ok() {
            self.written = writeln!(self.out, "{line}");
        }
    }
}

/// Callback for every finished request, which may end the replay.
pub type OutcomeWatcher<'a> = dyn FnMut(&RequestOutcome<'_>) -> ControlFlow<()> + 'a;

/// Sink of a replay's report and of the files with requests, trace events and steps.
pub(super) struct ReportSink<'a> {
    collector: ReportCollector,
    watch: Option<&'a mut OutcomeWatcher<'a>>,
    /// Whether the watcher has ended the replay.
    pub(super) ended: bool,
    rows: Option<(RequestRowWriter, AtomicFile)>,
    trace: Option<(TraceEventWriter<BufWriter<File>>, AtomicFile)>,
    step_log: Option<(StepLogWriter, AtomicFile)>,
}

impl ReportSink<'_> {
    pub(super) fn finish_report(self, totals: &ReplayRunTotals) -> Result<ReplayReport> {
        if let Some((rows, draft)) = self.rows {
            let written = rows.finish_row_file().and_then(|()| draft.rename_temporary_to_target());
            written.context("--per-request")?;
        }
        if let Some((trace, draft)) = self.trace {
            let written =
                trace.finish_trace_file().and_then(|_| draft.rename_temporary_to_target());
            written.context("--trace-out")?;
        }
        if let Some((mut log, draft)) = self.step_log {
            let written = log.written.and_then(|()| log.out.flush());
            written.and_then(|()| draft.rename_temporary_to_target()).context("--step-log")?;
        }
        Ok(self.collector.into_report(totals))
    }
}

impl ReplaySink for ReportSink<'_> {
    fn on_request_finished(&mut self, outcome: &RequestOutcome<'_>) {
        if let Some(watch) = &mut self.watch {
            self.ended |= watch(outcome).is_break();
        }
        self.collector.on_request_finished(outcome);
        if let Some((rows, _)) = &mut self.rows {
            rows.on_request_finished(outcome);
        }
        if let Some((trace, _)) = &mut self.trace {
            trace.on_request_finished(outcome);
        }
    }

    fn wants_steps(&self) -> bool {
        self.trace.is_some() || self.step_log.is_some()
    }

    fn on_step_record(&mut self, record: &LoggedStepRecord) {
        if let Some((log, _)) = &mut self.step_log {
            log.write_record(record);
        }
    }

    fn on_step(&mut self, step: &EngineStep) {
        if let Some((trace, _)) = &mut self.trace {
            trace.on_step(step);
        }
    }

    fn should_stop(&self) -> bool {
        self.ended || progress::is_job_stop_requested()
    }

    fn on_token_gaps(&mut self, nanos: u64, times: u64) {
        self.collector.on_token_gaps(nanos, times);
    }

    fn on_worker_change(&mut self, at: SimTime, worker: u32, pool: PoolRole, change: WorkerChange) {
        self.collector.on_worker_change(at, worker, pool, change);
    }

    fn on_worker_sample(&mut self, sample: &WorkerSample) {
        self.collector.on_worker_sample(sample);
    }
}
