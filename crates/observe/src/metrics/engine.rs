//! Metrics of one engine, and the observer that updates them at the times at which vLLM does: no
//! event takes a lock, looks a family up or allocates.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cell::MetricCell;
use super::families::{FAMILIES, FINISH_REASONS, Id};
use super::resident_adapters::LoraSlotCounts;
use super::series::{MetricCellVec, MetricCells};
use super::settings::{MetricsCompat, MetricsSettings};
use super::transfers::{self, NixlTransferMetricParams};
use crate::load_failures::log_kv_load_failure;
use crate::recent::{LatencyRingBuffer, RecentEngineSamples};
use vllm_sim_engine::driver::{EngineObserver, PlannedFinishReason, SequenceRecord};
use vllm_sim_engine::{EngineStats, SchedulerEvent, SequenceEndReason, SimTime};

/// Sleep state of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepState {
    /// Sleep state: the engine is awake.
    Awake,
    /// Sleep state of level 1: weights are in CPU memory, and the KV cache is discarded.
    WeightsOffloaded,
    /// Sleep state of level 2: weights and KV cache are discarded.
    DiscardAll,
    /// Sleep state of level 0: scheduling is paused. All of vLLM's state series are 0.
    Paused,
}

/// Metrics of one engine (one data-parallel rank).
///
/// Only the observers of the engine, which hold its lock, make exclusive additions to the cells. Any
/// thread may call the public methods.
pub struct EngineMetrics {
    pub(super) cells: MetricCells,
    pub(super) settings: Arc<MetricsSettings>,
    pub(super) rank: usize,
    pub(super) recent: RecentEngineSamples,
}

impl EngineMetrics {
    pub(super) fn new(
        vecs: &[Arc<MetricCellVec>],
        settings: Arc<MetricsSettings>,
        rank: usize,
    ) -> Self {
        let (cells, recent) = (MetricCells::of_engine(vecs, rank), RecentEngineSamples::default());
        let metrics = Self { cells, settings, rank, recent };
        metrics.set_sleep_state(SleepState::Awake);
        metrics
    }

    /// Sets the gauges of the engine's sleep state.
    pub fn set_sleep_state(&self, state: SleepState) {
        for (i, cell) in self.cells.series_cells(Id::SleepState).iter().enumerate() {
            cell.set(f64::from(u8::from(i == state as usize)));
        }
    }

    /// Records queries and hits of the multimodal processor cache.
    pub fn on_mm_cache_lookup(&self, queries: u32, hits: u32) {
        self.recent.media.add_cache_lookup(queries, hits);
        self.cells[Id::MmQueries].add(queries.into());
        self.cells[Id::MmHits].add(hits.into());
    }

    /// Returns the values of the engine's series in the vLLM metric family with the given name;
    /// empty for an unknown name.
    pub fn series_values(&self, family: &str) -> Vec<f64> {
        let id = FAMILIES.iter().position(|one| one.name == family);
        let cells = id.map_or(&[][..], |id| self.cells.series_cells(id));
        cells.iter().map(MetricCell::get).collect()
    }

    /// Returns the hits and queries of the newest 1,000 requests: tokens in the prefix cache,
    /// tokens in external KV caches, and items in the multimodal processor cache.
    pub fn recent_cache_lookups(&self) -> [(u64, u64); 3] {
        let RecentEngineSamples { prefix, external, media, .. } = &self.recent;
        [prefix, external, media].map(LatencyRingBuffer::cache_hits_and_queries)
    }
}

/// Features of the engine whose events update the metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct EngineFeatures {
    /// Whether the engine has a prefix cache.
    pub cache: bool,
    /// Whether the engine emits step events.
    pub steps: bool,
    /// Whether a KV connector is queried for tokens that are not cached.
    pub connector: bool,
    /// Parameters of NIXL transfers; `None` unless the KV cache of prompts comes from other
    /// engines.
    pub transfer: Option<NixlTransferMetricParams>,
    /// Maximum numbers of LoRA adapters in memory; `None` unless `/metrics` exposes the adapters in
    /// memory.
    pub adapter_slots: Option<LoraSlotCounts>,
    /// Number of tokens per KV block; `None` unless `/metrics` exposes the usage of token slots.
    pub tokens_per_block: Option<u32>,
}

/// Observer of one engine: updates the engine's metrics from its events, at the times at which vLLM
/// does.
pub(super) struct EngineMetricsObserver {
    pub(super) metrics: Arc<EngineMetrics>,
    pub(super) features: EngineFeatures,
}

impl EngineMetricsObserver {
    /// Counts the cache lookup of a sequence's prompt, in tokens, when the sequence is first
    /// scheduled.
    fn count_lookup(&self, cached: u32, external: u32, record: &SequenceRecord) {
        if !record.looked_up || !self.features.cache {
            return;
        }
        let EngineMetrics { cells, recent, settings, .. } = &*self.metrics;
        let sources = cells.series_cells(Id::CachedTokensBySource);
        let [device, host, p2p, _, unspecified] = sources else { return };
        recent.prefix.add_cache_lookup(record.prompt, cached);
        cells[Id::PrefixQueries].add_as_sole_metric_writer(record.prompt);
        cells[Id::PrefixHits].add_as_sole_metric_writer(cached);
        device.add_as_sole_metric_writer(cached);
        // A connector is queried for tokens that are not in this engine's cache.
        let queries = record.prompt - cached;
        if queries > 0 && (self.features.connector || external > 0) {
            recent.external.add_cache_lookup(queries, external);
            cells[Id::ExternalQueries].add_as_sole_metric_writer(queries);
            cells[Id::ExternalHits].add_as_sole_metric_writer(external);
            let source = match &record.kv_source {
                None if settings.offload.is_some() => host,
                _ if settings.nixl => p2p,
                _ => unspecified,
            };
            source.add_as_sole_metric_writer(external);
        }
    }

    /// Counts `n` output tokens from `steps` steps of a sequence whose previous output was at `since`.
    fn count_tokens(
        &self,
        at: SimTime,
        (n, steps): (u32, u32),
        record: &SequenceRecord,
        since: SimTime,
    ) {
        let EngineMetrics { cells, recent, .. } = &*self.metrics;
        cells[Id::GenerationTokens].add_as_sole_metric_writer(n);
        let is_first = record.output == n;
        if is_first {
            let ttft = (at - record.arrived).as_secs_f64();
            let SequenceRecord { prompt, cached, external, .. } = *record;
            let reused = cached.saturating_add(external);
            cells[Id::Ttft].observe_as_sole_metric_writer(ttft, 1);
            recent.ttft.add_latency_as_only_writer(ttft, 1);
            cells[Id::PromptTokens].add_as_sole_metric_writer(prompt);
            let sources = [prompt.saturating_sub(reused), cached, external];
            for (cell, n) in cells.series_cells(Id::PromptTokensBySource).iter().zip(sources) {
                cell.add_as_sole_metric_writer(n);
            }
            cells[Id::PromptTokensCached].add_as_sole_metric_writer(reused);
        } else {
            self.count_gaps((at - since).as_secs_f64(), 1);
        }
        // Several tokens of one step are one output in vLLM; steps of the same instant have no gap.
        if steps > 1 {
            self.count_gaps(0.0, steps - 1);
        }
        if !self.features.steps {
            self.count_step(if is_first { record.prompt - record.cached } else { 0 }, n, 1);
        }
    }

    fn count_gaps(&self, seconds: f64, times: u32) {
        self.metrics.cells[Id::Itl].observe_as_sole_metric_writer(seconds, times);
        self.metrics.recent.itl.add_latency_as_only_writer(seconds, times);
    }

    /// Counts the tokens of equal steps with output, `times` in number: computed prompt tokens,
    /// without cached ones, and output tokens.
    fn count_step(&self, computed: u32, output: u32, times: u32) {
        let tokens = f64::from(computed) + f64::from(output);
        self.metrics.cells[Id::IterationTokens].observe_as_sole_metric_writer(tokens, times);
    }

    /// Counts an ended sequence under its finish reason; each choice of a request is a sequence.
    fn count_end(&self, end: SequenceEndReason, record: &SequenceRecord) {
        let cells = &self.metrics.cells;
        let MetricsSettings { compat, clock, .. } = &*self.metrics.settings;
        let Some(reason) = finish_reason(end, record.finish, *compat) else { return };
        let is_llmd = *compat == MetricsCompat::Llmd;
        let success = &cells.series_cells(Id::Success)[reason];
        success.add_as_sole_metric_writer(1);
        if reason >= Id::Success.family().hidden_from {
            success.expose_metric_series((clock.0)());
        }
        let last = if record.output > 0 { record.last } else { record.scheduled };
        let first = if record.output > 0 { record.first } else { record.scheduled };
        let decode = (last - first).as_secs_f64();
        let reused = record.cached + record.external;
        let observe = |id: Id, value: f64| cells[id].observe_as_sole_metric_writer(value, 1);
        observe(Id::RequestPromptTokens, record.prompt.into());
        observe(Id::RequestGenerationTokens, record.output.into());
        // llm-d's simulator observes only limits that the client set.
        if record.limited || !is_llmd {
            observe(Id::ParamsMaxTokens, record.max_tokens.into());
        }
        if is_llmd {
            observe(Id::MaxGenerationTokens, record.output.into());
        }
        // Without gaps between tokens, the time per output token is that of no decode: zero.
        let gaps = record.output.saturating_sub(1);
        observe(Id::Tpot, if gaps == 0 { 0.0 } else { decode / f64::from(gaps) });
        observe(Id::E2e, (last - record.arrived).as_secs_f64());
        observe(Id::QueueTime, (record.scheduled - record.queued).as_secs_f64());
        observe(Id::InferenceTime, (last - record.scheduled).as_secs_f64());
        observe(Id::PrefillTime, (first - record.scheduled).as_secs_f64());
        observe(Id::DecodeTime, decode);
        observe(Id::RequestPreemptions, record.preemptions.into());
        observe(Id::PrefillComputed, record.prompt.saturating_sub(reused).into());
        let Some(parent) = &record.parent else { return };
        parent.longest.fetch_max(record.output, Ordering::Relaxed);
        if parent.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            observe(Id::ParamsN, parent.n.into());
            // llm-d's simulator counts each choice as a request.
            if *compat == MetricsCompat::Vllm {
                observe(Id::MaxGenerationTokens, parent.longest.load(Ordering::Relaxed).into());
            }
        }
    }
}

/// Returns the index in [`FINISH_REASONS`] of a sequence's finish reason; `None` for an aborted
/// sequence, which is not counted.
fn finish_reason(
    end: SequenceEndReason,
    planned: PlannedFinishReason,
    compat: MetricsCompat,
) -> Option<usize> {
    use {PlannedFinishReason as Planned, SequenceEndReason as End};
    let is_llmd = compat == MetricsCompat::Llmd;
    let reason = match (end, planned) {
        (End::Aborted, _) => return None,
        (End::Cancelled, _) => "abort",
        (End::Threshold, _) => "cache_threshold",
        (End::Failed, _) => "error",
        (End::Finished, Planned::ToolCalls) if is_llmd => "tool_calls",
        (End::Finished, Planned::RemoteDecode) if is_llmd => "remote_decode",
        (End::Finished, Planned::Stop | Planned::ToolCalls) => "stop",
        (End::Finished, Planned::Length | Planned::RemoteDecode) => "length",
    };
    FINISH_REASONS.iter().position(|known| *known == reason)
}

impl EngineObserver for EngineMetricsObserver {
    fn on_sequence_event(
        &mut self,
        at: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        since: SimTime,
    ) {
        let cells = &self.metrics.cells;
        match event {
            SchedulerEvent::Scheduled { cached, external, .. } => {
                self.count_lookup(*cached, *external, record);
            }
            SchedulerEvent::Tokens { n, .. } => {
                let steps = if self.features.steps { 1 } else { *n };
                self.count_tokens(at, (*n, steps), record, since);
            }
            SchedulerEvent::Decoded { n, .. } => self.count_tokens(at, (*n, *n), record, since),
            SchedulerEvent::Fetched { tokens, took, .. } => {
                if let Some(transfer) = &self.features.transfer {
                    transfer.record_nixl_transfer(cells, *tokens, *took);
                }
            }
            SchedulerEvent::LoadFailed { tokens, policy, remote, .. } => {
                if let Some(transfer) = self.features.transfer.filter(|_| *remote) {
                    cells[Id::NixlFailedTransfers].add(transfer.workers.into());
                }
                log_kv_load_failure(&record.request_id, *tokens, *policy);
            }
            SchedulerEvent::Drafts { proposed, accepted, .. } => {
                cells[Id::Drafts].add_as_sole_metric_writer(1);
                cells[Id::DraftTokens].add_as_sole_metric_writer(*proposed);
                cells[Id::AcceptedTokens].add_as_sole_metric_writer(*accepted);
                let positions = cells.series_cells(Id::AcceptedTokensPerPos);
                for position in positions.iter().take(*accepted as usize) {
                    position.add_as_sole_metric_writer(1);
                }
            }
            SchedulerEvent::Preempted { .. } => cells[Id::Preemptions].add_as_sole_metric_writer(1),
            SchedulerEvent::Ended { end, .. } => self.count_end(*end, record),
            _ => {}
        }
    }

    fn needs_empty_token_slots(&self) -> bool {
        self.features.tokens_per_block.is_some()
    }

    fn on_engine_event(&mut self, _: SimTime, event: &SchedulerEvent) {
        match event {
            SchedulerEvent::Step { prompt_tokens, output_tokens, count, .. } => {
                self.count_step(*prompt_tokens, *output_tokens, *count);
            }
            // The hit rate of recent requests starts again.
            SchedulerEvent::Cleared => self.metrics.recent.prefix.clear_ring_buffer(),
            SchedulerEvent::Host(event) => {
                let EngineMetrics { cells, settings, .. } = &*self.metrics;
                if let Some(offload) = &settings.offload {
                    offload.record_host_cache_event(cells, event, (settings.clock.0)());
                }
            }
            _ => {}
        }
    }

    fn on_engine_stats(&mut self, stats: &EngineStats) {
        let cells = &self.metrics.cells;
        let EngineStats { running, waiting, deferred, used_blocks, total_blocks, .. } = *stats;
        let usage = f64::from(used_blocks) / f64::from(total_blocks.max(1));
        cells.set_and_show_gauges(Id::Running, &[running as f64]);
        cells.set_and_show_gauges(Id::Waiting, &[(waiting + deferred) as f64]);
        cells.set_and_show_gauges(Id::WaitingByReason, &[waiting as f64, deferred as f64]);
        cells.set_and_show_gauges(Id::KvUsage, &[if total_blocks == 0 { 0.0 } else { usage }]);
        if let Some(tokens) = self.features.tokens_per_block {
            let slots = |blocks: u32| f64::from(blocks) * f64::from(tokens);
            let filled = slots(used_blocks) - stats.empty_token_slots as f64;
            let usage = filled.max(0.0) / slots(total_blocks).max(1.0);
            cells.set_and_show_gauges(Id::KvTokenUsage, &[usage]);
        }
        cells.set_and_show_gauges(Id::KvFetches, &stats.fetches.map(f64::from));
        transfers::set_host_chunk_gauges(cells, &stats.host);
    }
}
