//! Routes requests to workers of a pool.
//!
//! A router uses only its own decisions, KV events and scraped gauges. Each request has its own
//! random stream for ties, so a replay is reproducible.

mod affinity;
mod index;
mod key_table;
mod kv;
mod queue;
mod request;
mod scorers;

use std::collections::VecDeque;
use std::time::Duration;

use vllm_sim_engine::SchedulerEvent;
use vllm_sim_engine::SimTime;
use vllm_sim_random::{DrawRandom, RandomStreamPurpose, mix_u64_pair, request_rng};

use affinity::RoutingAffinityState;
use index::RouterBlockIndex;
pub use kv::KvAwareRouterConfig;
use kv::KvRouterState;
pub use queue::RouterQueuePolicy;
use queue::{QueuedRequest, RouterQueue};
pub(super) use request::{RouteChoice, RouteRequest, WorkerGauges};
pub use scorers::{EndpointPickerConfig, EndpointScorer};

/// Routing policy: selects the worker of each request.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum RouterConfig {
    /// Round-robin routing: selects the workers in rotation.
    #[default]
    RoundRobin,
    /// Random routing: selects a random worker for each request.
    Random,
    /// Session-hash routing: selects a serving worker by rendezvous hash of the session.
    SessionHash,
    /// Least-loaded routing: selects the worker with the fewest requests, or the first if there are
    /// several.
    LeastLoaded,
    /// Power-of-two routing: selects the less loaded of two random workers.
    PowerOfTwo,
    /// Selects the worker with the lowest cost in prefill and decode blocks, as in Dynamo.
    Kv(KvAwareRouterConfig),
    /// Selects the worker with the highest sum of weighted scores, as in llm-d.
    Scorers(EndpointPickerConfig),
}

impl RouterConfig {
    /// Returns the routing policies of a disaggregated deployment: for the prefill pool and the
    /// decode pool.
    pub fn prefill_and_decode_routers(&self) -> (Self, Self) {
        match self {
            Self::Kv(kv) => {
                // In the prefill pool, decode blocks do not count in the cost.
                let prefill = KvAwareRouterConfig { track_active_blocks: false, ..kv.clone() };
                // In the decode pool, only load counts, and blocks are not shared.
                let decode = KvAwareRouterConfig {
                    overlap_score_credit: 0.0,
                    track_prefill_tokens: false,
                    assume_kv_reuse: false,
                    queue_threshold: None,
                    ..kv.clone()
                };
                (Self::Kv(prefill), Self::Kv(decode))
            }
            other => (other.clone(), other.clone()),
        }
    }

    pub(super) fn ignores_worker_state(&self) -> bool {
        matches!(self, Self::RoundRobin | Self::Random | Self::SessionHash)
    }

    pub(super) fn needs_kv_events(&self) -> bool {
        match self {
            Self::Kv(config) => config.overlap_score_credit > 0.0,
            Self::Scorers(config) => config.weight_of(EndpointScorer::Prefix) > 0.0,
            _ => false,
        }
    }
}

#[derive(Debug)]
pub(super) struct Router {
    config: RouterConfig,
    seed: u64,
    /// Number of data-parallel ranks per worker; each rank is a separate routing destination.
    ranks: usize,
    serving: Vec<u32>,
    loads: Vec<u32>,
    next: usize,
    index: RouterBlockIndex,
    kv: KvRouterState,
    queue: RouterQueue,
    /// KV events still on the way from workers to the router, with their arrival times.
    late: VecDeque<(SimTime, u32, SchedulerEvent)>,
    lag: Duration,
    gauges: scorers::ScrapedGauges,
    affinity: RoutingAffinityState,
}

impl Router {
    pub(super) fn new(config: RouterConfig, seed: u64, data_parallel_ranks: u32) -> Self {
        let (lag, policy) = match &config {
            RouterConfig::Kv(config) => (config.event_lag, config.policy),
            RouterConfig::Scorers(config) => (config.event_lag, RouterQueuePolicy::default()),
            _ => (Duration::ZERO, RouterQueuePolicy::default()),
        };
        Self {
            seed,
            ranks: data_parallel_ranks.max(1) as usize,
            serving: Vec::new(),
            loads: Vec::new(),
            next: 0,
            index: RouterBlockIndex::default(),
            kv: KvRouterState::default(),
            queue: RouterQueue::new(policy),
            late: VecDeque::new(),
            lag,
            gauges: scorers::ScrapedGauges::default(),
            affinity: RoutingAffinityState::default(),
            config,
        }
    }

    pub(super) fn queued_requests(&self) -> usize {
        self.queue.len()
    }

    /// Adds a worker that accepts requests. `max_batched_tokens` is the token budget of one of its
    /// steps.
    pub(super) fn add_worker(&mut self, worker: u32, max_batched_tokens: u32) {
        let at = worker as usize;
        if self.loads.len() <= at {
            self.loads.resize(at + 1, 0);
        }
        self.kv.add_worker(worker, max_batched_tokens);
        self.index.add_worker(worker);
        if let Err(place) = self.serving.binary_search(&worker) {
            self.serving.insert(place, worker);
        }
    }

    pub(super) fn stop_routing_to(&mut self, worker: u32) {
        self.serving.retain(|&other| other != worker);
    }

    pub(super) fn remove_worker(&mut self, worker: u32) {
        self.stop_routing_to(worker);
        self.late.retain(|(_, other, _)| *other != worker);
        self.index.remove_worker(worker);
    }

    /// Drops the block index at the end of a replay, which is faster than removing each worker's
    /// blocks.
    pub(super) fn drop_block_index(&mut self) {
        self.late.clear();
        self.index = RouterBlockIndex::default();
    }

    /// Selects a worker for a request, or queues the request and returns `None`.
    pub(super) fn route_or_queue_request(
        &mut self,
        ask: RouteRequest,
        now: SimTime,
        gauges: WorkerGauges<'_>,
    ) -> Option<RouteChoice> {
        self.apply_events(now);
        let full = match &self.config {
            RouterConfig::Kv(config) => {
                !self.queue.is_empty() || self.kv.all_workers_busy(config, &self.serving)
            }
            _ => false,
        };
        if full || self.serving.is_empty() {
            let overlaps = match &self.config {
                RouterConfig::Kv(_) => {
                    self.index.cached_prefix_blocks_by_worker(ask.full_prompt_block_keys()).to_vec()
                }
                _ => Vec::new(),
            };
            self.queue.push_request(ask, overlaps, now);
            return None;
        }
        if let RouterConfig::Kv(_) = &self.config {
            self.index.cached_prefix_blocks_by_worker(ask.full_prompt_block_keys());
        }
        Some(self.choose_worker(&ask, now, gauges, None))
    }

    /// Removes the next request from the router's queue if a worker has capacity for it.
    ///
    /// Returns its slot, the chosen worker, and the time at which the request was queued.
    pub(super) fn release_queued_request(
        &mut self,
        now: SimTime,
        gauges: WorkerGauges<'_>,
    ) -> Option<(u32, RouteChoice, SimTime)> {
        if self.queue.is_empty() || self.serving.is_empty() {
            return None;
        }
        self.apply_events(now);
        if let RouterConfig::Kv(config) = &self.config
            && self.kv.all_workers_busy(config, &self.serving)
        {
            return None;
        }
        let QueuedRequest { ask, overlaps, since } = self.queue.pop_next_request()?;
        let choice = self.choose_worker(&ask, now, gauges, Some(&overlaps));
        Some((ask.slot, choice, since))
    }

    /// Selects a worker for a request by the configured policy; at least one worker must accept
    /// requests.
    fn choose_worker(
        &mut self,
        ask: &RouteRequest,
        now: SimTime,
        gauges: WorkerGauges<'_>,
        overlaps: Option<&[u32]>,
    ) -> RouteChoice {
        let mut draws = || request_rng(self.seed, ask.number, RandomStreamPurpose::Routing);
        let serving = &self.serving;
        let choice = match &self.config {
            RouterConfig::Kv(config) => {
                let costs = self.kv.routing_costs(config, ask, serving, overlaps, &mut self.index);
                let at = kv::sample_worker_by_cost(costs, config.temperature, &mut draws);
                let worker = serving[at];
                let overlap = |worker: u32| match overlaps {
                    Some(overlaps) => overlaps.get(worker as usize).copied().unwrap_or(0),
                    None => self.index.last_lookup_cached_blocks(worker),
                };
                RouteChoice {
                    worker,
                    overlap: overlap(worker),
                    best: serving.iter().map(|&worker| overlap(worker)).max(),
                }
            }
            RouterConfig::Scorers(config) => {
                let overlaps = match config.weight_of(EndpointScorer::Prefix) > 0.0 {
                    true => self.index.cached_prefix_blocks_by_worker(ask.full_prompt_block_keys()),
                    false => &[],
                };
                self.gauges.scrape_gauges_if_due(serving, now, gauges);
                let scores = self.gauges.weighted_endpoint_scores(
                    config,
                    serving,
                    &self.loads,
                    overlaps,
                    (ask, &self.affinity),
                );
                let worker = serving[kv::sample_worker_by_cost(scores, 0.0, &mut draws)];
                let overlap = overlaps.get(worker as usize).copied().unwrap_or(0);
                RouteChoice {
                    worker,
                    overlap,
                    best: serving
                        .iter()
                        .filter_map(|&worker| overlaps.get(worker as usize).copied())
                        .max(),
                }
            }
            _ => RouteChoice { worker: self.choose_by_load(ask), overlap: 0, best: None },
        };
        self.loads[choice.worker as usize] += 1;
        match &self.config {
            RouterConfig::Kv(config) => {
                self.kv.record_sent_request(config, ask, choice, &mut self.index)
            }
            RouterConfig::Scorers(config) => {
                self.affinity.record_sent_request(config, ask, choice.worker)
            }
            _ => {}
        }
        choice
    }

    /// Selects a worker for a request without regard to prefix caches.
    fn choose_by_load(&mut self, ask: &RouteRequest) -> u32 {
        let draws = || request_rng(self.seed, ask.number, RandomStreamPurpose::Routing);
        let serving = &self.serving;
        let load = |worker: u32| self.loads[worker as usize];
        let last = serving.len() as u64 - 1;
        match &self.config {
            RouterConfig::RoundRobin => {
                let at = self.next % serving.len();
                self.next = at + 1;
                // All workers in turn, then the next rank of each.
                let workers = (serving.len() / self.ranks).max(1);
                let at = (at % workers) * self.ranks + at / workers;
                serving[at.min(serving.len() - 1)]
            }
            RouterConfig::Random => serving[draws().draw_u64_between(0, last) as usize],
            RouterConfig::SessionHash => {
                // Rendezvous hashing: adding or removing a worker moves few sessions.
                let hash =
                    |worker: u32| mix_u64_pair(mix_u64_pair(self.seed, ask.session), worker.into());
                let most = serving.iter().copied().max_by_key(|&worker| hash(worker));
                most.unwrap_or(serving[0])
            }
            RouterConfig::LeastLoaded => {
                let least = serving.iter().copied().min_by_key(|&worker| load(worker));
                least.unwrap_or(serving[0])
            }
            RouterConfig::PowerOfTwo => {
                let mut draws = draws();
                let one = draws.draw_u64_between(0, last) as usize;
                let other = match last {
                    0 => one,
                    _ => (one + 1 + draws.draw_u64_between(0, last - 1) as usize) % serving.len(),
                };
                let (one, other) = (serving[one], serving[other]);
                if load(other) < load(one) { other } else { one }
            }
            RouterConfig::Kv(_) | RouterConfig::Scorers(_) => unreachable!("these look at caches"),
        }
    }

    pub(super) fn observe_engine_event(&mut self, worker: u32, at: SimTime, event: SchedulerEvent) {
        if self.lag.is_zero() {
            self.index.apply_kv_event(worker, &event);
        } else {
            self.late.push_back((at + self.lag, worker, event));
        }
    }

    fn apply_events(&mut self, now: SimTime) {
        while let Some((at, ..)) = self.late.front()
            && *at <= now
        {
            if let Some((_, worker, event)) = self.late.pop_front() {
                self.index.apply_kv_event(worker, &event);
            }
        }
    }

    pub(super) fn record_prefill_end(&mut self, request_slot: u32) {
        if let RouterConfig::Kv(_) = &self.config {
            self.kv.record_prefill_end(request_slot);
        }
    }

    pub(super) fn record_request_end(&mut self, request_slot: u32, worker: u32) {
        self.loads[worker as usize] -= 1;
        self.affinity.record_request_end(request_slot, worker);
        if let RouterConfig::Kv(_) = &self.config {
            self.kv.record_request_end(request_slot, &mut self.index);
        }
    }
}
