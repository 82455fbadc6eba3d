use std::time::Duration;

use vllm_sim_random::DrawRandom;

use super::index::RouterBlockIndex;
use super::queue::RouterQueuePolicy;
use super::request::{RouteChoice, RouteRequest};

/// Dynamo's KV router: selects the worker with the lowest cost in blocks to prefill and decode.
///
/// ```text
/// cost = prefill_load_scale × max(0, prefill blocks − credit × cached blocks)
///      + decode blocks + decode_active_request_weight × requests
/// ```
///
/// Prefill blocks: prompts that are not computed yet, and this one. Decode blocks: full prompt
/// blocks of all requests on the worker, and those that this request adds.
/// Source: dynamo-kv-router `src/scheduling/selector/reference.rs`, 1.6.1.
#[derive(Debug, Clone, PartialEq)]
pub struct KvAwareRouterConfig {
    /// Number of prefill blocks saved per cached block. Default 1.
    pub overlap_score_credit: f64,
    /// Decay factor by which a worker loses overlap credit if it has more uncomputed prompt blocks
    /// than other workers. Default 0: no decay.
    pub overlap_score_credit_decay: f64,
    /// Weight of the prefill cost relative to the decode cost. Default 1.
    pub prefill_load_scale: f64,
    /// Cost of each active request, in blocks. Default 0.
    pub decode_active_request_weight: f64,
    /// Temperature of a softmax over negated worker costs; 0 selects the lowest cost. Default 0.
    pub temperature: f64,
    /// Number of steps needed to compute a worker's uncomputed prompts above which the worker is
    /// busy; requests wait while all workers are busy.
    ///
    /// Default `None`: no queue.
    pub queue_threshold: Option<f64>,
    /// Order of requests that wait in the router's queue.
    pub policy: RouterQueuePolicy,
    /// Whether uncomputed prompts count in the cost of a worker. Default true.
    pub track_prefill_tokens: bool,
    /// Whether KV blocks of running requests count in the cost of a worker. Default true.
    pub track_active_blocks: bool,
    /// Whether a KV block that several running requests use counts only once. Default true.
    pub assume_kv_reuse: bool,
    /// Delay of KV events from the workers to the router. Default 0.
    pub event_lag: Duration,
}

impl Default for KvAwareRouterConfig {
    fn default() -> Self {
        Self {
            overlap_score_credit: 1.0,
            overlap_score_credit_decay: 0.0,
            prefill_load_scale: 1.0,
            decode_active_request_weight: 0.0,
            temperature: 0.0,
            queue_threshold: None,
            policy: RouterQueuePolicy::default(),
            track_prefill_tokens: true,
            track_active_blocks: true,
            assume_kv_reuse: true,
            event_lag: Duration::ZERO,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct KvRouterState {
    workers: Vec<RoutedWorkerLoad>,
    requests: Vec<RoutedRequest>,
    costs: Vec<f64>,
}

#[derive(Debug, Clone, Default)]
struct RoutedWorkerLoad {
    prefill_tokens: u64,
    blocks: u64,
    requests: u64,
    batched: u32,
}

#[derive(Debug, Clone, Default)]
struct RoutedRequest {
    worker: u32,
    prefill_tokens: u32,
    nodes: Vec<u32>,
    /// Number of the request's KV blocks that count in the worker's load without being in the block
    /// index.
    blocks: u32,
}

impl KvRouterState {
    pub(super) fn add_worker(&mut self, worker: u32, max_batched_tokens: u32) {
        let at = worker as usize;
        if self.workers.len() <= at {
            self.workers.resize(at + 1, RoutedWorkerLoad::default());
        }
        self.workers[at].batched = max_batched_tokens;
    }

    pub(super) fn all_workers_busy(&self, config: &KvAwareRouterConfig, serving: &[u32]) -> bool {
        let Some(threshold) = config.queue_threshold else {
            return false;
        };
        serving.iter().all(|&worker| {
            let load = &self.workers[worker as usize];
            load.prefill_tokens as f64 > threshold * f64::from(load.batched)
        })
    }

    /// Returns the routing cost of each serving worker, in blocks.
    ///
    /// `None` for `overlaps` uses the last lookup of the index.
    pub(super) fn routing_costs(
        &mut self,
        config: &KvAwareRouterConfig,
        ask: &RouteRequest,
        serving: &[u32],
        overlaps: Option<&[u32]>,
        index: &mut RouterBlockIndex,
    ) -> &[f64] {
        let keys = ask.full_prompt_block_keys();
        let block = f64::from(ask.prompt_block_size_tokens());
        let known = config.track_active_blocks && config.assume_kv_reuse;
        if known {
            index.active_prefix_blocks_by_worker(keys);
        }
        let least = serving.iter().map(|&w| self.workers[w as usize].prefill_tokens);
        let least = least.min().unwrap_or(0);
        let request_blocks = f64::from(ask.prompt.div_ceil(ask.prompt_block_size_tokens()).max(1));
        self.costs.clear();
        for &worker in serving {
            let load = &self.workers[worker as usize];
            let overlap = match overlaps {
                Some(overlaps) => overlaps.get(worker as usize).copied().unwrap_or(0),
                None => index.last_lookup_cached_blocks(worker),
            };
            let surplus = (load.prefill_tokens - least) as f64 / block;
            let decay = 1.0 / (1.0 + config.overlap_score_credit_decay * surplus / request_blocks);
            let credit = config.overlap_score_credit * decay * f64::from(overlap);
            let prefill = match config.track_prefill_tokens {
                true => (load.prefill_tokens + u64::from(ask.prompt)) as f64 / block,
                false => 0.0,
            };
            let decode = match config.track_active_blocks {
                true => {
                    let shared = if known { index.last_lookup_active_blocks(worker) } else { 0 };
                    load.blocks as f64 + (keys.len() as f64 - f64::from(shared))
                }
                false => 0.0,
            };
            let cost = config.prefill_load_scale * (prefill - credit).max(0.0)
                + decode
                + config.decode_active_request_weight * load.requests as f64;
            self.costs.push(cost);
        }
        &self.costs
    }

    pub(super) fn record_sent_request(
        &mut self,
        config: &KvAwareRouterConfig,
        ask: &RouteRequest,
        choice: RouteChoice,
        index: &mut RouterBlockIndex,
    ) {
        let at = ask.slot as usize;
        if self.requests.len() <= at {
            self.requests.resize(at + 1, RoutedRequest::default());
        }
        let sent = &mut self.requests[at];
        let load = &mut self.workers[choice.worker as usize];
        sent.worker = choice.worker;
        load.requests += 1;
        sent.prefill_tokens = match config.track_prefill_tokens {
            true => {
                let cached = choice.overlap.saturating_mul(ask.prompt_block_size_tokens());
                ask.prompt.saturating_sub(cached)
            }
            false => 0,
        };
        load.prefill_tokens += u64::from(sent.prefill_tokens);
        (sent.blocks, sent.nodes) = (0, std::mem::take(&mut sent.nodes));
        sent.nodes.clear();
        if !config.track_active_blocks {
            return;
        }
        let keys = ask.full_prompt_block_keys();
        if config.assume_kv_reuse {
            let nodes = std::mem::take(&mut sent.nodes);
            let (nodes, fresh) = index.add_request_blocks(choice.worker, keys, nodes);
            sent.nodes = nodes;
            load.blocks += u64::from(fresh);
        } else {
            sent.blocks = keys.len() as u32;
            load.blocks += keys.len() as u64;
        }
    }

    pub(super) fn record_prefill_end(&mut self, request_slot: u32) {
        if let Some(sent) = self.requests.get_mut(request_slot as usize) {
            let tokens = std::mem::take(&mut sent.prefill_tokens);
            self.workers[sent.worker as usize].prefill_tokens -= u64::from(tokens);
        }
    }

    pub(super) fn record_request_end(&mut self, request_slot: u32, index: &mut RouterBlockIndex) {
        self.record_prefill_end(request_slot);
        if let Some(sent) = self.requests.get_mut(request_slot as usize) {
            let load = &mut self.workers[sent.worker as usize];
            load.requests -= 1;
            let freed = index.remove_request_blocks(sent.worker, &sent.nodes) + sent.blocks;
            load.blocks -= u64::from(freed);
            sent.nodes.clear();
            sent.blocks = 0;
        }
    }
}

/// Selects the worker with the lowest cost at temperature 0 (a random one of several), and
/// otherwise samples from the softmax of the negated costs. Returns the index of the cost.
pub(super) fn sample_worker_by_cost<D: DrawRandom>(
    costs: &[f64],
    temperature: f64,
    draws: &mut impl FnMut() -> D,
) -> usize {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for &cost in costs {
        (low, high) = (low.min(cost), high.max(cost));
    }
    let least = costs.iter().filter(|&&cost| cost == low).count();
    if temperature <= 0.0 || low == high {
        let nth = match least {
            0 | 1 => 0,
            ties => draws().draw_u64_between(0, ties as u64 - 1) as usize,
        };
        let mut least = (0..costs.len()).filter(|&at| costs[at] == low);
        return least.nth(nth).unwrap_or(0);
    }
    let weight = |cost: f64| (-(cost - low) / ((high - low) * temperature)).exp();
    let total: f64 = costs.iter().map(|&cost| weight(cost)).sum();
    let mut left = draws().draw_unit_f64() * total;
    for (at, &cost) in costs.iter().enumerate() {
        left -= weight(cost);
        if left <= 0.0 {
            return at;
        }
    }
    costs.len() - 1
}
