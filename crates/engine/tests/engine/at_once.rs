//! Steps that take no time, all at once: the same log.

use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;
use vllm_sim_engine::latency::LatencyModel;
use vllm_sim_engine::sched::vllm::{Vllm, VllmConfig};
use vllm_sim_engine::{
    BlockUse, CachedBlock, Command, Event, Outbox, Scheduler, SeqId, Sequence, SimTime, Stats,
    SubmitError,
};

use crate::invariants::{inputs, play, vllm};

/// Runs through an instant before anything else happens at it.
struct Exhausting {
    engine: Vllm,
    /// Events after which it stops for a moment; `None`: steps are made one by one.
    at_once: Option<usize>,
}

/// What an event of many steps stands for.
fn told_apart((at, event): (SimTime, Event)) -> Vec<(SimTime, Event)> {
    let Event::LoneSteps { id, n } = event else {
        return vec![(at, event)];
    };
    let step = Event::Step {
        prompt_tokens: 0,
        output_tokens: 1,
    };
    let each = [(at, Event::Tokens { id, n: 1 }), (at, step)];
    std::iter::repeat_n(each, n as usize).flatten().collect()
}

impl Scheduler for Exhausting {
    fn submit(&mut self, now: SimTime, seq: Sequence, out: &mut Outbox) -> Result<(), SubmitError> {
        self.engine.submit(now, seq, out)
    }

    fn abort(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) {
        self.engine.abort(now, id, out);
    }

    fn next_wakeup(&self) -> Option<SimTime> {
        self.engine.next_wakeup()
    }

    fn advance(&mut self, now: SimTime, out: &mut Outbox) {
        while self.engine.next_wakeup().is_some_and(|due| due <= now) {
            match self.at_once {
                Some(most) => {
                    let mut told = Outbox::new();
                    self.engine.advance_fully(now, most, &mut told);
                    out.extend(told.into_iter().flat_map(told_apart));
                }
                None => self.engine.advance(now, out),
            }
        }
    }

    fn command(&mut self, now: SimTime, command: Command, out: &mut Outbox) -> bool {
        self.engine.command(now, command, out)
    }

    fn cached_blocks(&self) -> Vec<CachedBlock> {
        self.engine.cached_blocks()
    }

    fn block_use(&self, numbers: Range<u32>) -> BlockUse {
        self.engine.block_use(numbers)
    }

    fn stats(&self) -> Stats {
        self.engine.stats()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn steps_at_once_leave_the_log_of_steps_one_by_one(
        config in vllm(),
        inputs in inputs(),
        most in 1..100_usize,
    ) {
        let log = |at_once| {
            let engine = Vllm::new(config.clone()).unwrap();
            let mut engine = Exhausting { engine, at_once };
            let played = play(&mut engine, config.block_size, &inputs);
            played.map(|(log, _, cached)| (log, cached, engine.stats()))
        };
        prop_assert_eq!(log(Some(most))?, log(None)?);
    }
}

#[test]
fn long_replies_without_time_stop_at_so_many_events() {
    let config = VllmConfig {
        latency: LatencyModel::Constant {
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
        },
        ..VllmConfig::default()
    };
    let mut engine = Vllm::new(config).unwrap();
    let (mut out, now) = (Outbox::new(), SimTime::from_millis(1));
    engine
        .submit(now, Sequence::new(SeqId(1), 10, 1_000), &mut out)
        .unwrap();
    engine
        .submit(now, Sequence::new(SeqId(2), 10, 1_000), &mut out)
        .unwrap();
    let mut calls = Vec::new();
    while engine.next_wakeup().is_some_and(|due| due <= now) {
        engine.advance_fully(now, 100, &mut out);
        let tokens = |(_, event): &(_, Event)| matches!(event, Event::Tokens { .. });
        calls.push(out.iter().filter(|event| tokens(event)).count());
        // The last call of `advance` may go beyond.
        assert!(out.len() < 110, "{} events", out.len());
        out.clear();
    }
    assert_eq!(calls.iter().sum::<usize>(), 2_000);
}

#[test]
fn a_lone_reply_without_time_is_few_events() {
    let config = VllmConfig {
        latency: LatencyModel::ZERO,
        ..VllmConfig::default()
    };
    let mut engine = Vllm::new(config).unwrap();
    let (mut out, now) = (Outbox::new(), SimTime::from_millis(1));
    engine
        .submit(now, Sequence::new(SeqId(1), 10, 2_000), &mut out)
        .unwrap();
    engine.advance_fully(now, 100, &mut out);
    let many = |(_, event): &(_, Event)| match event {
        Event::LoneSteps { n, .. } => Some(*n),
        _ => None,
    };
    // The first two steps are in flight together, and the last one ends it.
    assert_eq!(out.iter().filter_map(many).collect::<Vec<_>>(), [1_997]);
    assert_eq!(engine.next_wakeup(), None);
}
