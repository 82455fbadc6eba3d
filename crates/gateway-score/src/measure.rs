//! Computes the measures of a gateway's run, such as prefix reuse and TTFT, and their ratio to the
//! ideal.

use std::collections::{BTreeMap, HashSet};

use vllm_sim_replay::sample_distribution::SampleDistribution;

use super::gateway_run::GatewayRun;
use super::workload::LoadedWorkload;

pub(super) struct ScoreMeasure {
    /// Name of the measure in JSON and in `--require`.
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    /// Whether the measure is a time in milliseconds (less is better), rather than a fraction (more
    /// is better).
    pub(super) is_time: bool,
}

const fn ratio_measure(name: &'static str, label: &'static str) -> ScoreMeasure {
    ScoreMeasure { name, label, is_time: false }
}

const fn time_measure(name: &'static str, label: &'static str) -> ScoreMeasure {
    ScoreMeasure { name, label, is_time: true }
}

pub(super) const SCORE_MEASURE_COUNT: usize = 11;

/// All score measures, in the order of the values that [`score_measures_of_run`] returns.
pub(super) const SCORE_MEASURES: [ScoreMeasure; SCORE_MEASURE_COUNT] = [
    ratio_measure("served", "Requests completed"),
    ratio_measure("reuse", "Prefix reuse"),
    time_measure("ttft", "TTFT mean (ms)"),
    time_measure("ttft-p50", "TTFT p50 (ms)"),
    time_measure("ttft-p99", "TTFT p99 (ms)"),
    time_measure("e2e", "E2E mean (ms)"),
    time_measure("e2e-p50", "E2E p50 (ms)"),
    time_measure("e2e-p99", "E2E p99 (ms)"),
    ratio_measure("balance", "Balance"),
    ratio_measure("stickiness", "Session stickiness"),
    ratio_measure("lora-affinity", "LoRA affinity"),
];

/// Names of the measures whose ratios to the ideal are averaged for the score.
pub(super) const SCORED_MEASURE_NAMES: [&str; 3] = ["reuse", "ttft", "e2e"];

/// Values of all score measures of a run; `None` for a measure that is unknown or does not apply to
/// the workload.
pub(super) type ScoreMeasureValues = [Option<f64>; SCORE_MEASURE_COUNT];

pub(super) fn score_measures_of_run(
    play: &GatewayRun,
    workload: &LoadedWorkload,
) -> ScoreMeasureValues {
    let completed = play.turns.iter().filter(|turn| turn.completed).count();
    let [ttft, e2e] = ttft_and_e2e_samples(play).map(|mut samples| match samples.sample_count() {
        0 => [None; 3],
        _ => {
            let [p50, p99] = samples.percentiles([50.0, 99.0]);
            [samples.mean(), p50, p99].map(Some)
        }
    });
    [
        Some(completed as f64 / workload.workload_request_count() as f64),
        prefix_reuse_fraction(play),
        ttft[0],
        ttft[1],
        ttft[2],
        e2e[0],
        e2e[1],
        e2e[2],
        pod_load_balance(play),
        session_stickiness(play),
        lora_affinity(play, workload),
    ]
}

/// Returns the distributions of TTFT and E2E latency of a run, in milliseconds.
pub(super) fn ttft_and_e2e_samples(run: &GatewayRun) -> [SampleDistribution; 2] {
    let mut both = [SampleDistribution::default(), SampleDistribution::default()];
    for turn in &run.turns {
        let times = [turn.ttft_ms, turn.e2e_ms];
        for (samples, ms) in both.iter_mut().zip(times) {
            if let Some(ms) = ms {
                samples.add_sample(ms, 1);
            }
        }
    }
    both
}

/// Returns the fraction of all prompt tokens that came from the prefix cache.
fn prefix_reuse_fraction(play: &GatewayRun) -> Option<f64> {
    let completed = || play.turns.iter().filter(|turn| turn.completed);
    if completed().any(|turn| turn.cached.is_some()) {
        let input: u64 = completed().map(|turn| u64::from(turn.input)).sum();
        let cached = completed().map(|turn| u64::from(turn.cached.unwrap_or(0)));
        return Some(cached.sum::<u64>() as f64 / input.max(1) as f64);
    }
    let (hits, queries) = play.counted?;
    (queries > 0.0).then(|| hits / queries)
}

/// Returns the ratio of the mean number of requests per pod to that of the busiest pod; 1 is
/// balanced.
fn pod_load_balance(play: &GatewayRun) -> Option<f64> {
    let mut counts = BTreeMap::<usize, u64>::new();
    for pod in play.turns.iter().filter_map(|turn| turn.pod) {
        *counts.entry(pod).or_default() += 1;
    }
    let busiest = counts.values().copied().max()?;
    let all: u64 = counts.values().sum();
    Some(all as f64 / play.pods.max(1) as f64 / busiest as f64)
}

/// Returns the fraction of a session's later turns that the pod of the previous turn served.
fn session_stickiness(play: &GatewayRun) -> Option<f64> {
    let pods = play.turns.iter().filter_map(|turn| Some(((turn.session, turn.turn), turn.pod?)));
    let pods: BTreeMap<(u64, u32), usize> = pods.collect();
    let pairs = pods.iter().filter_map(|((session, turn), pod)| {
        let before = pods.get(&(*session, turn.checked_sub(1)?))?;
        Some(before == pod)
    });
    let (mut all, mut kept) = (0u64, 0u64);
    for is_kept in pairs {
        all += 1;
        kept += u64::from(is_kept);
    }
    (all > 0).then(|| kept as f64 / all as f64)
}

/// Returns the fraction of repeated requests for a LoRA adapter that went to a pod that had served
/// the adapter before.
fn lora_affinity(play: &GatewayRun, workload: &LoadedWorkload) -> Option<f64> {
    let with_adapter = play.turns.iter().filter_map(|turn| {
        let planned = workload.session_turn(turn.session, turn.turn)?;
        Some((turn.sent, turn.pod?, planned.lora.as_deref()?))
    });
    let mut with_adapter: Vec<_> = with_adapter.collect();
    with_adapter.sort_by_key(|(sent, ..)| *sent);
    let (mut known, mut served) = (HashSet::new(), HashSet::new());
    let (mut all, mut again) = (0u64, 0u64);
    for (_, pod, adapter) in with_adapter {
        let is_loaded = !served.insert((pod, adapter));
        if !known.insert(adapter) {
            all += 1;
            again += u64::from(is_loaded);
        }
    }
    (all > 0).then(|| again as f64 / all as f64)
}

/// Returns the best value of each measure over the simulated runs and the live run `live`, which
/// does not use the gateway.
///
/// Only times of the direct run are comparable with those of a gateway.
pub(super) fn best_measure_values(
    plays: &[ScoreMeasureValues],
    live: Option<&ScoreMeasureValues>,
) -> ScoreMeasureValues {
    std::array::from_fn(|at| {
        let live = live.and_then(|values| values[at]);
        let values = plays.iter().filter_map(|values| values[at]);
        match SCORE_MEASURES[at].is_time {
            true => live.or_else(|| values.reduce(f64::min)),
            false => values.chain(live).reduce(f64::max),
        }
    })
}

/// Returns the ratio of each measure to the ideal; 1 is as good as the ideal, less is worse.
pub(super) fn score_measure_ratios_to_ideal(
    live: &ScoreMeasureValues,
    ideal: &ScoreMeasureValues,
) -> ScoreMeasureValues {
    std::array::from_fn(|at| {
        let (live, ideal) = (live[at]?, ideal[at]?);
        match SCORE_MEASURES[at].is_time {
            true => (live > 0.0).then(|| ideal / live),
            // With an ideal of 0, every gateway is as good.
            false if ideal == 0.0 => Some(1.0),
            false => Some(live / ideal),
        }
    })
}

/// Returns a gateway's score: the fraction of completed requests, times a mean ratio to the ideal.
///
/// The mean covers prefix reuse, mean TTFT and mean E2E latency. Each share is at most 1.
pub(super) fn gateway_score(ratios_to_ideal: &ScoreMeasureValues) -> Option<f64> {
    let of = |name: &str| {
        let at = SCORE_MEASURES.iter().position(|measure| measure.name == name)?;
        ratios_to_ideal[at]
    };
    let parts: Vec<f64> = SCORED_MEASURE_NAMES.into_iter().filter_map(of).collect();
    let served = of("served")?;
    if parts.is_empty() {
        return (served == 0.0).then_some(0.0);
    }
    Some(served * parts.iter().sum::<f64>() / parts.len() as f64)
}
