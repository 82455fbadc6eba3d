//! Metric families of an SGLang server (`--compat sglang`), in the text format of Python's
//! prometheus_client.
//!
//! [`FAMILIES`] declares each family once. SGLang's scheduler updates the gauges and the times
//! between tokens; here [`SglangObserver`] does so from engine events. SGLang's tokenizer manager
//! counts a request when it ends; here the HTTP handlers call [`SglangMetrics::on_finished`].
//!
//! **Source:** SGLang 0.5.23 `srt/observability/metrics_collector.py`.

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::proto::{Metric, MetricFamily};
use prometheus::{CounterVec, Gauge, GaugeVec, HistogramOpts, HistogramVec, Opts};

use super::number::float;
use super::settings::{ApiServers, Settings};
use super::text::{TextWriter, header};
use vllm_sim_engine::driver::{EngineObserver, SequenceRecord};
use vllm_sim_engine::{EngineStats, SchedulerEvent, SequenceEndReason, SimTime};

/// Number of decode steps after which the generation throughput is computed again
/// (`--decode-log-interval`).
const DECODE_LOG_INTERVAL: u32 = 40;

/// Type of a family, with the bucket bounds of a histogram.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Gauge,
    Counter,
    Histogram(&'static [f64]),
}

/// The process that updates a family in SGLang, which determines its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    Scheduler,
    Tokenizer,
}

/// Declaration of a metric family.
#[derive(Debug, Clone, Copy)]
struct Family {
    id: Id,
    name: &'static str,
    kind: Kind,
    process: Process,
    /// Name of a label in addition to those of the process.
    label: Option<&'static str>,
    help: &'static str,
}

macro_rules! families {
    ($($id:ident: $kind:expr, $process:ident $([$label:literal])?, $name:literal, $help:literal;)*) => {
        /// Names of the families in code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum Id { $($id,)* }

        /// All families; the index is [`Id`].
        const FAMILIES: &[Family] = &[$(Family {
            id: Id::$id,
            name: $name,
            kind: $kind,
            process: Process::$process,
            label: [$(Some($label),)? None][0],
            help: $help,
        },)*];
    };
}

const STREAMING: [&str; 2] = ["false", "true"];

const TIME_TO_FIRST_TOKEN: &[f64] = &[
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0,
];
const E2E_LATENCY: &[f64] = &[
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0, 600.0, 1200.0, 1800.0, 2400.0,
];
const INTER_TOKEN_LATENCY: &[f64] = &[
    0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060, 0.080, 0.1,
    0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
];
const QUEUE_TIME: &[f64] = &[
    0.0, 0.001, 0.005, 0.010, 0.050, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0,
    30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0,
    800.0, 900.0, 1000.0, 1200.0, 1400.0, 1600.0, 1800.0, 2000.0, 2500.0, 3000.0,
];
const TOKENS: &[f64] = &[
    100.0, 300.0, 500.0, 700.0, 1e3, 1500.0, 2e3, 3e3, 4e3, 5e3, 6e3, 7e3, 8e3, 9e3, 1e4, 12500.0,
    15e3, 17500.0, 2e4, 22500.0, 25e3, 27500.0, 3e4, 35e3, 4e4, 6e4, 8e4, 1e5, 2e5, 3e5, 4e5, 6e5,
    8e5, 1e6, 11e5,
];

families! {
    Running: Kind::Gauge, Scheduler, "sglang:num_running_reqs", "The number of running requests.";
    Queued: Kind::Gauge, Scheduler, "sglang:num_queue_reqs", "The number of requests in the waiting queue.";
    Throughput: Kind::Gauge, Scheduler, "sglang:gen_throughput", "The generation throughput (token/s).";
    HitRate: Kind::Gauge, Scheduler, "sglang:cache_hit_rate", "The prefix cache hit rate.";
    TokenUsage: Kind::Gauge, Scheduler, "sglang:token_usage", "The token usage.";
    FullTokenUsage: Kind::Gauge, Scheduler, "sglang:full_token_usage", "The token usage for full attention layers.";
    UsedTokens: Kind::Gauge, Scheduler, "sglang:num_used_tokens", "The number of used tokens.";
    KvUsedTokens: Kind::Gauge, Scheduler, "sglang:kv_used_tokens", "Number of KV cache tokens that running requests hold.";
    Retractions: Kind::Counter, Scheduler, "sglang:num_retracted_requests_total", "Total number of retracted requests.";
    QueueTime: Kind::Histogram(QUEUE_TIME), Scheduler, "sglang:queue_time_seconds", "Histogram of queueing time in seconds.";
    MaxTokens: Kind::Gauge, Scheduler, "sglang:max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.";
    PageSize: Kind::Gauge, Scheduler, "sglang:page_size", "KV cache page size in tokens.";
    Pages: Kind::Gauge, Scheduler, "sglang:num_pages", "Number of KV cache pages.";
    ContextLength: Kind::Gauge, Scheduler, "sglang:context_len", "Maximum context length.";
    PromptTokens: Kind::Counter, Tokenizer ["is_streaming"], "sglang:prompt_tokens_total", "Number of prefill tokens processed.";
    GenerationTokens: Kind::Counter, Tokenizer ["is_streaming"], "sglang:generation_tokens_total", "Number of generation tokens processed.";
    PromptLength: Kind::Histogram(TOKENS), Tokenizer, "sglang:prompt_tokens_histogram", "Histogram of prompt token length.";
    UncachedLength: Kind::Histogram(TOKENS), Tokenizer, "sglang:uncached_prompt_tokens_histogram", "Histogram of uncached (compute) prompt token length.";
    GenerationLength: Kind::Histogram(TOKENS), Tokenizer, "sglang:generation_tokens_histogram", "Histogram of generation token length.";
    CachedTokens: Kind::Counter, Tokenizer ["cache_source"], "sglang:cached_tokens_total", "Number of cached prompt tokens by source (device/host/storage).";
    Requests: Kind::Counter, Tokenizer ["is_streaming"], "sglang:num_requests_total", "Number of requests processed.";
    StructuredRequests: Kind::Counter, Tokenizer, "sglang:num_so_requests_total", "Number of structured output requests processed.";
    AbortedRequests: Kind::Counter, Tokenizer, "sglang:num_aborted_requests_total", "Number of requests aborted.";
    Ttft: Kind::Histogram(TIME_TO_FIRST_TOKEN), Tokenizer ["is_streaming"], "sglang:time_to_first_token_seconds", "Histogram of time to first token in seconds.";
    Itl: Kind::Histogram(INTER_TOKEN_LATENCY), Tokenizer, "sglang:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.";
    Tpot: Kind::Histogram(INTER_TOKEN_LATENCY), Tokenizer ["is_streaming"], "sglang:request_time_per_output_token_seconds", "Per-request TPOT in seconds: (finished_time - first_token_time) / (completion_tokens - 1).";
    E2e: Kind::Histogram(E2E_LATENCY), Tokenizer ["is_streaming"], "sglang:e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds";
}

/// Values of a family, with one series per combination of labels.
#[derive(Clone)]
enum Series {
    Gauge(GaugeVec),
    Counter(CounterVec),
    Histogram(HistogramVec),
}

/// Lengths and times of a request that ended, as SGLang's tokenizer manager counts them.
#[derive(Debug, Clone, Copy)]
pub struct SglangRequest {
    /// Whether the response was streamed.
    pub streaming: bool,
    /// Whether the output was constrained by a grammar.
    pub structured: bool,
    /// Number of prompt tokens.
    pub prompt_tokens: u32,
    /// Number of prompt tokens from the prefix cache.
    pub cached_tokens: u32,
    /// Number of output tokens.
    pub output_tokens: u32,
    /// Time from arrival to the first token, in seconds; `None` without a token.
    pub ttft_s: Option<f64>,
    /// Time from arrival to the end, in seconds.
    pub e2e_s: f64,
}

/// Constants of a server that its metrics show.
#[derive(Debug, Clone, Copy)]
struct Constants {
    page_size: u32,
    context_length: u32,
}

/// The metrics of an SGLang server; clones share the values.
#[derive(Clone)]
pub struct SglangMetrics {
    series: Arc<Vec<Series>>,
    model: Arc<str>,
    /// Values of the label `dp_rank`; empty without data parallelism.
    ranks: Arc<[String]>,
    constants: Constants,
}

impl SglangMetrics {
    pub(super) fn new(settings: &Settings) -> Self {
        let ranks = if settings.engines.len() > 1 { &settings.engines[..] } else { &[] };
        let block_size = settings.cache_config.first().and_then(|labels| {
            let found = labels.iter().find(|(name, _)| name == "block_size");
            found.and_then(|(_, size)| size.parse().ok())
        });
        Self {
            series: Arc::new(FAMILIES.iter().map(|family| series(family, ranks)).collect()),
            model: settings.model_name.as_str().into(),
            ranks: ranks.into(),
            constants: Constants {
                page_size: block_size.unwrap_or(1),
                context_length: settings.max_model_len,
            },
        }
    }

    /// Returns the values of a family's labels: those of its process, then `last`.
    fn labels<'a>(&'a self, id: Id, rank: usize, last: &'a str) -> Vec<&'a str> {
        let family = &FAMILIES[id as usize];
        let mut values: Vec<&str> = vec![&self.model, "unified"];
        if family.process == Process::Scheduler {
            values.extend(["0", "0", "0"]);
            values.extend(self.ranks.get(rank).map(String::as_str));
        }
        values.extend(family.label.map(|_| last));
        values
    }

    fn set(&self, id: Id, rank: usize, value: f64) {
        if let Series::Gauge(gauges) = &self.series[id as usize] {
            gauges.with_label_values(&self.labels(id, rank, "")).set(value);
        }
    }

    fn add(&self, id: Id, rank: usize, last: &str, value: f64) {
        if let Series::Counter(counters) = &self.series[id as usize] {
            counters.with_label_values(&self.labels(id, rank, last)).inc_by(value);
        }
    }

    fn observe(&self, id: Id, rank: usize, last: &str, value: f64, times: u32) {
        if let Series::Histogram(histograms) = &self.series[id as usize] {
            let histogram = histograms.with_label_values(&self.labels(id, rank, last));
            (0..times).for_each(|_| histogram.observe(value));
        }
    }

    /// Counts a request whose response has ended.
    ///
    /// **Source:** `TokenizerMetricsCollector.observe_one_finished_request`.
    pub fn on_finished(&self, request: &SglangRequest) {
        let streaming = STREAMING[usize::from(request.streaming)];
        let (prompt, output) = (f64::from(request.prompt_tokens), f64::from(request.output_tokens));
        let cached = request.cached_tokens.min(request.prompt_tokens);
        self.add(Id::PromptTokens, 0, streaming, prompt);
        self.add(Id::GenerationTokens, 0, streaming, output);
        if cached > 0 {
            self.add(Id::CachedTokens, 0, "device", f64::from(cached));
        }
        self.add(Id::Requests, 0, streaming, 1.0);
        if request.structured {
            self.add(Id::StructuredRequests, 0, "", 1.0);
        }
        self.observe(Id::E2e, 0, streaming, request.e2e_s, 1);
        if let Some(ttft) = request.ttft_s {
            self.observe(Id::Ttft, 0, streaming, ttft, 1);
            if request.output_tokens > 1 {
                let tpot = (request.e2e_s - ttft).max(0.0) / (output - 1.0);
                self.observe(Id::Tpot, 0, streaming, tpot, 1);
            }
        }
        self.observe(Id::PromptLength, 0, "", prompt, 1);
        self.observe(Id::UncachedLength, 0, "", prompt - f64::from(cached), 1);
        self.observe(Id::GenerationLength, 0, "", output, 1);
    }

    /// Returns the observer of the engine of a data-parallel rank.
    pub fn observer(&self, rank: usize) -> SglangObserver {
        let metrics = self.clone();
        metrics.show_zeros(rank);
        SglangObserver {
            metrics,
            rank,
            decode: DecodeWindow::default(),
            hits: (SimTime::ZERO, 0, 0),
        }
    }

    /// Shows the gauges of a rank, at zero, and its constants.
    fn show_zeros(&self, rank: usize) {
        for family in FAMILIES {
            if matches!(family.kind, Kind::Gauge) {
                self.set(family.id, rank, 0.0);
            }
        }
        self.set(Id::PageSize, rank, self.constants.page_size.into());
        self.set(Id::ContextLength, rank, self.constants.context_length.into());
    }

    /// Removes all counts, as a process restart does.
    pub(super) fn restart(&self) {
        for series in &*self.series {
            match series {
                Series::Gauge(_) => {}
                Series::Counter(counters) => counters.reset(),
                Series::Histogram(histograms) => histograms.reset(),
            }
        }
    }

    /// Returns the current value of a gauge of a rank: `num_used_tokens`, `token_usage`,
    /// `gen_throughput` or `cache_hit_rate`; 0 for another name.
    pub fn gauge(&self, name: &str, rank: usize) -> f64 {
        let family =
            FAMILIES.iter().find(|family| family.name.strip_prefix("sglang:") == Some(name));
        let gauge = family.and_then(|family| match &self.series[family.id as usize] {
            Series::Gauge(gauges) => {
                let gauge: Gauge = gauges.with_label_values(&self.labels(family.id, rank, ""));
                Some(gauge.get())
            }
            Series::Counter(_) | Series::Histogram(_) => None,
        });
        gauge.unwrap_or(0.0)
    }

    /// Appends the families that have a series, in the order of the list.
    pub(super) fn write(&self, out: &mut String) {
        for (family, series) in FAMILIES.iter().zip(&*self.series) {
            let collected = match series {
                Series::Gauge(gauges) => gauges.collect(),
                Series::Counter(counters) => counters.collect(),
                Series::Histogram(histograms) => histograms.collect(),
            };
            for shown in collected.iter().filter(|shown| !shown.get_metric().is_empty()) {
                out.push_str(&header(shown.name(), shown.help(), shown.get_field_type()));
                TextWriter::new(out, ApiServers::Several).samples(shown, &le_labels(family));
            }
        }
    }

    /// Appends families of vllm-sim itself.
    pub(super) fn write_own(own: &impl Collector, out: &mut String) {
        let mut families = own.collect();
        for family in &mut families {
            family.mut_metric().sort_by_key(Metric::timestamp_ms);
        }
        let shown = |family: &&MetricFamily| !family.get_metric().is_empty();
        for family in families.iter().filter(shown) {
            out.push_str(&header(family.name(), family.help(), family.get_field_type()));
            TextWriter::new(out, ApiServers::Several).samples(family, &[]);
        }
    }
}

/// Creates the values of a family.
fn series(family: &Family, ranks: &[String]) -> Series {
    const CONSTANT: &str = "names and labels in the list are valid";
    let mut labels = vec!["model_name", "engine_type"];
    if family.process == Process::Scheduler {
        labels.extend(["tp_rank", "pp_rank", "moe_ep_rank"]);
        if !ranks.is_empty() {
            labels.push("dp_rank");
        }
    }
    labels.extend(family.label);
    let opts = Opts::new(family.name, family.help);
    match family.kind {
        Kind::Gauge => Series::Gauge(GaugeVec::new(opts, &labels).expect(CONSTANT)),
        Kind::Counter => Series::Counter(CounterVec::new(opts, &labels).expect(CONSTANT)),
        Kind::Histogram(bounds) => {
            let opts = HistogramOpts::from(opts).buckets(bounds.to_vec());
            Series::Histogram(HistogramVec::new(opts, &labels).expect(CONSTANT))
        }
    }
}

fn le_labels(family: &Family) -> Vec<String> {
    let Kind::Histogram(bounds) = family.kind else {
        return Vec::new();
    };
    let bounds = bounds.iter().map(|bound| format!("le=\"{}\"", float(*bound)));
    bounds.chain(["le=\"+Inf\"".to_owned()]).collect()
}

/// Tokens and steps since the generation throughput was last computed.
#[derive(Debug, Default)]
struct DecodeWindow {
    since: Option<SimTime>,
    steps: u32,
    tokens: u32,
}

/// Updates the metrics that SGLang's scheduler owns, from the events of one engine.
pub struct SglangObserver {
    metrics: SglangMetrics,
    rank: usize,
    decode: DecodeWindow,
    /// Time of the last prefill batch, with its cached tokens and all its prompt tokens.
    hits: (SimTime, u64, u64),
}

impl SglangObserver {
    /// Counts output tokens of a step; computes the throughput after a number of decode steps.
    fn count_decoded(&mut self, at: SimTime, tokens: u32) {
        let window = &mut self.decode;
        let Some(since) = window.since else {
            *window = DecodeWindow { since: Some(at), steps: 0, tokens: 0 };
            return;
        };
        window.steps += 1;
        window.tokens = window.tokens.saturating_add(tokens);
        let elapsed = (at - since).as_secs_f64();
        if window.steps >= DECODE_LOG_INTERVAL && elapsed > 0.0 {
            let throughput = f64::from(window.tokens) / elapsed;
            *window = DecodeWindow { since: Some(at), steps: 0, tokens: 0 };
            self.metrics.set(Id::Throughput, self.rank, throughput);
        }
    }

    /// Shows the hit rate of the prefill batch at one instant.
    fn count_lookup(&mut self, at: SimTime, cached: u32, prompt: u32) {
        if self.hits.0 != at {
            self.hits = (at, 0, 0);
        }
        self.hits.1 += u64::from(cached);
        self.hits.2 += u64::from(prompt);
        if self.hits.2 > 0 {
            let rate = self.hits.1 as f64 / self.hits.2 as f64;
            self.metrics.set(Id::HitRate, self.rank, rate);
        }
    }
}

impl EngineObserver for SglangObserver {
    fn on_sequence_queued(&mut self, _: &SequenceRecord) {}

    fn on_sequence_event(
        &mut self,
        at: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        since: SimTime,
    ) {
        match event {
            SchedulerEvent::Scheduled { cached, .. } => {
                let queued = (at - record.queued).as_secs_f64();
                self.metrics.observe(Id::QueueTime, self.rank, "", queued, 1);
                self.count_lookup(at, *cached, record.prompt);
            }
            // The first tokens have no gap before them.
            SchedulerEvent::Tokens { n, .. } if record.output > *n && *n > 0 => {
                let gap = (at - since).as_secs_f64() / f64::from(*n);
                self.metrics.observe(Id::Itl, self.rank, "", gap, *n);
            }
            SchedulerEvent::Preempted { .. } => {
                self.metrics.add(Id::Retractions, self.rank, "", 1.0);
            }
            SchedulerEvent::Ended { end, .. } => {
                if matches!(end, SequenceEndReason::Aborted | SequenceEndReason::Cancelled) {
                    self.metrics.add(Id::AbortedRequests, self.rank, "", 1.0);
                }
            }
            _ => {}
        }
    }

    fn on_engine_event(&mut self, at: SimTime, event: &SchedulerEvent) {
        if let SchedulerEvent::Step { output_tokens, .. } = event {
            self.count_decoded(at, *output_tokens);
        }
    }

    fn on_engine_stats(&mut self, stats: &EngineStats) {
        let (metrics, rank) = (&self.metrics, self.rank);
        let page = f64::from(metrics.constants.page_size);
        let used = f64::from(stats.used_blocks) * page;
        let total = f64::from(stats.total_blocks) * page;
        let usage = if total > 0.0 { used / total } else { 0.0 };
        for (id, value) in [
            (Id::Running, stats.running as f64),
            (Id::Queued, (stats.waiting + stats.deferred) as f64),
            (Id::TokenUsage, usage),
            (Id::FullTokenUsage, usage),
            (Id::UsedTokens, used),
            (Id::KvUsedTokens, used),
            (Id::MaxTokens, total),
            (Id::Pages, f64::from(stats.total_blocks)),
        ] {
            metrics.set(id, rank, value);
        }
        if stats.running == 0 {
            self.decode = DecodeWindow::default();
            metrics.set(Id::Throughput, rank, 0.0);
        }
    }
}
