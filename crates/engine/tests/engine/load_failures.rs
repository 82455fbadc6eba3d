//! Tests prompts whose load from host memory or from another engine fails.

#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::collections::HashMap;

use proptest::prelude::*;
use vllm_sim_engine::kv::BlockPoolConfig;
use vllm_sim_engine::sched::pool::{SlotScheduler, SlotSchedulerConfig};
use vllm_sim_engine::sched::vllm::{PrefillTransferConfig, VllmScheduler, VllmSchedulerConfig};
use vllm_sim_engine::{
    InjectedKvLoadFailure, KvLoadFailurePolicy, PromptKvTransfer, Scheduler, SchedulerEvent, SeqId,
    Sequence, SequenceEndReason, SimTime, TokenDelays,
};

use crate::host_tier::{
    SIZE, at, cached_and_external_tokens, config, first_token_time, host_cache_config, ms, prompt,
};
use crate::offline::{self, Log};

const RECOMPUTE: KvLoadFailurePolicy = KvLoadFailurePolicy::Recompute;

fn failure(policy: KvLoadFailurePolicy, loaded: f32) -> Option<InjectedKvLoadFailure> {
    Some(InjectedKvLoadFailure { policy, loaded })
}

fn ended(log: &Log, id: u64) -> Option<(SimTime, SequenceEndReason)> {
    log.iter().find_map(|(at, event)| match event {
        SchedulerEvent::Ended { id: of, end } if of.0 == id => Some((*at, *end)),
        _ => None,
    })
}

/// Returns the lost tokens according to the events.
fn lost_load_events(log: &Log) -> Vec<(SimTime, u32)> {
    let lost = log.iter().filter_map(|(at, event)| match event {
        SchedulerEvent::LoadFailed { tokens, .. } => Some((*at, *tokens)),
        _ => None,
    });
    lost.collect()
}

/// Runs a prompt of ten blocks, another that evicts them, and the first one again, whose load
/// fails.
fn return_after_eviction(load_failure: Option<InjectedKvLoadFailure>) -> (Log, u32) {
    let mut engine = VllmScheduler::new(config(12, Some(host_cache_config(100)))).unwrap();
    let again = Sequence { load_failure, ..prompt(2, 1, 10, 1) };
    let arrivals =
        [(at(0), prompt(0, 1, 10, 1)), (at(1000), prompt(1, 2, 11, 1)), (at(2000), again)];
    let log = offline::run(&mut engine, arrivals).unwrap();
    assert_eq!(engine.stats().host.loading, 0);
    let used = engine.stats().used_blocks;
    (log, used)
}

#[test]
fn request_fails_when_its_failed_kv_load_ends() {
    let (log, used) = return_after_eviction(failure(KvLoadFailurePolicy::Fail, 0.5));
    assert_eq!(lost_load_events(&log), [(at(2020), 80)]);
    assert_eq!(ended(&log, 2), Some((at(2020), SequenceEndReason::Failed)));
    assert_eq!(used, 0);
}

#[test]
fn blocks_that_failed_to_load_are_recomputed_from_the_first() {
    // Ten blocks of 2 ms, then a millisecond for each of the 161 missing tokens.
    for (loaded, good, ttft) in [(0.5, 80, 20 + 81), (0.0, 0, 20 + 161), (0.99, 144, 20 + 17)] {
        let (log, used) = return_after_eviction(failure(RECOMPUTE, loaded));
        assert_eq!(lost_load_events(&log), [(at(2020), 160 - good)]);
        assert_eq!(first_token_time(&log, 2), at(2000 + ttft), "{loaded}");
        assert_eq!(cached_and_external_tokens(&log, 2), (0, good));
        assert_eq!(used, 0);
    }
}

#[test]
fn prompt_without_kv_load_does_not_fail() {
    let mut engine = VllmScheduler::new(config(12, Some(host_cache_config(100)))).unwrap();
    let alone =
        Sequence { load_failure: failure(KvLoadFailurePolicy::Fail, 0.0), ..prompt(0, 1, 10, 1) };
    let log = offline::run(&mut engine, [(at(0), alone)]).unwrap();
    assert_eq!(ended(&log, 0), Some((at(161), SequenceEndReason::Finished)));
}

/// Runs a prompt from another engine, and at the same time one with the same beginning.
fn fetched(policy: KvLoadFailurePolicy) -> Log {
    let config = VllmSchedulerConfig {
        transfer: PrefillTransferConfig {
            fetch: (ms(30), ms(0)),
            ..PrefillTransferConfig::default()
        },
        ..config(40, None)
    };
    let remote = Sequence {
        transfer: PromptKvTransfer::RemotePrefill,
        load_failure: failure(policy, 0.5),
        ..prompt(0, 1, 10, 1)
    };
    let mut engine = VllmScheduler::new(config).unwrap();
    let log = offline::run(&mut engine, [(at(0), remote), (at(1), prompt(1, 1, 10, 1))]).unwrap();
    assert_eq!(engine.stats().used_blocks, 0);
    log
}

#[test]
fn a_failed_fetch_from_another_engine_reuses_no_block() {
    let log = fetched(KvLoadFailurePolicy::Fail);
    // The step that computes the other prompt reports the failure when it ends.
    assert_eq!(lost_load_events(&log), [(at(162), 161)]);
    assert_eq!(ended(&log, 0), Some((at(162), SequenceEndReason::Failed)));
    // Other sequences could never find its blocks.
    assert_eq!(cached_and_external_tokens(&log, 1), (0, 0));
    assert!(log.iter().all(|(_, event)| !matches!(event, SchedulerEvent::Fetched { .. })));
    let log = fetched(RECOMPUTE);
    // The other prompt is computed until 162, and its blocks are found.
    assert_eq!(cached_and_external_tokens(&log, 0), (160, 0));
    assert_eq!(first_token_time(&log, 0), at(162 + 1));
}

#[test]
fn slot_scheduler_fails_or_recomputes_after_transfer() {
    let delays = TokenDelays {
        kv_transfer: (ms(30), ms(0)),
        ttft: (ms(100), ms(0)),
        ..TokenDelays::default()
    };
    let play = |policy| {
        let mut pool = SlotScheduler::new(SlotSchedulerConfig {
            delays: delays.clone(),
            ..SlotSchedulerConfig::default()
        });
        let remote = Sequence {
            transfer: PromptKvTransfer::RemotePrefill,
            load_failure: failure(policy, 0.0),
            ..Sequence::new(SeqId(0), SIZE, 1)
        };
        offline::run(&mut pool, [(at(0), remote)]).unwrap()
    };
    assert_eq!(
        ended(&play(KvLoadFailurePolicy::Fail), 0),
        Some((at(30), SequenceEndReason::Failed))
    );
    let log = play(RECOMPUTE);
    assert_eq!((first_token_time(&log, 0), cached_and_external_tokens(&log, 0)), (at(130), (0, 0)));
}

#[test]
fn recomputed_blocks_are_hit_by_later_prompts() {
    for prompt_blocks_only in [false, true] {
        let mut pool = SlotScheduler::new(SlotSchedulerConfig {
            delays: TokenDelays {
                kv_transfer: (ms(30), ms(0)),
                ttft: (ms(100), ms(0)),
                ..TokenDelays::default()
            },
            kv: Some(BlockPoolConfig {
                num_blocks: 40,
                block_size: SIZE,
                prefix_caching: true,
                events: true,
            }),
            prompt_blocks_only,
            ..SlotSchedulerConfig::default()
        });
        let remote = Sequence {
            transfer: PromptKvTransfer::RemotePrefill,
            load_failure: failure(RECOMPUTE, 0.0),
            ..prompt(0, 1, 10, 1)
        };
        let log = offline::run(&mut pool, [(at(0), remote)]).unwrap();
        let stored = log.iter().filter_map(|(at, event)| match event {
            SchedulerEvent::Stored { from, to, .. } => Some((*at, *from, *to)),
            _ => None,
        });
        let stored: Vec<_> = stored.collect();
        assert_eq!(stored, [(at(30), 0, 10)], "{prompt_blocks_only}");
        let log = offline::run(&mut pool, [(at(1000), prompt(1, 1, 10, 1))]).unwrap();
        assert_eq!(cached_and_external_tokens(&log, 1), (160, 0));
    }
}

/// Generates load failures, mostly none.
pub(crate) fn any_load_failure() -> impl Strategy<Value = Option<InjectedKvLoadFailure>> {
    let policy = prop_oneof![Just(KvLoadFailurePolicy::Fail), Just(RECOMPUTE)];
    let failure = (policy, 0.0..1.0f32);
    let failure = failure.prop_map(|(policy, loaded)| InjectedKvLoadFailure { policy, loaded });
    proptest::option::weighted(0.3, failure)
}

/// Checks that only sequences with a failed load fail, at that instant, and that no load fails
/// twice.
pub(crate) fn check_load_failures(log: &[(SimTime, SchedulerEvent)]) -> Result<(), TestCaseError> {
    let mut failures = HashMap::new();
    for (at, event) in log {
        match event {
            SchedulerEvent::LoadFailed { id, policy, tokens, .. } => {
                prop_assert!(*tokens > 0, "{:?}", event);
                let before = failures.insert(*id, (*at, *policy));
                prop_assert!(before.is_none(), "{:?}", event);
            }
            SchedulerEvent::Ended { id, end } => {
                let fails = failures.get(id) == Some(&(*at, KvLoadFailurePolicy::Fail));
                prop_assert_eq!(*end == SequenceEndReason::Failed, fails, "{:?}", event);
            }
            _ => {}
        }
    }
    Ok(())
}
