//! Tests the start, the end and interruptions of sequences.

use super::*;

#[test]
fn a_step_runs_to_its_end_after_the_abort_of_its_sequence() {
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
fn new_delays_reach_the_step_in_flight() {
    let first = |ms| crate::Delays {
        ttft: (Duration::from_millis(ms), Duration::ZERO),
        ..crate::Delays::default()
    };
    let log = |ms| {
        let config = VllmConfig {
            latency: LatencyModel::Delays(Box::new(first(3_600_000))),
            ..config()
        };
        let change = Input::Command(Command::Delays(Arc::new(first(ms))));
        play(config, vec![(0, Submit(seq(1, 40, 1))), (5, change)])
    };
    assert_eq!(log(8), "0: s1 | 8: t1 e1");
    assert_eq!(log(0), "0: s1 | 5: t1 e1");
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
fn all_sequences_can_be_cancelled() {
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
fn an_impossible_sequence_is_rejected_with_a_reason() {
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
fn a_late_poll_returns_events_at_their_due_times() {
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
fn invalid_settings_are_named() {
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
