//! Replays the evictions of vLLM's CPU tier with `eviction_policy: arc`, recorded by
//! `tests/python/kv_arc_vectors.py`.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::kv::{Group, HostEviction, HostRequest, HostRules, HostTier, HostTierConfig};
use crate::{BlockKey, BlockPlan, Event, HostEvent, SeqId, SimTime};

#[derive(Deserialize)]
struct Case {
    capacity: u32,
    prompts: Vec<Vec<u64>>,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Step {
    Offer(usize, u32, Option<Vec<u64>>),
    Load(usize, u32),
    Complete,
    Finish(usize),
}

fn tier(chunks: u32) -> HostTier {
    let config = HostTierConfig {
        rules: HostRules::Native,
        eviction: HostEviction::Arc,
        chunks,
        blocks_per_chunk: 1,
        chunk_bytes: 1,
        outputs: false,
        threshold: None,
        latency: Duration::ZERO,
        chunk_time: (Duration::ZERO, Duration::ZERO),
    };
    HostTier::new(config, vec![Group::full(1, 0)], true)
}

fn plan(keys: &[u64]) -> Arc<BlockPlan> {
    Arc::new(BlockPlan {
        keys: keys.iter().copied().map(BlockKey).collect(),
        block_size: 1,
        ..BlockPlan::default()
    })
}

/// Returns the evictions of an offer, or `None` if it fails.
fn offer(tier: &mut HostTier, id: SeqId, plan: &Arc<BlockPlan>, end: u32) -> Option<Vec<u64>> {
    let (mut evicted, mut refused) = (Vec::new(), false);
    let mut out = |event| {
        let Event::Host(event) = event else { return };
        match *event {
            HostEvent::Removed { keys } => evicted.extend(keys.iter().map(|(_, key, _)| key.0)),
            HostEvent::Refused => refused = true,
            _ => {}
        }
    };
    if let Some(copy) = tier.offer(id, plan, end, |_, _| true, &mut out) {
        tier.store(SimTime::ZERO, copy);
    }
    (!refused).then_some(evicted)
}

#[test]
fn arc_evicts_what_the_real_tier_does() {
    let cases = include_str!("../../../../../tests/fixtures/kv_arc.jsonl");
    for line in cases.lines() {
        let case: Case = serde_json::from_str(line).unwrap();
        let plans: Vec<_> = case.prompts.iter().map(|keys| plan(keys)).collect();
        let mut tier = tier(case.capacity);
        for (at, step) in case.steps.iter().enumerate() {
            match step {
                Step::Offer(request, end, evicted) => {
                    let id = SeqId(*request as u64);
                    let ours = offer(&mut tier, id, &plans[*request], *end);
                    assert_eq!(ours, *evicted, "{} chunks, step {at}", case.capacity);
                }
                Step::Load(request, end) => {
                    let request = HostRequest {
                        id: SeqId(*request as u64),
                        known: u32::MAX,
                        from: 0,
                        size: 1,
                    };
                    let plan = &plans[request.id.0 as usize];
                    tier.load(SimTime::ZERO, plan, &request, *end);
                }
                Step::Finish(request) => {
                    tier.ended(SeqId(*request as u64), Some(&plans[*request]));
                }
                Step::Complete => drop(tier.complete(SimTime::ZERO, &mut |_| {})),
            }
        }
    }
}
