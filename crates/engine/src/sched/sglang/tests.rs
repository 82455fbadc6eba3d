//! Tests one rule each, with exact instants: a prefill pass takes 10 ms, a decode pass 1 ms.

use std::fmt::Write as _;
use std::time::Duration;

use crate::PlannedKvBlocks;
use crate::latency::LatencyModel;

use super::*;

fn config() -> SglangConfig {
    SglangConfig {
        latency: LatencyModel::Constant {
            prefill: Duration::from_millis(10),
            decode: Duration::from_millis(1),
        },
        num_pages: 64,
        page_size: 4,
        chunked_prefill_size: 64,
        ..SglangConfig::default()
    }
}

/// Creates a sequence that shares the prompt pages of its family; output pages are its own.
fn sequence_in_family(id: u64, family: u64, prompt: u32, output: u32) -> Sequence {
    let keys = (0..u64::from((prompt + output) / 4)).map(|i| {
        let shared = i < u64::from(prompt / 4);
        BlockKey(if shared { family * 1000 + i } else { (id + 50) * 1000 + i })
    });
    let plan =
        PlannedKvBlocks { keys: keys.collect(), block_size: 4, ..PlannedKvBlocks::default() };
    Sequence { plan: Some(Arc::new(plan)), ..Sequence::new(SeqId(id), prompt, output) }
}

fn play(config: SglangConfig, seqs: Vec<(u64, Sequence)>) -> String {
    let mut engine = SglangScheduler::new(config).unwrap();
    let mut out = Outbox::new();
    let mut seqs = seqs.into_iter().peekable();
    loop {
        let due = seqs.peek().map(|(at, _)| SimTime::from_millis(*at));
        let Some(now) = [due, engine.next_wakeup()].into_iter().flatten().min() else {
            break;
        };
        engine.advance(now, &mut out);
        while let Some((_, seq)) = seqs.next_if(|(at, _)| SimTime::from_millis(*at) == now) {
            engine.submit(now, seq, &mut out).unwrap();
        }
    }
    assert_eq!(engine.stats().used_blocks, 0);
    let mut text = String::new();
    let mut last = None;
    for (at, event) in &out {
        let event = match event {
            SchedulerEvent::Scheduled { id, cached: 0, .. } => format!("s{}", id.0),
            SchedulerEvent::Scheduled { id, cached, .. } => format!("s{}+{cached}", id.0),
            SchedulerEvent::Tokens { id, .. } => format!("t{}", id.0),
            SchedulerEvent::Decoded { id, n } => format!("d{}x{n}", id.0),
            SchedulerEvent::Preempted { id } => format!("p{}", id.0),
            SchedulerEvent::Resumed { id } => format!("r{}", id.0),
            SchedulerEvent::Ended { id, end: SequenceEndReason::Finished } => format!("e{}", id.0),
            SchedulerEvent::Ended { id, end } => format!("{end:?}{}", id.0),
            SchedulerEvent::Stored { from, to, .. } => format!("+{from}..{to}"),
            SchedulerEvent::Removed { keys } => format!("-{}", keys.len()),
            _ => continue,
        };
        if last != Some(*at) {
            let gap = if last.is_some() { " | " } else { "" };
            let _ = write!(text, "{gap}{}:", at.as_nanos() as f64 / 1e6);
            last = Some(*at);
        }
        let _ = write!(text, " {event}");
    }
    text
}

#[test]
fn the_first_token_is_emitted_with_the_prompt() {
    let log = play(config(), vec![(0, sequence_in_family(1, 1, 20, 3))]);
    assert_eq!(log, "0: s1 | 10: t1 | 11: t1 | 12: t1 e1");
}

#[test]
fn prefill_pass_contains_no_decodes() {
    let log = play(
        config(),
        vec![(0, sequence_in_family(1, 1, 20, 3)), (10, sequence_in_family(2, 2, 20, 1))],
    );
    assert_eq!(log, "0: s1 | 10: t1 s2 | 20: t2 e2 | 21: t1 | 22: t1 e1");
}

#[test]
fn chunked_prompt_continues_before_waiting_prompts() {
    let log = play(
        config(),
        vec![(0, sequence_in_family(1, 1, 100, 1)), (0, sequence_in_family(2, 2, 40, 1))],
    );
    // 64 tokens, then 36 and 28 of the other's 40.
    assert_eq!(log, "0: s1 | 10: s2 | 20: t1 e1 | 30: t2 e2");
}

#[test]
fn cached_prefix_is_shared_by_pages_except_last_token() {
    let log = play(
        config(),
        vec![(0, sequence_in_family(1, 1, 20, 1)), (30, sequence_in_family(2, 1, 20, 1))],
    );
    assert_eq!(log, "0: s1 | 10: t1 e1 | 30: s2+16 | 40: t2 e2");
}

#[test]
fn disabled_prefix_cache_shares_no_pages() {
    let config = SglangConfig { enable_prefix_caching: false, ..config() };
    let log = play(
        config,
        vec![(0, sequence_in_family(1, 1, 20, 1)), (30, sequence_in_family(2, 1, 20, 1))],
    );
    assert_eq!(log, "0: s1 | 10: t1 e1 | 30: s2 | 40: t2 e2");
}

#[test]
fn lpm_schedules_longest_cached_prefix_first() {
    let lpm =
        SglangConfig { schedule_policy: SglangSchedulePolicy::Lpm, max_num_seqs: 1, ..config() };
    let log = play(
        lpm,
        vec![
            (0, sequence_in_family(1, 1, 20, 1)),
            (5, sequence_in_family(2, 2, 20, 1)),
            (5, sequence_in_family(3, 1, 24, 1)),
        ],
    );
    assert_eq!(log, "0: s1 | 10: t1 e1 s3+20 | 20: t3 e3 s2 | 30: t2 e2");
}

#[test]
fn lpm_delays_prompts_with_an_equal_new_prefix() {
    let lpm =
        SglangConfig { schedule_policy: SglangSchedulePolicy::Lpm, max_num_seqs: 2, ..config() };
    let seqs = vec![
        (0, sequence_in_family(1, 1, 40, 1)),
        (0, sequence_in_family(2, 1, 40, 1)),
        (0, sequence_in_family(3, 3, 20, 1)),
    ];
    // 2 begins like 1 and lets 3 overtake, to find the prefix cached.
    assert_eq!(play(lpm, seqs), "0: s1 s3 | 10: t1 e1 t3 e3 s2+36 | 20: t2 e2");
}

#[test]
fn admission_reserves_new_token_ratio_of_output() {
    let small = SglangConfig { num_pages: 16, ..config() };
    let log = play(
        small,
        vec![(0, sequence_in_family(1, 1, 20, 20)), (10, sequence_in_family(2, 2, 20, 4))],
    );
    // 64 tokens: 1 holds 24 at 10, and 0.7 x 19 more are reserved, so 26.7 are left for 20 + 4.
    assert!(log.starts_with("0: s1 | 10: t1 s2 | 20: t2 |"), "{log}");
    let small = SglangConfig { num_pages: 16, schedule_conservativeness: 1.4, ..config() };
    let log = play(
        small,
        vec![(0, sequence_in_family(1, 1, 20, 20)), (10, sequence_in_family(2, 2, 20, 4))],
    );
    assert!(log.starts_with("0: s1 | 10: t1 | 11: t1 |"), "{log}");
}

#[test]
fn sequence_with_least_output_is_retracted() {
    let small = SglangConfig {
        num_pages: 11,
        schedule_conservativeness: 0.0,
        clip_max_new_tokens: 2,
        ..config()
    };
    let log = play(
        small,
        vec![(0, sequence_in_family(1, 1, 16, 10)), (11, sequence_in_family(2, 2, 16, 10))],
    );
    // At 24 one page is needed and none is free: 2 made less and is retracted. It returns after
    // every pass and finds no page for its next token, until 1 holds too many to admit it.
    assert_eq!(
        log,
        "0: s1 | 10: t1 | 11: t1 s2 | 21: t2 | 22: t1 t2 | 23: t1 t2 | 24: t1 t2 p2 | 25: t1 r2 | \
         35: p2 | 36: t1 r2 | 46: p2 | 47: t1 r2 | 57: p2 | 58: t1 | 59: t1 e1 r2 | 69: t2 | \
         70: t2 | 71: t2 | 72: t2 | 73: t2 | 74: t2 e2"
    );
}

#[test]
fn prefill_decode_interval_separates_prefill_passes() {
    let spaced = SglangConfig { prefill_decode_interval: 2, ..config() };
    let log = play(
        spaced,
        vec![(0, sequence_in_family(1, 1, 20, 9)), (5, sequence_in_family(2, 2, 20, 1))],
    );
    assert!(log.starts_with("0: s1 | 10: t1 | 11: t1 | 12: t1 s2 | 22: t2 e2 |"), "{log}");
}

#[test]
fn page_events_are_emitted_at_the_end_of_their_pass() {
    let small = SglangConfig { num_pages: 8, kv_events: true, ..config() };
    let log = play(
        small,
        vec![(0, sequence_in_family(1, 1, 12, 3)), (20, sequence_in_family(2, 2, 24, 1))],
    );
    // The last page of 1 is never full.
    assert_eq!(log, "0: s1 | 10: +0..3 t1 | 11: t1 | 12: t1 e1 | 20: s2 | 30: -1 +0..6 t2 e2");
}

#[test]
fn a_sequence_that_can_never_run_is_rejected() {
    let mut engine = SglangScheduler::new(config()).unwrap();
    let mut out = Outbox::new();
    let refused = engine.submit(SimTime::ZERO, sequence_in_family(1, 1, 250, 6), &mut out);
    assert_eq!(refused, Err(SequenceSubmitError::TooLarge { needed: 65, total: 64 }));
}

#[test]
fn config_error_names_the_invalid_setting() {
    let error = |config: SglangConfig| SglangScheduler::new(config).unwrap_err().to_string();
    let odd = SglangConfig { chunked_prefill_size: 66, ..config() };
    assert_eq!(error(odd), "chunked_prefill_size is 66, must be a multiple of 4");
    let small = SglangConfig { max_prefill_tokens: 3, ..config() };
    let words = error(small);
    assert!(words.starts_with("max_prefill_tokens is 3, must be between 4 and"), "{words}");
}

#[test]
fn a_transferred_prompt_joins_the_batch_after_the_transfer_time() {
    let fetch = Some((Duration::from_millis(5), Duration::from_micros(100)));
    let config = SglangConfig { handoff: true, fetch, ..config() };
    let remote = |id, family| Sequence {
        transfer: PromptKvTransfer::RemotePrefill,
        ..sequence_in_family(id, family, 20, 2)
    };
    // Two transfers of 5 ms and 20 times 0.1 ms run at the same time.
    let log = play(config, vec![(0, remote(1, 1)), (0, remote(2, 2))]);
    assert_eq!(log, "7: s1 s2 | 8: t1 t2 | 9: t1 e1 t2 e2");
}

#[test]
fn a_prompt_for_another_engine_keeps_its_pages_until_the_release() {
    let config = SglangConfig { handoff: true, fetch: Some(Default::default()), ..config() };
    let mut engine = SglangScheduler::new(config).unwrap();
    let mut out = Outbox::new();
    let lent = PromptKvTransfer::RemoteDecode;
    let seq = Sequence { transfer: lent, ..sequence_in_family(1, 1, 20, 1) };
    engine.submit(SimTime::ZERO, seq, &mut out).unwrap();
    while let Some(now) = engine.next_wakeup() {
        engine.advance(now, &mut out);
    }
    let ended = SchedulerEvent::Ended { id: SeqId(1), end: SequenceEndReason::Finished };
    assert!(out.iter().any(|(_, event)| *event == ended));
    assert_eq!(engine.stats().used_blocks, 5);
    let now = SimTime::from_millis(20);
    assert!(engine.apply_command(now, EngineCommand::Release(SeqId(1)), &mut out));
    assert_eq!(engine.stats().used_blocks, 0);
    assert!(!engine.apply_command(now, EngineCommand::Release(SeqId(1)), &mut out));
}
