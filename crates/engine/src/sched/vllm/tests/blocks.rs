//! Tests prefix hits, allocation and preemption.

use super::*;
use crate::kv::{KvCacheLayerGroups, SparseLayerKind};

#[test]
fn a_cached_prefix_is_not_computed_but_the_last_token_always_is() {
    let config = VllmSchedulerConfig { max_num_batched_tokens: 16, ..config() };
    let inputs = vec![(0, sequence_in_family(1, 7, 32, 1)), (30, sequence_in_family(2, 7, 32, 1))];
    // 1 takes two chunks of 16. 2 finds one of its two blocks: the other holds the last token.
    assert_eq!(
        event_log(config, submit_inputs(inputs)),
        "0: s1 | 20: t1 e1 | 30: s2+16 | 40: t2 e2"
    );
}

#[test]
fn skip_cache_read_computes_the_whole_prompt() {
    let again = Sequence { skip_cache_read: true, ..sequence_in_family(2, 7, 40, 1) };
    let log =
        event_log(config(), submit_inputs(vec![(0, sequence_in_family(1, 7, 40, 1)), (10, again)]));
    assert_eq!(log, "0: s1 | 10: t1 e1 s2 | 20: t2 e2");
}

#[test]
fn a_prompt_waits_until_all_of_it_fits_though_its_first_chunk_would() {
    let tight = |reserve_full_prompt| VllmSchedulerConfig {
        num_gpu_blocks: 5,
        max_num_batched_tokens: 48,
        prefill: ChunkedPrefillConfig { reserve_full_prompt, ..ChunkedPrefillConfig::default() },
        ..config()
    };
    let inputs = || submit_inputs(vec![(0, new_sequence(1, 32, 3)), (0, new_sequence(2, 64, 1))]);
    let log = event_log(tight(true), inputs());
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1 | 12: t1 e1 s2 | 32: t2 e2");
    let log = event_log(tight(false), inputs());
    // 2 starts with the rest of the budget, and is the one to be preempted.
    assert_eq!(log, "0: s1 s2 | 10: t1 p2 | 11: t1 | 12: t1 e1 r2 | 32: t2 e2");
}

#[test]
fn last_admitted_is_preempted_and_resumes_first() {
    let config = VllmSchedulerConfig { num_gpu_blocks: 4, ..config() };
    let inputs =
        vec![(0, new_sequence(1, 31, 3)), (0, new_sequence(2, 31, 3)), (1, new_sequence(3, 16, 1))];
    // At 11 both need a third block; 2 is preempted and recomputes its 32 tokens before 3.
    let log = event_log(config, submit_inputs(inputs));
    assert_eq!(log, "0: s1 s2 | 10: t1 t2 | 11: t1 t2 p2 | 12: t1 e1 r2 s3 | 22: t2 e2 t3 e3");
}

#[test]
fn preemption_victim_can_be_the_first_admitted() {
    let config =
        VllmSchedulerConfig { num_gpu_blocks: 4, victim: PreemptionVictim::First, ..config() };
    let log = event_log(
        config,
        submit_inputs(vec![(0, new_sequence(1, 31, 3)), (0, new_sequence(2, 31, 3))]),
    );
    // 1 is first and preempts itself; the pass ends there, and the next one serves 2.
    assert_eq!(log, "0: s1 s2 | 10: t1 t2 | 11: t1 t2 p1 | 12: t2 e2 r1 | 22: t1 e1");
}

#[test]
fn a_preempted_sequence_finds_its_own_blocks_again() {
    let config = VllmSchedulerConfig { num_gpu_blocks: 6, max_num_batched_tokens: 40, ..config() };
    let inputs = vec![(0, sequence_in_family(1, 1, 47, 3)), (0, sequence_in_family(2, 2, 47, 3))];
    // 48 tokens to compute would take two steps; two blocks of 16 are still cached.
    let log = event_log(config, submit_inputs(inputs));
    assert_eq!(log, "0: s1 | 10: s2 | 20: t1 | 31: t1 t2 p2 | 32: t1 e1 r2 | 42: t2 | 43: t2 e2");
}

#[test]
fn token_in_flight_is_released_after_preemption() {
    let config = VllmSchedulerConfig { num_gpu_blocks: 4, async_scheduling: true, ..config() };
    let log = event_log(
        config,
        submit_inputs(vec![(0, new_sequence(1, 31, 3)), (0, new_sequence(2, 31, 3))]),
    );
    // At 10 the step 10..11 is in flight for both; the next one finds no block for 2.
    assert_eq!(log, "0: s1 s2 | 10: t1 t2 p2 | 11: t1 t2 | 12: t1 e1 r2 | 22: t2 e2");
}

#[test]
fn priority_orders_the_queue_and_chooses_the_victim() {
    let config =
        VllmSchedulerConfig { num_gpu_blocks: 4, policy: SchedulingPolicy::Priority, ..config() };
    let urgent = Sequence { priority: -1, ..new_sequence(2, 31, 3) };
    let log = event_log(config, submit_inputs(vec![(0, new_sequence(1, 31, 3)), (0, urgent)]));
    assert_eq!(log, "0: s2 s1 | 10: t2 t1 | 11: t2 t1 p1 | 12: t2 e2 r1 | 22: t1 e1");
}

#[test]
fn other_sequences_run_in_the_step_that_preempts_the_lowest() {
    let config =
        VllmSchedulerConfig { num_gpu_blocks: 6, policy: SchedulingPolicy::Priority, ..config() };
    let lowest = Sequence { priority: 5, ..new_sequence(2, 30, 4) };
    let log = event_log(
        config,
        submit_inputs(vec![(0, new_sequence(1, 24, 5)), (0, lowest), (5, new_sequence(3, 24, 5))]),
    );
    assert!(log.contains("22: t1 t2 t3 p2 | 23: t1 t3"), "{log}");
}

#[test]
fn a_victim_already_in_the_step_returns_its_tokens() {
    let config =
        VllmSchedulerConfig { num_gpu_blocks: 4, policy: SchedulingPolicy::Priority, ..config() };
    let low = Sequence { priority: 5, ..new_sequence(1, 28, 5) };
    let log = event_log(config, submit_inputs(vec![(0, low), (1, new_sequence(2, 31, 3))]));
    // 1 was admitted first and is already in the step of 22 when 2 needs a block.
    assert_eq!(
        log,
        "0: s1 | 10: t1 s2 | 21: t1 t2 | 22: t1 t2 p1 | 23: t2 e2 r1 | 33: t1 | 34: t1 e1"
    );
}

#[test]
fn the_watermark_keeps_blocks_free_unless_nothing_runs() {
    let config = VllmSchedulerConfig { num_gpu_blocks: 6, watermark: 0.5, ..config() };
    let log = event_log(
        config,
        submit_inputs(vec![(0, new_sequence(1, 64, 2)), (0, new_sequence(2, 16, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1 e1 s2 | 21: t2 e2");
}

#[test]
fn the_watermark_is_a_fraction_of_all_blocks_with_the_null_block() {
    // One block of six is kept free; of five it would be none.
    let config = VllmSchedulerConfig { num_gpu_blocks: 5, watermark: 0.17, ..config() };
    let log = event_log(
        config,
        submit_inputs(vec![(0, new_sequence(1, 64, 1)), (0, new_sequence(2, 16, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 e1 s2 | 20: t2 e2");
}

#[test]
fn block_events_are_emitted_at_the_end_of_their_step() {
    let config = VllmSchedulerConfig {
        reporting: SchedulerReportingConfig {
            kv_events: true,
            ..SchedulerReportingConfig::default()
        },
        num_gpu_blocks: 3,
        ..config()
    };
    let inputs = vec![
        (0, Submit(sequence_in_family(1, 1, 30, 4))),
        (20, Submit(sequence_in_family(2, 2, 40, 1))),
        (25, TestInput::Command(EngineCommand::ResetPrefixCache(PrefixCacheResetScope::Forget))),
    ];
    // 1 fills block 0 with its prompt and block 1 at 11; 2 reuses both. The reset happens while the
    // step of 2 is in flight, and is reported with it.
    assert_eq!(
        event_log(config, inputs),
        "0: s1 | 10: +0..1 t1 | 11: t1 | 12: +1..2 t1 | 13: t1 e1 | 20: s2 | \
         30: -2 +0..2 cleared t2 e2"
    );
}

#[test]
fn a_remote_prompt_is_fetched_and_its_last_token_costs_a_decode() {
    let config = VllmSchedulerConfig {
        transfer: PrefillTransferConfig {
            fetch: (Duration::from_millis(5), Duration::from_micros(100)),
            ..PrefillTransferConfig::default()
        },
        ..config()
    };
    let remote = Sequence { transfer: PromptKvTransfer::RemotePrefill, ..new_sequence(1, 50, 2) };
    let log = event_log(config, submit_inputs(vec![(0, remote), (0, new_sequence(2, 40, 4))]));
    assert_eq!(log, "0: s2 | 10: t2 s1+0+50 | 11: t2 t1 | 12: t2 t1 e1 | 13: t2 e2");
}

#[test]
fn hits_below_the_threshold_end_the_sequence() {
    let picky = Sequence { hit_threshold: Some(0.5), ..sequence_in_family(1, 1, 40, 2) };
    assert_eq!(event_log(config(), submit_inputs(vec![(0, picky)])), "0: Threshold1");
}

/// Returns the turns of one conversation; block keys depend on the position, lengths are in tokens.
fn conversation_turn(id: u64, prompt: u32, output: u32) -> Sequence {
    let keys = (1..=u64::from((prompt + output) / 16)).map(BlockKey);
    let plan =
        PlannedKvBlocks { keys: keys.collect(), block_size: 16, ..PlannedKvBlocks::default() };
    Sequence { plan: Some(Arc::new(plan)), ..new_sequence(id, prompt, output) }
}

#[test]
fn sliding_window_turn_hits_the_prompt_not_the_answer() {
    let hits = |layer_groups| {
        let config = VllmSchedulerConfig { layer_groups, ..config() };
        let turns = vec![
            (0, conversation_turn(1, 160, 64)),
            (1000, conversation_turn(2, 256, 64)),
            (2000, conversation_turn(3, 240, 16)),
        ];
        let log = event_log(config, submit_inputs(turns));
        let starts = log.split(' ').filter(|word| word.starts_with('s'));
        starts.map(str::to_owned).collect::<Vec<_>>()
    };
    let groups = |tokens, interval| {
        Some(KvCacheLayerGroups {
            full: 1,
            sparse: 1,
            kind: SparseLayerKind::Window(tokens),
            interval: Some(interval),
        })
    };
    let window = |interval| groups(128, interval);
    // The last token of an answer is never computed.
    assert_eq!(hits(None), ["s1", "s2+208", "s3+224"]);
    // 144 tokens are all blocks of the first prompt but its last. Of the second prompt, the windows
    // before 208 (the divergence) and 240 are kept, and they overlap.
    assert_eq!(hits(window(0)), ["s1", "s2+144", "s3+224"]);
    // Windows at every second block cover all blocks.
    assert_eq!(hits(window(32)), ["s1", "s2+208", "s3+224"]);
    // A window of a block is kept at 144, 160, 208 and 240.
    assert_eq!(hits(groups(16, 160)), ["s1", "s2+160", "s3+208"]);
    // A window as long as the prompt serves every shorter one.
    assert_eq!(hits(groups(1024, 0)), ["s1", "s2+144", "s3+224"]);
}

#[test]
fn lookahead_block_is_cached_once_next_tokens_exist() {
    let config = VllmSchedulerConfig {
        speculation: Some(SpeculativeDecodingConfig {
            accept: vec![1.0],
            drops_last_block: false,
            ..SpeculativeDecodingConfig::default()
        }),
        reporting: SchedulerReportingConfig {
            kv_events: true,
            ..SchedulerReportingConfig::default()
        },
        ..config()
    };
    let mut ahead = sequence_in_family(1, 7, 32, 4);
    if let Some(plan) = &mut ahead.plan {
        Arc::make_mut(plan).lookahead = 1;
    }
    let plain = sequence_in_family(1, 7, 32, 4);
    // Token 33 is released at 10, so that the second block has its key.
    assert_eq!(
        event_log(config.clone(), submit_inputs(vec![(0, ahead)])),
        "0: s1 | 10: +0..1 +1..2 t1 | 11: v1:1/1 t1x2 | 12: v1:1/1 t1 e1"
    );
    assert_eq!(
        event_log(config, submit_inputs(vec![(0, plain)])),
        "0: s1 | 10: +0..2 t1 | 11: v1:1/1 t1x2 | 12: v1:1/1 t1 e1"
    );
}

#[test]
fn events_of_a_planned_step_come_with_the_step_before() {
    let log = |async_scheduling| {
        let config = VllmSchedulerConfig {
            reporting: SchedulerReportingConfig {
                kv_events: true,
                ..SchedulerReportingConfig::default()
            },
            async_scheduling,
            ..config()
        };
        // The prompt of 2 arrives while 1 decodes, and is computed in a step of 11 ms.
        let inputs = vec![(0, new_sequence(1, 16, 6)), (11, sequence_in_family(2, 7, 32, 2))];
        event_log(config, submit_inputs(inputs))
    };
    assert_eq!(
        log(false),
        "0: s1 | 10: t1 | 11: t1 s2 | 22: +0..2 t1 t2 | 23: t1 t2 e2 | 24: t1 | 25: t1 e1"
    );
    // vLLM plans the prompt at 12 ms, while the step before runs until 12 ms.
    assert_eq!(
        log(true),
        "0: s1 | 10: t1 | 11: t1 s2 | 12: +0..2 t1 | 23: t1 t2 | 24: t1 t2 e2 | 25: t1 e1"
    );
}
