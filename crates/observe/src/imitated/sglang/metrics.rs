//! Metrics of an SGLang server (`--compat sglang`).
//!
//! SGLang's scheduler updates the gauges and the times between tokens; here [`SglangObserver`] does
//! so from engine events. SGLang's tokenizer manager counts a request when it ends; here the HTTP
//! handlers call [`SglangMetrics::on_finished`].
//!
//! **Source:** SGLang 0.5.23 `srt/observability/metrics_collector.py`.

use std::sync::Arc;

use super::families::{FAMILIES, Id};
use crate::imitated::FinishedRequest;
use crate::metrics::family::Family;
use crate::metrics::series::{MetricCellVec, MetricCells};
use crate::metrics::settings::{ApiServerCount, MetricsSettings};
use vllm_sim_engine::driver::{EngineObserver, SequenceRecord};
use vllm_sim_engine::{EngineStats, SchedulerEvent, SequenceEndReason, SimTime};

/// Number of decode steps after which the generation throughput is computed again
/// (`--decode-log-interval`).
const DECODE_LOG_INTERVAL: u32 = 40;

/// The metrics of an SGLang server; clones share the values.
#[derive(Clone)]
pub struct SglangMetrics {
    /// Metric values of SGLang's tokenizer manager.
    server: MetricCells,
    /// Metric values of SGLang's scheduler of each rank.
    engines: Vec<MetricCells>,
    page_size: u32,
    vecs: Vec<Arc<MetricCellVec>>,
}

impl SglangMetrics {
    pub(crate) fn new(settings: &mut MetricsSettings) -> Self {
        // SGLang always has several processes.
        settings.api_servers = ApiServerCount::Several;
        let vecs = MetricCellVec::from_family_list(FAMILIES, settings);
        let ranks = 0..settings.engines.len();
        let engines: Vec<_> = ranks.map(|rank| MetricCells::of_engine(&vecs, rank)).collect();
        let block_size = settings.cache_config.iter().find(|(name, _)| name == "block_size");
        let page_size = block_size.and_then(|(_, size)| size.parse().ok()).unwrap_or(1);
        for cells in &engines {
            cells[Id::PageSize].set(page_size.into());
            cells[Id::ContextLength].set(settings.max_model_len.into());
        }
        Self { server: MetricCells::of_engine(&vecs, 0), engines, page_size, vecs }
    }

    /// Returns the values of SGLang's families, in the order of its `/metrics` page.
    pub(crate) fn vecs(&self) -> &[Arc<MetricCellVec>] {
        &self.vecs
    }

    /// Counts a request whose response has ended. One that was aborted before its first token
    /// counts nowhere.
    ///
    /// **Source:** `TokenizerMetricsCollector.observe_one_finished_request`, and
    /// `TokenizerManager.collect_metrics` and `_handle_abort_req`.
    pub fn on_finished(&self, request: &FinishedRequest) {
        if request.aborted && request.output_tokens == 0 {
            return;
        }
        let (prompt, output) = (f64::from(request.prompt_tokens), f64::from(request.output_tokens));
        let cached = f64::from(request.cached_tokens.min(request.prompt_tokens));
        let streaming = usize::from(request.streaming);
        add(&self.server, Id::PromptTokens, streaming, prompt);
        add(&self.server, Id::GenerationTokens, streaming, output);
        if cached > 0.0 {
            add(&self.server, Id::CachedTokens, 0, cached);
        }
        add(&self.server, Id::Requests, streaming, 1.0);
        if request.structured {
            add(&self.server, Id::StructuredRequests, 0, 1.0);
        }
        observe(&self.server, Id::E2e, streaming, request.e2e_s);
        if let Some(ttft) = request.ttft_s {
            observe(&self.server, Id::Ttft, streaming, ttft);
            if request.output_tokens > 1 && !request.aborted {
                let tpot = (request.e2e_s - ttft).max(0.0) / (output - 1.0);
                observe(&self.server, Id::Tpot, streaming, tpot);
            }
        }
        observe(&self.server, Id::PromptLength, 0, prompt);
        observe(&self.server, Id::UncachedLength, 0, prompt - cached);
        observe(&self.server, Id::GenerationLength, 0, output);
    }

    /// Counts a command once, however many requests it aborts.
    pub fn on_abort_command(&self) {
        add(&self.server, Id::AbortedRequests, 0, 1.0);
    }

    /// Sets the gauges of a rank's KV cache size, which SGLang exposes from its start on.
    ///
    /// **Source:** `SchedulerMetricsCollector.emit_constants`.
    pub fn set_kv_cache_pages(&self, rank: usize, pages: u32) {
        if let Some(cells) = self.engines.get(rank) {
            cells[Id::MaxTokens].set(f64::from(pages) * f64::from(self.page_size));
            cells[Id::Pages].set(pages.into());
        }
    }

    /// Returns the observer of the engine of a data-parallel rank.
    pub(crate) fn observer(&self, rank: usize) -> Box<dyn EngineObserver> {
        Box::new(SglangObserver {
            engine: self.engines[rank].clone(),
            metrics: self.clone(),
            decode: DecodeWindow::default(),
            hits: (SimTime::ZERO, 0, 0),
        })
    }

    /// Returns the current value of a gauge of a rank: `num_used_tokens`, `token_usage`,
    /// `gen_throughput` or `cache_hit_rate`; 0 for another name.
    pub fn gauge(&self, name: &str, rank: usize) -> f64 {
        let named = |family: &Family| family.name.strip_prefix("sglang:") == Some(name);
        let id = FAMILIES.iter().position(named);
        let cell = |cells: &MetricCells| cells.series_cells(id?).first().map(|cell| cell.get());
        self.engines.get(rank).and_then(cell).unwrap_or(0.0)
    }
}

/// Adds to a counter, which appears with its first value.
fn add(cells: &MetricCells, id: Id, series: usize, n: f64) {
    let cell = &cells.series_cells(id)[series];
    cell.add(n);
    cell.expose_metric_series(1.0);
}

/// Observes a value in a histogram, which appears with its first value.
fn observe(cells: &MetricCells, id: Id, series: usize, value: f64) {
    let cell = &cells.series_cells(id)[series];
    cell.observe(value);
    cell.expose_metric_series(1.0);
}

/// Numbers of output tokens and decode steps since the generation throughput was last computed.
#[derive(Debug, Default)]
struct DecodeWindow {
    since: Option<SimTime>,
    steps: u32,
    tokens: u32,
}

/// Observer of one engine: updates the metrics that SGLang's scheduler owns.
pub(crate) struct SglangObserver {
    metrics: SglangMetrics,
    engine: MetricCells,
    decode: DecodeWindow,
    /// Time of the last prefill batch, and its numbers of cached and of all prompt tokens.
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
            self.engine[Id::Throughput].set(throughput);
        }
    }

    /// Counts the prefix-cache lookup of a prompt, and exposes the hit rate of all prompts
    /// scheduled at the same instant.
    fn count_lookup(&mut self, at: SimTime, cached: u32, prompt: u32) {
        if self.hits.0 != at {
            self.hits = (at, 0, 0);
        }
        self.hits.1 += u64::from(cached);
        self.hits.2 += u64::from(prompt);
        if self.hits.2 > 0 {
            self.engine[Id::HitRate].set(self.hits.1 as f64 / self.hits.2 as f64);
        }
    }
}

impl EngineObserver for SglangObserver {
    fn on_sequence_event(
        &mut self,
        at: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        since: SimTime,
    ) {
        let server = &self.metrics.server;
        match event {
            SchedulerEvent::Scheduled { cached, .. } => {
                let queued = (at - record.queued).as_secs_f64();
                observe(&self.engine, Id::QueueTime, 0, queued);
                self.count_lookup(at, *cached, record.prompt);
            }
            // The first tokens have no gap before them.
            SchedulerEvent::Tokens { n, .. } if record.output > *n && *n > 0 => {
                let gap = (at - since).as_secs_f64() / f64::from(*n);
                (0..*n).for_each(|_| observe(server, Id::Itl, 0, gap));
            }
            SchedulerEvent::Decoded { n, .. } => {
                observe(server, Id::Itl, 0, (at - since).as_secs_f64());
                (1..*n).for_each(|_| observe(server, Id::Itl, 0, 0.0));
            }
            SchedulerEvent::Preempted { .. } => add(&self.engine, Id::Retractions, 0, 1.0),
            // A client that disconnects aborts its request. Commands count themselves.
            SchedulerEvent::Ended { end: SequenceEndReason::Aborted, .. } => {
                add(server, Id::AbortedRequests, 0, 1.0);
            }
            _ => {}
        }
    }

    fn on_engine_event(&mut self, at: SimTime, event: &SchedulerEvent) {
        if let SchedulerEvent::Step { output_tokens, count, .. } = event {
            (0..*count).for_each(|_| self.count_decoded(at, *output_tokens));
        }
    }

    fn on_engine_stats(&mut self, stats: &EngineStats) {
        let page = f64::from(self.metrics.page_size);
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
        ] {
            self.engine[id].set(value);
        }
        if stats.running == 0 {
            self.decode = DecodeWindow::default();
            self.engine[Id::Throughput].set(0.0);
        }
    }
}
