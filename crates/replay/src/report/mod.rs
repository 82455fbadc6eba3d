//! Builds reports of replays: JSON with the keys of Dynamo's replay and further keys, tables, rows
//! and comparisons.

mod compare;
mod json;
mod over_time;
mod record;
mod rows;
mod spans;
mod table;
mod timeline;
mod trace_events;

use std::io::Write;

use serde_json::{Map, Value, json};

use super::outcome::{
    PoolRole, ReplaySink, RequestOutcome, RequestStatus, WorkerChange, WorkerSample,
};
use super::sample_distribution::SampleDistribution;
use vllm_sim_engine::SimTime;

pub use compare::{ReplayReportGroup, ReportComparison, compare_report_groups};
pub use over_time::ReportTimeSeries;
use record::sim_time_ms;
pub use record::{AdmissionRecord, RequestOutcomeRecord, RequestRecord};
pub use rows::{RequestRowWriter, RowFileFormat};
pub use spans::{RequestPhase, RequestWorkerSpan, SampledRequestSpans};
pub(super) use table::format_with_thousands_separators as grouped;
pub use table::group_thousands;
pub use timeline::{WorkerSampleTrack, WorkerTimeline, WorkerTimelinePoint};
pub use trace_events::TraceEventWriter;

const CURVE_POINTS: usize = 401;

/// Latency bounds (SLO) of a request, in milliseconds; requests within all of them count as
/// goodput.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LatencySlo {
    /// Maximum time to the first token of a request, in ms.
    pub ttft_ms: Option<f64>,
    /// Maximum mean gap between tokens of a request (TPOT), in ms.
    pub itl_ms: Option<f64>,
    /// Maximum time to the last token of a request, in ms.
    pub e2e_ms: Option<f64>,
}

impl LatencySlo {
    /// Returns whether any latency bound is set.
    pub fn has_any_latency_bound(&self) -> bool {
        self.ttft_ms.is_some() || self.itl_ms.is_some() || self.e2e_ms.is_some()
    }

    /// Returns whether a request completed within every latency bound.
    pub fn is_slo_met_by(&self, outcome: &RequestOutcome<'_>) -> bool {
        let (Some(ttft), Some(e2e)) = (outcome.ttft_ms(), outcome.e2e_ms()) else {
            return false;
        };
        let within = |value: f64, bound: Option<f64>| bound.is_none_or(|bound| value <= bound);
        outcome.status == RequestStatus::Completed
            && within(ttft, self.ttft_ms)
            && outcome.mean_gap_ms().is_none_or(|itl| within(itl, self.itl_ms))
            && within(e2e, self.e2e_ms)
    }
}

/// Policy for how many request records a report keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeptRequestRecords {
    /// The report keeps no request records.
    None,
    /// The report keeps all request records if there are fewer requests than this number, else
    /// none.
    Below(usize),
    /// The report keeps all request records.
    #[default]
    All,
}

/// Choice of the samples of the metric `output_token_throughput_per_user`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PerUserRateSamples {
    /// One sample per request: the inverse of its mean gap between tokens, as in AIPerf.
    #[default]
    PerRequest,
    /// Output tokens per second, with one sample for each nonzero gap between two tokens: the inverse
    /// of the gap, as in Dynamo's replay.
    ///
    /// Falls if a step yields several tokens, however fast the request is.
    PerGap,
}

/// Options of a [`ReportCollector`].
#[derive(Debug, Clone, Copy, Default)]
pub struct ReportOptions {
    /// Latency bounds of the requests that count as goodput.
    pub slo: LatencySlo,
    /// Policy for the request records in the report. Default [`KeptRequestRecords::All`].
    pub records: KeptRequestRecords,
    /// Maximum number of requests whose phases are kept for the HTML page's timeline. Default 0.
    pub drawn_requests: usize,
    /// Samples of tokens per second and user. Default [`PerUserRateSamples::PerRequest`].
    pub user_rate: PerUserRateSamples,
}

/// Totals of a replay as a whole, which are not sums over its requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReplayRunTotals {
    /// Number of requests that arrived during the replay.
    pub requests: u64,
    /// Total lifetime of prefill workers, in seconds; 0 in an aggregated deployment.
    pub prefill_worker_seconds: f64,
    /// Total lifetime of all workers except prefill workers, in seconds; `None` stands for the
    /// duration times `workers`.
    pub decode_worker_seconds: Option<f64>,
    /// Number of workers at the start of the replay.
    pub workers: u32,
    /// Number of GPUs per prefill worker, and per worker of the other pool.
    pub gpus: (u32, u32),
    /// Number of prompt tokens that engine steps computed, including recomputed output.
    ///
    /// `None` uses the uncached tokens of all admissions.
    pub prefill_tokens: Option<u64>,
}

/// Aggregates the outcomes of requests into a report.
#[derive(Debug, Default)]
pub struct ReportCollector {
    options: ReportOptions,
    ended: u64,
    completed: u64,
    rejected: u64,
    incomplete: u64,
    failed: u64,
    input: u64,
    output: u64,
    last_end_ns: u64,
    reused: u64,
    first_reused: u64,
    computed: u64,
    good: (u64, u64),
    preemptions: u64,
    queued_ns: u64,
    ttft: SampleDistribution,
    ttst: SampleDistribution,
    tpot: SampleDistribution,
    e2e: SampleDistribution,
    gaps: SampleDistribution,
    rates: SampleDistribution,
    sending: Option<Box<SendTimes>>,
    first_error: Option<String>,
    kept: Vec<RequestOutcomeRecord>,
    left_out: Option<usize>,
    timeline: WorkerTimeline,
    over_time: ReportTimeSeries,
    spans: SampledRequestSpans,
    /// Number of prompt tokens cached on other workers in addition to the tokens cached on the
    /// chosen worker, if the router scores prefix caches.
    regret: Option<u64>,
}

#[derive(Debug, Default)]
struct SendTimes {
    lateness: SampleDistribution,
    ttft: SampleDistribution,
    e2e: SampleDistribution,
}

impl SendTimes {
    fn add(&mut self, sent: SimTime, outcome: &RequestOutcome<'_>) {
        self.lateness.add_sample(sim_time_ms(sent) - sim_time_ms(outcome.arrival), 1);
        if outcome.status != RequestStatus::Completed {
            return;
        }
        let times = [(&mut self.ttft, outcome.first), (&mut self.e2e, outcome.last)];
        for (samples, at) in times {
            if let Some(at) = at {
                samples.add_sample(sim_time_ms(at) - sim_time_ms(sent), 1);
            }
        }
    }
}

impl ReportCollector {
    /// Creates a report collector without outcomes.
    pub fn new(options: ReportOptions) -> Self {
        let spans = SampledRequestSpans::new(options.drawn_requests);
        Self { options, spans, ..Self::default() }
    }

    fn add_completed(&mut self, outcome: &RequestOutcome<'_>) {
        self.completed += 1;
        self.input += u64::from(outcome.input);
        self.output += u64::from(outcome.output);
        self.last_end_ns = self.last_end_ns.max(outcome.ended.as_nanos());
        self.queued_ns += outcome.queued_ns;
        let reused = outcome.admissions.iter().map(|a| a.reused);
        self.first_reused += u64::from(reused.clone().next().unwrap_or(0));
        self.reused += u64::from(reused.clone().max().unwrap_or(0));
        let split = outcome.prefill_worker.is_some();
        let of_prompt = outcome.admissions.iter();
        let of_prompt = of_prompt.filter(|a| !split || a.pool == PoolRole::Prefill);
        let computed = of_prompt.map(|a| u64::from(outcome.input.saturating_sub(a.reused)));
        self.computed += computed.sum::<u64>();
        self.preemptions += outcome.preemptions.len() as u64;
        let (Some(ttft), Some(e2e)) = (outcome.ttft_ms(), outcome.e2e_ms()) else {
            return;
        };
        self.ttft.add_sample(ttft, 1);
        self.e2e.add_sample(e2e, 1);
        if let Some(itl) = outcome.mean_gap_ms() {
            self.tpot.add_sample(itl, 1);
            if self.options.user_rate == PerUserRateSamples::PerRequest && itl > 0.0 {
                self.rates.add_sample(1e3 / itl, 1);
            }
        }
        if let Some(ttst) = outcome.ttst_ms() {
            self.ttst.add_sample(ttst, 1);
        }
        if let Some(best) = outcome.best_overlap {
            let missed = u64::from(best.saturating_sub(outcome.overlap));
            *self.regret.get_or_insert(0) += missed * u64::from(outcome.block_size);
        }
        if self.options.slo.is_slo_met_by(outcome) {
            self.good.0 += 1;
            self.good.1 += u64::from(outcome.output);
        }
    }

    /// Builds the report of the replay from the collected outcomes.
    pub fn into_report(mut self, totals: &ReplayRunTotals) -> ReplayReport {
        // By arrival, then in the order of dispatch.
        self.kept.sort_by_key(|kept| (kept.facts.arrival, kept.facts.number));
        let summary = self.build_summary(totals);
        ReplayReport {
            curves: [
                ("TTFT", self.ttft.quantile_curve::<CURVE_POINTS>()),
                ("ITL", self.gaps.quantile_curve::<CURVE_POINTS>()),
                ("TPOT", self.tpot.quantile_curve::<CURVE_POINTS>()),
                ("E2E", self.e2e.quantile_curve::<CURVE_POINTS>()),
            ],
            summary,
            run: None,
            summary_at_top: false,
            captured: self.options.records != KeptRequestRecords::None,
            left_out: self.left_out,
            first_error: self.first_error,
            kept: self.kept,
            timeline: self.timeline,
            over_time: self.over_time,
            spans: self.spans,
        }
    }

    fn build_summary(&mut self, facts: &ReplayRunTotals) -> Map<String, Value> {
        let duration_ms = self.last_end_ns as f64 / 1e6;
        let seconds = (duration_ms / 1e3).max(1e-9);
        let rate = |n: u64| json!(n as f64 / seconds);
        let share = |tokens: u64| json!(tokens as f64 / self.input.max(1) as f64);
        let decode_seconds =
            facts.decode_worker_seconds.unwrap_or(duration_ms / 1e3 * f64::from(facts.workers));
        let prefill_seconds = facts.prefill_worker_seconds;
        let (prefill_gpus, decode_gpus) = facts.gpus;
        let gpu_seconds =
            prefill_seconds * f64::from(prefill_gpus) + decode_seconds * f64::from(decode_gpus);
        let computed = facts.prefill_tokens.unwrap_or(self.computed);
        let mut map = Map::new();
        let mut put = |key: &str, value: Value| drop(map.insert(key.to_owned(), value));
        put("num_requests", json!(facts.requests));
        put("completed_requests", json!(self.completed));
        put("total_input_tokens", json!(self.input));
        put("total_output_tokens", json!(self.output));
        put("duration_ms", json!(duration_ms));
        put("request_throughput_rps", rate(self.completed));
        put("input_throughput_tok_s", rate(self.input));
        put("output_throughput_tok_s", rate(self.output));
        put("total_throughput_tok_s", rate(self.input + self.output));
        put("prefill_worker_seconds", json!(prefill_seconds));
        put("decode_worker_seconds", json!(decode_seconds));
        put("prefill_gpus_per_worker", json!(prefill_gpus));
        put("decode_gpus_per_worker", json!(decode_gpus));
        put("gpu_hours", json!(gpu_seconds / 3600.0));
        put("power_w", Value::Null);
        put("power_coverage", Value::Null);
        if self.options.slo.has_any_latency_bound() {
            put("goodput_completed_requests", json!(self.good.0));
            put("goodput_request_throughput_rps", rate(self.good.0));
            put("goodput_output_throughput_tok_s", rate(self.good.1));
        }
        put("processed_tokens", json!(self.input + self.output));
        // Values that depend on the machine would make equal runs differ.
        for speed in ["wall_time_ms", "processed_tokens_per_s", "processed_output_tokens_per_s"] {
            put(speed, Value::Null);
        }
        put("prefix_cache_reused_ratio", share(self.reused));
        put("first_admission_prefix_cache_reused_ratio", share(self.first_reused));
        put("committed_prefill_tokens", json!(computed));
        put("kv_eviction_policy", json!("lru"));
        put("num_ttft_samples", json!(self.ttft.sample_count()));
        put("num_tpot_samples", json!(self.tpot.sample_count()));
        put("num_e2e_latency_samples", json!(self.e2e.sample_count()));
        for (name, samples) in [
            ("ttft_ms", &mut self.ttft),
            ("ttst_ms", &mut self.ttst),
            ("tpot_ms", &mut self.tpot),
            ("itl_ms", &mut self.gaps),
            ("e2e_latency_ms", &mut self.e2e),
            ("output_token_throughput_per_user", &mut self.rates),
        ] {
            push_distribution_keys(&mut map, name, samples);
        }
        self.add_simulator_metrics(&mut map, facts, seconds, gpu_seconds);
        if let Some(sending) = &mut self.sending {
            for (name, samples) in [
                ("schedule_lateness_ms", &mut sending.lateness),
                ("ttft_from_send_ms", &mut sending.ttft),
                ("e2e_latency_from_send_ms", &mut sending.e2e),
            ] {
                push_distribution_keys(&mut map, name, samples);
            }
        }
        map
    }

    /// Adds the summary keys that Dynamo's report does not have.
    fn add_simulator_metrics(
        &self,
        map: &mut Map<String, Value>,
        facts: &ReplayRunTotals,
        seconds: f64,
        gpu_seconds: f64,
    ) {
        let mut put = |key: &str, value: Value| drop(map.insert(key.to_owned(), value));
        put("rejected_requests", json!(self.rejected));
        put("failed_requests", json!(self.failed));
        let unfinished = facts.requests.saturating_sub(self.ended) + self.incomplete;
        put("incomplete_requests", json!(unfinished));
        put("preemptions", json!(self.preemptions));
        let waited = self.queued_ns as f64 / 1e6 / self.completed.max(1) as f64;
        put("mean_router_queue_ms", json!(waited));
        if let Some(regret) = self.regret {
            put("router_regret_tokens", json!(regret));
        }
        let slo = &self.options.slo;
        if slo.has_any_latency_bound() {
            put("slo_ttft_ms", json!(slo.ttft_ms));
            put("slo_itl_ms", json!(slo.itl_ms));
            put("slo_e2e_ms", json!(slo.e2e_ms));
            let asked = facts.requests.max(1) as f64;
            put("slo_attainment", json!(self.good.0 as f64 / asked));
            // Mean number of GPUs.
            let gpus = gpu_seconds / seconds;
            let per_gpu = self.good.0 as f64 / seconds / gpus.max(1e-9);
            put("goodput_per_gpu_rps", json!(per_gpu));
        }
    }
}

impl ReplaySink for ReportCollector {
    fn on_request_finished(&mut self, outcome: &RequestOutcome<'_>) {
        self.ended += 1;
        if let Some(sent) = outcome.sent {
            let sending = self.sending.get_or_insert_default();
            sending.add(sent, outcome);
        }
        let good = self.good.0;
        match outcome.status {
            RequestStatus::Completed => self.add_completed(outcome),
            RequestStatus::Rejected => self.rejected += 1,
            RequestStatus::Incomplete => self.incomplete += 1,
            RequestStatus::Failed => {
                self.failed += 1;
                let error = || outcome.error.map(str::to_owned);
                self.first_error = self.first_error.take().or_else(error);
            }
        }
        if self.options.slo.has_any_latency_bound() {
            self.over_time.record_request_goodput(outcome.arrival, self.good.0 > good);
        }
        self.spans.add_request_spans(outcome);
        self.over_time.record_prefix_reuse(outcome);
        match self.options.records {
            KeptRequestRecords::None => {}
            KeptRequestRecords::Below(most) if self.kept.len() + 1 >= most => {
                self.options.records = KeptRequestRecords::None;
                self.left_out = Some(most);
                self.kept = Vec::new();
            }
            KeptRequestRecords::Below(_) | KeptRequestRecords::All => {
                self.kept.push(outcome.into())
            }
        }
    }

    fn on_token_gaps(&mut self, nanos: u64, times: u64) {
        let ms = nanos as f64 / 1e6;
        self.gaps.add_sample(ms, times);
        if self.options.user_rate == PerUserRateSamples::PerGap && nanos > 0 {
            self.rates.add_sample(1e3 / ms, times);
        }
    }

    fn on_worker_change(&mut self, at: SimTime, worker: u32, pool: PoolRole, change: WorkerChange) {
        self.over_time.record_worker_change(at, (pool, worker), change);
    }

    fn on_worker_sample(&mut self, sample: &WorkerSample) {
        self.timeline.push_worker_sample(sample);
    }
}

/// Adds mean, extremes, percentiles and standard deviation of a metric under the keys of Dynamo's
/// report.
fn push_distribution_keys(
    map: &mut Map<String, Value>,
    name: &str,
    samples: &mut SampleDistribution,
) {
    let [median, p75, p90, p95, p99] = samples.percentiles([50.0, 75.0, 90.0, 95.0, 99.0]);
    for (kind, value) in [
        ("mean", samples.mean()),
        ("min", samples.smallest_sample()),
        ("max", samples.largest_sample()),
        ("median", median),
        ("p75", p75),
        ("p90", p90),
        ("p95", p95),
        ("p99", p99),
        ("std", samples.std_dev()),
    ] {
        map.insert(format!("{kind}_{name}"), json!(value));
    }
}

/// Report of a replay: summary, distributions, timelines and request records.
#[derive(Debug)]
pub struct ReplayReport {
    /// Totals, throughputs and latency statistics of the replay, by key.
    pub summary: Map<String, Value>,
    /// Latency distributions by name: evenly spaced quantiles, in milliseconds.
    pub curves: [(&'static str, Vec<f64>); 4],
    /// Sampled gauges of the workers over time.
    pub timeline: WorkerTimeline,
    /// Number of workers, fraction of requests within the latency bounds, and prefix reuse over
    /// time.
    pub over_time: ReportTimeSeries,
    /// Phases of sampled requests on their workers.
    pub spans: SampledRequestSpans,
    /// Command, program version, model, GPU and source of the step times, for the JSON report.
    pub run: Option<Value>,
    /// Whether the JSON report has the keys of the summary at its top level, as in AISimulate's
    /// `prediction.json`.
    pub summary_at_top: bool,
    captured: bool,
    /// Number of requests after which the report stopped keeping request records; `None` if it
    /// never stopped.
    left_out: Option<usize>,
    first_error: Option<String>,
    kept: Vec<RequestOutcomeRecord>,
}

impl ReplayReport {
    /// Returns a number of the report's summary; 0 if the key is missing.
    pub fn summary_number(&self, key: &str) -> f64 {
        self.summary.get(key).and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// Adds the cost of the replay to the summary, from the price of a GPU hour.
    pub fn add_gpu_cost(&mut self, price_per_gpu_hour: f64) {
        let cost = self.summary_number("gpu_hours") * price_per_gpu_hour;
        self.summary.insert("cost".to_owned(), json!(cost));
    }

    /// Returns the records of all kept requests, in order of arrival.
    pub fn request_records(&self) -> impl ExactSizeIterator<Item = RequestRecord> {
        self.kept.iter().map(RequestOutcomeRecord::to_request_record)
    }

    /// Writes the replay report as JSON.
    ///
    /// # Errors
    /// Returns the I/O errors of `out`.
    pub fn write_report_json(&self, out: &mut dyn Write) -> std::io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        out.write_all(b"\n")
    }

    /// Renders the table of latencies, followed by the totals of the run.
    pub fn render_report_table(&self) -> String {
        let mut table = table::render_latency_table(&self.summary);
        if let Some(error) = &self.first_error {
            table.push_str(&format!("First failure: {error}\n"));
        }
        if let Some(most) = self.left_out {
            table.push_str(&format!(
                "Records of single requests: left out from {most} requests on; \
                 --no-per-request=false keeps them\n"
            ));
        }
        table
    }
}
