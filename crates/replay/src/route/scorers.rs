use std::time::Duration;

use vllm_sim_engine::EngineStats;
use vllm_sim_engine::SimTime;

use super::affinity::RoutingAffinityState;
use super::request::{RouteRequest, WorkerGauges};

/// Scoring criterion of llm-d's endpoint picker for a worker. Every score is between 0 and 1.
///
/// Source: llm-d-router `pkg/epp/framework/plugins/scheduling/scorer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointScorer {
    /// `queue-scorer`: 1 for the shortest waiting queue, 0 for the longest.
    Queue,
    /// `kv-cache-utilization-scorer`: the free fraction of the KV cache.
    KvUsage,
    /// `prefix-cache-scorer`: the cached fraction of the prompt's blocks.
    Prefix,
    /// `running-requests-size-scorer`: 1 for the fewest requests, 0 for the most.
    Running,
    /// `session-affinity-scorer`: 1 for the worker of the session's last request.
    Session,
    /// `lora-affinity-scorer`: 1 if the LoRA adapter is active on the worker, 0.8 if one more
    /// adapter fits, otherwise 0.
    Lora,
}

/// Maximum number of LoRA adapters active on a worker, for [`EndpointScorer::Lora`].
const MAX_ACTIVE_ADAPTERS: usize = 1;
/// Scrape interval of the workers' queue and cache usage gauges.
const SCRAPE_INTERVAL: Duration = Duration::from_millis(50);

/// Configuration of llm-d's router, which selects the worker with the highest sum of weighted
/// scores.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointPickerConfig {
    /// Weight of each scorer; a missing scorer has weight 0. Default: queue 2, KV usage 2, prefix
    /// 3.
    pub weights: Vec<(EndpointScorer, f64)>,
    /// Delay of KV events from the workers to the router. Default 0.
    pub event_lag: Duration,
}

impl Default for EndpointPickerConfig {
    fn default() -> Self {
        Self {
            weights: vec![
                (EndpointScorer::Queue, 2.0),
                (EndpointScorer::KvUsage, 2.0),
                (EndpointScorer::Prefix, 3.0),
            ],
            event_lag: Duration::ZERO,
        }
    }
}

impl EndpointPickerConfig {
    /// Returns the weight of a scorer; 0 if none is configured.
    pub fn weight_of(&self, scorer: EndpointScorer) -> f64 {
        let mut found = self.weights.iter().filter(|(name, _)| *name == scorer);
        found.next().map_or(0.0, |(_, weight)| *weight)
    }
}

#[derive(Debug, Default)]
pub(super) struct ScrapedGauges {
    at: Option<SimTime>,
    workers: usize,
    stats: Vec<EngineStats>,
    /// Negated sums of the weighted scores of each worker, so that the lowest value is the best.
    scores: Vec<f64>,
}

impl ScrapedGauges {
    pub(super) fn scrape_gauges_if_due(
        &mut self,
        serving: &[u32],
        now: SimTime,
        gauges: WorkerGauges<'_>,
    ) {
        let fresh = self.at.is_some_and(|at| now.duration_since(at) < SCRAPE_INTERVAL);
        if fresh && self.workers == serving.len() {
            return;
        }
        (self.at, self.workers) = (Some(now), serving.len());
        let most = serving.last().map_or(0, |&last| last as usize + 1);
        self.stats.clear();
        self.stats.resize(most, EngineStats::default());
        for &worker in serving {
            self.stats[worker as usize] = gauges(worker);
        }
    }

    pub(super) fn weighted_endpoint_scores(
        &mut self,
        config: &EndpointPickerConfig,
        serving: &[u32],
        loads: &[u32],
        overlaps: &[u32],
        (ask, affinity): (&RouteRequest, &RoutingAffinityState),
    ) -> &[f64] {
        let blocks = ask.full_prompt_block_keys().len();
        let stats = &self.stats;
        let of = |worker: u32| stats.get(worker as usize).copied().unwrap_or_default();
        let waiting =
            ScoreNormalizer::from_values(serving.iter().map(|&worker| of(worker).waiting as f64));
        let running = ScoreNormalizer::from_values(
            serving.iter().map(|&worker| loads[worker as usize].into()),
        );
        self.scores.clear();
        for &worker in serving {
            let stats = of(worker);
            let mut sum = 0.0;
            for &(scorer, weight) in &config.weights {
                let score = match scorer {
                    EndpointScorer::Queue => waiting.normalize(stats.waiting as f64),
                    EndpointScorer::Running => running.normalize(loads[worker as usize].into()),
                    EndpointScorer::KvUsage => {
                        1.0 - f64::from(stats.used_blocks) / f64::from(stats.total_blocks.max(1))
                    }
                    EndpointScorer::Prefix => {
                        let hits = overlaps.get(worker as usize).copied().unwrap_or(0);
                        f64::from(hits) / (blocks.max(1) as f64)
                    }
                    EndpointScorer::Session => affinity.session_affinity_score(ask, worker),
                    EndpointScorer::Lora => {
                        affinity.lora_affinity_score(ask, worker, MAX_ACTIVE_ADAPTERS)
                    }
                };
                sum += weight * score;
            }
            self.scores.push(-sum);
        }
        &self.scores
    }
}

struct ScoreNormalizer {
    low: f64,
    high: f64,
}

impl ScoreNormalizer {
    fn from_values(values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values {
            (low, high) = (low.min(value), high.max(value));
        }
        Self { low, high }
    }

    /// Returns the score of a value: 1 for the lowest value, 0 for the highest, and 1 for all
    /// values if they are equal.
    fn normalize(&self, value: f64) -> f64 {
        if self.high <= self.low {
            return 1.0;
        }
        (self.high - value) / (self.high - self.low)
    }
}
