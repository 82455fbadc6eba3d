//! Detects a request queue that still grows at the end of the workload.

use vllm_sim_replay::outcome::{RequestOutcome, RequestStatus};

/// Minimum growth of the mean request latency from the second to the fourth quarter of requests,
/// relative to the second quarter, from which a load counts as too high.
const MIN_RELATIVE_GROWTH: f64 = 0.25;
/// Minimum growth of the mean request latency from the second to the fourth quarter, in standard
/// errors, from which a load counts as too high.
const MIN_STANDARD_ERRORS: f64 = 3.0;
/// Maximum ratio of the arrival rates of two quarters of the requests at which their latencies are
/// compared.
const MAX_RATE_RATIO: f64 = 1.15;
const MIN_QUARTER_REQUESTS: usize = 20;

#[derive(Debug, Default)]
pub(super) struct LatencyTrend {
    /// Arrival time and latency of each request, in seconds.
    seen: Vec<(f64, f64)>,
}

impl LatencyTrend {
    pub(super) fn add_request_outcome(&mut self, outcome: &RequestOutcome<'_>) {
        if outcome.status == RequestStatus::Completed {
            let latency = outcome.ended.duration_since(outcome.arrival).as_secs_f64();
            self.seen.push((outcome.arrival.as_secs_f64(), latency));
        }
    }

    /// Returns the growth of the mean request latency in the second half of an open loop, in
    /// seconds.
    ///
    /// Returns `None` if it did not grow, or there are too few requests.
    pub(super) fn latency_growth_seconds(mut self) -> Option<f64> {
        self.seen.sort_by(|a, b| a.0.total_cmp(&b.0));
        let quarter = self.seen.len() / 4;
        if quarter < MIN_QUARTER_REQUESTS {
            return None;
        }
        let second = &self.seen[quarter..2 * quarter];
        let last = &self.seen[3 * quarter..4 * quarter];
        let span = |part: &[(f64, f64)]| part[part.len() - 1].0 - part[0].0;
        if span(second) > MAX_RATE_RATIO * span(last) {
            return None;
        }
        let ((before, error), (after, other)) = (mean_and_error(second), mean_and_error(last));
        let growth = after - before;
        let noise = MIN_STANDARD_ERRORS * (error * error + other * other).sqrt();
        (growth > MIN_RELATIVE_GROWTH * before && growth > noise).then_some(growth)
    }
}

fn mean_and_error(part: &[(f64, f64)]) -> (f64, f64) {
    let n = part.len() as f64;
    let mean = part.iter().map(|(_, latency)| latency).sum::<f64>() / n;
    let squares = part.iter().map(|(_, latency)| (latency - mean).powi(2));
    (mean, (squares.sum::<f64>() / n / n).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(latency: impl Fn(f64) -> f64) -> Option<f64> {
        let arrivals = (0..400).map(|n| f64::from(n) * 0.1);
        let seen = arrivals.map(|at| (at, latency(at))).collect();
        LatencyTrend { seen }.latency_growth_seconds()
    }

    #[test]
    fn growing_queues_are_detected() {
        // The load is 1.5 times the capacity.
        let grown = growth(|at| 0.5 + at / 3.0).expect("it grows");
        assert!((grown - 20.0 / 3.0).abs() < 0.1, "{grown}");
        assert_eq!(growth(|at| 0.5 + (at * 1e3).sin().abs()), None);
        assert_eq!(growth(|_| 2.0), None);
    }
}
