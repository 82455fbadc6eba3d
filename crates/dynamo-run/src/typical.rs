//! Selects a typical run of a router that breaks ties randomly.
//!
//! Dynamo's KV router breaks ties without a seed, so its recording is one of many possible runs.
//! Several seeds run here, and the one nearest to their mean is reported.

use vllm_sim_replay::RouterConfig;
use vllm_sim_replay::report::ReplayReport;
use vllm_sim_replay::workload::WorkloadSource;

use super::args::DynamoRunSetup;
use super::error::DynamoRunError;
use super::replay;

const SEED_COUNT: u64 = 9;

/// Number of requests above which one run suffices, because random choices average out.
const SINGLE_SEED_REQUESTS: f64 = 20_000.0;

const COMPARED_METRIC_KEYS: [&str; 6] = [
    "duration_ms",
    "mean_ttft_ms",
    "mean_itl_ms",
    "mean_e2e_latency_ms",
    "p90_e2e_latency_ms",
    "prefix_cache_reused_ratio",
];

/// Replays a Dynamo run, with several seeds if its router is random; `open` parses the run's folder
/// for each seed.
pub(super) fn replay_run_of_typical_seed(
    open: &dyn Fn() -> Result<(DynamoRunSetup, Box<dyn WorkloadSource>), DynamoRunError>,
) -> Result<ReplayReport, DynamoRunError> {
    let (setup, mut source) = open()?;
    let draws = matches!(setup.router, RouterConfig::Kv(_));
    if !draws {
        return replay::simulate_deployment(&setup, 0, source.as_mut());
    }
    let mut seen: Vec<[f64; COMPARED_METRIC_KEYS.len()]> = Vec::new();
    for seed in 0..SEED_COUNT {
        let (mut setup, mut source) = open()?;
        setup.capture = false;
        let report = replay::simulate_deployment(&setup, seed, source.as_mut())?;
        seen.push(COMPARED_METRIC_KEYS.map(|key| report.summary_number(key)));
        if report.summary_number("num_requests") > SINGLE_SEED_REQUESTS {
            break;
        }
    }
    replay::simulate_deployment(&setup, seed_nearest_to_mean(&seen), source.as_mut())
}

/// Returns the seed of the run with the smallest squared relative distance to the mean metrics of
/// all runs.
fn seed_nearest_to_mean(runs: &[[f64; COMPARED_METRIC_KEYS.len()]]) -> u64 {
    let mean = |key: usize| runs.iter().map(|run| run[key]).sum::<f64>() / runs.len() as f64;
    let means: Vec<f64> = (0..COMPARED_METRIC_KEYS.len()).map(mean).collect();
    let distance = |run: &[f64; COMPARED_METRIC_KEYS.len()]| -> f64 {
        let off = run.iter().zip(&means);
        let off = off.filter(|(_, mean)| **mean > 0.0);
        off.map(|(value, mean)| ((value - mean) / mean).powi(2)).sum()
    };
    let all = (0..).zip(runs);
    let best = all.min_by(|(_, a), (_, b)| distance(a).total_cmp(&distance(b)));
    best.map_or(0, |(seed, _)| seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_of_the_run_nearest_to_the_mean_is_chosen() {
        let run = |ttft: f64| [1.0, ttft, 1.0, 1.0, 1.0, 0.0];
        assert_eq!(seed_nearest_to_mean(&[run(10.0), run(20.0), run(14.0)]), 2);
        assert_eq!(seed_nearest_to_mean(&[run(5.0)]), 0);
    }
}
