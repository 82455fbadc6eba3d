//! One rule per test, with exact instants: prompt work takes 10 ms a step, decode work 1 ms.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::latency::LatencyModel;
use crate::engine::{BlockKey, LoraId, Plan, Transfer};

use super::*;

enum Input {
    Submit(Sequence),
    Abort(u64),
    Command(Command),
}

use Input::{Abort, Submit};

/// 100 blocks of 16 tokens, one step at a time, no prefix cache.
fn config() -> VllmConfig {
    VllmConfig {
        latency: LatencyModel::Constant {
            prefill: Duration::from_millis(10),
            decode: Duration::from_millis(1),
        },
        num_gpu_blocks: 100,
        async_scheduling: false,
        ..VllmConfig::default()
    }
}

fn seq(id: u64, prompt: u32, output: u32) -> Sequence {
    Sequence::new(SeqId(id), prompt, output)
}

/// A sequence whose blocks are named `family`, 1, 2, …; output blocks are its own.
fn planned(id: u64, family: u64, prompt: u32, output: u32) -> Sequence {
    let keys = (0..u64::from((prompt + output) / 16)).map(|i| {
        let shared = i < u64::from(prompt / 16);
        BlockKey(if shared {
            family * 1000 + i
        } else {
            (id + 50) * 1000 + i
        })
    });
    let plan = Plan {
        keys: keys.collect(),
        block_size: 16,
        ..Plan::default()
    };
    Sequence {
        plan: Some(Arc::new(plan)),
        ..seq(id, prompt, output)
    }
}

/// Plays inputs (in ms) and writes what happens: `10: t1 e1` is a token of 1 and its end at 10 ms.
fn play(config: VllmConfig, inputs: Vec<(u64, Input)>) -> String {
    let mut engine = Vllm::new(config).unwrap();
    let mut out = Outbox::new();
    let mut inputs = inputs.into_iter().peekable();
    loop {
        let due = inputs.peek().map(|(at, _)| SimTime::from_millis(*at));
        let Some(now) = [due, engine.next_wakeup()].into_iter().flatten().min() else {
            break;
        };
        engine.advance(now, &mut out);
        while let Some((_, input)) = inputs.next_if(|(at, _)| SimTime::from_millis(*at) == now) {
            match input {
                Submit(seq) => {
                    let id = seq.id;
                    if let Err(error) = engine.submit(now, seq, &mut out) {
                        panic!("{id:?}: {error}");
                    }
                }
                Abort(id) => engine.abort(now, SeqId(id), &mut out),
                Input::Command(command) => engine.command(now, command, &mut out),
            }
        }
    }
    assert_eq!(
        engine.stats().running + engine.stats().waiting,
        0,
        "{}",
        written(&out)
    );
    assert_eq!(engine.stats().used_blocks, 0);
    written(&out)
}

fn written(log: &Outbox) -> String {
    let mut text = String::new();
    let mut last = None;
    for (at, event) in log {
        let event = match event {
            Event::Scheduled {
                id,
                cached: 0,
                external: 0,
            } => format!("s{}", id.0),
            Event::Scheduled {
                id,
                cached,
                external: 0,
            } => format!("s{}+{cached}", id.0),
            Event::Scheduled {
                id,
                cached,
                external,
            } => format!("s{}+{cached}+{external}", id.0),
            Event::Tokens { id, n: 1 } => format!("t{}", id.0),
            Event::Tokens { id, n } => format!("t{}x{n}", id.0),
            Event::Preempted { id } => format!("p{}", id.0),
            Event::Ended {
                id,
                end: End::Finished,
            } => format!("e{}", id.0),
            Event::Ended { id, end } => format!("{end:?}{}", id.0),
            Event::Stored { from, to, .. } => format!("+{from}..{to}"),
            Event::Removed { keys } => format!("-{}", keys.len()),
            Event::Cleared => "cleared".to_owned(),
            Event::Step { .. } | Event::LoraLoading { .. } => continue,
        };
        if last != Some(*at) {
            let gap = if last.is_some() { " | " } else { "" };
            let _ = write!(text, "{gap}{}:", at.nanos() as f64 / 1e6);
            last = Some(*at);
        }
        let _ = write!(text, " {event}");
    }
    text
}

fn submits(seqs: Vec<(u64, Sequence)>) -> Vec<(u64, Input)> {
    seqs.into_iter()
        .map(|(at, seq)| (at, Submit(seq)))
        .collect()
}

#[test]
fn the_first_token_leaves_with_the_prompt_and_one_more_with_each_step() {
    let log = play(config(), submits(vec![(0, seq(1, 40, 3))]));
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1 | 12: t1 e1");
}

#[test]
fn an_arrival_during_a_step_joins_the_next_one() {
    let log = play(
        config(),
        submits(vec![(0, seq(1, 40, 2)), (3, seq(2, 40, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 s2 | 21: t1 e1 t2 e2");
}

#[test]
fn what_arrives_when_a_step_ends_joins_the_one_that_starts_then() {
    let log = play(
        config(),
        submits(vec![(0, seq(1, 40, 2)), (10, seq(2, 40, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 s2 | 21: t1 e1 t2 e2");
}

#[test]
fn with_two_steps_in_flight_an_arrival_waits_for_the_one_after_the_next() {
    let config = VllmConfig {
        async_scheduling: true,
        ..config()
    };
    let log = play(
        config,
        submits(vec![(0, seq(1, 40, 4)), (3, seq(2, 40, 1))]),
    );
    // The step 10..11 was scheduled at 0, without 2.
    assert_eq!(log, "0: s1 | 10: t1 s2 | 11: t1 | 22: t1 t2 e2 | 23: t1 e1");
}

#[test]
fn a_planned_end_is_not_scheduled_past() {
    let config = VllmConfig {
        async_scheduling: true,
        ..config()
    };
    let log = play(
        config,
        submits(vec![(0, seq(1, 40, 1)), (20, seq(2, 40, 2))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 e1 | 20: s2 | 30: t2 | 31: t2 e2");
}

#[test]
fn a_long_prompt_is_computed_in_chunks_of_the_budget() {
    let config = VllmConfig {
        max_num_batched_tokens: 64,
        ..config()
    };
    let log = play(config, submits(vec![(0, seq(1, 150, 1))]));
    assert_eq!(log, "0: s1 | 30: t1 e1");
}

#[test]
fn running_sequences_are_served_before_waiting_ones() {
    let config = VllmConfig {
        max_num_batched_tokens: 33,
        ..config()
    };
    let log = play(
        config,
        submits(vec![(0, seq(1, 32, 4)), (5, seq(2, 64, 1))]),
    );
    // One token of the budget belongs to 1, 32 to a chunk of 2.
    assert_eq!(log, "0: s1 | 10: t1 s2 | 21: t1 | 32: t1 t2 e2 | 33: t1 e1");
}

#[test]
fn without_chunks_a_prompt_waits_for_a_budget_that_holds_it() {
    let config = VllmConfig {
        max_num_batched_tokens: 64,
        enable_chunked_prefill: false,
        ..config()
    };
    let log = play(
        config,
        submits(vec![(0, seq(1, 40, 2)), (0, seq(2, 40, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 s2 | 21: t1 e1 t2 e2");
}

#[test]
fn without_chunks_a_prompt_beyond_the_budget_runs_alone() {
    let config = VllmConfig {
        max_num_batched_tokens: 64,
        enable_chunked_prefill: false,
        ..config()
    };
    let log = play(
        config,
        submits(vec![(0, seq(1, 40, 2)), (0, seq(2, 80, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1 e1 s2 | 21: t2 e2");
}

#[test]
fn chunks_are_cut_at_the_long_prefill_threshold() {
    let config = VllmConfig {
        long_prefill_token_threshold: 50,
        ..config()
    };
    let log = play(
        config,
        submits(vec![(0, seq(1, 100, 1)), (0, seq(2, 50, 1))]),
    );
    assert_eq!(log, "0: s1 s2 | 10: t2 e2 | 20: t1 e1");
}

#[test]
fn max_num_seqs_bounds_the_batch() {
    let config = VllmConfig {
        max_num_seqs: 1,
        ..config()
    };
    let log = play(
        config,
        submits(vec![(0, seq(1, 40, 2)), (0, seq(2, 40, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1 e1 s2 | 21: t2 e2");
}

#[test]
fn a_cached_prefix_is_not_computed_but_the_last_token_always_is() {
    let config = VllmConfig {
        max_num_batched_tokens: 16,
        ..config()
    };
    let inputs = vec![(0, planned(1, 7, 32, 1)), (30, planned(2, 7, 32, 1))];
    // 1 takes two chunks of 16; 2 finds one of its two blocks: the other holds the last token.
    assert_eq!(
        play(config, submits(inputs)),
        "0: s1 | 20: t1 e1 | 30: s2+16 | 40: t2 e2"
    );
}

#[test]
fn a_prompt_is_found_by_those_admitted_later_in_the_same_step() {
    let inputs = vec![(0, planned(1, 7, 40, 1)), (0, planned(2, 7, 40, 1))];
    assert_eq!(
        play(config(), submits(inputs)),
        "0: s1 s2+32 | 10: t1 e1 t2 e2"
    );
}

#[test]
fn a_cache_look_up_can_be_skipped() {
    let again = Sequence {
        skip_cache_read: true,
        ..planned(2, 7, 40, 1)
    };
    let log = play(
        config(),
        submits(vec![(0, planned(1, 7, 40, 1)), (10, again)]),
    );
    assert_eq!(log, "0: s1 | 10: t1 e1 s2 | 20: t2 e2");
}

#[test]
fn a_prompt_waits_until_all_of_it_fits_though_its_first_chunk_would() {
    let tight = |reserve_full_prompt| VllmConfig {
        num_gpu_blocks: 5,
        max_num_batched_tokens: 48,
        reserve_full_prompt,
        ..config()
    };
    let inputs = || submits(vec![(0, seq(1, 32, 3)), (0, seq(2, 64, 1))]);
    let log = play(tight(true), inputs());
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1 | 12: t1 e1 s2 | 32: t2 e2");
    let log = play(tight(false), inputs());
    // 2 starts with what is left of the budget, and is the one to lose its blocks.
    assert_eq!(log, "0: s1 s2 | 10: t1 p2 | 11: t1 | 12: t1 e1 | 32: t2 e2");
}

#[test]
fn the_last_admitted_loses_its_blocks_and_comes_back_first() {
    let config = VllmConfig {
        num_gpu_blocks: 4,
        ..config()
    };
    let inputs = vec![(0, seq(1, 31, 3)), (0, seq(2, 31, 3)), (1, seq(3, 16, 1))];
    // At 11 both need a third block; 2 gives way and computes its 32 tokens again, before 3.
    let log = play(config, submits(inputs));
    assert_eq!(
        log,
        "0: s1 s2 | 10: t1 t2 | 11: t1 t2 p2 | 12: t1 e1 s3 | 22: t2 e2 t3 e3"
    );
}

#[test]
fn the_first_admitted_can_be_the_victim() {
    let config = VllmConfig {
        num_gpu_blocks: 4,
        victim: Victim::First,
        ..config()
    };
    let log = play(
        config,
        submits(vec![(0, seq(1, 31, 3)), (0, seq(2, 31, 3))]),
    );
    // 1 asks first and is the victim itself; the pass ends there, the next one serves 2.
    assert_eq!(
        log,
        "0: s1 s2 | 10: t1 t2 | 11: t1 t2 p1 | 12: t2 e2 | 22: t1 e1"
    );
}

#[test]
fn a_preempted_sequence_finds_its_own_blocks_again() {
    let config = VllmConfig {
        num_gpu_blocks: 6,
        max_num_batched_tokens: 40,
        ..config()
    };
    let inputs = vec![(0, planned(1, 1, 47, 3)), (0, planned(2, 2, 47, 3))];
    // 48 tokens to compute would take two steps; two blocks of 16 are still cached.
    let log = play(config, submits(inputs));
    assert_eq!(
        log,
        "0: s1 | 10: s2 | 20: t1 | 31: t1 t2 p2 | 32: t1 e1 | 42: t2 | 43: t2 e2"
    );
}

#[test]
fn a_token_in_flight_reaches_a_sequence_that_was_preempted() {
    let config = VllmConfig {
        num_gpu_blocks: 4,
        async_scheduling: true,
        ..config()
    };
    let log = play(
        config,
        submits(vec![(0, seq(1, 31, 3)), (0, seq(2, 31, 3))]),
    );
    // At 10 the step 10..11 is in flight for both; the one scheduled then finds no block for 2.
    assert_eq!(
        log,
        "0: s1 s2 | 10: t1 t2 p2 | 11: t1 t2 | 12: t1 e1 | 22: t2 e2"
    );
}

#[test]
fn priority_orders_the_queue_and_chooses_the_victim() {
    let config = VllmConfig {
        num_gpu_blocks: 4,
        policy: Policy::Priority,
        ..config()
    };
    let urgent = Sequence {
        priority: -1,
        ..seq(2, 31, 3)
    };
    let log = play(config, submits(vec![(0, seq(1, 31, 3)), (0, urgent)]));
    assert_eq!(
        log,
        "0: s2 s1 | 10: t2 t1 | 11: t2 t1 p1 | 12: t2 e2 | 22: t1 e1"
    );
}

#[test]
fn a_victim_already_in_the_step_gives_its_tokens_back() {
    let config = VllmConfig {
        num_gpu_blocks: 4,
        policy: Policy::Priority,
        ..config()
    };
    let low = Sequence {
        priority: 5,
        ..seq(1, 28, 5)
    };
    let log = play(config, submits(vec![(0, low), (1, seq(2, 31, 3))]));
    // 1 was admitted first and is in the step of 22 already when 2 needs a block.
    assert_eq!(
        log,
        "0: s1 | 10: t1 s2 | 21: t1 t2 | 22: t1 t2 p1 | 23: t2 e2 | 33: t1 | 34: t1 e1"
    );
}

#[test]
fn the_watermark_keeps_blocks_free_unless_nothing_runs() {
    let config = VllmConfig {
        num_gpu_blocks: 6,
        watermark: 0.5,
        ..config()
    };
    let log = play(
        config,
        submits(vec![(0, seq(1, 64, 2)), (0, seq(2, 16, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1 e1 s2 | 21: t2 e2");
}

#[test]
fn accepted_drafts_leave_together() {
    let speculation = Some(Speculation {
        accept: vec![1.0, 1.0],
        free: false,
    });
    let config = VllmConfig {
        speculation,
        ..config()
    };
    let log = play(config, submits(vec![(0, seq(1, 40, 6))]));
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1x3 | 12: t1x2 e1");
}

#[test]
fn rejected_drafts_leave_nothing_behind() {
    let speculation = Some(Speculation {
        accept: vec![1.0, 0.0, 1.0],
        free: false,
    });
    let config = VllmConfig {
        speculation,
        ..config()
    };
    let log = play(config, submits(vec![(0, seq(1, 40, 6))]));
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1x2 | 12: t1x2 | 13: t1 e1");
}

#[test]
fn an_abort_frees_at_once_what_a_step_in_flight_still_computes() {
    let config = VllmConfig {
        num_gpu_blocks: 4,
        ..config()
    };
    let inputs = vec![
        (0, Submit(seq(1, 60, 4))),
        (1, Submit(seq(2, 60, 1))),
        (5, Abort(1)),
        (6, Abort(9)),
    ];
    assert_eq!(
        play(config, inputs),
        "0: s1 | 5: Aborted1 | 10: s2 | 20: t2 e2"
    );
}

#[test]
fn a_slot_in_flight_is_not_given_to_the_next() {
    let config = VllmConfig {
        async_scheduling: true,
        ..config()
    };
    let inputs = vec![
        (0, Submit(seq(1, 40, 4))),
        (5, Abort(1)),
        (5, Submit(seq(2, 40, 2))),
    ];
    assert_eq!(
        play(config, inputs),
        "0: s1 | 5: Aborted1 | 10: s2 | 21: t2 | 22: t2 e2"
    );
}

#[test]
fn a_pause_stops_scheduling_and_loses_nothing() {
    let inputs = vec![
        (0, Submit(seq(1, 40, 3))),
        (5, Input::Command(Command::Pause)),
        (6, Submit(seq(2, 40, 1))),
        (50, Input::Command(Command::Resume)),
    ];
    assert_eq!(
        play(config(), inputs),
        "0: s1 | 10: t1 | 50: s2 | 61: t1 t2 e2 | 62: t1 e1"
    );
}

#[test]
fn all_can_be_cancelled() {
    let config = VllmConfig {
        max_num_seqs: 1,
        ..config()
    };
    let inputs = vec![
        (0, Submit(seq(2, 40, 3))),
        (0, Submit(seq(1, 40, 3))),
        (5, Input::Command(Command::CancelAll)),
    ];
    assert_eq!(play(config, inputs), "0: s2 | 5: Cancelled2 Cancelled1");
}

#[test]
fn block_events_come_with_the_end_of_their_step() {
    let config = VllmConfig {
        kv_events: true,
        num_gpu_blocks: 3,
        ..config()
    };
    let inputs = vec![
        (0, Submit(planned(1, 1, 30, 4))),
        (20, Submit(planned(2, 2, 40, 1))),
        (25, Input::Command(Command::ResetPrefixCache)),
    ];
    // 1 fills block 0 with its prompt and block 1 at 11; 2 takes both over. The reset comes while
    // the step of 2 is in flight: what it did is said before.
    assert_eq!(
        play(config, inputs),
        "0: s1 | 10: +0..1 t1 | 11: t1 | 12: +1..2 t1 | 13: t1 e1 | 20: s2 | \
         25: -2 +0..2 cleared | 30: t2 e2"
    );
}

#[test]
fn a_remote_prompt_is_fetched_and_its_last_token_computed() {
    let config = VllmConfig {
        fetch: (Duration::from_millis(5), Duration::from_micros(100)),
        ..config()
    };
    let remote = Sequence {
        transfer: Transfer::RemotePrefill,
        ..seq(1, 50, 2)
    };
    let log = play(config, submits(vec![(0, remote), (0, seq(2, 40, 4))]));
    assert_eq!(
        log,
        "0: s2 | 10: t2 s1+0+50 | 21: t2 t1 | 22: t2 t1 e1 | 23: t2 e2"
    );
}

#[test]
fn too_few_hits_end_a_sequence_that_asks_for_more() {
    let picky = Sequence {
        hit_threshold: Some(0.5),
        ..planned(1, 1, 40, 2)
    };
    assert_eq!(play(config(), submits(vec![(0, picky)])), "0: Threshold1");
}

#[test]
fn a_tail_keeps_the_sequence_for_a_while() {
    let slow = Sequence {
        tail: Duration::from_millis(7),
        ..seq(1, 40, 2)
    };
    assert_eq!(
        play(config(), submits(vec![(0, slow)])),
        "0: s1 | 10: t1 | 11: t1 | 18: e1"
    );
}

#[test]
fn an_output_ends_where_the_context_does() {
    let config = VllmConfig {
        max_model_len: 42,
        ..config()
    };
    assert_eq!(
        play(config, submits(vec![(0, seq(1, 40, 9))])),
        "0: s1 | 10: t1 | 11: t1 e1"
    );
}

#[test]
fn an_adapter_too_many_waits_and_those_behind_it_do_not() {
    let config = VllmConfig {
        max_loras: 1,
        ..config()
    };
    let lora = |id, lora| Sequence {
        lora: Some(LoraId(lora)),
        ..seq(id, 40, 2)
    };
    let log = play(
        config,
        submits(vec![(0, lora(1, 1)), (0, lora(2, 2)), (0, lora(3, 1))]),
    );
    assert_eq!(
        log,
        "0: s1 s3 | 10: t1 t3 | 11: t1 e1 t3 e3 s2 | 21: t2 | 22: t2 e2"
    );
}

#[test]
fn what_cannot_be_taken_is_refused_with_a_reason() {
    let config = VllmConfig {
        max_waiting: Some(1),
        num_gpu_blocks: 4,
        ..config()
    };
    let mut engine = Vllm::new(config).unwrap();
    let mut out = Outbox::new();
    let mut submit = |seq| engine.submit(SimTime::ZERO, seq, &mut out);
    assert_eq!(
        submit(seq(1, 60, 6)),
        Err(SubmitError::TooLarge {
            needed: 5,
            total: 4
        })
    );
    assert_eq!(submit(seq(2, 60, 5)), Ok(()));
    assert_eq!(
        submit(seq(3, 1, 1)),
        Err(SubmitError::QueueFull { limit: 1 })
    );
}

#[test]
fn the_mocker_cancels_what_never_fits_when_its_turn_comes() {
    let config = VllmConfig {
        latency: config().latency,
        num_gpu_blocks: 2,
        max_num_seqs: 1,
        ..VllmConfig::mocker()
    };
    let log = play(
        config,
        submits(vec![(0, seq(1, 64, 2)), (0, seq(2, 200, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1 e1 Cancelled2");
}

#[test]
fn a_late_call_finds_everything_at_the_instants_it_was_due() {
    let mut engine = Vllm::new(VllmConfig {
        async_scheduling: true,
        ..config()
    })
    .unwrap();
    let mut out = Outbox::new();
    engine
        .submit(SimTime::ZERO, seq(1, 40, 3), &mut out)
        .unwrap();
    engine.advance(SimTime::from_millis(500), &mut out);
    assert_eq!(written(&out), "0: s1 | 10: t1 | 11: t1 | 12: t1 e1");
}

#[test]
fn settings_that_cannot_work_are_named() {
    let error = |config: VllmConfig| Vllm::new(config).unwrap_err().to_string();
    let zero = VllmConfig {
        block_size: 0,
        ..config()
    };
    assert_eq!(error(zero), "block_size is 0, must be at least 1");
    let high = VllmConfig {
        watermark: 1.5,
        ..config()
    };
    assert_eq!(error(high), "watermark is 1.5, must be between 0 and 1");
}
