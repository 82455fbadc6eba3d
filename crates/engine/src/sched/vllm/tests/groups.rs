//! Tests block numbers and prefix hits with layer groups.

use super::*;
use crate::kv::{KvCacheLayerGroups, SparseLayerKind};
use crate::latency::{KvCachePlan, known_model_shape};

fn config_with_layer_groups(kind: SparseLayerKind, sparse: u32) -> VllmSchedulerConfig {
    VllmSchedulerConfig {
        layer_groups: Some(KvCacheLayerGroups { full: 1, sparse, kind, interval: Some(0) }),
        ..config()
    }
}

/// Returns the blocks in use after each scheduled step.
fn held_blocks_per_step(config: VllmSchedulerConfig, sequence: Sequence) -> Vec<u32> {
    let mut engine = VllmScheduler::new(config).unwrap();
    let mut out = Outbox::new();
    engine.submit(SimTime::ZERO, sequence, &mut out).unwrap();
    let mut held = Vec::new();
    while let Some(now) = engine.next_wakeup() {
        engine.advance(now, &mut out);
        held.push(engine.stats().used_blocks);
    }
    held.dedup();
    assert_eq!(held.pop(), Some(0));
    held
}

#[test]
fn a_window_frees_blocks_that_it_has_passed() {
    // 96 tokens need 6 blocks in each group, and the window of 32 needs 3 of them.
    let window = config_with_layer_groups(SparseLayerKind::Window(32), 1);
    assert_eq!(
        held_blocks_per_step(window.clone(), new_sequence(1, 96, 50)),
        // The prompt; the first token, for which 64 are passed; then a block of each group for 16
        // tokens, and one of the window back before the next one is due.
        [12, 10, 9, 11, 10, 12, 11, 13]
    );
    // Two groups double this.
    let two = VllmSchedulerConfig {
        layer_groups: window.layer_groups.map(|groups| KvCacheLayerGroups { sparse: 2, ..groups }),
        ..window
    };
    assert_eq!(
        held_blocks_per_step(two, new_sequence(1, 96, 50)),
        [18, 13, 11, 14, 12, 15, 13, 16]
    );
}

#[test]
fn mamba_state_takes_one_block_at_any_length() {
    let state = config_with_layer_groups(SparseLayerKind::State(2), 3);
    // The prompt of 100 tokens stops at 96; the state there is kept until the next one is computed.
    assert_eq!(held_blocks_per_step(state.clone(), new_sequence(1, 100, 20)), [9, 13, 10, 14, 11]);
    let uncached = VllmSchedulerConfig { enable_prefix_caching: false, ..state };
    assert_eq!(held_blocks_per_step(uncached, new_sequence(1, 100, 20)), [10, 11]);
}

/// Returns how many sequences of this length run together after all prompts are computed.
fn max_concurrent_sequences(config: &VllmSchedulerConfig, tokens: u32) -> usize {
    let mut engine = VllmScheduler::new(config.clone()).unwrap();
    let mut out = Outbox::new();
    for id in 0..8000 {
        let sequence = new_sequence(id, tokens, 4000);
        engine.submit(SimTime::ZERO, sequence, &mut out).unwrap();
    }
    let (mut last, mut same) = (0, 0);
    while let Some(now) = engine.next_wakeup() {
        engine.advance(now, &mut out);
        out.clear();
        let stats = engine.stats();
        same = if stats.running > last { 0 } else { same + 1 };
        if same > 8 || stats.preemptions > 0 {
            break;
        }
        last = last.max(stats.running);
    }
    last
}

#[test]
fn gpt_oss_has_room_for_what_its_groups_take_at_any_context_length() {
    // 60 GiB on an H100 in blocks of 393216 bytes.
    let shape = known_model_shape("openai/gpt-oss-20b").unwrap();
    let plan = KvCachePlan::new(&shape, 1, 16, 2.0, true);
    let of = |max_model_len| {
        let config = VllmSchedulerConfig {
            num_gpu_blocks: 163_839,
            max_model_len,
            max_num_seqs: 100_000,
            max_num_batched_tokens: 131_072,
            layer_groups: plan.kv_cache_layer_groups(Some(0)),
            ..config()
        };
        max_concurrent_sequences(&config, 1024)
    };
    let found = of(131_072);
    // Each sequence has 64 blocks for all tokens and 8 for a window of 128; sequences in prefill or
    // shortly after it hold a few more.
    let (most, least) = (163_839 / (64 + 8), 163_839 / (67 + 10));
    assert!(found >= least && found <= most, "{found}: {least} to {most}");
    assert_eq!(of(8192), found);
    // Blocks of all layers would be half as many and twice the size.
    let flat = VllmSchedulerConfig {
        num_gpu_blocks: 81_919,
        max_num_seqs: 100_000,
        max_num_batched_tokens: 131_072,
        ..config()
    };
    assert!(max_concurrent_sequences(&flat, 1024) < found * 2 / 3);
}

#[test]
fn hit_with_mamba_states_ends_at_last_prompt_block() {
    let turns = |kind| {
        let turns = vec![
            (0, sequence_in_family(1, 1, 100, 20)),
            (1000, sequence_in_family(2, 1, 180, 20)),
            (2000, sequence_in_family(3, 1, 180, 4)),
        ];
        let log = event_log(config_with_layer_groups(kind, 3), submit_inputs(turns));
        let starts = log.split(' ').filter(|word| word.starts_with('s'));
        starts.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(turns(SparseLayerKind::State(2)), ["s1", "s2+96", "s3+176"]);
}

#[test]
fn mamba_state_is_not_hit_in_the_same_pass() {
    let twice = vec![(0, sequence_in_family(1, 1, 100, 3)), (0, sequence_in_family(2, 1, 100, 3))];
    let state = event_log(
        config_with_layer_groups(SparseLayerKind::State(2), 1),
        submit_inputs(twice.clone()),
    );
    // The second sequence waits for the step that computes the state at 96.
    assert_eq!(state, "0: s1 | 10: s2+96 | 20: t1 t2 | 21: t1 t2 | 22: t1 e1 t2 e2");
    let window =
        event_log(config_with_layer_groups(SparseLayerKind::Window(32), 1), submit_inputs(twice));
    assert_eq!(window, "0: s1 s2+96 | 10: t1 t2 | 11: t1 t2 | 12: t1 e1 t2 e2");
}
