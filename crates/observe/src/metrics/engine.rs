//! What an engine reports: one call per thing that happens, no look-up, no lock, no allocation.

use std::sync::Arc;
use std::time::Duration;

use super::cell::Counter;
use super::cells::{EngineCells, TIER_DEVICE, TIER_EXTERNAL, TIER_HOST, TIER_P2P, VLLM_REASONS};
use super::lora::{LoraInfo, LoraLoad, LoraWriter};
use super::nixl::NixlTransfer;
use super::recent::Recent;
use super::settings::{Clock, Compat, Settings};
use vllm_sim_engine::HostEvent;
use vllm_sim_engine::kv::HostCounts;

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// It said all it wanted, or met a stop string.
    Stop,
    /// It reached `max_tokens`.
    Length,
    /// The engine gave it up. A client that goes away is no end: nothing is counted for it.
    Abort,
    /// It called tools: `stop` to vLLM's engine, a reason of its own to llm-d's simulator.
    ToolCalls,
    /// It was prefilled for another server: `length` to vLLM's engine, a reason of its own to
    /// llm-d's simulator.
    RemoteDecode,
    /// Too little of its prompt was cached (`cache_hit_threshold`).
    CacheThreshold,
    /// Its prompt could not be loaded.
    Error,
}

impl FinishReason {
    /// Index into the values of the label.
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

/// A sequence that ended with a reason.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FinishedRequest {
    /// Why.
    pub reason: FinishReason,
    /// Length of its prompt.
    pub prompt_tokens: u32,
    /// Tokens it made.
    pub output_tokens: u32,
    /// Its effective limit.
    pub max_tokens: u32,
    /// Whether the limit was asked for; llm-d's simulator counts no other.
    pub limited: bool,
    /// Arrival to end, seconds.
    pub e2e_s: f64,
    /// Queued to first scheduled, seconds.
    pub queue_s: f64,
    /// First scheduled to last token, seconds.
    pub inference_s: f64,
    /// First scheduled to first token, seconds.
    pub prefill_s: f64,
    /// First to last token, seconds.
    pub decode_s: f64,
    /// Prompt tokens that were not computed, local and external.
    pub cached: u32,
    /// How often it was preempted.
    pub preemptions: u32,
}

/// Whether an engine sleeps, and how deep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepState {
    /// It works.
    Awake,
    /// Level 1.
    WeightsOffloaded,
    /// Level 2.
    DiscardAll,
    /// Level 0: vLLM shows none of the others.
    Paused,
}

/// The queue limit that turned a request away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// `--max-num-queued-reqs`.
    QueuedRequests,
    /// `--max-num-queued-tokens`.
    QueuedTokens,
}

impl Rejection {
    /// Values of the label, in the order of the variants.
    pub(super) const LABELS: [&str; 2] = ["max_num_queued_reqs", "max_num_queued_tokens"];
}

/// Sums since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Prompt tokens that were computed here.
    pub computed: u64,
    /// Output tokens.
    pub generated: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Prompt tokens found in the prefix cache by the newest 1000 requests, of how many that they
    /// looked up.
    pub prefix: (u64, u64),
    /// The same of the caches of others.
    pub external: (u64, u64),
    /// Media found in the cache, of how many that were looked up.
    pub media: (u64, u64),
}

/// Draft tokens since the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DraftTotals {
    /// Steps of sequences that had drafts.
    pub drafts: u64,
    /// Drafts in them.
    pub proposed: u64,
    /// Of these, those that were right.
    pub accepted: u64,
    /// The same by position among the drafts of a step.
    pub accepted_at: Vec<u64>,
}

/// The series of one engine (one data-parallel rank).
///
/// What happens to sequences is told by one thread at a time, the one that has the engine's lock, and costs
/// some nanoseconds for a token; the rest any thread may tell.
pub struct EngineMetrics {
    cells: EngineCells,
    rejections: [Arc<Counter>; 2],
    lora: LoraWriter,
    compat: Compat,
    /// Which tier supplied tokens that came from other servers.
    external_tier: usize,
    /// Whether the memory of the host supplies the others.
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
            external_tier: if settings.nixl {
                TIER_P2P
            } else {
                TIER_EXTERNAL
            },
            has_host: settings.offload.is_some(),
            clock: settings.clock,
            recent: Recent::new(),
        }
    }

    /// A sequence made its first token, `ttft_s` after it arrived at the server. Of its prompt,
    /// `cached_local` tokens were in this engine's cache and `cached_external` came from
    /// another's. The token itself is counted by [`Self::on_tokens`].
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

    /// A sequence made `n` tokens, its first ones too.
    pub fn on_tokens(&self, n: u32) {
        self.cells.generation_tokens.add_exclusive(u64::from(n));
    }

    /// A sequence made output again, `itl_s` after the time before.
    pub fn on_gap(&self, itl_s: f64) {
        self.on_gaps(itl_s, 1);
    }

    /// The same `times` times.
    pub(crate) fn on_gaps(&self, itl_s: f64, times: u32) {
        self.cells
            .times
            .itl
            .observe_times_exclusive(itl_s, times.into());
        self.recent.itl.add(itl_s, times);
    }

    /// A sequence was scheduled for the first time: prompt tokens looked up and found, in this
    /// engine's prefix cache and through a connector, from another server if `remote`.
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
            c.lookups
                .external_queries
                .add_exclusive(u64::from(ext_queries));
            c.lookups.external_hits.add_exclusive(u64::from(ext_hits));
            let tier = match self.has_host && !remote {
                true => TIER_HOST,
                false => self.external_tier,
            };
            c.cached_by_source[tier].add_exclusive(u64::from(ext_hits));
        }
    }

    /// The prompt of a sequence comes from another engine.
    pub(crate) fn on_transfer(&self, transfer: &NixlTransfer, tokens: u32, took: Duration) {
        transfer.record(&self.cells, tokens, took);
    }

    /// The prompt of a sequence was to come from another engine, and did not.
    pub(crate) fn on_transfer_failed(&self, transfer: &NixlTransfer) {
        transfer.record_failure(&self.cells);
    }

    /// A running sequence went back to waiting.
    pub(crate) fn on_preempted(&self) {
        self.cells.preemptions.add_exclusive(1);
    }

    /// A step with output ended: prompt tokens it computed (cached ones are none), tokens it made.
    pub fn on_step(&self, prompt_tokens_computed: u32, new_tokens: u32) {
        let tokens = f64::from(prompt_tokens_computed) + f64::from(new_tokens);
        self.cells.iteration_tokens.observe_exclusive(tokens);
    }

    /// A sequence ended with a reason; each choice of a request is one.
    pub(crate) fn on_finished(&self, f: &FinishedRequest) {
        let c = &self.cells;
        let reason = f.reason.index(self.compat);
        c.success[reason].add_exclusive(1);
        if reason >= VLLM_REASONS {
            c.success_shown[reason].show((self.clock)());
        }
        c.sizes
            .prompt_tokens
            .observe_exclusive(f64::from(f.prompt_tokens));
        c.sizes
            .generation_tokens
            .observe_exclusive(f64::from(f.output_tokens));
        let llmd = self.compat == Compat::Llmd;
        if f.limited || !llmd {
            c.sizes
                .params_max_tokens
                .observe_exclusive(f64::from(f.max_tokens));
        }
        if llmd {
            c.sizes
                .max_generation_tokens
                .observe_exclusive(f64::from(f.output_tokens));
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
        c.sizes
            .preemptions
            .observe_exclusive(f64::from(f.preemptions));
        let computed = f.prompt_tokens.saturating_sub(f.cached);
        c.sizes
            .prefill_computed
            .observe_exclusive(f64::from(computed));
    }

    /// The last of the `n` choices of a request ended; the longest has `longest_output` tokens.
    /// To llm-d's simulator each choice is a request of its own.
    pub(crate) fn on_request_done(&self, n: u32, longest_output: u32) {
        self.cells.sizes.params_n.observe_exclusive(f64::from(n));
        if self.compat == Compat::Vllm {
            let longest = f64::from(longest_output);
            self.cells
                .sizes
                .max_generation_tokens
                .observe_exclusive(longest);
        }
    }

    /// The queues after a step: sequences that run, that wait for capacity, that wait for
    /// something else; and the share of KV blocks in use, 0..=1.
    pub fn set_gauges(&self, running: usize, waiting: usize, deferred: usize, kv_usage: f64) {
        let c = &self.cells;
        c.stepped.show(1.0);
        c.running.set(running as f64);
        c.waiting.set((waiting + deferred) as f64);
        c.waiting_by_reason[0].set(waiting as f64);
        c.waiting_by_reason[1].set(deferred as f64);
        c.kv_usage.set(kv_usage);
    }

    /// Sequences whose prompt is fetched or loaded, by how far that is.
    pub(crate) fn set_fetches(&self, stages: [u32; 3]) {
        for (cell, count) in self.cells.kv_fetches.iter().zip(stages) {
            cell.set(count.into());
        }
    }

    /// The engine fell asleep or woke up.
    pub fn set_sleep_state(&self, state: SleepState) {
        for (i, cell) in self.cells.sleep_state.iter().enumerate() {
            cell.set(f64::from(u8::from(i == state as usize)));
        }
    }

    /// A queue limit turned a request away. The series has no engine label.
    pub fn on_rejected(&self, reason: Rejection) {
        self.rejections[reason as usize].add(1);
    }

    /// Multimodal items looked up and found in the processor cache.
    pub fn on_mm_cache(&self, queries: u32, hits: u32) {
        self.recent.media.add(queries, hits);
        self.cells.lookups.mm_queries.add(u64::from(queries));
        self.cells.lookups.mm_hits.add(u64::from(hits));
    }

    /// A sampled block was taken for other content: how long it held the old, how long it had
    /// been idle, the times between its last accesses; seconds.
    pub(crate) fn on_block_evicted(&self, lifetime_s: f64, idle_s: f64, reuse_gaps_s: &[f64]) {
        self.cells.residency.lifetime.observe(lifetime_s);
        self.cells.residency.idle.observe(idle_s);
        for gap in reuse_gaps_s {
            self.cells.residency.reuse_gap.observe(*gap);
        }
    }

    /// Estimated work of one step on each GPU (`--enable-mfu-metrics`).
    pub(crate) fn on_work(&self, flops: f64, read_bytes: f64, write_bytes: f64) {
        let work = [flops, read_bytes, write_bytes];
        for (cell, n) in self.cells.work.iter().zip(work) {
            cell.add(n);
        }
    }

    /// Something happened in the memory of the host.
    pub(crate) fn on_host(&self, event: &HostEvent) {
        self.cells.offload.on_event(event, (self.clock)());
    }

    /// The prefix cache was emptied: shares of hits begin anew.
    pub(crate) fn on_cleared(&self) {
        self.recent.prefix.clear();
    }

    /// What the memory of the host holds after a step.
    pub(crate) fn set_host(&self, counts: &HostCounts) {
        self.cells.offload.set(counts);
    }

    /// Names and sums of the copies to the memory of the host and back; `None`: there is none.
    pub fn offload_totals(&self) -> Option<Vec<(&'static str, f64)>> {
        self.has_host.then(|| self.cells.offload.totals())
    }

    /// What has been done so far.
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

    /// Draft tokens of a sequence were verified.
    pub fn on_drafts(&self, proposed: u32, accepted: u32) {
        let c = &self.cells;
        c.drafts.steps.add_exclusive(1);
        c.drafts.tokens.add_exclusive(proposed.into());
        c.drafts.accepted.add_exclusive(accepted.into());
        let positions = c.drafts.accepted_at.iter().take(accepted as usize);
        positions.for_each(|position| position.add_exclusive(1));
    }

    /// What [`Self::on_drafts`] counted.
    pub fn draft_totals(&self) -> DraftTotals {
        let c = &self.cells;
        DraftTotals {
            drafts: c.drafts.steps.get(),
            proposed: c.drafts.tokens.get(),
            accepted: c.drafts.accepted.get(),
            accepted_at: c.drafts.accepted_at.iter().map(|n| n.get()).collect(),
        }
    }

    /// The adapters that have requests, in the order they got their first one; every step, also
    /// with an empty list. Shown with [`Settings::lora`].
    pub fn set_lora(&self, adapters: &[LoraLoad<'_>]) {
        self.lora.set(adapters, self.compat, (self.clock)());
    }
}
