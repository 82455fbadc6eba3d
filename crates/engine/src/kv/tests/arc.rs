//! Replays the evictions of vLLM's CPU tier with `eviction_policy: arc`, recorded by
//! `tests/python/kv_arc_vectors.py`.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::kv::{
    HostCache, HostCacheConfig, HostCacheEvictionPolicy, HostCacheLookupRequest, LayerGroup,
    OffloadConnector,
};
use crate::{BlockKey, HostCacheEvent, PlannedKvBlocks, SchedulerEvent, SeqId, SimTime};

#[derive(Deserialize)]
struct ArcCase {
    capacity: u32,
    prompts: Vec<Vec<u64>>,
    steps: Vec<ArcStep>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ArcStep {
    Offer(usize, u32, Option<Vec<u64>>),
    Load(usize, u32),
    Complete,
    Finish(usize),
}

fn host_cache(chunks: u32) -> HostCache {
    let config = HostCacheConfig {
        rules: OffloadConnector::Native,
        eviction: HostCacheEvictionPolicy::Arc,
        chunks,
        blocks_per_chunk: 1,
        chunk_bytes: 1,
        outputs: false,
        threshold: None,
        latency: Duration::ZERO,
        chunk_time: (Duration::ZERO, Duration::ZERO),
    };
    HostCache::new(config, vec![LayerGroup::full_attention_group(1, 0)], true)
}

fn plan(keys: &[u64]) -> Arc<PlannedKvBlocks> {
    Arc::new(PlannedKvBlocks {
        keys: keys.iter().copied().map(BlockKey).collect(),
        block_size: 1,
        ..PlannedKvBlocks::default()
    })
}

/// Returns the evictions of an offer, or `None` if it fails.
fn offer(
    tier: &mut HostCache,
    id: SeqId,
    plan: &Arc<PlannedKvBlocks>,
    end: u32,
) -> Option<Vec<u64>> {
    let (mut evicted, mut refused) = (Vec::new(), false);
    let mut out = |event| {
        let SchedulerEvent::Host(event) = event else {
            return;
        };
        match *event {
            HostCacheEvent::Removed { keys } => {
                evicted.extend(keys.iter().map(|(_, key, _)| key.0))
            }
            HostCacheEvent::Refused => refused = true,
            _ => {}
        }
    };
    if let Some(copy) = tier.offer_blocks_to_host(id, plan, end, |_, _| true, &mut out) {
        tier.start_host_store(SimTime::ZERO, copy);
    }
    (!refused).then_some(evicted)
}

#[test]
fn arc_eviction_equals_vllm_offloading() {
    let cases = include_str!("../../../../../tests/fixtures/kv_arc.jsonl");
    for line in cases.lines() {
        let case: ArcCase = serde_json::from_str(line).unwrap();
        let plans: Vec<_> = case.prompts.iter().map(|keys| plan(keys)).collect();
        let mut tier = host_cache(case.capacity);
        for (at, step) in case.steps.iter().enumerate() {
            match step {
                ArcStep::Offer(request, end, evicted) => {
                    let id = SeqId(*request as u64);
                    let ours = offer(&mut tier, id, &plans[*request], *end);
                    assert_eq!(ours, *evicted, "{} chunks, step {at}", case.capacity);
                }
                ArcStep::Load(request, end) => {
                    let request = HostCacheLookupRequest {
                        id: SeqId(*request as u64),
                        known: u32::MAX,
                        from: 0,
                        size: 1,
                        shares_loads: true,
                    };
                    let plan = &plans[request.id.0 as usize];
                    tier.start_host_load(SimTime::ZERO, plan, &request, *end);
                }
                ArcStep::Finish(request) => {
                    tier.record_sequence_end(SeqId(*request as u64), None, 0, &[]);
                    tier.offload_blocks_of_ended_requests(&mut |_| {});
                }
                ArcStep::Complete => drop(tier.complete_host_copies(SimTime::ZERO, &mut |_| {})),
            }
        }
    }
}
