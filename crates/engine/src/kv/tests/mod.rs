//! Compares the block pool with recorded behavior of vLLM.

mod arc;
mod internal;
mod model;
mod python;

use std::sync::Arc;

use super::{BlockAllocationRequest, BlockPool, BlockPoolConfig, BlockTable, KvBlockCounts};
use crate::{BlockKey, PlannedKvBlocks, SchedulerEvent};
use vllm_sim_random::mix_u64_pair;

/// Creates a plan whose block `i` is identified by `path[..=i]`.
fn plan(path: &[u64], block_size: u32) -> Arc<PlannedKvBlocks> {
    let chain = path.iter().scan(0, |parent, &own| {
        *parent = mix_u64_pair(*parent, own);
        Some(BlockKey(*parent))
    });
    Arc::new(PlannedKvBlocks { keys: chain.collect(), block_size, ..PlannedKvBlocks::default() })
}

/// Creates a plan that shares no block with plans of other names.
fn plan_without_shared_blocks(name: u64, blocks: u64) -> Arc<PlannedKvBlocks> {
    let path: Vec<u64> = (0..blocks).map(|i| if i == 0 { name } else { i }).collect();
    plan(&path, 32)
}

/// Describes an event by block indices of the plans.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ObservedEvent {
    Stored(Vec<u64>, Option<u64>),
    Removed(Vec<u64>),
    Cleared,
}

fn to_observed(event: SchedulerEvent) -> ObservedEvent {
    match event {
        SchedulerEvent::Stored { plan, from, to } => ObservedEvent::Stored(
            plan.keys[from as usize..to as usize].iter().map(|key| key.0).collect(),
            from.checked_sub(1).map(|i| plan.keys[i as usize].0),
        ),
        SchedulerEvent::Removed { keys } => {
            ObservedEvent::Removed(keys.iter().map(|(key, _)| key.0).collect())
        }
        SchedulerEvent::Cleared => ObservedEvent::Cleared,
        other => panic!("{other:?} is none of the pool's events"),
    }
}

fn stored_event(plan: &PlannedKvBlocks, from: usize, to: usize) -> ObservedEvent {
    let keys = plan.keys[from..to].iter().map(|key| key.0).collect();
    ObservedEvent::Stored(keys, from.checked_sub(1).map(|i| plan.keys[i].0))
}

fn removed_event(blocks: &[(&PlannedKvBlocks, usize)]) -> ObservedEvent {
    ObservedEvent::Removed(blocks.iter().map(|(plan, i)| plan.keys[*i].0).collect())
}

/// Recorded configuration: 50 blocks of 32 tokens, including the null block.
struct ObservedPool {
    pool: BlockPool,
    said: Vec<ObservedEvent>,
}

struct PoolSequence {
    table: BlockTable,
    plan: Arc<PlannedKvBlocks>,
    computed: u32,
}

impl ObservedPool {
    fn new() -> Self {
        let pool = BlockPool::new(BlockPoolConfig {
            num_blocks: 50,
            block_size: 32,
            prefix_caching: true,
            events: true,
        });
        Self { pool, said: vec![] }
    }

    /// Admits a sequence of `tokens` tokens and returns how many were cached.
    fn admit(&mut self, plan: &Arc<PlannedKvBlocks>, tokens: u32) -> (PoolSequence, u32) {
        let prefix = self.pool.cached_prefix_tokens(plan, tokens);
        let mut running =
            PoolSequence { table: BlockTable::default(), plan: Arc::clone(plan), computed: 0 };
        assert!(self.step(&mut running, prefix, tokens));
        (running, prefix)
    }

    /// Runs a step that ends with `computed` computed tokens.
    fn step(&mut self, running: &mut PoolSequence, prefix: u32, computed: u32) -> bool {
        let need = BlockAllocationRequest {
            prefix,
            tokens: computed,
            cache: computed,
            ..BlockAllocationRequest::default()
        };
        let out = &mut |event| self.said.push(to_observed(event));
        let fits = self.pool.allocate_blocks(&mut running.table, Some(&running.plan), &need, out);
        if fits {
            running.computed = computed;
        }
        fits
    }

    /// Runs a whole request; the last output token is never computed.
    fn run_sequence(&mut self, plan: &Arc<PlannedKvBlocks>, prompt: u32, output: u32) -> u32 {
        let (mut running, cached) = self.admit(plan, prompt);
        for computed in prompt + 1..prompt + output {
            assert!(self.step(&mut running, 0, computed));
        }
        self.pool.release_block_table(&mut running.table);
        cached
    }

    fn take_events(&mut self) -> Vec<ObservedEvent> {
        std::mem::take(&mut self.said)
    }
}

#[test]
fn cold_prompt_caches_its_full_blocks_on_allocation() {
    let mut kv = ObservedPool::new();
    let a = plan_without_shared_blocks(1, 4);
    assert_eq!(kv.run_sequence(&a, 100, 1), 0);
    assert_eq!(kv.take_events(), [stored_event(&a, 0, 3)]);
}

#[test]
fn prefix_cache_hit_emits_no_event() {
    let mut kv = ObservedPool::new();
    let a = plan_without_shared_blocks(1, 4);
    kv.run_sequence(&a, 100, 1);
    kv.take_events();
    assert_eq!(kv.run_sequence(&a, 100, 1), 96);
    assert_eq!(kv.take_events(), []);
}

#[test]
fn the_last_block_of_a_full_hit_is_computed_and_stored_again() {
    let mut kv = ObservedPool::new();
    let a = plan_without_shared_blocks(1, 2);
    kv.run_sequence(&a, 64, 1);
    assert_eq!(kv.run_sequence(&a, 64, 1), 32);
    assert_eq!(kv.take_events(), [stored_event(&a, 0, 2), stored_event(&a, 1, 2)]);
    // Each copy is removed by its own event. The newer one was freed first.
    kv.run_sequence(&plan_without_shared_blocks(2, 49), 49 * 32, 1);
    assert_eq!(kv.take_events()[0], removed_event(&[(&a, 1), (&a, 1), (&a, 0)]));
}

#[test]
fn decode_stores_each_block_as_it_fills_and_the_last_token_is_never_computed() {
    let mut kv = ObservedPool::new();
    let a = plan_without_shared_blocks(1, 4);
    kv.run_sequence(&a, 30, 70);
    let fills = [stored_event(&a, 0, 1), stored_event(&a, 1, 2), stored_event(&a, 2, 3)];
    assert_eq!(kv.take_events(), fills);
    // A prompt shorter than a block has no hit, so the same blocks fill again.
    assert_eq!(kv.run_sequence(&a, 30, 70), 0);
    assert_eq!(kv.take_events(), fills);
}

#[test]
fn the_second_of_two_simultaneous_equal_prompts_hits_the_cache() {
    let mut kv = ObservedPool::new();
    let a = plan_without_shared_blocks(1, 2);
    let (_first, cached) = kv.admit(&a, 70);
    let (_second, cached_again) = kv.admit(&a, 70);
    assert_eq!((cached, cached_again), (0, 64));
    assert_eq!(kv.take_events(), [stored_event(&a, 0, 2)]);
    assert_eq!(kv.pool.used_block_count(), 4);
}

#[test]
fn eviction_starts_at_the_tail_of_the_oldest_prefix() {
    let mut kv = ObservedPool::new();
    let oldest = plan_without_shared_blocks(1, 3);
    kv.run_sequence(&oldest, 100, 1);
    for name in 2..9 {
        kv.run_sequence(&plan_without_shared_blocks(name, 6), 192, 1);
    }
    let idle = 3 + 7 * 6;
    let counts = KvBlockCounts { unused: 49 - idle, idle, used: 0 };
    assert_eq!(kv.pool.block_counts(), counts);
    kv.take_events();
    let last = plan_without_shared_blocks(9, 6);
    kv.run_sequence(&last, 192, 1);
    assert_eq!(
        kv.take_events(),
        [removed_event(&[(&oldest, 2), (&oldest, 1)]), stored_event(&last, 0, 6)]
    );
}

#[test]
fn a_preempted_sequence_loses_its_tail_and_stores_it_again() {
    let mut kv = ObservedPool::new();
    let (a, b) = (plan_without_shared_blocks(1, 30), plan_without_shared_blocks(2, 30));
    let (mut first, _) = kv.admit(&a, 640);
    let (mut second, _) = kv.admit(&b, 640);
    // Both have 20 blocks and grow until the pool has none left for the second.
    let mut computed = 640;
    loop {
        computed += 1;
        assert!(kv.step(&mut first, 0, computed));
        if !kv.step(&mut second, 0, computed) {
            break;
        }
    }
    assert_eq!((computed, first.table.len(), second.table.len()), (769, 25, 24));
    let before = second.computed;
    kv.pool.release_block_table(&mut second.table);
    kv.take_events();
    for computed in 770..=939 {
        assert!(kv.step(&mut first, 0, computed));
    }
    // Each of the last 5 of 30 blocks evicted one from the tail of the preempted sequence.
    let taken: Vec<ObservedEvent> =
        kv.take_events().into_iter().filter(|s| matches!(s, ObservedEvent::Removed(_))).collect();
    let tail: Vec<ObservedEvent> = (19..24).rev().map(|i| removed_event(&[(&b, i)])).collect();
    assert_eq!(taken, tail);
    kv.pool.release_block_table(&mut first.table);
    kv.take_events();
    let (_resumed, cached) = kv.admit(&b, before);
    assert_eq!(cached, 19 * 32);
    let missing = kv.take_events();
    assert_eq!(missing.last(), Some(&stored_event(&b, 19, 24)));
    // The tail of the sequence that ended in between is evicted.
    assert_eq!(missing.len(), 2);
}

#[test]
fn reset_fails_while_sequences_hold_blocks() {
    let mut kv = ObservedPool::new();
    let a = plan_without_shared_blocks(1, 2);
    let (mut held, _) = kv.admit(&a, 64);
    assert!(!kv.pool.reset_prefix_cache(&mut |_| panic!("a held cache was cleared")));
    kv.pool.release_block_table(&mut held.table);
    kv.take_events();
    for _ in 0..2 {
        assert!(kv.pool.reset_prefix_cache(&mut |event| kv.said.push(to_observed(event))));
    }
    assert_eq!(kv.take_events(), [ObservedEvent::Cleared, ObservedEvent::Cleared]);
    assert_eq!(kv.pool.cached_prefix_tokens(&a, 65), 0);
    assert_eq!(kv.pool.block_counts(), KvBlockCounts { unused: 49, ..KvBlockCounts::default() });
}

#[test]
fn forgotten_blocks_stay_with_their_sequence_and_are_never_found() {
    let mut kv = ObservedPool::new();
    let a = plan_without_shared_blocks(1, 4);
    let (mut held, _) = kv.admit(&a, 64);
    kv.take_events();
    kv.pool.clear_prefix_cache_keeping_blocks(&mut |event| kv.said.push(to_observed(event)));
    assert!(kv.step(&mut held, 0, 128));
    assert_eq!(kv.take_events(), [ObservedEvent::Cleared]);
    assert_eq!((kv.pool.used_block_count(), kv.pool.cached_prefix_tokens(&a, 129)), (4, 0));
    kv.pool.release_block_table(&mut held.table);
    assert_eq!(kv.pool.block_counts(), KvBlockCounts { unused: 49, ..KvBlockCounts::default() });
    assert_eq!(kv.run_sequence(&a, 64, 1), 0);
    assert_eq!(kv.take_events(), [stored_event(&a, 0, 2)]);
}

#[test]
fn a_short_prompt_and_an_abort_emit_no_event() {
    let mut kv = ObservedPool::new();
    let (mut short, _) = kv.admit(&plan_without_shared_blocks(1, 1), 31);
    kv.pool.release_block_table(&mut short.table);
    assert_eq!(kv.take_events(), []);
    assert_eq!(kv.pool.block_counts().unused, 49);
}

#[test]
fn a_sequence_that_does_not_fit_waits_and_changes_nothing() {
    let mut kv = ObservedPool::new();
    let a = plan_without_shared_blocks(1, 40);
    let (mut held, _) = kv.admit(&a, 40 * 32);
    kv.take_events();
    let before = kv.pool.block_counts();
    let refused = |pool: &mut BlockPool, need: BlockAllocationRequest| {
        let mut table = BlockTable::default();
        let fits = pool.allocate_blocks(
            &mut table,
            Some(&plan_without_shared_blocks(2, 20)),
            &need,
            &mut |_| (),
        );
        (!fits, table.len())
    };
    for need in [
        BlockAllocationRequest { tokens: 10 * 32, ..BlockAllocationRequest::default() },
        BlockAllocationRequest { tokens: 32, whole: 10 * 32, ..BlockAllocationRequest::default() },
        BlockAllocationRequest { tokens: 8 * 32, spare: 2, ..BlockAllocationRequest::default() },
        BlockAllocationRequest {
            tokens: u32::MAX,
            spare: u32::MAX,
            ..BlockAllocationRequest::default()
        },
        // This prefix is no longer cached.
        BlockAllocationRequest { tokens: 64, prefix: 32, ..BlockAllocationRequest::default() },
    ] {
        assert_eq!(refused(&mut kv.pool, need), (true, 0), "{need:?}");
    }
    assert_eq!(kv.pool.block_counts(), before);
    // 9 of the hit blocks would be free, but not for the rest of the request.
    kv.pool.release_block_table(&mut held.table);
    let hit = BlockAllocationRequest {
        tokens: 50 * 32,
        prefix: 9 * 32,
        ..BlockAllocationRequest::default()
    };
    let fits = kv.pool.allocate_blocks(&mut held.table, Some(&a), &hit, &mut |_| ());
    assert!(!fits && kv.pool.block_counts().idle == 40);
}

#[test]
fn no_block_changes_up_to_the_settled_tokens() {
    let mut kv = ObservedPool::new();
    let a = plan_without_shared_blocks(1, 4);
    let (mut running, _) = kv.admit(&a, 40);
    assert_eq!(running.table.tokens_until_block_table_change(), 63);
    kv.take_events();
    assert!(kv.step(&mut running, 0, 63));
    assert_eq!(kv.take_events(), []);
    assert!(kv.step(&mut running, 0, 64));
    assert_eq!(kv.take_events(), [stored_event(&a, 1, 2)]);
    assert_eq!((running.table.len(), running.table.tokens_until_block_table_change()), (2, 64));
    // Without a plan only free blocks count.
    let mut plain = BlockTable::default();
    let need =
        BlockAllocationRequest { tokens: 40, cache: 40, ..BlockAllocationRequest::default() };
    assert!(kv.pool.allocate_blocks(&mut plain, None, &need, &mut |_| ()));
    assert_eq!(plain.tokens_until_block_table_change(), 64);
}

#[test]
fn transferred_tokens_enter_the_cache_on_arrival() {
    let mut kv = ObservedPool::new();
    let a = plan_without_shared_blocks(1, 3);
    let mut table = BlockTable::default();
    let need = BlockAllocationRequest { tokens: 96, cache: 0, ..BlockAllocationRequest::default() };
    assert!(kv.pool.allocate_blocks(&mut table, Some(&a), &need, &mut |_| panic!("too early")));
    assert_eq!(kv.pool.cached_prefix_tokens(&a, 97), 0);
    kv.pool
        .cache_full_blocks(&mut table, Some(&a), 96, &mut |event| kv.said.push(to_observed(event)));
    assert_eq!(kv.take_events(), [stored_event(&a, 0, 3)]);
    assert_eq!(kv.pool.cached_prefix_tokens(&a, 97), 96);
}

#[test]
fn without_prefix_caching_blocks_are_only_counted() {
    let mut pool = BlockPool::new(BlockPoolConfig {
        num_blocks: 5,
        block_size: 4,
        prefix_caching: false,
        events: true,
    });
    let a = plan(&[1, 2, 3], 4);
    let mut table = BlockTable::default();
    let need =
        BlockAllocationRequest { tokens: 12, cache: 12, ..BlockAllocationRequest::default() };
    assert!(pool.allocate_blocks(&mut table, Some(&a), &need, &mut |e| panic!("{e:?}")));
    assert_eq!((pool.used_block_count(), pool.cached_prefix_tokens(&a, 12)), (3, 0));
    pool.release_block_table(&mut table);
    assert_eq!(pool.block_counts(), KvBlockCounts { unused: 4, ..KvBlockCounts::default() });
}

#[test]
fn full_hashes_are_dropped_with_their_blocks() {
    let mut pool = BlockPool::new(BlockPoolConfig {
        num_blocks: 2,
        block_size: 1,
        prefix_caching: true,
        events: true,
    });
    let hashed = |key: u64| {
        Arc::new(PlannedKvBlocks {
            keys: vec![BlockKey(key)],
            hashes: vec![[key as u8; 32]],
            block_size: 1,
            ..PlannedKvBlocks::default()
        })
    };
    let need = BlockAllocationRequest { tokens: 1, cache: 1, ..BlockAllocationRequest::default() };
    let mut gone = Vec::new();
    for key in [7, 8, 9] {
        let mut table = BlockTable::default();
        let out = &mut |event| {
            if let SchedulerEvent::Removed { keys } = event {
                gone.extend(keys);
            }
        };
        assert!(pool.allocate_blocks(&mut table, Some(&hashed(key)), &need, out));
        pool.release_block_table(&mut table);
    }
    assert_eq!(gone, [(BlockKey(7), Some([7; 32])), (BlockKey(8), Some([8; 32]))]);
}
