//! Tests the composition of steps.

use super::*;

#[test]
fn the_first_token_is_emitted_with_the_prompt_and_one_more_per_step() {
    let log = event_log(config(), submit_inputs(vec![(0, new_sequence(1, 40, 3))]));
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1 | 12: t1 e1");
}

#[test]
fn arrival_during_a_step_joins_the_next_step() {
    let log = event_log(
        config(),
        submit_inputs(vec![(0, new_sequence(1, 40, 2)), (3, new_sequence(2, 40, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 s2 | 21: t1 e1 t2 e2");
}

#[test]
fn an_arrival_at_the_end_of_a_step_joins_the_next_step() {
    let log = event_log(
        config(),
        submit_inputs(vec![(0, new_sequence(1, 40, 2)), (10, new_sequence(2, 40, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 s2 | 21: t1 e1 t2 e2");
}

#[test]
fn async_scheduling_delays_an_arrival_by_one_more_step() {
    let config = VllmSchedulerConfig { async_scheduling: true, ..config() };
    let log = event_log(
        config,
        submit_inputs(vec![(0, new_sequence(1, 40, 4)), (3, new_sequence(2, 40, 1))]),
    );
    // The step 10..11 was scheduled at 0, without 2.
    assert_eq!(log, "0: s1 | 10: t1 s2 | 11: t1 | 22: t1 t2 e2 | 23: t1 e1");
}

#[test]
fn no_token_is_scheduled_after_the_planned_end() {
    let config = VllmSchedulerConfig { async_scheduling: true, ..config() };
    let log = event_log(
        config,
        submit_inputs(vec![(0, new_sequence(1, 40, 1)), (20, new_sequence(2, 40, 2))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 e1 | 20: s2 | 30: t2 | 31: t2 e2");
}

#[test]
fn prompt_is_chunked_by_max_num_batched_tokens() {
    let config = VllmSchedulerConfig { max_num_batched_tokens: 64, ..config() };
    let log = event_log(config, submit_inputs(vec![(0, new_sequence(1, 150, 1))]));
    assert_eq!(log, "0: s1 | 30: t1 e1");
}

#[test]
fn running_sequences_are_served_before_waiting_ones() {
    let config = VllmSchedulerConfig { max_num_batched_tokens: 33, ..config() };
    let log = event_log(
        config,
        submit_inputs(vec![(0, new_sequence(1, 32, 4)), (5, new_sequence(2, 64, 1))]),
    );
    // One token of the budget belongs to 1, 32 to a chunk of 2.
    assert_eq!(log, "0: s1 | 10: t1 s2 | 21: t1 | 32: t1 t2 e2 | 33: t1 e1");
}

#[test]
fn unchunked_prompt_waits_for_a_full_token_budget() {
    let config = VllmSchedulerConfig {
        max_num_batched_tokens: 64,
        prefill: ChunkedPrefillConfig {
            enable_chunked_prefill: false,
            ..ChunkedPrefillConfig::default()
        },
        ..config()
    };
    let log = event_log(
        config,
        submit_inputs(vec![(0, new_sequence(1, 40, 2)), (0, new_sequence(2, 40, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 s2 | 21: t1 e1 t2 e2");
}

#[test]
fn unchunked_prompt_above_the_budget_runs_alone() {
    let config = VllmSchedulerConfig {
        max_num_batched_tokens: 64,
        prefill: ChunkedPrefillConfig {
            enable_chunked_prefill: false,
            ..ChunkedPrefillConfig::default()
        },
        ..config()
    };
    let log = event_log(
        config,
        submit_inputs(vec![(0, new_sequence(1, 40, 2)), (0, new_sequence(2, 80, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1 e1 s2 | 21: t2 e2");
}

#[test]
fn chunks_are_cut_at_the_long_prefill_threshold() {
    let config = VllmSchedulerConfig {
        prefill: ChunkedPrefillConfig {
            long_prefill_token_threshold: 50,
            ..ChunkedPrefillConfig::default()
        },
        ..config()
    };
    let log = event_log(
        config,
        submit_inputs(vec![(0, new_sequence(1, 100, 1)), (0, new_sequence(2, 50, 1))]),
    );
    assert_eq!(log, "0: s1 s2 | 10: t2 e2 | 20: t1 e1");
}

#[test]
fn single_prompt_ignores_long_prefill_threshold() {
    let config = VllmSchedulerConfig {
        prefill: ChunkedPrefillConfig {
            long_prefill_token_threshold: 50,
            ..ChunkedPrefillConfig::default()
        },
        ..config()
    };
    let log = event_log(config, submit_inputs(vec![(0, new_sequence(1, 100, 1))]));
    assert_eq!(log, "0: s1 | 10: t1 e1");
}

#[test]
fn adaptive_prefill_threshold_shares_the_token_budget() {
    let config = VllmSchedulerConfig {
        prefill: ChunkedPrefillConfig {
            long_prefill_token_threshold: 50,
            long_prefill_token_threshold_adaptive: true,
            ..ChunkedPrefillConfig::default()
        },
        max_num_batched_tokens: 200,
        ..config()
    };
    let both = vec![(0, new_sequence(1, 100, 1)), (0, new_sequence(2, 100, 1))];
    assert_eq!(event_log(config, submit_inputs(both)), "0: s1 s2 | 10: t1 e1 t2 e2");
}

#[test]
fn prefill_schedule_interval_delays_prompts() {
    let config = VllmSchedulerConfig {
        prefill: ChunkedPrefillConfig {
            prefill_schedule_interval: 3,
            ..ChunkedPrefillConfig::default()
        },
        ..config()
    };
    let log = event_log(
        config,
        submit_inputs(vec![(0, new_sequence(1, 20, 6)), (5, new_sequence(2, 20, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1 | 12: t1 s2 | 23: t1 t2 e2 | 24: t1 | 25: t1 e1");
}

#[test]
fn max_num_seqs_bounds_the_batch() {
    let config = VllmSchedulerConfig { max_num_seqs: 1, ..config() };
    let log = event_log(
        config,
        submit_inputs(vec![(0, new_sequence(1, 40, 2)), (0, new_sequence(2, 40, 1))]),
    );
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1 e1 s2 | 21: t2 e2");
}

#[test]
fn prompt_blocks_are_hit_later_in_the_same_step() {
    let inputs = vec![(0, sequence_in_family(1, 7, 40, 1)), (0, sequence_in_family(2, 7, 40, 1))];
    assert_eq!(event_log(config(), submit_inputs(inputs)), "0: s1 s2+32 | 10: t1 e1 t2 e2");
}

#[test]
fn accepted_drafts_are_emitted_together() {
    let speculation = Some(SpeculativeDecodingConfig {
        accept: vec![1.0, 1.0],
        drops_last_block: true,
        ..SpeculativeDecodingConfig::default()
    });
    let config = VllmSchedulerConfig { speculation, ..config() };
    let log = event_log(config, submit_inputs(vec![(0, new_sequence(1, 40, 6))]));
    assert_eq!(log, "0: s1 | 10: t1 | 11: v1:2/2 t1x3 | 12: v1:2/2 t1x2 e1");
}

#[test]
fn rejected_drafts_leave_no_tokens() {
    let speculation = Some(SpeculativeDecodingConfig {
        accept: vec![1.0, 0.0, 1.0],
        drops_last_block: true,
        ..SpeculativeDecodingConfig::default()
    });
    let config = VllmSchedulerConfig { speculation, ..config() };
    let log = event_log(config, submit_inputs(vec![(0, new_sequence(1, 40, 6))]));
    assert_eq!(log, "0: s1 | 10: t1 | 11: v1:1/3 t1x2 | 12: v1:1/3 t1x2 | 13: v1:1/3 t1 e1");
}

#[test]
fn submitted_drafts_override_acceptance_rates() {
    let speculation = Some(SpeculativeDecodingConfig {
        accept: vec![0.0; 4],
        drops_last_block: false,
        ..SpeculativeDecodingConfig::default()
    });
    let config = VllmSchedulerConfig { speculation, ..config() };
    let drafts = [(0, 0), (4, 2), (4, 4), (4, 4), (2, 0)];
    let drafts = drafts.map(|(proposed, accepted)| StepDraftCounts { proposed, accepted });
    let told = Sequence { drafts: Some(Arc::new(drafts)), ..new_sequence(1, 40, 6) };
    let log = event_log(config, submit_inputs(vec![(0, told)]));
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1 | 12: v1:2/4 t1x3 | 13: v1:0/2 t1 e1");
}

#[test]
fn request_beyond_max_loras_is_overtaken() {
    let config = VllmSchedulerConfig {
        loras: LoraConfig { max_loras: 1, ..LoraConfig::default() },
        ..config()
    };
    let lora = |id, lora| Sequence { lora: Some(LoraId(lora)), ..new_sequence(id, 40, 2) };
    let log =
        event_log(config, submit_inputs(vec![(0, lora(1, 1)), (0, lora(2, 2)), (0, lora(3, 1))]));
    assert_eq!(log, "0: s1 s3 | 10: t1 t3 | 11: t1 e1 t3 e3 s2 | 21: t2 | 22: t2 e2");
}

fn with_lora(id: u64, lora: u32, output: u32) -> Sequence {
    Sequence { lora: Some(LoraId(lora)), ..new_sequence(id, 40, output) }
}

#[test]
fn waiting_adapter_gets_a_slot_when_the_batch_drains() {
    let config = VllmSchedulerConfig {
        loras: LoraConfig {
            max_loras: 1,
            load_time: Duration::from_millis(100),
            ..LoraConfig::default()
        },
        ..config()
    };
    let log = event_log(
        config,
        submit_inputs(vec![
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
    let config = VllmSchedulerConfig {
        loras: LoraConfig { max_loras: 1, ..LoraConfig::default() },
        ..config()
    };
    // One arrives every 5 ms and runs for longer, so the adapter of 1000 never finds a slot.
    let mut inputs: Vec<_> = (0..200).map(|i| (i * 5, with_lora(i, 1, 5))).collect();
    inputs.insert(1, (1, with_lora(1000, 2, 1)));
    let log = event_log(config, submit_inputs(inputs));
    let before = log.split("s1000").next().unwrap();
    assert!(log.contains("s1000"));
    let passed = before.matches('s').count() - 1;
    assert_eq!(passed, 199, "{before}");
}

#[test]
fn sequence_waiting_for_a_lora_slot_counts_as_deferred() {
    let mut engine = VllmScheduler::new(VllmSchedulerConfig {
        loras: LoraConfig { max_loras: 1, ..LoraConfig::default() },
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

/// Returns a sequence whose request spends `delay_ms` in the API server.
fn delayed(delay_ms: u64, seq: Sequence) -> Sequence {
    Sequence { front_end_delay: Duration::from_millis(delay_ms), ..seq }
}

#[test]
fn a_sequence_from_the_api_server_is_queued_as_if_submitted_then() {
    for async_scheduling in [false, true] {
        // Before, at the end of, and after a step, and to an idle engine.
        for at in [3, 10, 11, 40] {
            let config = || VllmSchedulerConfig { async_scheduling, ..config() };
            let first = || (0, new_sequence(1, 40, 4));
            let expected =
                event_log(config(), submit_inputs(vec![first(), (at, new_sequence(2, 40, 2))]));
            let late = (0, delayed(at, new_sequence(2, 40, 2)));
            let log = event_log(config(), submit_inputs(vec![first(), late]));
            assert_eq!(log, expected, "{at} ms, {async_scheduling}");
        }
    }
}

#[test]
fn a_sequence_can_end_in_the_api_server() {
    let inputs = || {
        vec![(0, Submit(new_sequence(1, 40, 3))), (0, Submit(delayed(11, new_sequence(2, 40, 2))))]
    };
    let mut aborted = inputs();
    aborted.push((5, Abort(2)));
    assert_eq!(event_log(config(), aborted), "0: s1 | 5: Aborted2 | 10: t1 | 11: t1 | 12: t1 e1");
    let mut cancelled = inputs();
    cancelled.push((5, TestInput::Command(EngineCommand::CancelAll)));
    assert_eq!(event_log(config(), cancelled), "0: s1 | 5: Cancelled2 Cancelled1");
}

#[test]
fn sequences_in_the_api_server_fill_the_batch_before_the_queue() {
    let config = VllmSchedulerConfig { max_num_seqs: 3, max_waiting: Some(2), ..config() };
    let mut engine = VllmScheduler::new(config).unwrap();
    let mut submit = |id| {
        let seq = delayed(5, new_sequence(id, 40, 1));
        engine.submit(SimTime::ZERO, seq, &mut Outbox::new())
    };
    for id in 1..=5 {
        assert_eq!(submit(id), Ok(()), "{id}");
    }
    assert_eq!(submit(6), Err(SequenceSubmitError::QueueFull { limit: 2 }));
    assert_eq!((engine.stats().waiting, engine.stats().in_api_server), (0, 5));
}

/// 3.4 ms, 3.2 us for each token and 45 us for each other sequence.
#[test]
fn api_server_time_depends_on_prompt_and_other_sequences() {
    let shape = known_model_shape("meta-llama/Llama-3.1-8B-Instruct").unwrap();
    let setup = RooflineModelSetup::new(shape, find_gpu("H100").unwrap().clone());
    let latency = LatencyModel::Roofline(Box::new(RooflineModel::new(&setup).unwrap()));
    let config = VllmSchedulerConfig { latency, max_num_seqs: 2, ..config() };
    let mut engine = VllmScheduler::new(config.clone()).unwrap();
    let prompt = |id| new_sequence(id, 1000, 1);
    for (id, us) in [(1, 6600), (2, 6645), (3, 6690), (4, 6690)] {
        let front_end_delay = engine.front_end_delay(&prompt(id));
        assert_eq!(front_end_delay, Duration::from_micros(us), "{id}");
        let seq = Sequence { front_end_delay, ..prompt(id) };
        engine.submit(SimTime::ZERO, seq, &mut Outbox::new()).unwrap();
    }
    let transferred = Sequence { transfer: PromptKvTransfer::RemotePrefill, ..prompt(5) };
    assert_eq!(engine.front_end_delay(&transferred), Duration::ZERO);
    let mut latency = config.latency;
    latency.remove_api_server();
    let behind_another = VllmSchedulerConfig { latency, ..self::config() };
    let engine = VllmScheduler::new(behind_another).unwrap();
    assert_eq!(engine.front_end_delay(&prompt(6)), Duration::ZERO);
}
