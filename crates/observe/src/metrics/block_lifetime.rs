//! Measures the residency of a sample of prefix-cache blocks (`--kv-cache-metrics`).
//!
//! **Source:** vLLM 0.33 `vllm/v1/core/kv_cache_metrics.py`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::engine::EngineMetrics;
use super::families::Id;
use vllm_sim_engine::SimTime;
use vllm_sim_engine::driver::{EngineObserver, SequenceRecord};
use vllm_sim_engine::{BlockKey, LayerGroupCacheEvent, SchedulerEvent};
use vllm_sim_random::mix_u64_pair;

const REMEMBERED: usize = 4;

/// Observer of one engine: measures the residency of a sample of the engine's prefix-cache blocks.
pub struct KvBlockLifetimeObserver {
    metrics: Arc<EngineMetrics>,
    share: f64,
    /// Number of prefix-cache blocks stored so far; it alone determines the sample, so that runs
    /// are reproducible.
    stored: u64,
    /// Sampled blocks in the cache: when each was stored, and its newest accesses.
    lives: HashMap<BlockKey, (SimTime, VecDeque<SimTime>)>,
}

impl KvBlockLifetimeObserver {
    /// Creates an observer that samples a fraction of the prefix-cache blocks; `sampled_fraction`
    /// is above 0.
    pub fn new(metrics: Arc<EngineMetrics>, sampled_fraction: f64) -> Self {
        Self { metrics, share: sampled_fraction, stored: 0, lives: HashMap::new() }
    }

    fn begin(&mut self, at: SimTime, key: BlockKey) {
        self.stored += 1;
        let drawn = mix_u64_pair(0x000b_10c5, self.stored) >> 11;
        if (drawn as f64) < self.share * (1u64 << 53) as f64 {
            self.lives.insert(key, (at, VecDeque::new()));
        }
    }

    fn end(&mut self, at: SimTime, key: BlockKey) {
        let Some((stored, accesses)) = self.lives.remove(&key) else { return };
        let cells = &self.metrics.cells;
        cells[Id::BlockLifetime].observe((at - stored).as_secs_f64());
        let used = *accesses.back().unwrap_or(&stored);
        cells[Id::BlockIdle].observe((at - used).as_secs_f64());
        for (before, after) in accesses.iter().zip(accesses.iter().skip(1)) {
            cells[Id::BlockReuseGap].observe((*after - *before).as_secs_f64());
        }
    }
}

impl EngineObserver for KvBlockLifetimeObserver {
    fn on_sequence_event(
        &mut self,
        at: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        _: SimTime,
    ) {
        let (SchedulerEvent::Scheduled { cached, .. }, Some(plan)) = (event, &record.plan) else {
            return;
        };
        let hit = cached / plan.block_size.max(1);
        for key in plan.keys.iter().take(hit as usize) {
            if let Some((_, accesses)) = self.lives.get_mut(key) {
                accesses.push_back(at);
                if accesses.len() > REMEMBERED {
                    accesses.pop_front();
                }
            }
        }
    }

    fn on_engine_event(&mut self, at: SimTime, event: &SchedulerEvent) {
        match event {
            SchedulerEvent::Stored { plan, from, to } => {
                let keys = plan.keys.iter().take(*to as usize).skip(*from as usize);
                keys.for_each(|key| self.begin(at, *key));
            }
            SchedulerEvent::Group(event) => {
                if let LayerGroupCacheEvent::Stored { is_main: true, plan, kept, .. } = &**event {
                    let keys = kept.iter().filter_map(|&i| plan.keys.get(i as usize));
                    keys.for_each(|key| self.begin(at, *key));
                }
            }
            SchedulerEvent::Removed { keys } => keys.iter().for_each(|(key, _)| self.end(at, *key)),
            SchedulerEvent::Cleared => self.lives.clear(),
            _ => {}
        }
    }
}
