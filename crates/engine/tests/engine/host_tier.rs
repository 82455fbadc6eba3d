//! Tests the prefix cache in host memory, in virtual time.

#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use vllm_sim_engine::kv::{
    HostCacheConfig, HostCacheEvictionPolicy, KvCacheLayerGroups, OffloadConnector, SparseLayerKind,
};
use vllm_sim_engine::latency::LatencyModel;
use vllm_sim_engine::sched::vllm::{SchedulerReportingConfig, VllmScheduler, VllmSchedulerConfig};
use vllm_sim_engine::{
    BlockKey, EngineCommand, HostCacheEvent, HostCopyDirection, Outbox, PlannedKvBlocks,
    PrefixCacheResetScope, PromptKvTransfer, Scheduler, SchedulerEvent, SeqId, Sequence, SimTime,
    TokenDelays,
};

use crate::invariants::{EngineInput, RequestInput, sequence};
use crate::offline::{self, Log};

pub(crate) const SIZE: u32 = 16;

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Configures a tier of chunks with one block; a block takes 1 ms to the host and 2 ms back.
pub(crate) fn host_cache_config(chunks: u32) -> HostCacheConfig {
    HostCacheConfig {
        rules: OffloadConnector::Native,
        eviction: HostCacheEvictionPolicy::Lru,
        threshold: None,
        chunks,
        blocks_per_chunk: 1,
        chunk_bytes: 1000,
        outputs: false,
        latency: Duration::ZERO,
        chunk_time: (ms(1), ms(2)),
    }
}

/// A prompt token takes 1 ms, a step with decodes 1 ms.
pub(crate) fn config(blocks: u32, tier: Option<HostCacheConfig>) -> VllmSchedulerConfig {
    let delays = TokenDelays {
        prefill_per_token: ms(1),
        itl: (ms(1), Duration::ZERO),
        ..TokenDelays::default()
    };
    VllmSchedulerConfig {
        latency: LatencyModel::Delays(Box::new(delays)),
        num_gpu_blocks: blocks,
        block_size: SIZE,
        async_scheduling: false,
        host_tier: tier,
        reporting: SchedulerReportingConfig {
            kv_events: true,
            ..SchedulerReportingConfig::default()
        },
        ..VllmSchedulerConfig::default()
    }
}

/// Creates a prompt of `blocks` blocks plus one token; its block keys begin with those of `family`.
pub(crate) fn prompt(id: u64, family: u64, blocks: u64, output: u32) -> Sequence {
    let keys = (0..blocks + u64::from(output) / 16).map(|at| BlockKey(family * 1000 + at));
    let plan =
        PlannedKvBlocks { keys: keys.collect(), block_size: SIZE, ..PlannedKvBlocks::default() };
    Sequence {
        plan: Some(Arc::new(plan)),
        ..Sequence::new(SeqId(id), blocks as u32 * SIZE + 1, output)
    }
}

pub(crate) fn at(ms: u64) -> SimTime {
    SimTime::from_millis(ms)
}

/// Returns the time of a sequence's first token.
pub(crate) fn first_token_time(log: &Log, id: u64) -> SimTime {
    let mine = |event: &SchedulerEvent| matches!(event, SchedulerEvent::Tokens { id: of, .. } if of.0 == id);
    let found = log.iter().find(|(_, event)| mine(event));
    found.unwrap().0
}

/// Returns the cached and the loaded tokens of a sequence.
pub(crate) fn cached_and_external_tokens(log: &Log, id: u64) -> (u32, u32) {
    let found = log.iter().find_map(|(_, event)| match event {
        SchedulerEvent::Scheduled { id: of, cached, external } if of.0 == id => {
            Some((*cached, *external))
        }
        _ => None,
    });
    found.unwrap()
}

fn host_events(log: &Log) -> impl Iterator<Item = &HostCacheEvent> {
    log.iter().filter_map(|(_, event)| match event {
        SchedulerEvent::Host(event) => Some(&**event),
        _ => None,
    })
}

/// Runs a prompt, another that evicts its blocks, and the first one again.
fn return_after_eviction(tier: Option<HostCacheConfig>) -> Log {
    let mut engine = VllmScheduler::new(config(12, tier)).unwrap();
    let arrivals = [
        (at(0), prompt(0, 1, 10, 1)),
        (at(1000), prompt(1, 2, 11, 1)),
        (at(2000), prompt(2, 1, 10, 1)),
    ];
    offline::run(&mut engine, arrivals).unwrap()
}

#[test]
fn host_hit_is_faster_than_recompute_slower_than_gpu_hit() {
    let ttft = |log: &Log| first_token_time(log, 2).duration_since(at(2000));
    let lost = return_after_eviction(None);
    let kept = return_after_eviction(Some(host_cache_config(100)));
    let mut large = VllmScheduler::new(config(100, None)).unwrap();
    let arrivals = [(at(0), prompt(0, 1, 10, 1)), (at(2000), prompt(2, 1, 10, 1))];
    let on_gpu = offline::run(&mut large, arrivals).unwrap();
    assert_eq!(
        [ttft(&lost), ttft(&kept), ttft(&on_gpu)],
        // 161 tokens; then ten blocks of 2 ms and a token; then a token.
        [ms(161), ms(21), ms(1)]
    );
    assert_eq!(
        [cached_and_external_tokens(&lost, 2), cached_and_external_tokens(&on_gpu, 2)],
        [(0, 0), (160, 0)]
    );
    assert_eq!(cached_and_external_tokens(&kept, 2), (0, 160));
}

#[test]
fn host_copies_start_after_the_step_and_run_serially() {
    let mut engine = VllmScheduler::new(config(100, Some(host_cache_config(100)))).unwrap();
    let arrivals = [(at(0), prompt(0, 1, 2, 1)), (at(0), prompt(1, 2, 3, 1))];
    let log = offline::run(&mut engine, arrivals).unwrap();
    let ends: Vec<SimTime> = log
        .iter()
        .filter(
            |(_, event)| matches!(event, SchedulerEvent::Host(e) if matches!(**e, HostCacheEvent::Copied { .. })),
        )
        .map(|(at, _)| *at)
        .collect();
    // Steps of 33 and 49 ms. The copy of the first ends within the second one, and takes effect at
    // its end.
    assert_eq!(ends, [at(82), at(82 + 3)]);
    assert_eq!(engine.host_cache_keys().len(), 5);
}

#[test]
fn generated_blocks_are_offloaded_only_if_configured() {
    for (outputs, kept) in [(false, 2), (true, 4)] {
        let tier = HostCacheConfig { outputs, ..host_cache_config(100) };
        let mut engine = VllmScheduler::new(config(100, Some(tier))).unwrap();
        let log = offline::run(&mut engine, [(at(0), prompt(0, 1, 2, 40))]).unwrap();
        assert_eq!(engine.host_cache_keys().len(), kept, "{log:?}");
    }
}

#[test]
fn a_second_request_waits_for_the_load_of_the_first_and_hits_the_gpu() {
    let mut engine = VllmScheduler::new(config(23, Some(host_cache_config(100)))).unwrap();
    let arrivals = [
        (at(0), prompt(0, 1, 10, 1)),
        (at(1000), prompt(1, 2, 22, 1)),
        (at(2000), prompt(2, 1, 10, 1)),
        (at(2000), prompt(3, 1, 10, 1)),
    ];
    let log = offline::run(&mut engine, arrivals).unwrap();
    assert_eq!(
        (cached_and_external_tokens(&log, 2), cached_and_external_tokens(&log, 3)),
        ((0, 160), (160, 0))
    );
    let waited = host_events(&log).find_map(|event| match event {
        HostCacheEvent::Answered { waited } => Some(*waited),
        _ => None,
    });
    assert_eq!(waited, Some(ms(20)));
    let loads = host_events(&log).filter(|event| {
        matches!(event, HostCacheEvent::Copied { direction: HostCopyDirection::ToDevice, .. })
    });
    assert_eq!(loads.count(), 1);
}

#[test]
fn the_tail_of_the_oldest_request_is_evicted_first() {
    let mut engine = VllmScheduler::new(config(100, Some(host_cache_config(5)))).unwrap();
    let arrivals = [
        (at(0), prompt(0, 1, 3, 1)),
        (at(1000), prompt(1, 2, 2, 1)),
        (at(2000), prompt(2, 3, 1, 1)),
        (at(3000), prompt(3, 4, 3, 1)),
    ];
    let log = offline::run(&mut engine, arrivals).unwrap();
    let removed: Vec<Vec<u64>> = host_events(&log)
        .filter_map(|event| match event {
            HostCacheEvent::Removed { keys } => {
                Some(keys.iter().map(|(_, key, _)| key.0).collect())
            }
            _ => None,
        })
        .collect();
    assert_eq!(removed, [vec![1002], vec![1001, 1000, 2001]]);
}

#[test]
fn a_prompt_without_room_is_skipped_or_stored_in_part() {
    for (rules, kept) in [(OffloadConnector::Native, 0), (OffloadConnector::Simple, 2)] {
        let tier = HostCacheConfig { rules, ..host_cache_config(2) };
        let mut engine = VllmScheduler::new(config(100, Some(tier))).unwrap();
        let log = offline::run(&mut engine, [(at(0), prompt(0, 1, 3, 1))]).unwrap();
        assert_eq!(engine.host_cache_keys().len(), kept);
        assert!(host_events(&log).any(|event| *event == HostCacheEvent::Refused));
    }
}

#[test]
fn blocks_offered_too_rarely_are_not_stored() {
    let tier = HostCacheConfig { threshold: Some((2, 100)), ..host_cache_config(100) };
    let mut engine = VllmScheduler::new(config(100, Some(tier))).unwrap();
    for (id, kept) in [(0, 0), (1, 10)] {
        let start = at(1000 * id);
        offline::run(&mut engine, [(start, prompt(id, 1, 10, 1))]).unwrap();
        assert_eq!(engine.host_cache_keys().len(), kept);
    }
}

#[test]
fn multi_block_chunk_is_hit_whole_or_not_at_all() {
    let tier = HostCacheConfig { blocks_per_chunk: 4, ..host_cache_config(100) };
    let log = return_after_eviction(Some(tier));
    // Two chunks of the ten blocks are full.
    assert_eq!(cached_and_external_tokens(&log, 2), (0, 128));
}

#[test]
fn the_host_cache_survives_a_prefix_cache_reset_but_not_its_own() {
    for (also_host, loaded) in [(false, 160), (true, 0)] {
        let mut engine = VllmScheduler::new(config(100, Some(host_cache_config(100)))).unwrap();
        let mut log = offline::run(&mut engine, [(at(0), prompt(0, 1, 10, 1))]).unwrap();
        let mut out = Outbox::new();
        let reset = EngineCommand::ResetPrefixCache(PrefixCacheResetScope::WhenIdle);
        assert!(engine.apply_command(at(1000), reset, &mut out));
        if also_host {
            assert!(engine.apply_command(at(1000), EngineCommand::ResetHostTier, &mut out));
        }
        log.extend(offline::run(&mut engine, [(at(1000), prompt(1, 1, 10, 1))]).unwrap());
        assert_eq!(cached_and_external_tokens(&log, 1), (0, loaded));
    }
}

/// With a window of 32 tokens in some layers, another prompt with the same beginning has no hit
/// where the first one did not end.
#[test]
fn host_hit_ends_where_window_layers_have_chunks() {
    let groups = KvCacheLayerGroups {
        full: 1,
        sparse: 2,
        kind: SparseLayerKind::Window(33),
        interval: Some(0),
    };
    let with = |groups| VllmSchedulerConfig {
        layer_groups: groups,
        ..config(40, Some(host_cache_config(1000)))
    };
    // The same ten blocks, five of them and others, and in between a prompt that evicts all GPU
    // blocks.
    let parting = Sequence {
        plan: Some(Arc::new(PlannedKvBlocks {
            keys: (0..10).map(|at| BlockKey(if at < 5 { 1000 + at } else { 7000 + at })).collect(),
            block_size: SIZE,
            ..PlannedKvBlocks::default()
        })),
        ..prompt(4, 1, 10, 1)
    };
    let arrivals = [
        (at(0), prompt(0, 1, 10, 1)),
        (at(1000), prompt(1, 2, 11, 1)),
        (at(2000), prompt(2, 1, 10, 1)),
        (at(3000), prompt(3, 3, 11, 1)),
        (at(4000), parting),
    ];
    let mut engine = VllmScheduler::new(with(Some(groups))).unwrap();
    let log = offline::run(&mut engine, arrivals.clone()).unwrap();
    assert_eq!(
        (cached_and_external_tokens(&log, 2), cached_and_external_tokens(&log, 4)),
        ((0, 160), (0, 0))
    );
    // Ten blocks of one group, and the last two of each of two others.
    let loaded = host_events(&log).find_map(|event| match event {
        HostCacheEvent::Copied { direction: HostCopyDirection::ToDevice, bytes, .. } => {
            Some(*bytes)
        }
        _ => None,
    });
    assert_eq!(loaded, Some(14_000));
    let mut flat =
        VllmScheduler::new(VllmSchedulerConfig { num_gpu_blocks: 12, ..with(None) }).unwrap();
    let log = offline::run(&mut flat, arrivals).unwrap();
    assert_eq!(
        (cached_and_external_tokens(&log, 2), cached_and_external_tokens(&log, 4)),
        ((0, 160), (0, 80))
    );
}

/// Generates host tiers: none, of a few chunks, or larger than needed.
pub(crate) fn any_host_cache_config() -> impl Strategy<Value = Option<HostCacheConfig>> {
    let micros = prop_oneof![Just(0u64), 1..9000u64];
    let tier = (
        prop_oneof![3 => 1..40u32, 1 => Just(1000u32)],
        1..4u32,
        0..3u8,
        any::<bool>(),
        micros,
        0..2000u64,
    );
    let tier = tier.prop_map(|(chunks, size, kind, outputs, latency, each)| HostCacheConfig {
        rules: if kind == 0 { OffloadConnector::Simple } else { OffloadConnector::Native },
        eviction: if kind == 1 {
            HostCacheEvictionPolicy::Arc
        } else {
            HostCacheEvictionPolicy::Lru
        },
        chunks,
        blocks_per_chunk: size,
        chunk_bytes: 1000,
        outputs,
        threshold: (each % 4 == 1).then_some((2, 5)),
        latency: Duration::from_micros(latency),
        chunk_time: (Duration::from_micros(each), Duration::from_micros(each / 2)),
    });
    proptest::option::weighted(0.6, tier)
}

/// With layer groups a chunk is one block.
pub(crate) fn config_for_layer_groups(
    tier: Option<HostCacheConfig>,
    groups: Option<KvCacheLayerGroups>,
) -> Option<HostCacheConfig> {
    tier.map(|tier| HostCacheConfig {
        blocks_per_chunk: groups.map_or(tier.blocks_per_chunk, |_| 1),
        ..tier
    })
}

/// Checks the events of the host tier against invariant 10. Returns its keys at the end.
fn check_host_blocks(
    log: &[(SimTime, SchedulerEvent)],
    chunks: u32,
) -> Result<Vec<BlockKey>, TestCaseError> {
    let mut held: HashSet<(u32, BlockKey)> = HashSet::new();
    for (_, event) in log {
        let SchedulerEvent::Host(event) = event else {
            continue;
        };
        match &**event {
            HostCacheEvent::Stored { plan, chunks: stored, blocks_per_chunk } => {
                for (group, chunk) in stored {
                    let key = plan.keys[((chunk + 1) * blocks_per_chunk - 1) as usize];
                    prop_assert!(held.insert((*group, key)), "{:?} is stored twice", key);
                }
                prop_assert!(held.len() <= chunks as usize);
            }
            HostCacheEvent::Removed { keys } if keys.is_empty() => held.clear(),
            HostCacheEvent::Removed { keys } => {
                for (group, key, _) in keys {
                    prop_assert!(held.remove(&(*group, *key)), "{:?} was not stored", key);
                }
            }
            _ => {}
        }
    }
    let mut held: Vec<BlockKey> = held.into_iter().map(|(_, key)| key).collect();
    held.sort_unstable();
    Ok(held)
}

/// Checks that every prompt token without computation was on the GPU or in host memory before, and
/// that none counts twice.
fn check_reuse(
    log: &[(SimTime, SchedulerEvent)],
    inputs: &[(u64, EngineInput)],
    config: &VllmSchedulerConfig,
) -> Result<(), TestCaseError> {
    let size = config.block_size;
    // Sparse groups come first, and need only the end of a hit.
    let (sparse, full) = config.layer_groups.map_or((0, 1), |groups| (groups.sparse, groups.full));
    let requests = inputs.iter().filter_map(|(_, input)| match input {
        EngineInput::Submit(request) => Some(request),
        _ => None,
    });
    let requests: Vec<&RequestInput> = requests.collect();
    let mut stored: HashSet<(u32, BlockKey)> = HashSet::new();
    for (_, event) in log {
        match event {
            SchedulerEvent::Host(event) => {
                if let HostCacheEvent::Stored { plan, chunks, blocks_per_chunk } = &**event {
                    for &(group, chunk) in chunks {
                        let blocks = chunk * blocks_per_chunk..(chunk + 1) * blocks_per_chunk;
                        stored.extend(blocks.map(|block| (group, plan.keys[block as usize])));
                    }
                }
            }
            SchedulerEvent::Scheduled { id, cached, external } => {
                let Some(request) = requests.get(id.0 as usize) else {
                    continue;
                };
                prop_assert!(cached + external <= request.prompt, "{:?}", event);
                let plan = sequence(id.0, request, size).plan;
                let remote = request.transfer == PromptKvTransfer::RemotePrefill;
                let Some(plan) = plan.filter(|_| !remote) else {
                    prop_assert!(remote || *external == 0, "{:?}", event);
                    continue;
                };
                let (from, end) = (cached / size, (cached + external).div_ceil(size));
                for block in from..end {
                    let first = if block + 1 == end { 0 } else { sparse };
                    let key = plan.keys[block as usize];
                    for group in first..sparse + full {
                        let was = stored.contains(&(group, key));
                        prop_assert!(was, "{:?}: {:?} of {}", event, key, group);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Empties the host tier. No event reports this; the logged one is never emitted by an engine.
pub(crate) fn reset_host(engine: &mut dyn Scheduler, now: SimTime, out: &mut Outbox) {
    if engine.apply_command(now, EngineCommand::ResetHostTier, out) {
        let emptied = HostCacheEvent::Removed { keys: Vec::new() };
        out.push_back((now, SchedulerEvent::Host(Box::new(emptied))));
    }
}

/// Checks an idle engine and its log against invariant 10.
pub(crate) fn check_host_cache(
    engine: &VllmScheduler,
    log: &[(SimTime, SchedulerEvent)],
    inputs: &[(u64, EngineInput)],
) -> Result<(), TestCaseError> {
    let tier = engine.config().host_tier.as_ref();
    let chunks = tier.map_or(0, |tier| tier.chunks);
    prop_assert_eq!(check_host_blocks(log, chunks)?, engine.host_cache_keys());
    let host = engine.stats().host;
    prop_assert_eq!((host.storing, host.loading), (0, 0));
    prop_assert_eq!(host.used as usize, engine.host_cache_keys().len());
    check_reuse(log, inputs, engine.config())
}
