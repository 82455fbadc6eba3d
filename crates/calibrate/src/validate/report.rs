use serde::Serialize;
use serde_json::Value;

use super::RecordedRunReplay;
use super::client::ClientRequestTiming;
use super::spec::RecordedRun;
use vllm_sim_replay::statistics;

/// Predicted latencies of a recorded run, in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct LatencyPrediction {
    /// Id of the recorded run.
    #[serde(skip)]
    pub id: String,
    /// Latency statistics over all completed requests of the run.
    pub summary: RunLatencySummary,
    /// Latency statistics of each load stage of the run.
    pub stages: Vec<RunLatencySummary>,
}

/// Latency statistics of completed requests, in milliseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RunLatencySummary {
    /// Mean time to first token, in ms.
    pub ttft_mean: f64,
    /// Median time to first token, in ms.
    pub ttft_p50: f64,
    /// 90th percentile of the time to first token, in ms.
    pub ttft_p90: f64,
    /// 99th percentile of the time to first token, in ms.
    pub ttft_p99: f64,
    /// Mean inter-token latency in ms: mean over requests of each request's mean gap.
    pub itl_mean: f64,
    /// Mean end-to-end latency, in ms.
    pub e2e_mean: f64,
    /// Median end-to-end latency, in ms.
    pub e2e_p50: f64,
    /// 90th percentile of end-to-end latency, in ms.
    pub e2e_p90: f64,
    /// 99th percentile of end-to-end latency, in ms.
    pub e2e_p99: f64,
    /// Number of requests that received all their tokens.
    pub completed: usize,
    /// Number of requests that did not receive all their tokens.
    pub failed: usize,
}

impl LatencyPrediction {
    pub(crate) fn new(run: &RecordedRun, client_timings: &[ClientRequestTiming]) -> Self {
        let stage = |stage: usize| {
            let of_stage =
                run.requests.iter().zip(client_timings).filter(|(r, _)| r.stage == stage);
            RunLatencySummary::new(of_stage.map(|(r, d)| (r.output, d)))
        };
        Self {
            id: run.id.clone(),
            summary: RunLatencySummary::new(
                run.requests.iter().zip(client_timings).map(|(r, d)| (r.output, d)),
            ),
            stages: (0..run.stages).map(stage).collect(),
        }
    }

    /// Returns the latencies of a load stage, or with `None` those of the whole run.
    pub(crate) fn summary_of_stage(&self, stage: Option<usize>) -> Option<&RunLatencySummary> {
        stage.map_or(Some(&self.summary), |stage| self.stages.get(stage))
    }

    /// Returns, for each latency statistic, its median over the replays of a run.
    pub(super) fn median_over_replays(replays: &[RecordedRunReplay]) -> Self {
        let all: Vec<Self> = replays.iter().map(|(run, done)| Self::new(run, done)).collect();
        let stages = all.first().map_or(0, |one| one.stages.len());
        let summaries: Vec<&RunLatencySummary> = all.iter().map(|one| &one.summary).collect();
        Self {
            id: replays.first().map(|(run, _)| run.id.clone()).unwrap_or_default(),
            summary: RunLatencySummary::median(&summaries),
            stages: (0..stages)
                .map(|i| {
                    let stage: Vec<_> = all.iter().map(|one| &one.stages[i]).collect();
                    RunLatencySummary::median(&stage)
                })
                .collect(),
        }
    }
}

/// Returns the measured latencies of a recorded run: those of each load stage with the stage's
/// index if the run is judged by stage, else those of the whole run.
pub(crate) fn measured_summaries(run: &Value) -> Vec<(Option<usize>, &Value)> {
    let actual = &run["actual"];
    match actual["stages"].as_array() {
        Some(stages) if run["score_level"].as_str() == Some("stages") => {
            stages.iter().enumerate().map(|(stage, measured)| (Some(stage), measured)).collect()
        }
        _ => vec![(None, &actual["summary"])],
    }
}

/// Returns the error of a run from those of its load stages: the error of a single stage, or the
/// mean absolute error of several; `None` without errors.
pub(crate) fn error_over_stages(errors: impl Iterator<Item = f64>) -> Option<f64> {
    let errors: Vec<f64> = errors.collect();
    match errors[..] {
        [one] => Some(one),
        _ => statistics::mean(&errors.iter().map(|error| error.abs()).collect::<Vec<_>>()),
    }
}

const CURVE_POINTS: u32 = 50;

/// Returns the distributions of TTFT, ITL and E2E latency of the completed requests of a run: evenly
/// spaced quantiles, in ms.
pub(super) fn latency_quantile_curves(
    run: &RecordedRun,
    client_timings: &[ClientRequestTiming],
) -> [Vec<f64>; 3] {
    let requests = run.requests.iter().zip(client_timings).map(|(r, d)| (r.output, d));
    latency_samples(requests).map(quantile_curve)
}

pub(super) fn quantile_curve(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    let shares = (0..=CURVE_POINTS).map(|i| f64::from(i) / f64::from(CURVE_POINTS));
    match values.is_empty() {
        true => Vec::new(),
        false => shares.map(|share| percentile(&values, share)).collect(),
    }
}

impl RunLatencySummary {
    fn median(all: &[&Self]) -> Self {
        let of = |key: fn(&Self) -> f64| {
            statistics::median(all.iter().map(|one| key(one)).collect()).unwrap_or(0.0)
        };
        Self {
            ttft_mean: of(|one| one.ttft_mean),
            ttft_p50: of(|one| one.ttft_p50),
            ttft_p90: of(|one| one.ttft_p90),
            ttft_p99: of(|one| one.ttft_p99),
            itl_mean: of(|one| one.itl_mean),
            e2e_mean: of(|one| one.e2e_mean),
            e2e_p50: of(|one| one.e2e_p50),
            e2e_p90: of(|one| one.e2e_p90),
            e2e_p99: of(|one| one.e2e_p99),
            completed: of(|one| one.completed as f64) as usize,
            failed: of(|one| one.failed as f64) as usize,
        }
    }

    fn new<'a>(requests: impl Iterator<Item = (u32, &'a ClientRequestTiming)> + Clone) -> Self {
        let failed = requests.clone().filter(|(_, done)| !done.complete).count();
        let [mut ttft, itl, mut e2e] = latency_samples(requests);
        ttft.sort_by(f64::total_cmp);
        e2e.sort_by(f64::total_cmp);
        Self {
            ttft_mean: mean(&ttft),
            ttft_p50: percentile(&ttft, 0.50),
            ttft_p90: percentile(&ttft, 0.90),
            ttft_p99: percentile(&ttft, 0.99),
            itl_mean: mean(&itl),
            e2e_mean: mean(&e2e),
            e2e_p50: percentile(&e2e, 0.50),
            e2e_p90: percentile(&e2e, 0.90),
            e2e_p99: percentile(&e2e, 0.99),
            completed: e2e.len(),
            failed,
        }
    }
}

/// Returns TTFT, inter-token latency (the mean gap) and E2E latency of the completed requests, in
/// milliseconds; each request has its number of output tokens.
fn latency_samples<'a>(
    requests: impl Iterator<Item = (u32, &'a ClientRequestTiming)>,
) -> [Vec<f64>; 3] {
    let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
    let (mut ttft, mut itl, mut e2e) = (Vec::new(), Vec::new(), Vec::new());
    for (output, done) in requests.filter(|(_, done)| done.complete) {
        ttft.push(ms(done.first - done.sent));
        e2e.push(ms(done.last - done.sent));
        if output > 1 {
            itl.push(ms(done.last - done.first) / f64::from(output - 1));
        }
    }
    [ttft, itl, e2e]
}

/// Returns the mean of values; 0 without values.
pub(super) fn mean(values: &[f64]) -> f64 {
    statistics::mean(values).unwrap_or(0.0)
}

/// Returns the quantile `fraction` (0 to 1) of sorted values; 0 without values.
pub(super) fn percentile(sorted: &[f64], fraction: f64) -> f64 {
    statistics::percentile(sorted, fraction).unwrap_or(0.0)
}
