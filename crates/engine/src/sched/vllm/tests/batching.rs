//! Tests the composition of steps.

use super::*;

#[test]
fn the_first_token_is_emitted_with_the_prompt_and_one_more_per_step() {
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
fn an_arrival_at_the_end_of_a_step_joins_the_next_step() {
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
        prefill: PrefillConfig {
            enable_chunked_prefill: false,
            ..PrefillConfig::default()
        },
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
        prefill: PrefillConfig {
            enable_chunked_prefill: false,
            ..PrefillConfig::default()
        },
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
        prefill: PrefillConfig {
            long_prefill_token_threshold: 50,
            ..PrefillConfig::default()
        },
        ..config()
    };
    let log = play(
        config,
        submits(vec![(0, seq(1, 100, 1)), (0, seq(2, 50, 1))]),
    );
    assert_eq!(log, "0: s1 s2 | 10: t2 e2 | 20: t1 e1");
}

#[test]
fn a_single_prompt_is_not_limited_by_the_threshold() {
    let config = VllmConfig {
        prefill: PrefillConfig {
            long_prefill_token_threshold: 50,
            ..PrefillConfig::default()
        },
        ..config()
    };
    let log = play(config, submits(vec![(0, seq(1, 100, 1))]));
    assert_eq!(log, "0: s1 | 10: t1 e1");
}

#[test]
fn an_adaptive_threshold_leaves_each_sequence_a_share() {
    let config = VllmConfig {
        prefill: PrefillConfig {
            long_prefill_token_threshold: 50,
            long_prefill_token_threshold_adaptive: true,
            ..PrefillConfig::default()
        },
        max_num_batched_tokens: 200,
        ..config()
    };
    let both = vec![(0, seq(1, 100, 1)), (0, seq(2, 100, 1))];
    assert_eq!(play(config, submits(both)), "0: s1 s2 | 10: t1 e1 t2 e2");
}

#[test]
fn prompts_wait_for_their_step_while_others_decode() {
    let config = VllmConfig {
        prefill: PrefillConfig {
            prefill_schedule_interval: 3,
            ..PrefillConfig::default()
        },
        ..config()
    };
    let log = play(
        config,
        submits(vec![(0, seq(1, 20, 6)), (5, seq(2, 20, 1))]),
    );
    assert_eq!(
        log,
        "0: s1 | 10: t1 | 11: t1 | 12: t1 s2 | 23: t1 t2 e2 | 24: t1 | 25: t1 e1"
    );
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
fn a_prompt_is_found_by_those_admitted_later_in_the_same_step() {
    let inputs = vec![(0, planned(1, 7, 40, 1)), (0, planned(2, 7, 40, 1))];
    assert_eq!(
        play(config(), submits(inputs)),
        "0: s1 s2+32 | 10: t1 e1 t2 e2"
    );
}

#[test]
fn accepted_drafts_are_emitted_together() {
    let speculation = Some(Speculation {
        accept: vec![1.0, 1.0],
        drops_last_block: true,
        ..Speculation::default()
    });
    let config = VllmConfig {
        speculation,
        ..config()
    };
    let log = play(config, submits(vec![(0, seq(1, 40, 6))]));
    assert_eq!(log, "0: s1 | 10: t1 | 11: v1:2/2 t1x3 | 12: v1:2/2 t1x2 e1");
}

#[test]
fn rejected_drafts_leave_no_state() {
    let speculation = Some(Speculation {
        accept: vec![1.0, 0.0, 1.0],
        drops_last_block: true,
        ..Speculation::default()
    });
    let config = VllmConfig {
        speculation,
        ..config()
    };
    let log = play(config, submits(vec![(0, seq(1, 40, 6))]));
    assert_eq!(
        log,
        "0: s1 | 10: t1 | 11: v1:1/3 t1x2 | 12: v1:1/3 t1x2 | 13: v1:1/3 t1 e1"
    );
}

#[test]
fn drafts_of_a_sequence_override_acceptance_rates() {
    let speculation = Some(Speculation {
        accept: vec![0.0; 4],
        drops_last_block: false,
        ..Speculation::default()
    });
    let config = VllmConfig {
        speculation,
        ..config()
    };
    let drafts = [(0, 0), (4, 2), (4, 4), (4, 4), (2, 0)];
    let drafts = drafts.map(|(proposed, accepted)| Draft { proposed, accepted });
    let told = Sequence {
        drafts: Some(Arc::new(drafts)),
        ..seq(1, 40, 6)
    };
    let log = play(config, submits(vec![(0, told)]));
    assert_eq!(
        log,
        "0: s1 | 10: t1 | 11: t1 | 12: v1:2/4 t1x3 | 13: v1:0/2 t1 e1"
    );
}

#[test]
fn a_request_beyond_max_loras_waits_and_others_pass() {
    let config = VllmConfig {
        loras: LoraConfig {
            max_loras: 1,
            ..LoraConfig::default()
        },
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

fn with_lora(id: u64, lora: u32, output: u32) -> Sequence {
    Sequence {
        lora: Some(LoraId(lora)),
        ..seq(id, 40, output)
    }
}

#[test]
fn a_batch_waits_for_an_adapter_without_a_slot() {
    let config = VllmConfig {
        loras: LoraConfig {
            max_loras: 1,
            load_time: Duration::from_millis(100),
            ..LoraConfig::default()
        },
        ..config()
    };
    let log = play(
        config,
        submits(vec![
            (0, with_lora(1, 1, 2)),
            // The adapter is still loaded.
            (200, with_lora(2, 1, 2)),
            // Another adapter takes its slot, so the first must be loaded again.
            (300, with_lora(3, 2, 1)),
            (500, with_lora(4, 1, 1)),
        ]),
    );
    assert_eq!(
        log,
        "0: s1 | 110: t1 | 111: t1 e1 | 200: s2 | 210: t2 | 211: t2 e2 \
         | 300: s3 | 410: t3 e3 | 500: s4 | 610: t4 e4"
    );
}

#[test]
fn a_steady_stream_of_one_adapter_starves_another() {
    let config = VllmConfig {
        loras: LoraConfig {
            max_loras: 1,
            ..LoraConfig::default()
        },
        ..config()
    };
    // One arrives every 5 ms and runs for longer, so the adapter of 1000 never finds a slot.
    let mut inputs: Vec<_> = (0..200).map(|i| (i * 5, with_lora(i, 1, 5))).collect();
    inputs.insert(1, (1, with_lora(1000, 2, 1)));
    let log = play(config, submits(inputs));
    let before = log.split("s1000").next().unwrap();
    assert!(log.contains("s1000"));
    let passed = before.matches('s').count() - 1;
    assert_eq!(passed, 199, "{before}");
}

#[test]
fn a_sequence_that_waits_for_an_adapter_is_deferred() {
    let mut engine = Vllm::new(VllmConfig {
        loras: LoraConfig {
            max_loras: 1,
            ..LoraConfig::default()
        },
        ..config()
    })
    .unwrap();
    let mut out = Outbox::new();
    for (id, lora) in [(1, 1), (2, 2), (3, 2)] {
        let seq = with_lora(id, lora, 50);
        engine.submit(SimTime::ZERO, seq, &mut out).unwrap();
    }
    engine.advance(SimTime::from_millis(12), &mut out);
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.deferred), (1, 0, 2));
    engine.abort(SimTime::from_millis(12), SeqId(2), &mut out);
    assert_eq!(engine.stats().deferred, 1);
}
