//! Records the events of an engine in its metrics: one call per event, without lookup, lock or
//! allocation.

use std::sync::Arc;
use std::time::Duration;

use super::cell::Counter;
use super::cells::{EngineCells, TIER_DEVICE, TIER_EXTERNAL, TIER_HOST, TIER_P2P, VLLM_REASONS};
use super::lora::{LoraInfo, LoraLoad, LoraWriter};
use super::nixl::NixlTransfer;
use super::recent::Recent;
use super::settings::{Clock, Compat, Settings};
use vllm_sim_engine::HostCacheEvent;
use vllm_sim_engine::kv::HostChunkCounts;

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
            (Self::Stop, _) | (Self::ToolCalls, Compat::Vllm) => 0,
            (Self::Length, _) | (Self::RemoteDecode, Compat::Vllm) => 1,
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

impl Rejection {
    pub(super) const LABELS: [&str; 2] = ["max_num_queued_reqs", "max_num_queued_tokens"];
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
    cells: EngineCells,
    rejections: [Arc<Counter>; 2],
    lora: LoraWriter,
    compat: Compat,
    /// Index of the source label for prompt tokens that came from other servers.
    external_tier: usize,
    /// Whether external prompt tokens that no other server sent come from CPU memory.
    has_host: bool,
    clock: Clock,
    pub(super) recent: Recent,
}

impl EngineMetrics {
    pub(super) fn new(
        cells: EngineCells,
        rejections: [Arc<Counter>; 2],
        lora: Arc<LoraInfo>,
        settings: &Settings,
    ) -> Self {
        Self {
            cells,
            rejections,
            lora: LoraWriter::new(lora),
            compat: settings.compat,
            external_tier: if settings.nixl { TIER_P2P } else { TIER_EXTERNAL },
            has_host: settings.offload.is_some(),
            clock: settings.clock,
            recent: Recent::new(),
        }
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
        let (local, external) = (u64::from(cached_local), u64::from(cached_external));
        let prompt = u64::from(prompt_tokens);
        c.times.ttft.observe_exclusive(ttft_s);
        self.recent.ttft.add(ttft_s, 1);
        c.prompt_tokens.add_exclusive(prompt);
        c.prompt_by_source[0].add_exclusive(prompt.saturating_sub(local + external));
        c.prompt_by_source[1].add_exclusive(local);
        c.prompt_by_source[2].add_exclusive(external);
        c.prompt_cached.add_exclusive(local + external);
    }

    /// Records `n` output tokens of a sequence, including the first.
    pub fn on_tokens(&self, n: u32) {
        self.cells.generation_tokens.add_exclusive(u64::from(n));
    }

    /// Records a time of `itl_s` seconds between two outputs of a sequence.
    pub fn on_gap(&self, itl_s: f64) {
        self.on_gaps(itl_s, 1);
    }

    pub(crate) fn on_gaps(&self, itl_s: f64, times: u32) {
        self.cells.times.itl.observe_times_exclusive(itl_s, times.into());
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
        c.lookups.prefix_queries.add_exclusive(u64::from(queries));
        c.lookups.prefix_hits.add_exclusive(u64::from(hits));
        c.cached_by_source[TIER_DEVICE].add_exclusive(u64::from(hits));
        if ext_queries > 0 {
            self.recent.external.add(ext_queries, ext_hits);
            c.lookups.external_queries.add_exclusive(u64::from(ext_queries));
            c.lookups.external_hits.add_exclusive(u64::from(ext_hits));
            let tier = match self.has_host && !remote {
                true => TIER_HOST,
                false => self.external_tier,
            };
            c.cached_by_source[tier].add_exclusive(u64::from(ext_hits));
        }
    }

    pub(crate) fn on_transfer(&self, transfer: &NixlTransfer, tokens: u32, took: Duration) {
        transfer.record(&self.cells, tokens, took);
    }

    pub(crate) fn on_transfer_failed(&self, transfer: &NixlTransfer) {
        transfer.record_failure(&self.cells);
    }

    pub(crate) fn on_preempted(&self) {
        self.cells.preemptions.add_exclusive(1);
    }

    /// Records a step with output: number of prompt tokens computed, without cached ones, and of
    /// output tokens.
    pub fn on_step(&self, prompt_tokens_computed: u32, new_tokens: u32) {
        let tokens = f64::from(prompt_tokens_computed) + f64::from(new_tokens);
        self.cells.iteration_tokens.observe_exclusive(tokens);
    }

    /// Records a finished sequence; each choice of a request is one.
    pub(crate) fn on_finished(&self, f: &FinishedRequest) {
        let c = &self.cells;
        let reason = f.reason.index(self.compat);
        c.success[reason].add_exclusive(1);
        if reason >= VLLM_REASONS {
            c.success_shown[reason].show((self.clock)());
        }
        c.sizes.prompt_tokens.observe_exclusive(f64::from(f.prompt_tokens));
        c.sizes.generation_tokens.observe_exclusive(f64::from(f.output_tokens));
        let llmd = self.compat == Compat::Llmd;
        if f.limited || !llmd {
            c.sizes.params_max_tokens.observe_exclusive(f64::from(f.max_tokens));
        }
        if llmd {
            c.sizes.max_generation_tokens.observe_exclusive(f64::from(f.output_tokens));
        }
        let gaps = f.output_tokens.saturating_sub(1);
        c.times.tpot.observe_exclusive(match gaps {
            0 => 0.0,
            gaps => f.decode_s / f64::from(gaps),
        });
        c.times.e2e.observe_exclusive(f.e2e_s);
        c.times.queue.observe_exclusive(f.queue_s);
        c.times.inference.observe_exclusive(f.inference_s);
        c.times.prefill.observe_exclusive(f.prefill_s);
        c.times.decode.observe_exclusive(f.decode_s);
        c.sizes.preemptions.observe_exclusive(f64::from(f.preemptions));
        let computed = f.prompt_tokens.saturating_sub(f.cached);
        c.sizes.prefill_computed.observe_exclusive(f64::from(computed));
    }

    /// Records the end of a request with `n` choices, of which the longest has `longest_output`
    /// tokens.
    ///
    /// llm-d's simulator counts each choice as a request.
    pub(crate) fn on_request_done(&self, n: u32, longest_output: u32) {
        self.cells.sizes.params_n.observe_exclusive(f64::from(n));
        if self.compat == Compat::Vllm {
            let longest = f64::from(longest_output);
            self.cells.sizes.max_generation_tokens.observe_exclusive(longest);
        }
    }

    /// Sets the gauges after a step: number of running sequences, of sequences that wait for
    /// capacity, of deferred ones, and the used fraction of KV blocks.
    pub fn set_gauges(&self, running: usize, waiting: usize, deferred: usize, kv_usage: f64) {
        let c = &self.cells;
        c.stepped.show(1.0);
        c.running.set(running as f64);
        c.waiting.set((waiting + deferred) as f64);
        c.waiting_by_reason[0].set(waiting as f64);
        c.waiting_by_reason[1].set(deferred as f64);
        c.kv_usage.set(kv_usage);
    }

    pub(crate) fn set_fetches(&self, stages: [u32; 3]) {
        for (cell, count) in self.cells.kv_fetches.iter().zip(stages) {
            cell.set(count.into());
        }
    }

    /// Sets the gauges of the engine's sleep state.
    pub fn set_sleep_state(&self, state: SleepState) {
        for (i, cell) in self.cells.sleep_state.iter().enumerate() {
            cell.set(f64::from(u8::from(i == state as usize)));
        }
    }

    /// Counts a request that a queue limit rejected; the series has no engine label.
    pub fn on_rejected(&self, reason: Rejection) {
        self.rejections[reason as usize].add(1);
    }

    /// Records queries and hits of the multimodal processor cache.
    pub fn on_mm_cache(&self, queries: u32, hits: u32) {
        self.recent.media.add(queries, hits);
        self.cells.lookups.mm_queries.add(u64::from(queries));
        self.cells.lookups.mm_hits.add(u64::from(hits));
    }

    /// Records the eviction of a sampled KV block: its lifetime, its idle time and the times
    /// between accesses, in seconds.
    pub(crate) fn on_block_evicted(&self, lifetime_s: f64, idle_s: f64, reuse_gaps_s: &[f64]) {
        self.cells.residency.lifetime.observe(lifetime_s);
        self.cells.residency.idle.observe(idle_s);
        for gap in reuse_gaps_s {
            self.cells.residency.reuse_gap.observe(*gap);
        }
    }

    /// Records the estimated operations and bytes of one step, per GPU (`--enable-mfu-metrics`).
    pub(crate) fn on_work(&self, flops: f64, read_bytes: f64, write_bytes: f64) {
        let work = [flops, read_bytes, write_bytes];
        for (cell, n) in self.cells.work.iter().zip(work) {
            cell.add(n);
        }
    }

    pub(crate) fn on_host(&self, event: &HostCacheEvent) {
        self.cells.offload.on_event(event, (self.clock)());
    }

    /// Records a reset of the prefix cache; the hit rate of recent requests starts again.
    pub(crate) fn on_cleared(&self) {
        self.recent.prefix.clear();
    }

    pub(crate) fn set_host(&self, counts: &HostChunkCounts) {
        self.cells.offload.set(counts);
    }

    /// Returns metric names and totals of the copies to and from CPU memory; `None` without
    /// offloading.
    pub fn offload_totals(&self) -> Option<Vec<(&'static str, f64)>> {
        self.has_host.then(|| self.cells.offload.totals())
    }

    /// Returns the engine's totals since its start.
    pub fn totals(&self) -> Totals {
        let c = &self.cells;
        Totals {
            computed: c.prompt_by_source[0].get(),
            generated: c.generation_tokens.get(),
            preemptions: c.preemptions.get(),
            prefix: self.recent.prefix.sums(),
            external: self.recent.external.sums(),
            media: self.recent.media.sums(),
        }
    }

    /// Records one verification of a sequence's draft tokens.
    pub fn on_drafts(&self, proposed: u32, accepted: u32) {
        let c = &self.cells;
        c.drafts.steps.add_exclusive(1);
        c.drafts.tokens.add_exclusive(proposed.into());
        c.drafts.accepted.add_exclusive(accepted.into());
        let positions = c.drafts.accepted_at.iter().take(accepted as usize);
        positions.for_each(|position| position.add_exclusive(1));
    }

    /// Returns the totals of speculative decoding.
    pub fn draft_totals(&self) -> DraftTotals {
        let c = &self.cells;
        DraftTotals {
            drafts: c.drafts.steps.get(),
            proposed: c.drafts.tokens.get(),
            accepted: c.drafts.accepted.get(),
            accepted_at: c.drafts.accepted_at.iter().map(|n| n.get()).collect(),
        }
    }

    /// Sets the LoRA adapters that have requests, ordered by their first request.
    ///
    /// Called every engine step, also with an empty list. Exposed with [`Settings::lora`].
    pub fn set_lora(&self, adapters: &[LoraLoad<'_>]) {
        self.lora.set(adapters, self.compat, (self.clock)());
    }
}
