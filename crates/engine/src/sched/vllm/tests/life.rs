//! Tests the start, the end and interruptions of sequences.

use super::*;

#[test]
fn a_step_runs_to_its_end_after_the_abort_of_its_sequence() {
    let config = VllmSchedulerConfig { num_gpu_blocks: 4, ..config() };
    let inputs = vec![
        (0, Submit(new_sequence(1, 60, 4))),
        (1, Submit(new_sequence(2, 60, 1))),
        (5, Abort(1)),
        (6, Abort(9)),
    ];
    assert_eq!(event_log(config, inputs), "0: s1 | 5: Aborted1 | 10: s2 | 20: t2 e2");
}

#[test]
fn slot_of_an_aborted_sequence_in_flight_is_not_reused() {
    let config = VllmSchedulerConfig { async_scheduling: true, ..config() };
    let inputs = vec![
        (0, Submit(new_sequence(1, 40, 4))),
        (5, Abort(1)),
        (5, Submit(new_sequence(2, 40, 2))),
    ];
    assert_eq!(event_log(config, inputs), "0: s1 | 5: Aborted1 | 10: s2 | 21: t2 | 22: t2 e2");
}

#[test]
fn changed_delays_apply_to_the_step_in_flight() {
    let first = |ms| crate::TokenDelays {
        ttft: (Duration::from_millis(ms), Duration::ZERO),
        ..crate::TokenDelays::default()
    };
    let log = |ms| {
        let config = VllmSchedulerConfig {
            latency: LatencyModel::Delays(Box::new(first(3_600_000))),
            ..config()
        };
        let change = TestInput::Command(EngineCommand::Delays(Arc::new(first(ms))));
        event_log(config, vec![(0, Submit(new_sequence(1, 40, 1))), (5, change)])
    };
    assert_eq!(log(8), "0: s1 | 8: t1 e1");
    assert_eq!(log(0), "0: s1 | 5: t1 e1");
}

#[test]
fn a_pause_stops_scheduling_and_loses_nothing() {
    let inputs = vec![
        (0, Submit(new_sequence(1, 40, 3))),
        (5, TestInput::Command(EngineCommand::Pause)),
        (6, Submit(new_sequence(2, 40, 1))),
        (50, TestInput::Command(EngineCommand::Resume)),
    ];
    assert_eq!(event_log(config(), inputs), "0: s1 | 10: t1 | 50: s2 | 61: t1 t2 e2 | 62: t1 e1");
}

#[test]
fn all_sequences_can_be_cancelled() {
    let config = VllmSchedulerConfig { max_num_seqs: 1, ..config() };
    let inputs = vec![
        (0, Submit(new_sequence(2, 40, 3))),
        (0, Submit(new_sequence(1, 40, 3))),
        (5, TestInput::Command(EngineCommand::CancelAll)),
    ];
    assert_eq!(event_log(config, inputs), "0: s2 | 5: Cancelled2 Cancelled1");
}

#[test]
fn tail_delays_the_end_of_a_sequence() {
    let slow = Sequence { tail: Duration::from_millis(7), ..new_sequence(1, 40, 2) };
    assert_eq!(
        event_log(config(), submit_inputs(vec![(0, slow)])),
        "0: s1 | 10: t1 | 11: t1 | 18: e1"
    );
}

#[test]
fn output_ends_at_max_model_len() {
    let config = VllmSchedulerConfig { max_model_len: 42, ..config() };
    assert_eq!(
        event_log(config, submit_inputs(vec![(0, new_sequence(1, 40, 9))])),
        "0: s1 | 10: t1 | 11: t1 e1"
    );
}

#[test]
fn an_impossible_sequence_is_rejected_with_a_reason() {
    let config = VllmSchedulerConfig { max_waiting: Some(1), num_gpu_blocks: 4, ..config() };
    let mut engine = VllmScheduler::new(config).unwrap();
    let mut out = Outbox::new();
    let mut submit = |seq| engine.submit(SimTime::ZERO, seq, &mut out);
    assert_eq!(
        submit(new_sequence(1, 60, 6)),
        Err(SequenceSubmitError::TooLarge { needed: 5, total: 4 })
    );
    assert_eq!(submit(new_sequence(2, 60, 5)), Ok(()));
    assert_eq!(submit(new_sequence(3, 1, 1)), Err(SequenceSubmitError::QueueFull { limit: 1 }));
}

#[test]
fn late_advance_reports_events_at_their_due_times() {
    let mut engine =
        VllmScheduler::new(VllmSchedulerConfig { async_scheduling: true, ..config() }).unwrap();
    let mut out = Outbox::new();
    engine.submit(SimTime::ZERO, new_sequence(1, 40, 3), &mut out).unwrap();
    engine.advance(SimTime::from_millis(500), &mut out);
    assert_eq!(log_text(&out), "0: s1 | 10: t1 | 11: t1 | 12: t1 e1");
}

#[test]
fn config_error_names_the_invalid_setting() {
    let error = |config: VllmSchedulerConfig| VllmScheduler::new(config).unwrap_err().to_string();
    let zero = VllmSchedulerConfig { block_size: 0, ..config() };
    assert_eq!(error(zero), "block_size is 0, must be at least 1");
    let high = VllmSchedulerConfig { watermark: 1.5, ..config() };
    assert_eq!(error(high), "watermark is 1.5, must be between 0 and 1");
}
