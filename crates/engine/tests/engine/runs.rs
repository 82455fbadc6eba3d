//! Compares runs of tokens with single token events.

#![expect(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use vllm_sim_engine::SimTime;
use vllm_sim_engine::latency::{LatencyModel, PolynomialStepTime};
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_engine::sched::dynamo_mocker::DynamoMockerConfig;
use vllm_sim_engine::sched::vllm::{
    ChunkedPrefillConfig, PreemptionVictim, PrefillTransferConfig, SchedulerReportingConfig,
    SchedulingPolicy, VllmScheduler, VllmSchedulerConfig,
};
use vllm_sim_engine::{
    BlockKey, EngineCommand, Outbox, PlannedKvBlocks, PrefixCacheResetScope, PromptKvTransfer,
    SchedulerEvent, SeqId, Sequence,
};

use crate::configs::mocker;
use crate::host_tier::{any_host_cache_config, config_for_layer_groups};
use crate::offline::{self, Log, StepSeries};
use crate::prefix_cache_events::any_groups;

#[derive(Debug, Clone)]
enum Input {
    Submit { prompt: u32, output: u32, family: u64, priority: i64, remote: bool, tail: bool },
    Abort(u64),
    Command(EngineCommand),
}

fn inputs() -> impl Strategy<Value = Vec<(u64, Input)>> {
    let submit = (1..150u32, 1..400u32, 0..3u64, 0..3i64, 0..20u32).prop_map(
        |(prompt, output, family, priority, odd)| Input::Submit {
            prompt,
            output,
            family,
            priority,
            remote: odd == 0,
            tail: odd == 1,
        },
    );
    let input = prop_oneof![
        30 => submit,
        4 => (0..30u64).prop_map(Input::Abort),
        1 => Just(Input::Command(EngineCommand::Pause)),
        3 => Just(Input::Command(EngineCommand::Resume)),
        1 => Just(Input::Command(EngineCommand::ResetPrefixCache(PrefixCacheResetScope::Forget))),
        1 => Just(Input::Command(EngineCommand::CancelAll)),
    ];
    proptest::collection::vec((0..400u64, input), 1..40).prop_map(|mut inputs| {
        let mut at = 0;
        for (time, _) in &mut inputs {
            at += if *time > 380 { 2000 } else { *time / 8 };
            *time = at;
        }
        inputs.push((at + 1, Input::Command(EngineCommand::Resume)));
        inputs
    })
}

fn config() -> impl Strategy<Value = VllmSchedulerConfig> {
    let sizes = (20..400u32, 1..70u32, 1..16u32, 8..400u32);
    let switches = proptest::array::uniform8(any::<bool>());
    let threshold = prop_oneof![Just(0u32), 5..40u32];
    let all = (sizes, switches, threshold, any_host_cache_config(), any_groups());
    all.prop_map(|(sizes, on, threshold, host_tier, layer_groups)| {
        let (num_gpu_blocks, block_size, max_num_seqs, max_num_batched_tokens) = sizes;
        let capacity = u64::from(num_gpu_blocks * block_size);
        VllmSchedulerConfig {
            latency: match on[1] {
                true => {
                    LatencyModel::Polynomial(PolynomialStepTime::for_kv_cache_capacity(capacity))
                }
                false => steps_of_3_and_1_ms(),
            },
            num_gpu_blocks,
            block_size,
            max_num_seqs,
            max_num_batched_tokens,
            async_scheduling: on[2],
            prefill: ChunkedPrefillConfig {
                enable_chunked_prefill: on[3],
                long_prefill_token_threshold: threshold,
                long_prefill_token_threshold_adaptive: on[0],
                reserve_full_prompt: on[7],
                ..ChunkedPrefillConfig::default()
            },
            enable_prefix_caching: on[4],
            policy: if on[5] { SchedulingPolicy::Priority } else { SchedulingPolicy::Fcfs },
            victim: if on[6] { PreemptionVictim::First } else { PreemptionVictim::Last },
            transfer: PrefillTransferConfig {
                fetch: (Duration::from_millis(3), Duration::from_micros(50)),
                ..PrefillTransferConfig::default()
            },
            host_tier: config_for_layer_groups(host_tier, layer_groups),
            layer_groups,
            reporting: SchedulerReportingConfig {
                kv_events: true,
                log_admissions: true,
                ..SchedulerReportingConfig::default()
            },
            ..VllmSchedulerConfig::default()
        }
    })
}

fn steps_of_3_and_1_ms() -> LatencyModel {
    LatencyModel::Constant { prefill: Duration::from_millis(3), decode: Duration::from_millis(1) }
}

fn spec() -> impl Strategy<Value = SchedulerSpec> {
    prop_oneof![
        2 => config().prop_map(|config| SchedulerSpec::Vllm(Box::new(config))),
        1 => mocker().prop_map(|config| SchedulerSpec::Mocker(Box::new(DynamoMockerConfig {
            // Long outputs would preempt each other hundreds of times per token.
            victim: PreemptionVictim::Last,
            latency: steps_of_3_and_1_ms(),
            ..config
        }))),
    ]
}

fn sequence(id: u64, input: &Input, block: u32) -> Option<Sequence> {
    let Input::Submit { prompt, output, family, priority, remote, tail } = *input else {
        return None;
    };
    let keys = (0..u64::from((prompt + output) / block)).map(|i| {
        let shared = i * 2 < u64::from(prompt / block);
        BlockKey(if shared { 1000 * family + i } else { 1_000_000 + id * 1000 + i })
    });
    let plan =
        PlannedKvBlocks { keys: keys.collect(), block_size: block, ..PlannedKvBlocks::default() };
    Some(Sequence {
        priority,
        transfer: if remote { PromptKvTransfer::RemotePrefill } else { PromptKvTransfer::Local },
        plan: Some(Arc::new(plan)),
        tail: Duration::from_millis(if tail { 20 } else { 0 }),
        ..Sequence::new(SeqId(id), prompt, output)
    })
}

/// Returns all events but tokens in order, the tokens of each sequence, and how often each gap
/// preceded a token of a run.
#[derive(Debug, PartialEq, Default)]
struct RunEvents {
    events: Vec<(SimTime, SchedulerEvent)>,
    tokens: BTreeMap<u64, Vec<SimTime>>,
}

/// Selects the times at which inputs may reach an engine whose steps take no time.
#[derive(Debug, Clone, Copy, PartialEq)]
enum InputTimes {
    BetweenSteps,
    BetweenInstants,
}

fn event_log(spec: SchedulerSpec, inputs: &[(u64, Input)], times: InputTimes) -> Log {
    let block = spec.block_size();
    let mut engine = spec.build_scheduler().unwrap();
    let mut inputs = inputs.iter().peekable();
    let mut out = Outbox::new();
    let mut next_id = 0;
    loop {
        let due = inputs.peek().map(|(at, _)| SimTime::from_millis(*at));
        let Some(now) = [due, engine.next_wakeup()].into_iter().flatten().min() else {
            return single_steps(out);
        };
        match times {
            InputTimes::BetweenSteps => engine.advance(now, &mut out),
            InputTimes::BetweenInstants => offline::advance_to(&mut *engine, now, &mut out),
        }
        while let Some((_, input)) = inputs.next_if(|(at, _)| SimTime::from_millis(*at) == now) {
            match input {
                Input::Abort(id) => engine.abort(now, SeqId(*id), &mut out),
                Input::Command(command) => {
                    engine.apply_command(now, command.clone(), &mut out);
                }
                Input::Submit { .. } => {
                    let seq = sequence(next_id, input, block).unwrap();
                    let _ = engine.submit(now, seq, &mut out);
                    next_id += 1;
                }
            }
        }
    }
}

/// Replaces the events of several steps of an instant by those of single steps.
fn single_steps(out: Outbox) -> Log {
    let mut log = Log::new();
    for (at, event) in out {
        let SchedulerEvent::Step { begun, prompt_tokens, output_tokens, count: count @ 2.. } =
            event
        else {
            log.push((at, event));
            continue;
        };
        let is_decoded = |(_, event): &_| matches!(event, SchedulerEvent::Decoded { .. });
        let from = log.iter().rposition(|event| !is_decoded(event)).map_or(0, |last| last + 1);
        let tokens: Vec<_> = log
            .drain(from..)
            .map(|(at, event)| match event {
                SchedulerEvent::Decoded { id, n } if n == count => {
                    (at, SchedulerEvent::Tokens { id, n: 1 })
                }
                other => panic!("{other:?} before {count} steps"),
            })
            .collect();
        for _ in 0..count {
            log.extend(tokens.iter().cloned());
            let step = SchedulerEvent::Step { begun, prompt_tokens, output_tokens, count: 1 };
            log.push((at, step));
        }
    }
    log
}

fn play(
    spec: SchedulerSpec,
    inputs: &[(u64, Input)],
    times: InputTimes,
) -> (RunEvents, StepSeries) {
    let (mut told, mut steps) = (RunEvents::default(), StepSeries::default());
    for (at, event) in event_log(spec, inputs, times) {
        match event {
            SchedulerEvent::Tokens { id, n } => {
                let tokens = told.tokens.entry(id.0).or_default();
                tokens.extend(std::iter::repeat_n(at, n as usize));
            }
            SchedulerEvent::Decoded { id, n } => {
                told.tokens.entry(id.0).or_default().extend(steps.run(n));
            }
            event => {
                if matches!(event, SchedulerEvent::Step { .. }) {
                    steps.ended(at);
                }
                told.events.push((at, event));
            }
        }
    }
    (told, steps)
}

/// Returns a configuration whose decode steps take no time, and whose prompts take some or none.
fn with_instant_decodes(spec: SchedulerSpec, prefill_ms: u64) -> SchedulerSpec {
    let prefill = Duration::from_millis(prefill_ms);
    let latency = LatencyModel::Constant { prefill, decode: Duration::ZERO };
    match spec {
        SchedulerSpec::Vllm(config) => {
            SchedulerSpec::Vllm(Box::new(VllmSchedulerConfig { latency, ..*config }))
        }
        SchedulerSpec::Mocker(config) => {
            SchedulerSpec::Mocker(Box::new(DynamoMockerConfig { latency, ..*config }))
        }
        other => other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn bulk_decode_events_equal_token_events(spec in spec(), inputs in inputs()) {
        let times = InputTimes::BetweenSteps;
        let (plain, _) = play(spec.clone(), &inputs, times);
        let (runs, steps) = play(spec.configured_for_virtual_time(), &inputs, times);
        prop_assert_eq!(&plain.events, &runs.events);
        prop_assert_eq!(&plain.tokens, &runs.tokens);
        // Every counted gap is between two tokens.
        let mut gaps: BTreeMap<Duration, u64> = BTreeMap::new();
        for (gap, n) in steps.gaps() {
            *gaps.entry(gap).or_default() += n;
        }
        for times in runs.tokens.values() {
            for pair in times.windows(2) {
                gaps.entry(pair[1].duration_since(pair[0])).and_modify(|n| *n = n.saturating_sub(1));
            }
        }
        prop_assert!(gaps.values().all(|&n| n == 0), "{:?}", gaps);
    }

    #[test]
    fn instant_decode_steps_have_the_events_of_single_steps(
        spec in spec(), inputs in inputs(), prefill_ms in 0..2u64,
    ) {
        let times = InputTimes::BetweenInstants;
        let spec = with_instant_decodes(spec, prefill_ms);
        match spec.clone().with_step_log() {
            Some(logged) => {
                prop_assert_eq!(event_log(spec, &inputs, times), event_log(logged, &inputs, times));
            }
            None => {
                let runs = play(spec.clone().configured_for_virtual_time(), &inputs, times);
                prop_assert_eq!(play(spec, &inputs, times).0, runs.0);
            }
        }
    }
}

#[test]
fn steady_decode_batch_is_reported_in_bulk() {
    let config = VllmSchedulerConfig {
        reporting: SchedulerReportingConfig {
            run_lengths: true,
            ..SchedulerReportingConfig::default()
        },
        ..VllmSchedulerConfig::default()
    };
    let mut engine = VllmScheduler::new(config).unwrap();
    let arrivals = (0..8).map(|id| (SimTime::ZERO, Sequence::new(SeqId(id), 100, 500)));
    let log = offline::run(&mut engine, arrivals).unwrap();
    let runs: Vec<u32> = log
        .iter()
        .filter_map(|(_, event)| match event {
            SchedulerEvent::Decoded { n, .. } => Some(*n),
            _ => None,
        })
        .collect();
    let single =
        log.iter().filter(|(_, event)| matches!(event, SchedulerEvent::Tokens { .. })).count();
    assert_eq!(runs.iter().sum::<u32>() as usize + single, 8 * 500);
    assert_eq!(runs.len(), 8, "{runs:?}");
}
