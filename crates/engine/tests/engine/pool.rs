//! Tests the pool scheduler in virtual time: exact instants, no tolerance.

use std::time::Duration;

use vllm_sim_engine::SimTime;
use vllm_sim_engine::sched::pool::{SlotScheduler, SlotSchedulerConfig};
use vllm_sim_engine::{
    EngineCommand, LoraId, Outbox, PromptKvTransfer, Scheduler, SchedulerEvent, SeqId, Sequence,
    SequenceEndReason, SequenceSubmitError, TokenDelays, TtftFormula,
};

use crate::offline;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn at(n: u64) -> SimTime {
    SimTime::from_millis(n)
}

fn seq(id: u64, prompt: u32, output: u32) -> Sequence {
    Sequence::new(SeqId(id), prompt, output)
}

fn pool(slots: usize, delays: TokenDelays) -> SlotScheduler {
    SlotScheduler::new(SlotSchedulerConfig {
        slots,
        queue: Some(2),
        delays,
        seed: 7,
        ..SlotSchedulerConfig::default()
    })
}

fn constant(ttft: Duration, itl: Duration) -> TokenDelays {
    TokenDelays {
        ttft: (ttft, Duration::ZERO),
        itl: (itl, Duration::ZERO),
        ..TokenDelays::default()
    }
}

fn releases(log: &[(SimTime, SchedulerEvent)], id: u64) -> Vec<u64> {
    log.iter()
        .filter_map(|(at, event)| match event {
            SchedulerEvent::Tokens { id: seq, n } if *seq == SeqId(id) => {
                Some(std::iter::repeat_n(at.as_nanos(), *n as usize))
            }
            _ => None,
        })
        .flatten()
        .collect()
}

#[test]
fn preparation_time_counts_in_ttft_unless_queued() {
    let prepared = |id, preparation_time| Sequence { preparation_time, ..seq(id, 3, 2) };
    let arrivals =
        [(at(4), prepared(1, ms(4))), (at(4), prepared(2, ms(90))), (at(4), prepared(3, ms(4)))];
    let log = offline::run(&mut pool(2, constant(ms(70), ms(10))), arrivals).unwrap();
    let millis = |id| releases(&log, id).iter().map(|n| n / 1_000_000).collect();
    let seen: [Vec<u64>; 3] = [1, 2, 3].map(millis);
    // The third one waits for the second one's slot.
    assert_eq!(seen, [vec![70, 80], vec![4, 14], vec![84, 94]]);
}

#[test]
fn a_recorded_timeline_replaces_the_delays() {
    let delays = TokenDelays { speedup: 2.0, ..constant(ms(70), ms(10)) };
    let us = Duration::from_micros;
    let recorded = |id, output| Sequence {
        timeline: Some([us(6000), us(6001), us(6001), us(8001)].into()),
        ..seq(id, 3, output)
    };
    let arrivals = [(at(0), recorded(1, 4)), (at(0), recorded(2, 5)), (at(5), recorded(3, 2))];
    let log = offline::run(&mut pool(1, delays), arrivals).unwrap();
    let micros = |id| releases(&log, id).iter().map(|n| n / 500).collect::<Vec<_>>();
    assert_eq!(micros(1), [6000, 6001, 6001, 8001]);
    // The token after its end follows after a gap from the configuration.
    assert_eq!(micros(2), [14001, 14002, 14002, 16002, 26002]);
    assert_eq!(micros(3), [32002, 32003]);
}

fn ends(log: &[(SimTime, SchedulerEvent)]) -> Vec<(u64, u64, SequenceEndReason)> {
    log.iter()
        .filter_map(|(at, event)| match event {
            SchedulerEvent::Ended { id, end } => Some((id.0, at.as_nanos() / 1_000_000, *end)),
            _ => None,
        })
        .collect()
}

#[test]
fn tokens_follow_an_absolute_schedule_of_ttft_and_gaps() {
    let mut pool = pool(1, constant(ms(100), Duration::from_nanos(1_234_567)));
    let log = offline::run(&mut pool, [(at(5), seq(1, 3, 4))]).expect("it fits");
    let first = 105_000_000;
    let gap = 1_234_567;
    assert_eq!(releases(&log, 1), [first, first + gap, first + 2 * gap, first + 3 * gap]);
    assert_eq!(ends(&log), [(1, (first + 3 * gap) / 1_000_000, SequenceEndReason::Finished)]);
}

#[test]
fn load_factor_uses_running_count_at_draw_time() {
    // Three slots, factor 2: one running → 1.0, two → 1.5, three → 2.0.
    let delays = TokenDelays { factor_under_load: 2.0, ..constant(ms(100), ms(10)) };
    let mut pool = pool(3, delays);
    let arrivals = [(at(0), seq(1, 1, 3)), (at(50), seq(2, 1, 2)), (at(60), seq(3, 1, 1))];
    let log = offline::run(&mut pool, arrivals).expect("they fit");
    // 1: first token at 100 (alone); then three run: gaps of 20 ms at 100 and 120.
    assert_eq!(releases(&log, 1), [100_000_000, 120_000_000, 140_000_000]);
    // 2: 50 + 150 (two running); the gap drawn at 200 with two running: 15 ms.
    assert_eq!(releases(&log, 2), [200_000_000, 215_000_000]);
    // 3: 60 + 200 (three running).
    assert_eq!(releases(&log, 3), [260_000_000]);
}

#[test]
fn zero_delays_release_everything_at_the_instant_of_submission() {
    let mut pool = pool(1, TokenDelays::default());
    let mut out = Outbox::new();
    pool.submit(at(3), seq(1, 8, 500), &mut out).expect("it fits");
    let log: Vec<_> = out.into();
    assert_eq!(
        log,
        [
            (at(3), SchedulerEvent::Scheduled { id: SeqId(1), cached: 0, external: 0 }),
            (at(3), SchedulerEvent::Tokens { id: SeqId(1), n: 500 }),
            (at(3), SchedulerEvent::Ended { id: SeqId(1), end: SequenceEndReason::Finished }),
        ]
    );
    assert_eq!(pool.next_wakeup(), None);
}

#[test]
fn waiting_queue_is_fifo_and_bounded() {
    let mut pool = pool(1, constant(ms(10), ms(0)));
    let mut out = Outbox::new();
    for id in 1..=3 {
        pool.submit(at(0), seq(id, 1, 1), &mut out).expect("one runs, two wait");
    }
    let refused = pool.submit(at(0), seq(4, 1, 1), &mut out);
    assert_eq!(refused, Err(SequenceSubmitError::QueueFull { limit: 2 }));
    assert_eq!(pool.stats().waiting, 2);
    offline::advance_to(&mut pool, at(100), &mut out);
    let log: Vec<_> = out.into();
    let finished = SequenceEndReason::Finished;
    assert_eq!(ends(&log), [(1, 10, finished), (2, 20, finished), (3, 30, finished)]);
}

#[test]
fn an_abort_frees_the_slot_immediately() {
    let mut pool = pool(1, constant(ms(10), ms(10)));
    let mut out = Outbox::new();
    pool.submit(at(0), seq(1, 1, 100), &mut out).expect("it fits");
    pool.submit(at(0), seq(2, 1, 1), &mut out).expect("it waits");
    offline::advance_to(&mut pool, at(25), &mut out);
    pool.abort(at(25), SeqId(1), &mut out);
    offline::advance_to(&mut pool, at(1000), &mut out);
    let log: Vec<_> = out.into();
    assert_eq!(releases(&log, 1), [10_000_000, 20_000_000]);
    assert_eq!(
        ends(&log),
        [(1, 25, SequenceEndReason::Aborted), (2, 35, SequenceEndReason::Finished)]
    );
    assert_eq!(pool.stats().running, 0);
}

#[test]
fn a_per_token_prefill_costs_overhead_and_tokens() {
    let delays = TokenDelays {
        prefill_overhead: ms(30),
        prefill_per_token: Duration::from_micros(250),
        ..TokenDelays::default()
    };
    let mut pool = pool(1, delays);
    let log = offline::run(&mut pool, [(at(0), seq(1, 100, 1))]).expect("it fits");
    assert_eq!(releases(&log, 1), [55_000_000]);
}

#[test]
fn a_remote_prefill_costs_the_transfer_and_no_load_factor() {
    let delays = TokenDelays {
        calculator: TtftFormula::PerToken,
        kv_transfer_per_token: Duration::from_micros(3),
        prefill_overhead: ms(500),
        factor_under_load: 10.0,
        ..TokenDelays::default()
    };
    let mut pool = pool(8, delays);
    let mut remote = seq(1, 1000, 1);
    remote.transfer = PromptKvTransfer::RemotePrefill;
    let log = offline::run(&mut pool, [(at(0), remote)]).expect("it fits");
    assert_eq!(releases(&log, 1), [3_000_000]);
}

#[test]
fn an_adapter_without_a_slot_waits_while_others_pass() {
    let config = SlotSchedulerConfig {
        slots: 2,
        queue: None,
        delays: constant(ms(10), ms(0)),
        max_loras: Some(1),
        ..SlotSchedulerConfig::default()
    };
    let mut pool = SlotScheduler::new(config);
    let with = |id, lora| Sequence { lora: Some(LoraId(lora)), ..seq(id, 1, 1) };
    let arrivals = [(at(0), with(1, 1)), (at(0), with(2, 2)), (at(0), seq(3, 1, 1))];
    let log = offline::run(&mut pool, arrivals).expect("they fit");
    let finished = SequenceEndReason::Finished;
    assert_eq!(ends(&log), [(1, 10, finished), (3, 10, finished), (2, 20, finished)]);
}

#[test]
fn waiting_adapter_is_not_starved() {
    let config = SlotSchedulerConfig {
        slots: 1,
        queue: None,
        delays: constant(ms(10), ms(0)),
        max_loras: Some(1),
        ..SlotSchedulerConfig::default()
    };
    let mut pool = SlotScheduler::new(config);
    let with = |id, lora| Sequence { lora: Some(LoraId(lora)), ..seq(id, 1, 1) };
    let mut arrivals = vec![(at(0), with(0, 1)), (at(0), with(1, 2))];
    arrivals.extend((2..200).map(|id| (at(0), with(id, 1))));
    let log = offline::run(&mut pool, arrivals).expect("they fit");
    let place = ends(&log).iter().position(|(id, ..)| *id == 1).expect("it ends");
    assert!(place <= 18, "it came {place}th");
}

#[test]
fn a_pause_moves_every_deadline_by_its_length() {
    let mut pool = pool(1, constant(ms(100), ms(10)));
    let mut out = Outbox::new();
    pool.submit(at(0), seq(1, 1, 2), &mut out).expect("it fits");
    pool.apply_command(at(50), EngineCommand::Pause, &mut out);
    assert_eq!(pool.next_wakeup(), None);
    pool.apply_command(at(80), EngineCommand::Resume, &mut out);
    offline::advance_to(&mut pool, at(1000), &mut out);
    let log: Vec<_> = out.into();
    assert_eq!(releases(&log, 1), [130_000_000, 140_000_000]);
}

#[test]
fn random_delays_depend_only_on_the_request() {
    let delays =
        TokenDelays { ttft: (ms(100), ms(20)), itl: (ms(10), ms(2)), ..TokenDelays::default() };
    let alone = offline::run(&mut pool(9, delays.clone()), [(at(0), seq(5, 1, 20))]);
    let crowd = (0..9).map(|id| (at(0), seq(id, 1, 20)));
    let crowd = offline::run(&mut pool(9, delays), crowd);
    let (alone, crowd) = (alone.expect("it fits"), crowd.expect("they fit"));
    assert_eq!(releases(&alone, 5), releases(&crowd, 5));
    let gaps: Vec<_> = releases(&crowd, 5).windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps.iter().all(|gap| (3_000_000..=17_000_000).contains(gap)));
    assert!(gaps.iter().any(|gap| gap % 1_000_000 != 0), "full precision");
}

#[test]
fn a_long_queue_without_delays_starts_without_a_deep_stack() {
    let config = SlotSchedulerConfig {
        slots: 1,
        queue: None,
        max_loras: Some(1),
        ..SlotSchedulerConfig::default()
    };
    let mut pool = SlotScheduler::new(config);
    let mut out = Outbox::new();
    pool.apply_command(at(0), EngineCommand::Pause, &mut out);
    for id in 0..100_000 {
        let lora = Some(LoraId(1 + (id % 3) as u32));
        let waiting = Sequence { lora, ..seq(id, 1, 1) };
        pool.submit(at(0), waiting, &mut out).expect("any number may wait");
    }
    pool.apply_command(at(1), EngineCommand::Resume, &mut out);
    let log: Vec<_> = out.into();
    assert_eq!(ends(&log).len(), 100_000);
}
