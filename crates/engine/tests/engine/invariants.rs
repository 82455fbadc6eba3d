//! Checks the numbered invariants of the engine over random workloads under cache pressure, for
//! every scheduler.

#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use vllm_sim_engine::SimTime;
use vllm_sim_engine::kv::DynamoMockerHostCacheConfig;
use vllm_sim_engine::latency::{LatencyModel, SimulationSpeedFactors};
use vllm_sim_engine::sched::dynamo_mocker::{DynamoMockerConfig, DynamoMockerScheduler};
use vllm_sim_engine::sched::pool::{SlotScheduler, SlotSchedulerConfig};
use vllm_sim_engine::sched::sglang::{SglangConfig, SglangScheduler};
use vllm_sim_engine::sched::vllm::{VllmScheduler, VllmSchedulerConfig};
use vllm_sim_engine::{
    BlockKey, EngineCommand, InjectedKvLoadFailure, LoraId, Outbox, PlannedKvBlocks,
    PrefixCacheResetScope, PromptKvTransfer, Scheduler, SchedulerEvent, SeqId, Sequence,
    SequenceEndReason, TokenDelays,
};

use crate::configs::{mocker, pool, sglang, vllm};
use crate::host_tier::{check_host_cache, reset_host};
use crate::load_failures::{any_load_failure, check_load_failures};
use crate::media::{self, Item};
use crate::prefix_cache_events::{CacheFromEvents, check_block_use};

/// Input from outside, with its time.
#[derive(Debug, Clone)]
pub(crate) enum EngineInput {
    Submit(RequestInput),
    /// Aborts the n-th sequence.
    Abort(u64),
    Pause,
    Resume,
    PrefixCacheReset(PrefixCacheResetScope),
    ResetHost,
    ResetEncoder,
    Caching(bool),
    Release(u64),
    CancelAll,
    Bounds(u32, Option<u32>),
    /// Delay of the first token, in ms.
    Delay(u64),
    Speed(f64),
}

#[derive(Debug, Clone)]
pub(crate) struct RequestInput {
    /// Prompts of one family share their beginning.
    family: u64,
    pub(crate) prompt: u32,
    output: u32,
    priority: i64,
    lora: Option<u32>,
    pub(crate) transfer: PromptKvTransfer,
    load_failure: Option<InjectedKvLoadFailure>,
    tail_ms: u64,
    planned: bool,
    media: Vec<Item>,
}

const HOUR_MS: u64 = 3_600_000;

fn first_delay(ms: u64) -> TokenDelays {
    TokenDelays { ttft: (Duration::from_millis(ms), Duration::ZERO), ..TokenDelays::default() }
}

fn any_request() -> impl Strategy<Value = RequestInput> {
    (
        0..3u64,
        1..120u32,
        1..40u32,
        -2..3i64,
        proptest::option::weighted(0.2, 1..4u32),
        prop_oneof![
            8 => Just(PromptKvTransfer::Local),
            1 => Just(PromptKvTransfer::RemotePrefill),
            1 => Just(PromptKvTransfer::RemoteDecode),
        ],
        any_load_failure(),
        prop_oneof![9 => Just(0u64), 1 => 1..30u64],
        proptest::bool::weighted(0.9),
        media::items(),
    )
        .prop_map(
            |(
                family,
                prompt,
                output,
                priority,
                lora,
                transfer,
                failure,
                tail_ms,
                planned,
                media,
            )| RequestInput {
                family,
                prompt,
                output,
                priority,
                lora,
                transfer,
                load_failure: failure,
                tail_ms,
                planned,
                media,
            },
        )
}

/// Generates inputs at increasing times; pauses end.
pub(crate) fn any_inputs() -> impl Strategy<Value = Vec<(u64, EngineInput)>> {
    let input = prop_oneof![
        20 => any_request().prop_map(EngineInput::Submit),
        4 => (0..30u64).prop_map(EngineInput::Abort),
        1 => Just(EngineInput::Pause),
        2 => Just(EngineInput::Resume),
        1 => prop_oneof![
            Just(PrefixCacheResetScope::WhenIdle), Just(PrefixCacheResetScope::Preempt), Just(PrefixCacheResetScope::Forget)
        ].prop_map(EngineInput::PrefixCacheReset),
        1 => Just(EngineInput::ResetHost),
        1 => Just(EngineInput::ResetEncoder),
        1 => any::<bool>().prop_map(EngineInput::Caching),
        1 => (0..30u64).prop_map(EngineInput::Release),
        1 => Just(EngineInput::CancelAll),
        1 => (1..6u32, proptest::option::of(0..9u32))
            .prop_map(|(running, waiting)| EngineInput::Bounds(running, waiting)),
        2 => prop_oneof![0..6u64, Just(HOUR_MS)].prop_map(EngineInput::Delay),
        1 => prop_oneof![Just(1.0), Just(0.25), Just(4.0)].prop_map(EngineInput::Speed),
    ];
    proptest::collection::vec((0..12u64, input), 1..50).prop_map(|mut inputs| {
        let mut at = 0;
        for (time, _) in &mut inputs {
            // Many inputs arrive at one instant, some during a step, some while the engine is idle.
            at += if *time == 11 { 500 } else { *time / 4 };
            *time = at;
        }
        inputs.push((at + 1, EngineInput::Resume));
        inputs
    })
}

pub(crate) fn sequence(id: u64, request: &RequestInput, block: u32) -> Sequence {
    let lookahead = request.family as u32;
    let total = u64::from((request.prompt + request.output).saturating_sub(lookahead) / block);
    let keys = (0..total).map(|i| {
        // The first half of a prompt belongs to its family, the rest is unique.
        let shared = i * 2 < u64::from(request.prompt / block);
        BlockKey(if shared { 1_000 * request.family + i } else { 1_000_000 + id * 1_000 + i })
    });
    let keys = keys.collect();
    let plan = PlannedKvBlocks { keys, block_size: block, lookahead, ..PlannedKvBlocks::default() };
    Sequence {
        media: media::inputs(&request.media, request.prompt),
        priority: request.priority,
        lora: request.lora.map(LoraId),
        transfer: request.transfer,
        load_failure: request.load_failure,
        plan: request.planned.then(|| Arc::new(plan)),
        tail: Duration::from_millis(request.tail_ms),
        ..Sequence::new(SeqId(id), request.prompt, request.output)
    }
}

/// Life of one sequence according to the log.
#[derive(Debug, Default)]
pub(crate) struct SequenceLife {
    arrival: SimTime,
    output: u32,
    started: Option<SimTime>,
    runs: bool,
    first: Option<SimTime>,
    tokens: u32,
    ended: Option<(SimTime, SequenceEndReason)>,
}

/// Log, submitted sequences, and the cached keys at the end, one per copy.
pub(crate) type PlayedRun =
    (Vec<(SimTime, SchedulerEvent)>, BTreeMap<u64, SequenceLife>, Vec<BlockKey>);

/// Runs the inputs; checks after each step that work has a pending wakeup (7).
pub(crate) fn play_inputs(
    engine: &mut dyn Scheduler,
    block: u32,
    inputs: &[(u64, EngineInput)],
) -> Result<PlayedRun, TestCaseError> {
    let mut out = Outbox::new();
    let mut lives = BTreeMap::new();
    let mut inputs = inputs.iter().peekable();
    let mut paused = false;
    let mut next_id = 0;
    for turn in 0.. {
        prop_assert!(turn < 50_000, "it never comes to rest");
        let due = inputs.peek().map(|(at, _)| SimTime::from_millis(*at));
        let Some(now) = [due, engine.next_wakeup()].into_iter().flatten().min() else {
            break;
        };
        engine.advance(now, &mut out);
        while let Some((_, input)) = inputs.next_if(|(at, _)| SimTime::from_millis(*at) == now) {
            match input {
                EngineInput::Submit(request) => {
                    let seq = sequence(next_id, request, block);
                    if engine.submit(now, seq, &mut out).is_ok() {
                        let output = request.output;
                        lives.insert(
                            next_id,
                            SequenceLife { arrival: now, output, ..SequenceLife::default() },
                        );
                    }
                    next_id += 1;
                }
                EngineInput::Abort(id) => engine.abort(now, SeqId(*id), &mut out),
                EngineInput::Pause => {
                    paused = true;
                    engine.apply_command(now, EngineCommand::Pause, &mut out);
                }
                EngineInput::Resume => {
                    paused = false;
                    engine.apply_command(now, EngineCommand::Resume, &mut out);
                }
                EngineInput::PrefixCacheReset(reset) => {
                    engine.apply_command(now, EngineCommand::ResetPrefixCache(*reset), &mut out);
                }
                EngineInput::ResetHost => reset_host(engine, now, &mut out),
                EngineInput::ResetEncoder => {
                    engine.apply_command(now, EngineCommand::ResetEncoderCache, &mut out);
                }
                EngineInput::Caching(on) => {
                    engine.apply_command(now, EngineCommand::Caching(*on), &mut out);
                }
                EngineInput::Release(id) => {
                    engine.apply_command(now, EngineCommand::Release(SeqId(*id)), &mut out);
                }
                EngineInput::CancelAll => {
                    engine.apply_command(now, EngineCommand::CancelAll, &mut out);
                }
                EngineInput::Bounds(running, waiting) => {
                    let (running, waiting) = (*running, *waiting);
                    engine.apply_command(now, EngineCommand::Bounds { running, waiting }, &mut out);
                }
                EngineInput::Delay(first) => {
                    let delays = Arc::new(first_delay(*first));
                    engine.apply_command(now, EngineCommand::Delays(delays), &mut out);
                }
                EngineInput::Speed(speed) => {
                    engine.apply_command(now, EngineCommand::Speed(*speed), &mut out);
                }
            }
        }
        let stats = engine.stats();
        let work = stats.running + stats.waiting + stats.deferred > 0;
        prop_assert!(!work || paused || engine.next_wakeup().is_some(), "work, but no step");
        prop_assert!(stats.used_blocks <= stats.total_blocks);
        check_block_use(engine, &stats)?;
    }
    let stats = engine.stats();
    prop_assert_eq!((stats.running, stats.waiting, stats.used_blocks), (0, 0, 0));
    publish_pending_events(engine, next_id, &mut out, &mut lives);
    let mut cached: Vec<BlockKey> = engine.cached_blocks().iter().map(|b| b.key).collect();
    cached.sort_unstable();
    Ok((out.into(), lives, cached))
}

/// Runs one more sequence: cache events of commands are published with the step after them.
fn publish_pending_events(
    engine: &mut dyn Scheduler,
    id: u64,
    out: &mut Outbox,
    lives: &mut BTreeMap<u64, SequenceLife>,
) {
    let now = out.back().map_or(SimTime::ZERO, |(at, _)| *at) + Duration::from_secs(3600);
    let bounds = EngineCommand::Bounds { running: 1, waiting: None };
    engine.apply_command(now, bounds, out);
    if engine.submit(now, Sequence::new(SeqId(id), 1, 1), out).is_ok() {
        let life = SequenceLife { arrival: now, output: 1, ..SequenceLife::default() };
        lives.insert(id, life);
    }
    while let Some(due) = engine.next_wakeup() {
        engine.advance(due, out);
    }
}

/// Checks the log against invariants 1, 2, 3, 5, 8 and 9; `has_all`: some group keeps every block.
fn check_event_log(
    log: &[(SimTime, SchedulerEvent)],
    lives: &mut BTreeMap<u64, SequenceLife>,
    in_cache: &[BlockKey],
    has_all: bool,
) -> Result<(), TestCaseError> {
    let mut cached = CacheFromEvents::default();
    let mut last = SimTime::ZERO;
    for (at, event) in log {
        prop_assert!(*at >= last, "time runs back");
        last = *at;
        match event {
            SchedulerEvent::Scheduled { id, .. } => {
                let life = lives.get_mut(&id.0).unwrap();
                let new = life.started.is_none() && life.ended.is_none();
                prop_assert!(new, "{:?}", event);
                life.started = Some(*at);
                life.runs = true;
            }
            SchedulerEvent::Tokens { id, n } | SchedulerEvent::Decoded { id, n } => {
                let life = lives.get_mut(&id.0).unwrap();
                let lives = life.started.is_some() && life.ended.is_none();
                prop_assert!(lives, "{:?}", event);
                life.first.get_or_insert(*at);
                life.tokens += n;
            }
            SchedulerEvent::Preempted { id } | SchedulerEvent::Resumed { id } => {
                let life = lives.get_mut(&id.0).unwrap();
                let resumes = matches!(event, SchedulerEvent::Resumed { .. });
                prop_assert!(life.started.is_some() && life.ended.is_none());
                prop_assert!(life.runs != resumes, "{:?}", event);
                life.runs = resumes;
            }
            SchedulerEvent::Ended { id, end } => {
                let life = lives.get_mut(&id.0).unwrap();
                prop_assert!(life.ended.is_none(), "{:?} ends twice", id);
                life.ended = Some((*at, *end));
            }
            SchedulerEvent::Stored { .. }
            | SchedulerEvent::Removed { .. }
            | SchedulerEvent::Group(_)
            | SchedulerEvent::Cleared => {
                cached.apply(event, has_all)?;
            }
            SchedulerEvent::Leased { id, blocks } => {
                prop_assert!(lives[&id.0].ended.is_none() && !blocks.is_empty());
            }
            SchedulerEvent::Drafts { proposed, accepted, .. } => {
                prop_assert!(accepted <= proposed && *proposed > 0)
            }
            SchedulerEvent::Host(_)
            | SchedulerEvent::Reused { .. }
            | SchedulerEvent::Step { .. }
            | SchedulerEvent::Fetched { .. }
            | SchedulerEvent::LoadFailed { .. }
            | SchedulerEvent::LoraLoading { .. } => {}
        }
    }
    prop_assert_eq!(cached.keys(), in_cache, "the events tell of another cache");
    for (id, life) in lives {
        let Some((end, how)) = life.ended else {
            return Err(TestCaseError::fail(format!("{id} never ends")));
        };
        if how == SequenceEndReason::Finished {
            prop_assert_eq!(life.tokens, life.output, "tokens of {}", id);
        }
        let marks = [Some(life.arrival), life.started, life.first, Some(end)];
        prop_assert!(marks.iter().flatten().is_sorted(), "{}: {:?}", id, life);
    }
    Ok(())
}

/// Aborts the remaining sequences and resets the delays; then a new request must finish
/// immediately.
fn answers_when_all_have_left(
    engine: &mut dyn Scheduler,
    inputs: &[(u64, EngineInput)],
) -> Result<(), TestCaseError> {
    let mut out = Outbox::new();
    let mut submitted = 0;
    let mut now = SimTime::ZERO;
    for (at, input) in inputs {
        now = SimTime::from_millis(*at);
        while engine.next_wakeup().is_some_and(|due| due <= now) {
            engine.advance(now, &mut out);
        }
        match input {
            EngineInput::Submit(request) => {
                let _full = engine.submit(now, sequence(submitted, request, 16), &mut out);
                submitted += 1;
            }
            EngineInput::Abort(id) => engine.abort(now, SeqId(*id), &mut out),
            EngineInput::Delay(first) => {
                engine.apply_command(
                    now,
                    EngineCommand::Delays(Arc::new(first_delay(*first))),
                    &mut out,
                );
            }
            EngineInput::Speed(speed) => {
                engine.apply_command(now, EngineCommand::Speed(*speed), &mut out);
            }
            _ => {}
        }
    }
    for id in 0..submitted {
        engine.abort(now, SeqId(id), &mut out);
    }
    let none = Arc::new(first_delay(0));
    engine.apply_command(now, EngineCommand::Delays(none), &mut out);
    let stats = engine.stats();
    prop_assert_eq!((stats.running, stats.waiting, stats.deferred), (0, 0, 0));
    out.clear();
    let fresh = Sequence::new(SeqId(submitted), 5, 1);
    prop_assert_eq!(engine.submit(now, fresh, &mut out), Ok(()));
    while engine.next_wakeup().is_some_and(|due| due <= now) {
        engine.advance(now, &mut out);
    }
    let end = SequenceEndReason::Finished;
    let id = SeqId(submitted);
    let ended = out.contains(&(now, SchedulerEvent::Ended { id, end }));
    prop_assert!(ended, "{:?}", out);
    Ok(())
}

/// Checks all invariants and runs the inputs twice: the same inputs give the same log (6).
pub(crate) fn check_invariants(
    make: impl Fn() -> Box<dyn Scheduler>,
    block: u32,
    inputs: &[(u64, EngineInput)],
    has_all: bool,
) -> Result<(), TestCaseError> {
    let (log, mut lives, cached) = play_inputs(make().as_mut(), block, inputs)?;
    check_event_log(&log, &mut lives, &cached, has_all)?;
    check_load_failures(&log)?;
    let (again, ..) = play_inputs(make().as_mut(), block, inputs)?;
    prop_assert!(log == again, "another run gives another log");
    Ok(())
}

/// Two prompts with blocks from host memory lack the blocks that the other one holds. Nothing but
/// the outdated end of a delay after a cancelled sequence is due.
#[test]
fn sequences_that_block_each_other_are_rejected_after_an_outdated_timer() {
    let config = DynamoMockerConfig {
        latency: LatencyModel::Constant {
            prefill: Duration::ZERO,
            decode: Duration::from_millis(1),
        },
        speed: SimulationSpeedFactors { all: 3.0, decode: 2.0 },
        num_gpu_blocks: 29,
        block_size: 6,
        max_num_seqs: 1,
        max_num_batched_tokens: 48,
        enable_prefix_caching: false,
        tier: Some(DynamoMockerHostCacheConfig {
            blocks: 25,
            latency: Duration::ZERO,
            block_ns: (580_000.0, 60_000.0),
        }),
        kv_events: true,
        log_admissions: true,
        ..DynamoMockerConfig::default()
    };
    let request = |family, prompt, output, planned| RequestInput {
        family,
        prompt,
        output,
        planned,
        priority: 0,
        lora: None,
        transfer: PromptKvTransfer::Local,
        load_failure: None,
        tail_ms: 0,
        media: Vec::new(),
    };
    let submit = |family, prompt, output, planned| {
        EngineInput::Submit(request(family, prompt, output, planned))
    };
    let with_delay = RequestInput { tail_ms: 11, ..request(1, 30, 12, true) };
    let inputs = [
        (0, submit(0, 55, 7, false)),
        (0, EngineInput::Bounds(2, None)),
        (0, submit(0, 115, 1, false)),
        (1, submit(0, 6, 1, true)),
        (1, EngineInput::Submit(with_delay)),
        (2, submit(1, 6, 1, false)),
        (3, submit(2, 6, 2, true)),
        (4, EngineInput::CancelAll),
        (4, submit(2, 6, 2, true)),
        (5, submit(1, 97, 1, true)),
        (5, submit(0, 67, 1, true)),
        (5, submit(0, 1, 1, false)),
    ];
    let make =
        || -> Box<dyn Scheduler> { Box::new(DynamoMockerScheduler::new(config.clone()).unwrap()) };
    check_invariants(make, config.block_size, &inputs, true).unwrap();
}

pub(crate) fn any_latency_model() -> impl Strategy<Value = LatencyModel> {
    let constant = (0..6u64, 0..3u64).prop_map(|(prefill, decode)| LatencyModel::Constant {
        prefill: Duration::from_millis(prefill),
        decode: Duration::from_millis(decode),
    });
    let delays = prop_oneof![3 => 0..6u64, 1 => Just(HOUR_MS)];
    let delays = delays.prop_map(|ms| LatencyModel::Delays(Box::new(first_delay(ms))));
    prop_oneof![2 => constant, 1 => delays]
}

proptest! {
    // Runs PROPTEST_CASES cases, by default 256.
    #[test]
    fn vllm_keeps_the_invariants(config in vllm(), inputs in any_inputs()) {
        let block = config.block_size;
        let has_all = config.layer_groups.is_none_or(|groups| groups.full > 0);
        check_invariants(|| Box::new(VllmScheduler::new(config.clone()).unwrap()), block, &inputs, has_all)?;
    }

    #[test]
    fn mocker_keeps_the_invariants(config in mocker(), inputs in any_inputs()) {
        let block = config.block_size;
        check_invariants(|| Box::new(DynamoMockerScheduler::new(config.clone()).unwrap()), block, &inputs, true)?;
    }

    #[test]
    fn pool_keeps_the_invariants(config in pool(), inputs in any_inputs()) {
        let block = config.kv.map_or(1, |kv| kv.block_size);
        check_invariants(|| Box::new(SlotScheduler::new(config.clone())), block, &inputs, true)?;
    }

    #[test]
    fn sglang_keeps_the_invariants(config in sglang(), inputs in any_inputs()) {
        let block = config.page_size;
        check_invariants(|| Box::new(SglangScheduler::new(config.clone()).unwrap()), block, &inputs, true)?;
    }

    /// After any delays, an engine without sequences serves the next one immediately.
    #[test]
    fn finished_sequences_do_not_delay_arrivals(
        inputs in any_inputs(),
        r#async in any::<bool>(),
        first in prop_oneof![Just(0u64), Just(5), Just(HOUR_MS)],
    ) {
        let latency = LatencyModel::Delays(Box::new(first_delay(first)));
        let vllm = VllmSchedulerConfig {
            latency: latency.clone(),
            async_scheduling: r#async,
            ..VllmSchedulerConfig::default()
        };
        let sglang = SglangConfig { latency, ..SglangConfig::default() };
        let pool = SlotSchedulerConfig { delays: first_delay(first), ..SlotSchedulerConfig::default() };
        answers_when_all_have_left(&mut VllmScheduler::new(vllm).unwrap(), &inputs)?;
        answers_when_all_have_left(&mut SglangScheduler::new(sglang).unwrap(), &inputs)?;
        answers_when_all_have_left(&mut SlotScheduler::new(pool), &inputs)?;
    }

    /// Checks invariants 4, 10 and 11, which need access to internals.
    #[test]
    fn every_vllm_block_is_used_cached_or_unused(config in vllm(), inputs in any_inputs()) {
        let mut engine = VllmScheduler::new(config.clone()).unwrap();
        let (log, lives, _) = play_inputs(&mut engine, config.block_size, &inputs)?;
        let counts = engine.block_pool().block_counts();
        prop_assert_eq!(counts.unused + counts.idle + counts.used, config.num_gpu_blocks);
        prop_assert_eq!(counts.used, 0, "{} sequences", lives.len());
        media::check_encoder(&engine, &config)?;
        check_host_cache(&engine, &log, &inputs)?;
    }
}
