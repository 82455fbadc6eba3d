//! Metric cells of one engine, and their registration on the page.

use std::sync::Arc;

use super::buckets;
use super::cell::{Counter, CreatedAt, Gauge, Histogram};
use super::families as f;
use super::offload::{self, OffloadCells};
use super::page::{ApiServers, FamilyDesc, Labels, PageBuilder, Series, Value};
use super::settings::{Compat, Settings};

/// Values of the label `finished_reason`. The last three exist in llm-d-inference-sim only and are
/// hidden until one is counted.
pub(super) const FINISH_REASONS: [&str; 8] = [
    "stop",
    "length",
    "abort",
    "error",
    "repetition",
    "tool_calls",
    "remote_decode",
    "cache_threshold",
];
pub(super) const VLLM_REASONS: usize = 5;

const SLEEP_STATES: [&str; 3] = ["awake", "weights_offloaded", "discard_all"];
const PROMPT_SOURCES: [&str; 3] = ["local_compute", "local_cache_hit", "external_kv_transfer"];
const CACHE_TIERS: [&str; 5] = ["device", "host", "p2p", "disk", "external_unspecified"];
pub(super) const TIER_DEVICE: usize = 0;
pub(super) const TIER_HOST: usize = 1;
pub(super) const TIER_P2P: usize = 2;
pub(super) const TIER_EXTERNAL: usize = 4;

pub(super) type Counters<const N: usize> = [Arc<Counter>; N];

/// Metric cells of one engine; clones share the cells.
#[derive(Debug, Clone)]
pub(super) struct EngineCells {
    pub(super) drafts: DraftCells,
    /// Estimated floating-point operations, bytes read and bytes written, per GPU.
    pub(super) work: [Arc<Gauge>; 3],
    /// Creation time of gauges that vLLM with several API servers exposes from the first step.
    pub(super) stepped: Arc<CreatedAt>,
    pub(super) running: Arc<Gauge>,
    pub(super) waiting: Arc<Gauge>,
    /// Number of waiting sequences: those that wait for capacity, and deferred ones.
    pub(super) waiting_by_reason: [Arc<Gauge>; 2],
    /// Number of KV fetches: not started, in progress, completed.
    pub(super) kv_fetches: [Arc<Gauge>; 3],
    pub(super) sleep_state: [Arc<Gauge>; 3],
    pub(super) kv_usage: Arc<Gauge>,
    pub(super) lookups: LookupCells,
    pub(super) preemptions: Arc<Counter>,
    pub(super) prompt_tokens: Arc<Counter>,
    pub(super) prompt_by_source: Counters<3>,
    pub(super) prompt_cached: Arc<Counter>,
    pub(super) cached_by_source: Counters<5>,
    pub(super) generation_tokens: Arc<Counter>,
    pub(super) success: Counters<8>,
    pub(super) success_shown: [Arc<CreatedAt>; 8],
    pub(super) iteration_tokens: Arc<Histogram>,
    pub(super) sizes: RequestSizeCells,
    pub(super) times: RequestTimeCells,
    pub(super) residency: BlockResidencyCells,
    pub(super) nixl: NixlCells,
    pub(super) offload: OffloadCells,
}

#[derive(Debug, Clone)]
pub(super) struct DraftCells {
    pub(super) steps: Arc<Counter>,
    pub(super) tokens: Arc<Counter>,
    pub(super) accepted: Arc<Counter>,
    pub(super) accepted_at: Vec<Arc<Counter>>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct LookupCells {
    pub(super) prefix_queries: Arc<Counter>,
    pub(super) prefix_hits: Arc<Counter>,
    pub(super) external_queries: Arc<Counter>,
    pub(super) external_hits: Arc<Counter>,
    pub(super) mm_queries: Arc<Counter>,
    pub(super) mm_hits: Arc<Counter>,
}

#[derive(Debug, Clone)]
pub(super) struct RequestSizeCells {
    pub(super) prompt_tokens: Arc<Histogram>,
    pub(super) generation_tokens: Arc<Histogram>,
    pub(super) max_generation_tokens: Arc<Histogram>,
    pub(super) params_n: Arc<Histogram>,
    pub(super) params_max_tokens: Arc<Histogram>,
    pub(super) preemptions: Arc<Histogram>,
    pub(super) prefill_computed: Arc<Histogram>,
}

#[derive(Debug, Clone)]
pub(super) struct RequestTimeCells {
    pub(super) ttft: Arc<Histogram>,
    pub(super) itl: Arc<Histogram>,
    pub(super) tpot: Arc<Histogram>,
    pub(super) e2e: Arc<Histogram>,
    pub(super) queue: Arc<Histogram>,
    pub(super) inference: Arc<Histogram>,
    pub(super) prefill: Arc<Histogram>,
    pub(super) decode: Arc<Histogram>,
}

#[derive(Debug, Clone)]
pub(super) struct BlockResidencyCells {
    pub(super) lifetime: Arc<Histogram>,
    pub(super) idle: Arc<Histogram>,
    pub(super) reuse_gap: Arc<Histogram>,
}

#[derive(Debug, Clone)]
pub(super) struct NixlCells {
    pub(super) xfer_time: Arc<Histogram>,
    pub(super) post_time: Arc<Histogram>,
    pub(super) bytes: Arc<Histogram>,
    pub(super) descriptors: Arc<Histogram>,
    /// Numbers of failed KV transfers, failed notifications, expired leases and late notifications.
    pub(super) failures: Counters<4>,
}

fn some<T: Default, const N: usize>() -> [Arc<T>; N] {
    std::array::from_fn(|_| Arc::default())
}

fn histogram(bounds: &[f64]) -> Arc<Histogram> {
    Arc::new(Histogram::new(bounds))
}

impl DraftCells {
    fn new(settings: &Settings) -> Self {
        let positions = 0..settings.spec_positions;
        Self {
            steps: Arc::default(),
            tokens: Arc::default(),
            accepted: Arc::default(),
            accepted_at: positions.map(|_| Arc::default()).collect(),
        }
    }
}

impl RequestSizeCells {
    fn new(settings: &Settings) -> Self {
        let token_bounds = buckets::tokens(settings.max_model_len);
        let tokens = || histogram(&token_bounds);
        Self {
            prompt_tokens: tokens(),
            generation_tokens: tokens(),
            max_generation_tokens: tokens(),
            params_n: histogram(buckets::REQUEST_PARAMS_N),
            params_max_tokens: tokens(),
            preemptions: histogram(buckets::REQUEST_NUM_PREEMPTIONS),
            prefill_computed: tokens(),
        }
    }
}

impl RequestTimeCells {
    fn new() -> Self {
        let latency = || histogram(buckets::REQUEST_LATENCY);
        Self {
            ttft: histogram(buckets::TIME_TO_FIRST_TOKEN),
            itl: histogram(buckets::INTER_TOKEN_LATENCY),
            tpot: histogram(buckets::INTER_TOKEN_LATENCY),
            e2e: latency(),
            queue: latency(),
            inference: latency(),
            prefill: latency(),
            decode: latency(),
        }
    }
}

impl BlockResidencyCells {
    fn new() -> Self {
        let lifetimes = || histogram(buckets::KV_CACHE_RESIDENCY);
        Self { lifetime: lifetimes(), idle: lifetimes(), reuse_gap: lifetimes() }
    }
}

impl NixlCells {
    fn new() -> Self {
        Self {
            xfer_time: histogram(&buckets::NIXL_TIME[1..]),
            post_time: histogram(buckets::NIXL_TIME),
            bytes: histogram(&buckets::nixl_bytes()),
            descriptors: histogram(buckets::NIXL_DESCRIPTORS),
            failures: some(),
        }
    }
}

impl EngineCells {
    pub(super) fn new(settings: &Settings) -> Self {
        let cells = Self {
            drafts: DraftCells::new(settings),
            work: some(),
            stepped: Arc::default(),
            running: Arc::default(),
            waiting: Arc::default(),
            waiting_by_reason: some(),
            kv_fetches: some(),
            sleep_state: some(),
            kv_usage: Arc::default(),
            lookups: LookupCells::default(),
            preemptions: Arc::default(),
            prompt_tokens: Arc::default(),
            prompt_by_source: some(),
            prompt_cached: Arc::default(),
            cached_by_source: some(),
            generation_tokens: Arc::default(),
            success: some(),
            success_shown: some(),
            iteration_tokens: histogram(buckets::ITERATION_TOKENS),
            sizes: RequestSizeCells::new(settings),
            times: RequestTimeCells::new(),
            residency: BlockResidencyCells::new(),
            nixl: NixlCells::new(),
            offload: OffloadCells::new(settings.offload.as_ref()),
        };
        cells.sleep_state[0].set(1.0);
        cells
    }

    /// Returns cells for fake metrics, separate from the cells with the engine's real values.
    ///
    /// With llm-d's rules, both sets share the cells that are counted at the end of a request.
    pub(super) fn for_fake_metrics(&self, settings: &Settings) -> Self {
        let fresh = Self::new(settings);
        let counted = match settings.compat {
            Compat::Vllm => fresh.clone(),
            Compat::Llmd => self.clone(),
        };
        Self {
            prompt_tokens: counted.prompt_tokens,
            generation_tokens: counted.generation_tokens,
            success: counted.success,
            success_shown: counted.success_shown,
            sizes: RequestSizeCells {
                prompt_tokens: counted.sizes.prompt_tokens,
                generation_tokens: counted.sizes.generation_tokens,
                max_generation_tokens: counted.sizes.max_generation_tokens,
                params_max_tokens: counted.sizes.params_max_tokens,
                ..self.sizes.clone()
            },
            stepped: fresh.stepped,
            running: fresh.running,
            waiting: fresh.waiting,
            waiting_by_reason: fresh.waiting_by_reason,
            kv_usage: fresh.kv_usage,
            lookups: LookupCells {
                prefix_queries: fresh.lookups.prefix_queries,
                prefix_hits: fresh.lookups.prefix_hits,
                ..self.lookups.clone()
            },
            times: fresh.times,
            ..self.clone()
        }
    }
}

pub(super) struct EngineFamilies<'a> {
    pub(super) each: &'a [(Labels, EngineCells)],
    pub(super) settings: &'a Settings,
}

impl EngineFamilies<'_> {
    fn one<T>(&self, pick: impl Fn(&EngineCells) -> &Arc<T>) -> Vec<Series>
    where
        for<'v> Value: From<&'v Arc<T>>,
    {
        let each = self.each.iter();
        each.map(|(labels, cells)| Series::new(labels.clone(), pick(cells))).collect()
    }

    /// Returns one series per value of `label` and engine; engines vary fastest, as in vLLM.
    fn by<T>(
        &self,
        label: &str,
        values: &[&str],
        pick: impl Fn(&EngineCells, usize) -> &Arc<T>,
    ) -> Vec<Series>
    where
        for<'v> Value: From<&'v Arc<T>>,
    {
        let mut series = Vec::new();
        for (i, value) in values.iter().enumerate() {
            for (labels, cells) in self.each {
                series.push(Series::new(labels.with(label, value), pick(cells, i)));
            }
        }
        series
    }

    fn histogram(
        &self,
        page: &mut PageBuilder,
        desc: FamilyDesc,
        pick: impl Fn(&EngineCells) -> &Arc<Histogram>,
    ) {
        let each = self.each.iter();
        let series: Vec<_> =
            each.map(|(labels, cells)| (labels.clone(), pick(cells).clone())).collect();
        page.histogram(desc, &series);
    }

    pub(super) fn register(&self, page: &mut PageBuilder, rejections: &[Series]) {
        self.register_spec_decode(page);
        for (i, desc) in [f::FLOPS, f::READ_BYTES, f::WRITE_BYTES].into_iter().enumerate() {
            page.counter(desc, self.one(|c| &c.work[i]));
        }
        if self.settings.nixl {
            self.register_nixl(page);
        }
        if let Some(info) = &self.settings.offload {
            let tiers = self.each.iter();
            let tiers: Vec<_> = tiers.map(|(labels, c)| (labels, &c.offload)).collect();
            offload::register(page, info, &tiers);
        }
        self.register_gauges(page);
        self.register_counters(page);
        page.counter(f::REJECTIONS, rejections.to_vec());
        self.register_histograms(page);
    }

    fn register_spec_decode(&self, page: &mut PageBuilder) {
        if self.settings.spec_positions == 0 {
            return;
        }
        page.counter(f::SPEC_DRAFTS, self.one(|c| &c.drafts.steps));
        page.counter(f::SPEC_DRAFT_TOKENS, self.one(|c| &c.drafts.tokens));
        page.counter(f::SPEC_ACCEPTED, self.one(|c| &c.drafts.accepted));
        let mut series = Vec::new();
        for (labels, cells) in self.each {
            for (pos, cell) in cells.drafts.accepted_at.iter().enumerate() {
                let labels = labels.with("position", &pos.to_string());
                series.push(Series::new(labels, cell));
            }
        }
        page.counter(f::SPEC_ACCEPTED_PER_POS, series);
    }

    fn register_nixl(&self, page: &mut PageBuilder) {
        self.histogram(page, f::NIXL_XFER_TIME, |c| &c.nixl.xfer_time);
        self.histogram(page, f::NIXL_POST_TIME, |c| &c.nixl.post_time);
        self.histogram(page, f::NIXL_BYTES, |c| &c.nixl.bytes);
        self.histogram(page, f::NIXL_DESCRIPTORS, |c| &c.nixl.descriptors);
        let failures = [
            f::NIXL_FAILED_TRANSFERS,
            f::NIXL_FAILED_NOTIFICATIONS,
            f::NIXL_EXPIRED,
            f::NIXL_LATE_NOTIFICATIONS,
        ];
        for (i, desc) in failures.into_iter().enumerate() {
            page.counter(desc, self.one(|c| &c.nixl.failures[i]));
        }
    }

    fn register_gauges(&self, page: &mut PageBuilder) {
        page.gauge(f::RUNNING, &self.stepped(self.one(|c| &c.running)));
        page.gauge(f::WAITING, &self.stepped(self.one(|c| &c.waiting)));
        let reasons = ["capacity", "deferred"];
        let waiting = self.by("reason", &reasons, |c, i| &c.waiting_by_reason[i]);
        page.gauge(f::WAITING_BY_REASON, &self.stepped(waiting));
        if self.settings.kv_consumer {
            let stages = ["waiting_to_start", "in_progress", "completed_waiting"];
            let fetches = self.by("stage", &stages, |c, i| &c.kv_fetches[i]);
            page.gauge(f::KV_FETCH, &self.stepped(fetches));
        }
        let states = self.by("sleep_state", &SLEEP_STATES, |c, i| &c.sleep_state[i]);
        page.gauge(f::SLEEP_STATE, &states);
        page.gauge(f::KV_USAGE, &self.stepped(self.one(|c| &c.kv_usage)));
    }

    /// Hides the gauges `series` until the engine's first step if there are several API servers.
    ///
    /// prometheus_client shows the most recent value among processes, and a gauge that was never
    /// set has none. Engines must vary fastest in `series`.
    fn stepped(&self, mut series: Vec<Series>) -> Vec<Series> {
        if self.settings.api_servers == ApiServers::Several {
            let engines = self.each.iter().cycle();
            for (one, (_, cells)) in series.iter_mut().zip(engines) {
                one.shown = Some(cells.stepped.clone());
            }
        }
        series
    }

    fn register_counters(&self, page: &mut PageBuilder) {
        page.counter(f::PREFIX_QUERIES, self.one(|c| &c.lookups.prefix_queries));
        page.counter(f::PREFIX_HITS, self.one(|c| &c.lookups.prefix_hits));
        page.counter(f::EXTERNAL_QUERIES, self.one(|c| &c.lookups.external_queries));
        page.counter(f::EXTERNAL_HITS, self.one(|c| &c.lookups.external_hits));
        page.counter(f::MM_QUERIES, self.one(|c| &c.lookups.mm_queries));
        page.counter(f::MM_HITS, self.one(|c| &c.lookups.mm_hits));
        page.counter(f::PREEMPTIONS, self.one(|c| &c.preemptions));
        page.counter(f::PROMPT_TOKENS, self.one(|c| &c.prompt_tokens));
        let sources = self.by("source", &PROMPT_SOURCES, |c, i| &c.prompt_by_source[i]);
        page.counter(f::PROMPT_BY_SOURCE, sources);
        page.counter(f::PROMPT_CACHED, self.one(|c| &c.prompt_cached));
        let tiers = self.by("source", &CACHE_TIERS, |c, i| &c.cached_by_source[i]);
        page.counter(f::CACHED_BY_SOURCE, tiers);
        page.counter(f::GENERATION_TOKENS, self.one(|c| &c.generation_tokens));

        let mut success = Vec::new();
        for (i, reason) in FINISH_REASONS.into_iter().enumerate() {
            for (labels, cells) in self.each {
                let mut labels = labels.with("finished_reason", reason);
                if self.settings.finish_reason_label {
                    labels = labels.with("finish_reason", reason);
                }
                let shown = (i >= VLLM_REASONS).then(|| cells.success_shown[i].clone());
                success.push(Series { shown, ..Series::new(labels, &cells.success[i]) });
            }
        }
        page.counter(f::SUCCESS, success);
    }

    fn register_histograms(&self, page: &mut PageBuilder) {
        self.histogram(page, f::REQUEST_PROMPT_TOKENS, |c| &c.sizes.prompt_tokens);
        self.histogram(page, f::REQUEST_GENERATION_TOKENS, |c| &c.sizes.generation_tokens);
        self.histogram(page, f::ITERATION_TOKENS, |c| &c.iteration_tokens);
        self.histogram(page, f::MAX_GENERATION_TOKENS, |c| &c.sizes.max_generation_tokens);
        self.histogram(page, f::PARAMS_N, |c| &c.sizes.params_n);
        self.histogram(page, f::PARAMS_MAX_TOKENS, |c| &c.sizes.params_max_tokens);
        self.histogram(page, f::TTFT, |c| &c.times.ttft);
        self.histogram(page, f::ITL, |c| &c.times.itl);
        self.histogram(page, f::REQUEST_TPOT, |c| &c.times.tpot);
        self.histogram(page, f::E2E, |c| &c.times.e2e);
        self.histogram(page, f::QUEUE_TIME, |c| &c.times.queue);
        self.histogram(page, f::INFERENCE_TIME, |c| &c.times.inference);
        self.histogram(page, f::PREFILL_TIME, |c| &c.times.prefill);
        self.histogram(page, f::DECODE_TIME, |c| &c.times.decode);
        self.histogram(page, f::REQUEST_PREEMPTIONS, |c| &c.sizes.preemptions);
        self.histogram(page, f::PREFILL_COMPUTED, |c| &c.sizes.prefill_computed);
        if self.settings.kv_cache_metrics {
            self.histogram(page, f::BLOCK_LIFETIME, |c| &c.residency.lifetime);
            self.histogram(page, f::BLOCK_IDLE, |c| &c.residency.idle);
            self.histogram(page, f::BLOCK_REUSE_GAP, |c| &c.residency.reuse_gap);
        }
    }

    pub(super) fn register_old_names(&self, page: &mut PageBuilder) {
        page.gauge(f::OLD_GPU_CACHE_USAGE, &self.one(|c| &c.kv_usage));
        page.counter(f::OLD_GPU_PREFIX_QUERIES, self.one(|c| &c.lookups.prefix_queries));
        page.counter(f::OLD_GPU_PREFIX_HITS, self.one(|c| &c.lookups.prefix_hits));
        let rate: Vec<_> = self
            .each
            .iter()
            .map(|(labels, c)| {
                let rate =
                    Value::Ratio(c.lookups.prefix_hits.clone(), c.lookups.prefix_queries.clone());
                Series::new(labels.clone(), rate)
            })
            .collect();
        page.gauge(f::OLD_GPU_PREFIX_HIT_RATE, &rate);
        page.counter(f::OLD_PREFIX_QUERIES, self.one(|c| &c.lookups.prefix_queries));
        page.counter(f::OLD_PREFIX_HITS, self.one(|c| &c.lookups.prefix_hits));
        self.histogram(page, f::OLD_TPOT, |c| &c.times.itl);
        self.histogram(page, f::OLD_MAX_GENERATION_TOKENS, |c| &c.sizes.max_generation_tokens);
    }
}
