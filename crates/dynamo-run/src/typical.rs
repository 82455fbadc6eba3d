//! One run for many: the peer's router draws among equals without a seed, so what it recorded is one
//! of many runs. Of ours, the one nearest to their middle is told.

use vllm_sim_replay::RouterConfig;
use vllm_sim_replay::report::Report;
use vllm_sim_replay::workload::WorkloadSource;

use super::args::Setup;
use super::error::DynamoError;
use super::replay;

/// Runs that are looked at.
const RUNS: u64 = 9;

/// Requests of a run beyond which one is enough: their draws even out.
const MANY_REQUESTS: f64 = 20_000.0;

/// What runs are compared by.
const KEYS: [&str; 6] = [
    "duration_ms",
    "mean_ttft_ms",
    "mean_itl_ms",
    "mean_e2e_latency_ms",
    "p90_e2e_latency_ms",
    "prefix_cache_reused_ratio",
];

/// Plays a run; `open` reads it, as often as it is asked.
pub(super) fn play(
    open: &dyn Fn() -> Result<(Setup, Box<dyn WorkloadSource>), DynamoError>,
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

/// The run with the least squared relative distance to the mean of all.
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
