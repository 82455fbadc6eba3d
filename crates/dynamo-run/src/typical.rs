//! Selects a typical run of a router that breaks ties randomly.
//!
//! Dynamo's KV router breaks ties without a seed, so its recording is one of many possible runs.
//! Several seeds run here, and the one nearest to their mean is reported.

use vllm_sim_replay::RouterConfig;
use vllm_sim_replay::report::Report;
use vllm_sim_replay::workload::WorkloadSource;

use super::args::RooflineSetup;
use super::error::DynamoError;
use super::replay;

const RUNS: u64 = 9;

/// Number of requests above which one run suffices, because random choices average out.
const MANY_REQUESTS: f64 = 20_000.0;

const KEYS: [&str; 6] = [
    "duration_ms",
    "mean_ttft_ms",
    "mean_itl_ms",
    "mean_e2e_latency_ms",
    "p90_e2e_latency_ms",
    "prefix_cache_reused_ratio",
];

/// Replays a Dynamo run, with several seeds if its router is random; `open` parses the run's folder
/// for each.
pub(super) fn play(
    open: &dyn Fn() -> Result<(RooflineSetup, Box<dyn WorkloadSource>), DynamoError>,
) -> Result<Report, DynamoError> {
    let (setup, mut source) = open()?;
    let draws = matches!(setup.router, RouterConfig::Kv(_));
    if !draws {
        return replay::play(&setup, 0, source.as_mut());
    }
    let mut seen: Vec<[f64; KEYS.len()]> = Vec::new();
    for seed in 0..RUNS {
        let (mut setup, mut source) = open()?;
        setup.capture = false;
        let report = replay::play(&setup, seed, source.as_mut())?;
        seen.push(KEYS.map(|key| report.number(key)));
        if report.number("num_requests") > MANY_REQUESTS {
            break;
        }
    }
    replay::play(&setup, nearest(&seen), source.as_mut())
}

/// Returns the seed of the run with the smallest squared relative distance to the mean metrics of
/// all runs.
fn nearest(runs: &[[f64; KEYS.len()]]) -> u64 {
    let mean = |key: usize| runs.iter().map(|run| run[key]).sum::<f64>() / runs.len() as f64;
    let means: Vec<f64> = (0..KEYS.len()).map(mean).collect();
    let distance = |run: &[f64; KEYS.len()]| -> f64 {
        let off = run.iter().zip(&means);
        let off = off.filter(|(_, mean)| **mean > 0.0);
        off.map(|(value, mean)| ((value - mean) / mean).powi(2))
            .sum()
    };
    let all = (0..).zip(runs);
    let best = all.min_by(|(_, a), (_, b)| distance(a).total_cmp(&distance(b)));
    best.map_or(0, |(seed, _)| seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_nearest_to_the_mean_is_taken() {
        let run = |ttft: f64| [1.0, ttft, 1.0, 1.0, 1.0, 0.0];
        assert_eq!(nearest(&[run(10.0), run(20.0), run(14.0)]), 2);
        assert_eq!(nearest(&[run(5.0)]), 0);
    }
}
