//! Tests ranks in lock step: exact instants, and the engine's invariants for a group of ranks.

#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;
use vllm_sim_engine::latency::{
    BatchWork, LatencyModel, RooflineModel, RooflineModelSetup, find_gpu, known_model_shape,
};
use vllm_sim_engine::lock_step::RankLockStep;
use vllm_sim_engine::sched::vllm::{VllmScheduler, VllmSchedulerConfig};
use vllm_sim_engine::{
    CachedBlock, EngineCommand, EngineStats, KvBlockUsage, Outbox, Scheduler, SchedulerEvent,
    SeqId, Sequence, SequenceSubmitError, SimTime,
};

use crate::{configs, invariants, offline};

/// Presents ranks as one engine, which assigns a sequence to the rank of its number.
pub(crate) struct LockStepGroup {
    ranks: Vec<VllmScheduler>,
    lock_step: RankLockStep,
}

impl LockStepGroup {
    pub(crate) fn new(config: &VllmSchedulerConfig, ranks: usize) -> Self {
        let config = VllmSchedulerConfig { lock_step: true, ..config.clone() };
        let ranks = (0..ranks).map(|_| VllmScheduler::new(config.clone()).unwrap());
        Self { ranks: ranks.collect(), lock_step: RankLockStep::default() }
    }

    fn engine_of(&mut self, id: SeqId) -> &mut VllmScheduler {
        let ranks = self.ranks.len() as u64;
        &mut self.ranks[(id.0 % ranks) as usize]
    }

    fn synchronize(&mut self, now: SimTime) {
        self.lock_step.synchronize_rank_steps(now, &mut self.ranks, |rank| Some(rank));
        let state = |rank: &VllmScheduler| (rank.steps_in_flight(), rank.running_step_end());
        let first = state(&self.ranks[0]);
        assert!(self.ranks.iter().map(state).all(|other| other == first));
    }
}

impl Scheduler for LockStepGroup {
    fn submit(
        &mut self,
        now: SimTime,
        seq: Sequence,
        out: &mut Outbox,
    ) -> Result<(), SequenceSubmitError> {
        self.engine_of(seq.id).submit(now, seq, out)
    }

    fn abort(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) {
        self.engine_of(id).abort(now, id, out);
    }

    fn next_wakeup(&self) -> Option<SimTime> {
        self.ranks.iter().filter_map(VllmScheduler::next_wakeup).min()
    }

    fn advance(&mut self, now: SimTime, out: &mut Outbox) {
        while let Some(due) = self.next_wakeup().filter(|&due| due <= now) {
            for rank in &mut self.ranks {
                if rank.next_wakeup().is_some_and(|at| at <= due) {
                    rank.advance(due, out);
                }
            }
            if self.next_wakeup().is_none_or(|next| next > due) {
                self.synchronize(due);
            } else if due == now {
                break;
            }
        }
    }

    fn apply_command(&mut self, now: SimTime, command: EngineCommand, out: &mut Outbox) -> bool {
        let ranks = self.ranks.iter_mut();
        let done = ranks.map(|rank| rank.apply_command(now, command.clone(), out));
        let done = done.fold(false, |any, done| any | done);
        self.synchronize(now);
        done
    }

    fn cached_blocks(&self) -> Vec<CachedBlock> {
        // Each rank has its own cache; together they report none.
        Vec::new()
    }

    fn block_usage(&self, numbers: Range<u32>) -> KvBlockUsage {
        // The blocks of the second rank follow those of the first.
        let (mut all, mut first) = (KvBlockUsage::default(), 1);
        for rank in &self.ranks {
            let end = first + rank.stats().total_blocks;
            let own = |number: u32| number.clamp(first, end) - first + 1;
            let part = rank.block_usage(own(numbers.start)..own(numbers.end));
            all.used += part.used;
            all.shared += part.shared;
            all.saved += part.saved;
            all.cached += part.cached;
            all.unused += part.unused;
            first = end;
        }
        all
    }

    fn stats(&self) -> EngineStats {
        let mut all = EngineStats::default();
        for stats in self.ranks.iter().map(VllmScheduler::stats) {
            all.running += stats.running;
            all.waiting += stats.waiting;
            all.deferred += stats.deferred;
            all.used_blocks += stats.used_blocks;
            all.total_blocks += stats.total_blocks;
        }
        all
    }
}

/// Prefill work takes 10 ms a step, decode work 1 ms.
fn config(async_scheduling: bool) -> VllmSchedulerConfig {
    VllmSchedulerConfig {
        latency: LatencyModel::Constant {
            prefill: Duration::from_millis(10),
            decode: Duration::from_millis(1),
        },
        async_scheduling,
        ..VllmSchedulerConfig::default()
    }
}

/// Returns the times of tokens in us, for arrivals of (us, number, prompt, output).
fn tokens(engine: &mut dyn Scheduler, arrivals: &[(u64, u64, u32, u32)]) -> Vec<(u64, u64)> {
    let arrivals = arrivals.iter().map(|&(at, number, prompt, output)| {
        let sequence = Sequence::new(SeqId(number), prompt, output);
        (SimTime::from_nanos(at * 1000), sequence)
    });
    let log = offline::run(engine, arrivals).unwrap();
    let tokens = log.iter().filter_map(|(at, event)| match event {
        SchedulerEvent::Tokens { id, n: 1 } => Some((at.as_nanos() / 1000, id.0)),
        _ => None,
    });
    tokens.collect()
}

#[test]
fn a_prompt_on_one_rank_delays_the_decode_of_another_by_its_step() {
    let mut group = LockStepGroup::new(&config(false), 2);
    // While rank 1 decodes, a prompt arrives at rank 0 in the middle of a step.
    let seen = tokens(&mut group, &[(0, 1, 16, 6), (11_500, 0, 16, 2)]);
    let expected = [
        (10_000, 1),
        (11_000, 1),
        (12_000, 1),
        (22_000, 0),
        (22_000, 1),
        (23_000, 0),
        (23_000, 1),
        (24_000, 1),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn spread_experts_take_the_tokens_of_all_ranks() {
    let shape = known_model_shape("Qwen/Qwen3-30B-A3B").unwrap();
    let setup = RooflineModelSetup {
        expert_ranks: 2,
        ..RooflineModelSetup::new(shape, find_gpu("H100").unwrap().clone())
    };
    let roofline = RooflineModel::new(&setup).unwrap();
    let mut prompt = BatchWork::default();
    prompt.add_prompt_chunk(4000, 0, roofline.sliding_window());
    let alike = roofline.step_time(&prompt);
    // The dummy step of the other rank has one token.
    let ours =
        alike - roofline.distributed_expert_time(4000.0) + roofline.distributed_expert_time(2000.5);
    assert!(ours < alike);
    let config = VllmSchedulerConfig {
        latency: LatencyModel::Roofline(Box::new(roofline)),
        max_num_batched_tokens: 4096,
        num_gpu_blocks: 1000,
        ..config(false)
    };
    let seen = tokens(&mut LockStepGroup::new(&config, 2), &[(0, 0, 4000, 1)]);
    assert_eq!(seen, [(ours.as_micros() as u64, 0)]);
}

#[test]
fn a_prompt_waits_for_the_dummy_steps_that_are_scheduled() {
    let mut group = LockStepGroup::new(&config(true), 2);
    let seen = tokens(&mut group, &[(0, 1, 16, 8), (11_500, 0, 16, 1)]);
    // At 11.5 ms the steps to 12 and 13 ms are in flight on both ranks.
    let of_one = [10_000, 11_000, 12_000, 13_000, 23_000, 24_000, 25_000, 26_000];
    let mut expected: Vec<_> = of_one.map(|at| (at, 1)).into();
    expected.insert(4, (23_000, 0));
    assert_eq!(seen, expected);
}

#[test]
fn idle_rank_does_not_delay_other_ranks() {
    for is_async in [false, true] {
        let arrivals = [(0, 1, 100, 20), (3_200, 3, 40, 5), (90_000, 5, 10, 3)];
        let alone = tokens(&mut VllmScheduler::new(config(is_async)).unwrap(), &arrivals);
        assert_eq!(tokens(&mut LockStepGroup::new(&config(is_async), 2), &arrivals), alone);
    }
}

#[test]
fn dummy_steps_end_at_the_next_check_for_work() {
    let mut group = LockStepGroup::new(&config(false), 2);
    let mut out = Outbox::new();
    let sequence = Sequence::new(SeqId(1), 16, 5);
    group.submit(SimTime::ZERO, sequence, &mut out).unwrap();
    let mut last = SimTime::ZERO;
    while let Some(due) = group.next_wakeup() {
        group.advance(due, &mut out);
        last = due;
    }
    // The prompt, 4 decodes, and 11 dummy steps with the cost of a decode.
    assert_eq!(last, SimTime::from_millis(10 + 4 + 11));
    let steps = out.iter().filter(|(_, event)| matches!(event, SchedulerEvent::Step { .. }));
    assert_eq!(steps.count(), 5, "dummy steps compute nothing");
    // The next wave counts from its start.
    let sequence = Sequence::new(SeqId(2), 16, 1);
    let now = SimTime::from_millis(1000);
    group.submit(now, sequence, &mut out).unwrap();
    while let Some(due) = group.next_wakeup() {
        group.advance(due, &mut out);
        last = due;
    }
    // Ranks also check for work after their first step.
    assert_eq!(last, SimTime::from_millis(1000 + 10));
}

#[test]
fn an_arrival_during_dummy_steps_waits_for_the_end_of_one() {
    let mut group = LockStepGroup::new(&config(false), 2);
    let seen = tokens(&mut group, &[(0, 1, 16, 2), (13_400, 0, 16, 1)]);
    assert_eq!(seen, [(10_000, 1), (11_000, 1), (24_000, 0)]);
}

#[test]
fn a_step_continues_when_its_only_sequence_is_aborted() {
    let mut group = LockStepGroup::new(&config(false), 2);
    let mut out = Outbox::new();
    let now = SimTime::ZERO;
    for number in [0, 1] {
        let sequence = Sequence::new(SeqId(number), 16, 2);
        group.submit(now, sequence, &mut out).unwrap();
    }
    let half = SimTime::from_millis(5);
    offline::advance_to(&mut group, half, &mut out);
    group.abort(half, SeqId(0), &mut out);
    assert_eq!(group.next_wakeup(), Some(SimTime::from_millis(10)));
    offline::advance_to(&mut group, SimTime::from_millis(10), &mut out);
    // Rank 0 has no work, and rank 1 decodes.
    assert_eq!(group.ranks[0].steps_in_flight(), 1);
    assert_eq!(group.next_wakeup(), Some(SimTime::from_millis(11)));
}

#[test]
fn a_change_of_speed_moves_the_end_of_the_step_of_all() {
    let mut group = LockStepGroup::new(&config(false), 2);
    let mut out = Outbox::new();
    let sequence = Sequence::new(SeqId(1), 16, 1);
    group.submit(SimTime::ZERO, sequence, &mut out).unwrap();
    offline::advance_to(&mut group, SimTime::ZERO, &mut out);
    let half = SimTime::from_millis(2);
    group.apply_command(half, EngineCommand::Speed(2.0), &mut out);
    assert_eq!(group.next_wakeup(), Some(SimTime::from_millis(5)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn invariants_hold_for_lockstep_ranks(
        config in configs::vllm(),
        ranks in 1..4usize,
        inputs in invariants::any_inputs(),
    ) {
        let mut config = config;
        config.reporting.kv_events = false;
        let block = config.block_size;
        let make = || -> Box<dyn Scheduler> { Box::new(LockStepGroup::new(&config, ranks)) };
        invariants::check_invariants(make, block, &inputs, true)?;
    }
}
