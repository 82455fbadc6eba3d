//! Compares the block pool with recorded behavior of vLLM.

mod arc;
mod internal;
mod model;
mod python;

use std::sync::Arc;

use super::{BlockCounts, BlockPool, BlockRequest, BlockTable, KvConfig};
use crate::{BlockKey, BlockPlan, Event};
use vllm_sim_random::mix;

/// Creates a plan whose block `i` is identified by `path[..=i]`.
fn plan(path: &[u64], block_size: u32) -> Arc<BlockPlan> {
    let chain = path.iter().scan(0, |parent, &own| {
        *parent = mix(*parent, own);
        Some(BlockKey(*parent))
    });
    Arc::new(BlockPlan {
        keys: chain.collect(),
        block_size,
        ..BlockPlan::default()
    })
}

/// Creates a plan that shares no block with plans of other names.
fn own(name: u64, blocks: u64) -> Arc<BlockPlan> {
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

fn said(event: Event) -> ObservedEvent {
    match event {
        Event::Stored { plan, from, to } => ObservedEvent::Stored(
            plan.keys[from as usize..to as usize]
                .iter()
                .map(|key| key.0)
                .collect(),
            from.checked_sub(1).map(|i| plan.keys[i as usize].0),
        ),
        Event::Removed { keys } => {
            ObservedEvent::Removed(keys.iter().map(|(key, _)| key.0).collect())
        }
        Event::Cleared => ObservedEvent::Cleared,
        other => panic!("{other:?} is none of the pool's events"),
    }
}

fn stored(plan: &BlockPlan, from: usize, to: usize) -> ObservedEvent {
    let keys = plan.keys[from..to].iter().map(|key| key.0).collect();
    ObservedEvent::Stored(keys, from.checked_sub(1).map(|i| plan.keys[i].0))
}

fn removed(blocks: &[(&BlockPlan, usize)]) -> ObservedEvent {
    ObservedEvent::Removed(blocks.iter().map(|(plan, i)| plan.keys[*i].0).collect())
}

/// Recorded configuration: 50 blocks of 32 tokens, including the null block.
struct Measured {
    pool: BlockPool,
    said: Vec<ObservedEvent>,
}

struct Running {
    table: BlockTable,
    plan: Arc<BlockPlan>,
    computed: u32,
}

impl Measured {
    fn new() -> Self {
        let pool = BlockPool::new(KvConfig {
            num_blocks: 50,
            block_size: 32,
            prefix_caching: true,
            events: true,
        });
        Self { pool, said: vec![] }
    }

    /// Admits a sequence of `tokens` tokens and returns how many were cached.
    fn admit(&mut self, plan: &Arc<BlockPlan>, tokens: u32) -> (Running, u32) {
        let prefix = self.pool.cached_prefix(plan, tokens);
        let mut running = Running {
            table: BlockTable::default(),
            plan: Arc::clone(plan),
            computed: 0,
        };
        assert!(self.step(&mut running, prefix, tokens));
        (running, prefix)
    }

    /// Runs a step that ends with `computed` computed tokens.
    fn step(&mut self, running: &mut Running, prefix: u32, computed: u32) -> bool {
        let need = BlockRequest {
            prefix,
            tokens: computed,
            cache: computed,
            ..BlockRequest::default()
        };
        let out = &mut |event| self.said.push(said(event));
        let fits = self
            .pool
            .allocate(&mut running.table, Some(&running.plan), &need, out);
        if fits {
            running.computed = computed;
        }
        fits
    }

    /// Runs a whole request; the last output token is never computed.
    fn play(&mut self, plan: &Arc<BlockPlan>, prompt: u32, output: u32) -> u32 {
        let (mut running, cached) = self.admit(plan, prompt);
        for computed in prompt + 1..prompt + output {
            assert!(self.step(&mut running, 0, computed));
        }
        self.pool.release(&mut running.table);
        cached
    }

    fn take(&mut self) -> Vec<ObservedEvent> {
        std::mem::take(&mut self.said)
    }
}

#[test]
fn a_cold_prompt_stores_its_full_blocks_immediately() {
    let mut kv = Measured::new();
    let a = own(1, 4);
    assert_eq!(kv.play(&a, 100, 1), 0);
    assert_eq!(kv.take(), [stored(&a, 0, 3)]);
}

#[test]
fn a_hit_emits_no_event() {
    let mut kv = Measured::new();
    let a = own(1, 4);
    kv.play(&a, 100, 1);
    kv.take();
    assert_eq!(kv.play(&a, 100, 1), 96);
    assert_eq!(kv.take(), []);
}

#[test]
fn the_last_block_of_a_full_hit_is_computed_and_stored_again() {
    let mut kv = Measured::new();
    let a = own(1, 2);
    kv.play(&a, 64, 1);
    assert_eq!(kv.play(&a, 64, 1), 32);
    assert_eq!(kv.take(), [stored(&a, 0, 2), stored(&a, 1, 2)]);
    // Each copy is removed by its own event. The newer one was freed first.
    kv.play(&own(2, 49), 49 * 32, 1);
    assert_eq!(kv.take()[0], removed(&[(&a, 1), (&a, 1), (&a, 0)]));
}

#[test]
fn decode_stores_each_block_as_it_fills_and_the_last_token_is_never_computed() {
    let mut kv = Measured::new();
    let a = own(1, 4);
    kv.play(&a, 30, 70);
    let fills = [stored(&a, 0, 1), stored(&a, 1, 2), stored(&a, 2, 3)];
    assert_eq!(kv.take(), fills);
    // A prompt shorter than a block has no hit, so the same blocks fill again.
    assert_eq!(kv.play(&a, 30, 70), 0);
    assert_eq!(kv.take(), fills);
}

#[test]
fn the_second_of_two_simultaneous_equal_prompts_hits_the_cache() {
    let mut kv = Measured::new();
    let a = own(1, 2);
    let (_first, cached) = kv.admit(&a, 70);
    let (_second, cached_again) = kv.admit(&a, 70);
    assert_eq!((cached, cached_again), (0, 64));
    assert_eq!(kv.take(), [stored(&a, 0, 2)]);
    assert_eq!(kv.pool.used(), 4);
}

#[test]
fn the_oldest_prefix_loses_its_tail_first() {
    let mut kv = Measured::new();
    let oldest = own(1, 3);
    kv.play(&oldest, 100, 1);
    for name in 2..9 {
        kv.play(&own(name, 6), 192, 1);
    }
    let idle = 3 + 7 * 6;
    let counts = BlockCounts {
        unused: 49 - idle,
        idle,
        used: 0,
    };
    assert_eq!(kv.pool.counts(), counts);
    kv.take();
    let last = own(9, 6);
    kv.play(&last, 192, 1);
    assert_eq!(
        kv.take(),
        [removed(&[(&oldest, 2), (&oldest, 1)]), stored(&last, 0, 6)]
    );
}

#[test]
fn a_preempted_sequence_loses_its_tail_and_stores_it_again() {
    let mut kv = Measured::new();
    let (a, b) = (own(1, 30), own(2, 30));
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
    assert_eq!(
        (computed, first.table.len(), second.table.len()),
        (769, 25, 24)
    );
    let before = second.computed;
    kv.pool.release(&mut second.table);
    kv.take();
    for computed in 770..=939 {
        assert!(kv.step(&mut first, 0, computed));
    }
    // Each of the last 5 of 30 blocks evicted one from the tail of the preempted sequence.
    let taken: Vec<ObservedEvent> = kv
        .take()
        .into_iter()
        .filter(|s| matches!(s, ObservedEvent::Removed(_)))
        .collect();
    let tail: Vec<ObservedEvent> = (19..24).rev().map(|i| removed(&[(&b, i)])).collect();
    assert_eq!(taken, tail);
    kv.pool.release(&mut first.table);
    kv.take();
    let (_resumed, cached) = kv.admit(&b, before);
    assert_eq!(cached, 19 * 32);
    let missing = kv.take();
    assert_eq!(missing.last(), Some(&stored(&b, 19, 24)));
    // The tail of the sequence that ended in between is evicted.
    assert_eq!(missing.len(), 2);
}

#[test]
fn a_reset_clears_an_unheld_cache_only() {
    let mut kv = Measured::new();
    let a = own(1, 2);
    let (mut held, _) = kv.admit(&a, 64);
    assert!(!kv.pool.reset(&mut |_| panic!("a held cache was cleared")));
    kv.pool.release(&mut held.table);
    kv.take();
    for _ in 0..2 {
        assert!(kv.pool.reset(&mut |event| kv.said.push(said(event))));
    }
    assert_eq!(kv.take(), [ObservedEvent::Cleared, ObservedEvent::Cleared]);
    assert_eq!(kv.pool.cached_prefix(&a, 65), 0);
    assert_eq!(
        kv.pool.counts(),
        BlockCounts {
            unused: 49,
            ..BlockCounts::default()
        }
    );
}

#[test]
fn forgotten_blocks_stay_with_their_sequence_and_are_never_found() {
    let mut kv = Measured::new();
    let a = own(1, 4);
    let (mut held, _) = kv.admit(&a, 64);
    kv.take();
    kv.pool.forget(&mut |event| kv.said.push(said(event)));
    assert!(kv.step(&mut held, 0, 128));
    assert_eq!(kv.take(), [ObservedEvent::Cleared]);
    assert_eq!((kv.pool.used(), kv.pool.cached_prefix(&a, 129)), (4, 0));
    kv.pool.release(&mut held.table);
    assert_eq!(
        kv.pool.counts(),
        BlockCounts {
            unused: 49,
            ..BlockCounts::default()
        }
    );
    assert_eq!(kv.play(&a, 64, 1), 0);
    assert_eq!(kv.take(), [stored(&a, 0, 2)]);
}

#[test]
fn a_short_prompt_and_an_abort_emit_no_event() {
    let mut kv = Measured::new();
    let (mut short, _) = kv.admit(&own(1, 1), 31);
    kv.pool.release(&mut short.table);
    assert_eq!(kv.take(), []);
    assert_eq!(kv.pool.counts().unused, 49);
}

#[test]
fn a_sequence_that_does_not_fit_waits_and_changes_nothing() {
    let mut kv = Measured::new();
    let a = own(1, 40);
    let (mut held, _) = kv.admit(&a, 40 * 32);
    kv.take();
    let before = kv.pool.counts();
    let refused = |pool: &mut BlockPool, need: BlockRequest| {
        let mut table = BlockTable::default();
        let fits = pool.allocate(&mut table, Some(&own(2, 20)), &need, &mut |_| ());
        (!fits, table.len())
    };
    for need in [
        BlockRequest {
            tokens: 10 * 32,
            ..BlockRequest::default()
        },
        BlockRequest {
            tokens: 32,
            whole: 10 * 32,
            ..BlockRequest::default()
        },
        BlockRequest {
            tokens: 8 * 32,
            spare: 2,
            ..BlockRequest::default()
        },
        BlockRequest {
            tokens: u32::MAX,
            spare: u32::MAX,
            ..BlockRequest::default()
        },
        // This prefix is no longer cached.
        BlockRequest {
            tokens: 64,
            prefix: 32,
            ..BlockRequest::default()
        },
    ] {
        assert_eq!(refused(&mut kv.pool, need), (true, 0), "{need:?}");
    }
    assert_eq!(kv.pool.counts(), before);
    // 9 of the hit blocks would be free, but not for the rest of the request.
    kv.pool.release(&mut held.table);
    let hit = BlockRequest {
        tokens: 50 * 32,
        prefix: 9 * 32,
        ..BlockRequest::default()
    };
    let fits = kv
        .pool
        .allocate(&mut held.table, Some(&a), &hit, &mut |_| ());
    assert!(!fits && kv.pool.counts().idle == 40);
}

#[test]
fn nothing_happens_up_to_the_settled_length() {
    let mut kv = Measured::new();
    let a = own(1, 4);
    let (mut running, _) = kv.admit(&a, 40);
    assert_eq!(running.table.settled(), 63);
    kv.take();
    assert!(kv.step(&mut running, 0, 63));
    assert_eq!(kv.take(), []);
    assert!(kv.step(&mut running, 0, 64));
    assert_eq!(kv.take(), [stored(&a, 1, 2)]);
    assert_eq!((running.table.len(), running.table.settled()), (2, 64));
    // Without a plan only free blocks count.
    let mut plain = BlockTable::default();
    let need = BlockRequest {
        tokens: 40,
        cache: 40,
        ..BlockRequest::default()
    };
    assert!(kv.pool.allocate(&mut plain, None, &need, &mut |_| ()));
    assert_eq!(plain.settled(), 64);
}

#[test]
fn transferred_tokens_enter_the_cache_on_arrival() {
    let mut kv = Measured::new();
    let a = own(1, 3);
    let mut table = BlockTable::default();
    let need = BlockRequest {
        tokens: 96,
        cache: 0,
        ..BlockRequest::default()
    };
    assert!(
        kv.pool
            .allocate(&mut table, Some(&a), &need, &mut |_| panic!("too early"))
    );
    assert_eq!(kv.pool.cached_prefix(&a, 97), 0);
    kv.pool
        .cache_full_blocks(&mut table, Some(&a), 96, &mut |event| {
            kv.said.push(said(event))
        });
    assert_eq!(kv.take(), [stored(&a, 0, 3)]);
    assert_eq!(kv.pool.cached_prefix(&a, 97), 96);
}

#[test]
fn without_prefix_caching_blocks_are_only_counted() {
    let mut pool = BlockPool::new(KvConfig {
        num_blocks: 5,
        block_size: 4,
        prefix_caching: false,
        events: true,
    });
    let a = plan(&[1, 2, 3], 4);
    let mut table = BlockTable::default();
    let need = BlockRequest {
        tokens: 12,
        cache: 12,
        ..BlockRequest::default()
    };
    assert!(pool.allocate(&mut table, Some(&a), &need, &mut |e| panic!("{e:?}")));
    assert_eq!((pool.used(), pool.cached_prefix(&a, 12)), (3, 0));
    pool.release(&mut table);
    assert_eq!(
        pool.counts(),
        BlockCounts {
            unused: 4,
            ..BlockCounts::default()
        }
    );
}

#[test]
fn full_hashes_are_dropped_with_their_blocks() {
    let mut pool = BlockPool::new(KvConfig {
        num_blocks: 2,
        block_size: 1,
        prefix_caching: true,
        events: true,
    });
    let hashed = |key: u64| {
        Arc::new(BlockPlan {
            keys: vec![BlockKey(key)],
            hashes: vec![[key as u8; 32]],
            block_size: 1,
            ..BlockPlan::default()
        })
    };
    let need = BlockRequest {
        tokens: 1,
        cache: 1,
        ..BlockRequest::default()
    };
    let mut gone = Vec::new();
    for key in [7, 8, 9] {
        let mut table = BlockTable::default();
        let out = &mut |event| {
            if let Event::Removed { keys } = event {
                gone.extend(keys);
            }
        };
        assert!(pool.allocate(&mut table, Some(&hashed(key)), &need, out));
        pool.release(&mut table);
    }
    assert_eq!(
        gone,
        [(BlockKey(7), Some([7; 32])), (BlockKey(8), Some([8; 32]))]
    );
}
