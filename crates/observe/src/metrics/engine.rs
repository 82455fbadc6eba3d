//! Records the events of an engine in its metrics: one call per event, without lookup, lock or
//! allocation.

use std::sync::Arc;
use std::time::Duration;

use super::families::{Id, VLLM_REASONS};
use super::lora::{LoraInfo, LoraLoad, LoraWriter};
use super::nixl::NixlTransfer;
use super::offload::{self, OffloadRecorder};
use super::recent::Recent;
use super::resident_adapters::{AdapterCache, LoadedAdapterSeries};
use super::series::Cells;
use super::settings::{Clock, Compat, Settings};
use vllm_sim_engine::HostCacheEvent;
use vllm_sim_engine::kv::HostChunkCounts;

/// Indices of the label `source` of `vllm:prompt_tokens_cached_by_source_total`.
const TIER_DEVICE: usize = 0;
const TIER_HOST: usize = 1;
const TIER_P2P: usize = 2;
const TIER_EXTERNAL: usize = 4;

/// Reason why a sequence finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The sequence ended with an end-of-sequence token or stop string.
    Stop,
    /// The sequence reached its limit of output tokens (`max_tokens`).
    Length,
    /// Abort by the engine. A sequence whose client disconnected is not counted.
    Abort,
    /// Tool calls; counted as `stop` with vLLM's rules, as `tool_calls` with llm-d's.
    ToolCalls,
    /// Prefill for a decode server; counted as `length` with vLLM's rules, as `remote_decode` with
    /// llm-d's.
    RemoteDecode,
    /// Cached fraction of the prompt below the request's `cache_hit_threshold`.
    CacheThreshold,
    /// Failed load of the prompt's KV cache from a connector.
    Error,
}

impl FinishReason {
    fn index(self, compat: Compat) -> usize {
        match (self, compat) {
            (Self::Stop, _) | (Self::ToolCalls, Compat::Vllm | Compat::Sglang) => 0,
            (Self::Length, _) | (Self::RemoteDecode, Compat::Vllm | Compat::Sglang) => 1,
            (Self::Abort, _) => 2,
            (Self::Error, _) => 3,
            (Self::ToolCalls, Compat::Llmd) => 5,
            (Self::RemoteDecode, Compat::Llmd) => 6,
            (Self::CacheThreshold, _) => 7,
        }
    }
}

/// Lengths and times of a finished sequence, for histograms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FinishedRequest {
    /// Reason why the sequence finished.
    pub reason: FinishReason,
    /// Prompt length of the finished sequence, in tokens.
    pub prompt_tokens: u32,
    /// Output length of the finished sequence, in tokens.
    pub output_tokens: u32,
    /// Effective limit of output tokens (`max_tokens`).
    pub max_tokens: u32,
    /// Whether the client set the limit of output tokens; llm-d's simulator observes only those
    /// limits.
    pub limited: bool,
    /// Time from arrival to end of the sequence, in seconds.
    pub e2e_s: f64,
    /// Time from queueing the sequence to its first schedule, in seconds.
    pub queue_s: f64,
    /// Time from first schedule to last token of the sequence, in seconds.
    pub inference_s: f64,
    /// Time from first schedule to first token of the sequence, in seconds.
    pub prefill_s: f64,
    /// Time from first to last token of the sequence, in seconds.
    pub decode_s: f64,
    /// Number of prompt tokens from the local cache and external caches.
    pub cached: u32,
    /// Number of preemptions of the sequence.
    pub preemptions: u32,
}

/// Sleep state of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepState {
    /// The engine is not asleep.
    Awake,
    /// Sleep level 1: weights are in CPU memory, the KV cache is discarded.
    WeightsOffloaded,
    /// Sleep level 2: weights and KV cache are discarded.
    DiscardAll,
    /// Sleep level 0: scheduling is paused. All of vLLM's state series are 0.
    Paused,
}

/// Exceeded queue limit of a rejected request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// Limit on the number of queued requests, `--max-num-queued-reqs`.
    QueuedRequests,
    /// Limit on the number of queued prompt tokens, `--max-num-queued-tokens`.
    QueuedTokens,
}

/// Totals of one engine's metrics since its start, for the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Number of prompt tokens computed by this engine.
    pub computed: u64,
    /// Number of output tokens of the engine.
    pub generated: u64,
    /// Number of preemptions in the engine.
    pub preemptions: u64,
    /// Prefix-cache hits and queries of the newest 1,000 requests, in tokens.
    pub prefix: (u64, u64),
    /// Hits and queries of external KV caches by the newest 1,000 requests, in tokens.
    pub external: (u64, u64),
    /// Hits and queries of the multimodal processor cache by the newest 1,000 requests.
    pub media: (u64, u64),
}

/// Totals of speculative decoding since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DraftTotals {
    /// Number of verifications of draft tokens, one per sequence and step.
    pub drafts: u64,
    /// Number of draft tokens that speculative decoding proposed.
    pub proposed: u64,
    /// Number of draft tokens that the model accepted.
    pub accepted: u64,
    /// Number of accepted draft tokens by position in the draft.
    pub accepted_at: Vec<u64>,
}

/// Metrics of one engine (one data-parallel rank).
///
/// Methods for sequence events require the engine's lock, so that one thread at a time calls them;
/// they cost a few nanoseconds per token. Any thread may call the others.
pub struct EngineMetrics {
    cells: Cells,
    lora: LoraWriter,
    compat: Compat,
    /// Index of the source label for prompt tokens that came from other servers.
    external_tier: usize,
    /// Recorder of the CPU memory that external prompt tokens come from unless a server sent them.
    offload: Option<OffloadRecorder>,
    clock: Clock,
    pub(super) recent: Recent,
    /// Series of the LoRA adapters in memory, and the name of this engine in them.
    loaded_adapters: Option<(Arc<LoadedAdapterSeries>, String)>,
}

impl EngineMetrics {
    pub(super) fn new(cells: Cells, lora: Arc<LoraInfo>, settings: &Settings) -> Self {
        let metrics = Self {
            cells,
            lora: LoraWriter::new(lora),
            compat: settings.compat,
            external_tier: if settings.nixl { TIER_P2P } else { TIER_EXTERNAL },
            offload: settings.offload.as_ref().map(OffloadRecorder::new),
            clock: settings.clock,
            recent: Recent::new(),
            loaded_adapters: None,
        };
        metrics.set_sleep_state(SleepState::Awake);
        metrics
    }

    #[must_use]
    pub(super) fn with_loaded_adapters(
        self,
        series: Arc<LoadedAdapterSeries>,
        engine: &str,
    ) -> Self {
        Self { loaded_adapters: Some((series, engine.to_owned())), ..self }
    }

    pub(super) fn show_loaded_adapters(&self, adapters: &AdapterCache) {
        if let Some((series, engine)) = &self.loaded_adapters {
            series.show(engine, &self.cells, adapters);
        }
    }

    /// Sets the fraction of the KV cache's token slots that hold keys and values.
    pub(super) fn set_token_usage(&self, usage: f64) {
        self.set_shown(Id::KvTokenUsage, &[usage]);
    }

    /// Records the first token of a sequence, `ttft_s` after its arrival.
    ///
    /// Of the prompt, `cached_local` tokens were in this engine's cache and `cached_external` came
    /// from another cache. [`Self::on_tokens`] counts the token itself.
    pub(crate) fn on_first_token(
        &self,
        ttft_s: f64,
        prompt_tokens: u32,
        cached_local: u32,
        cached_external: u32,
    ) {
        let c = &self.cells;
        let cached = cached_local.saturating_add(cached_external);
        c[Id::Ttft].observe_exclusive(ttft_s);
        self.recent.ttft.add(ttft_s, 1);
        c[Id::PromptTokens].add_exclusive(prompt_tokens);
        let sources = [prompt_tokens.saturating_sub(cached), cached_local, cached_external];
        for (cell, tokens) in c.series_cells(Id::PromptTokensBySource).iter().zip(sources) {
            cell.add_exclusive(tokens);
        }
        c[Id::PromptTokensCached].add_exclusive(cached);
    }

    /// Records `n` output tokens of a sequence, including the first.
    pub fn on_tokens(&self, n: u32) {
        self.cells[Id::GenerationTokens].add_exclusive(n);
    }

    /// Records a time of `itl_s` seconds between two outputs of a sequence.
    pub fn on_gap(&self, itl_s: f64) {
        self.on_gaps(itl_s, 1);
    }

    pub(crate) fn on_gaps(&self, itl_s: f64, times: u32) {
        self.cells[Id::Itl].observe_times_exclusive(itl_s, times);
        self.recent.itl.add(itl_s, times);
    }

    /// Records the first schedule of a sequence: queries and hits of the prefix cache and of a KV
    /// connector, in tokens.
    ///
    /// `remote` means that the external tokens come from another server.
    pub(crate) fn on_scheduled(
        &self,
        (queries, hits): (u32, u32),
        (ext_queries, ext_hits): (u32, u32),
        remote: bool,
    ) {
        let c = &self.cells;
        self.recent.prefix.add(queries, hits);
        c[Id::PrefixQueries].add_exclusive(queries);
        c[Id::PrefixHits].add_exclusive(hits);
        c.series_cells(Id::CachedTokensBySource)[TIER_DEVICE].add_exclusive(hits);
        if ext_queries > 0 {
            self.recent.external.add(ext_queries, ext_hits);
            c[Id::ExternalQueries].add_exclusive(ext_queries);
            c[Id::ExternalHits].add_exclusive(ext_hits);
            let tier = match self.offload.is_some() && !remote {
                true => TIER_HOST,
                false => self.external_tier,
            };
            c.series_cells(Id::CachedTokensBySource)[tier].add_exclusive(ext_hits);
        }
    }

    pub(crate) fn on_transfer(&self, transfer: &NixlTransfer, tokens: u32, took: Duration) {
        transfer.record(&self.cells, tokens, took);
    }

    pub(crate) fn on_transfer_failed(&self, transfer: &NixlTransfer) {
        transfer.record_failure(&self.cells);
    }

    pub(crate) fn on_preempted(&self) {
        self.cells[Id::Preemptions].add_exclusive(1);
    }

    /// Records a step with output: number of prompt tokens computed, without cached ones, and of
    /// output tokens.
    pub fn on_step(&self, prompt_tokens_computed: u32, new_tokens: u32) {
        let tokens = f64::from(prompt_tokens_computed) + f64::from(new_tokens);
        self.cells[Id::IterationTokens].observe_exclusive(tokens);
    }

    /// Records a finished sequence; each choice of a request is one.
    pub(crate) fn on_finished(&self, f: &FinishedRequest) {
        let c = &self.cells;
        let reason = f.reason.index(self.compat);
        let success = &c.series_cells(Id::Success)[reason];
        success.add_exclusive(1);
        if reason >= VLLM_REASONS {
            success.show((self.clock)());
        }
        let llmd = self.compat == Compat::Llmd;
        let (prompt, output) = (f64::from(f.prompt_tokens), f64::from(f.output_tokens));
        c[Id::RequestPromptTokens].observe_exclusive(prompt);
        c[Id::RequestGenerationTokens].observe_exclusive(output);
        if f.limited || !llmd {
            c[Id::ParamsMaxTokens].observe_exclusive(f64::from(f.max_tokens));
        }
        if llmd {
            c[Id::MaxGenerationTokens].observe_exclusive(output);
        }
        let gaps = f.output_tokens.saturating_sub(1);
        c[Id::Tpot].observe_exclusive(match gaps {
            0 => 0.0,
            gaps => f.decode_s / f64::from(gaps),
        });
        c[Id::E2e].observe_exclusive(f.e2e_s);
        c[Id::QueueTime].observe_exclusive(f.queue_s);
        c[Id::InferenceTime].observe_exclusive(f.inference_s);
        c[Id::PrefillTime].observe_exclusive(f.prefill_s);
        c[Id::DecodeTime].observe_exclusive(f.decode_s);
        c[Id::RequestPreemptions].observe_exclusive(f64::from(f.preemptions));
        let computed = f.prompt_tokens.saturating_sub(f.cached);
        c[Id::PrefillComputed].observe_exclusive(f64::from(computed));
    }

    /// Records the end of a request with `n` choices, of which the longest has `longest_output`
    /// tokens.
    ///
    /// llm-d's simulator counts each choice as a request.
    pub(crate) fn on_request_done(&self, n: u32, longest_output: u32) {
        self.cells[Id::ParamsN].observe_exclusive(f64::from(n));
        if self.compat == Compat::Vllm {
            self.cells[Id::MaxGenerationTokens].observe_exclusive(f64::from(longest_output));
        }
    }

    /// Sets the gauges after a step: number of running sequences, of sequences that wait for
    /// capacity, of deferred ones, and the used fraction of KV blocks.
    pub fn set_gauges(&self, running: usize, waiting: usize, deferred: usize, kv_usage: f64) {
        self.set_shown(Id::Running, &[running as f64]);
        self.set_shown(Id::Waiting, &[(waiting + deferred) as f64]);
        self.set_shown(Id::WaitingByReason, &[waiting as f64, deferred as f64]);
        self.set_shown(Id::KvUsage, &[kv_usage]);
    }

    pub(crate) fn set_fetches(&self, stages: [u32; 3]) {
        self.set_shown(Id::KvFetches, &stages.map(f64::from));
    }

    /// Sets the gauges of a family, and shows them if they were hidden until this step.
    fn set_shown(&self, id: Id, values: &[f64]) {
        for (cell, value) in self.cells.series_cells(id).iter().zip(values) {
            cell.set(*value);
            cell.show(1.0);
        }
    }

    /// Sets the gauges of the engine's sleep state.
    pub fn set_sleep_state(&self, state: SleepState) {
        for (i, cell) in self.cells.series_cells(Id::SleepState).iter().enumerate() {
            cell.set(f64::from(u8::from(i == state as usize)));
        }
    }

    /// Records queries and hits of the multimodal processor cache.
    pub fn on_mm_cache(&self, queries: u32, hits: u32) {
        self.recent.media.add(queries, hits);
        self.cells[Id::MmQueries].add(queries.into());
        self.cells[Id::MmHits].add(hits.into());
    }

    /// Records the eviction of a sampled KV block: its lifetime, its idle time and the times
    /// between accesses, in seconds.
    pub(crate) fn on_block_evicted(&self, lifetime_s: f64, idle_s: f64, reuse_gaps_s: &[f64]) {
        self.cells[Id::BlockLifetime].observe(lifetime_s);
        self.cells[Id::BlockIdle].observe(idle_s);
        for gap in reuse_gaps_s {
            self.cells[Id::BlockReuseGap].observe(*gap);
        }
    }

    /// Records the estimated operations and bytes of one step, per GPU (`--enable-mfu-metrics`).
    pub(crate) fn on_work(&self, flops: f64, read_bytes: f64, write_bytes: f64) {
        self.cells[Id::Flops].add(flops);
        self.cells[Id::ReadBytes].add(read_bytes);
        self.cells[Id::WriteBytes].add(write_bytes);
    }

    pub(crate) fn on_host(&self, event: &HostCacheEvent) {
        if let Some(offload) = &self.offload {
            offload.on_event(&self.cells, event, (self.clock)());
        }
    }

    /// Records a reset of the prefix cache; the hit rate of recent requests starts again.
    pub(crate) fn on_cleared(&self) {
        self.recent.prefix.clear();
    }

    pub(crate) fn set_host(&self, counts: &HostChunkCounts) {
        offload::set_counts(&self.cells, counts);
    }

    /// Returns metric names and totals of the copies to and from CPU memory; `None` without
    /// offloading.
    pub fn offload_totals(&self) -> Option<Vec<(&'static str, f64)>> {
        self.offload.as_ref().map(|_| offload::totals(&self.cells))
    }

    /// Returns the engine's totals since its start.
    pub fn totals(&self) -> Totals {
        let c = &self.cells;
        Totals {
            computed: c[Id::PromptTokensBySource].get() as u64,
            generated: c[Id::GenerationTokens].get() as u64,
            preemptions: c[Id::Preemptions].get() as u64,
            prefix: self.recent.prefix.sums(),
            external: self.recent.external.sums(),
            media: self.recent.media.sums(),
        }
    }

    /// Records one verification of a sequence's draft tokens.
    pub fn on_drafts(&self, proposed: u32, accepted: u32) {
        let c = &self.cells;
        c[Id::Drafts].add_exclusive(1);
        c[Id::DraftTokens].add_exclusive(proposed);
        c[Id::AcceptedTokens].add_exclusive(accepted);
        let positions = c.series_cells(Id::AcceptedTokensPerPos).iter().take(accepted as usize);
        positions.for_each(|position| position.add_exclusive(1));
    }

    /// Returns the totals of speculative decoding.
    pub fn draft_totals(&self) -> DraftTotals {
        let c = &self.cells;
        let accepted_at = c.series_cells(Id::AcceptedTokensPerPos).iter().map(|n| n.get() as u64);
        DraftTotals {
            drafts: c[Id::Drafts].get() as u64,
            proposed: c[Id::DraftTokens].get() as u64,
            accepted: c[Id::AcceptedTokens].get() as u64,
            accepted_at: accepted_at.collect(),
        }
    }

    /// Sets the LoRA adapters that have requests, ordered by their first request.
    ///
    /// Called every engine step, also with an empty list. Exposed with [`Settings::lora`].
    pub fn set_lora(&self, adapters: &[LoraLoad<'_>]) {
        self.lora.set(adapters, self.compat, (self.clock)());
    }
}
