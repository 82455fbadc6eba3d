//! Tests whether a request queue still grows at the end of the workload.

use vllm_sim_replay::outcome::{RequestOutcome, RequestStatus};

/// Minimum growth of the mean request latency from the second to the fourth quarter of requests,
/// relative to the second quarter, from which a load counts as too high.
const MIN_RELATIVE_GROWTH: f64 = 0.25;
/// Minimum growth of a latency or of a number of requests, in standard errors, from which a load
/// counts as too high.
const MIN_STANDARD_ERRORS: f64 = 3.0;
/// Minimum growth of the request latency per time of arrival from which a load counts as too high.
///
/// Each second of arrivals adds 0.05 s if requests arrive 5 % faster than they are completed.
const MIN_GROWTH_RATE: f64 = 0.02;
/// Maximum ratio of completed to arrived requests at which a load counts as too high.
const MAX_COMPLETED_RATIO: f64 = 0.95;
/// Maximum ratio of the arrival rates of two quarters of the requests at which their latencies are
/// compared.
const MAX_RATE_RATIO: f64 = 1.15;
const MIN_QUARTER_REQUESTS: usize = 20;
/// Minimum time of arrivals, in mean request latencies, from which completed requests are compared
/// with arrived ones. Before that, most requests of the first half are still running.
const MIN_LATENCIES_FOR_COUNTS: f64 = 2.0;
/// Minimum time of arrivals, in mean request latencies, from which the latencies show a growing
/// queue. The last requests of a shorter run are fast, because none arrive after them.
const MIN_LATENCIES_FOR_TREND: f64 = 5.0;
/// Time of arrivals, in mean request latencies, of a workload that is made longer for the test.
const LENGTHENED_LATENCIES: f64 = 10.0;

/// Result of the test for a growing queue.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum QueueGrowth {
    /// The queue does not grow.
    None,
    /// The queue grows; a text describes the growth.
    Grows(String),
    /// The run cannot show it; a text gives the reason.
    Untested(String),
}

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

    /// Returns the factor by which the workload should be longer, so that the latencies show
    /// whether the queue grows; `None` if it is long enough, or has no completed requests.
    pub(super) fn lengthening_factor(&self) -> Option<f64> {
        let arrivals = self.seen.iter().map(|(arrival, _)| *arrival);
        let seconds = arrivals.clone().fold(0.0, f64::max) - arrivals.fold(f64::INFINITY, f64::min);
        let (latency, _) = mean_and_error(&self.seen);
        (seconds > 0.0 && seconds < MIN_LATENCIES_FOR_TREND * latency)
            .then(|| LENGTHENED_LATENCIES * latency / seconds)
    }

    /// Returns whether the queue of an open loop grows in its second half.
    pub(super) fn queue_growth(mut self) -> QueueGrowth {
        self.seen.sort_by(|a, b| a.0.total_cmp(&b.0));
        let quarter = self.seen.len() / 4;
        if quarter < MIN_QUARTER_REQUESTS {
            return QueueGrowth::Untested(format!(
                "{} requests were completed, and the test needs {}",
                self.seen.len(),
                4 * MIN_QUARTER_REQUESTS
            ));
        }
        let second = &self.seen[quarter..2 * quarter];
        let last = &self.seen[3 * quarter..4 * quarter];
        let span = |part: &[(f64, f64)]| part[part.len() - 1].0 - part[0].0;
        let (seconds, (latency, _)) = (span(&self.seen), mean_and_error(&self.seen));
        let is_long = seconds >= MIN_LATENCIES_FOR_COUNTS * latency;
        if span(second) > MAX_RATE_RATIO * span(last) {
            let growth = self.growth_of_unfinished_requests();
            return match growth {
                QueueGrowth::Grows(_) if is_long => growth,
                _ => QueueGrowth::Untested("more requests arrive at the end".to_owned()),
            };
        }
        let ((before, error), (after, other)) = (mean_and_error(second), mean_and_error(last));
        let growth = after - before;
        let is_above_noise = growth > MIN_STANDARD_ERRORS * (error * error + other * other).sqrt();
        let grows = QueueGrowth::Grows(format!(
            "requests of the last quarter take {growth:.2} s longer than those of the second"
        ));
        if is_above_noise && growth > MIN_RELATIVE_GROWTH * before {
            return grows;
        }
        if !is_long {
            return QueueGrowth::Untested(format!(
                "all requests arrive within {seconds:.1} s, and one takes {latency:.1} s"
            ));
        }
        if seconds < MIN_LATENCIES_FOR_TREND * latency {
            return self.growth_of_unfinished_requests();
        }
        // From the middle of one quarter to that of the other.
        let between = last[0].0 + span(last) / 2.0 - (second[0].0 + span(second) / 2.0);
        match is_above_noise && growth > MIN_GROWTH_RATE * between {
            true => grows,
            false => QueueGrowth::None,
        }
    }

    /// Compares the completed requests with the arrived ones, from the arrival of the middle request
    /// to that of the last one.
    fn growth_of_unfinished_requests(&self) -> QueueGrowth {
        let (middle, last) = (self.seen[self.seen.len() / 2].0, self.seen[self.seen.len() - 1].0);
        let count = |is_counted: &dyn Fn(f64, f64) -> bool| {
            let counted = self.seen.iter().filter(|(at, latency)| is_counted(*at, at + latency));
            counted.count() as f64
        };
        let unfinished_at = |time: f64| count(&|arrival, end| arrival <= time && end > time);
        let (before, after) = (unfinished_at(middle), unfinished_at(last));
        let arrived = count(&|arrival, _| arrival > middle);
        let completed = count(&|_, end| end > middle && end <= last);
        let is_above_noise = after - before > MIN_STANDARD_ERRORS * (before + after).sqrt();
        match is_above_noise && completed < MAX_COMPLETED_RATIO * arrived {
            true => QueueGrowth::Grows(format!(
                "{completed} requests are completed while {arrived} arrive in the second half"
            )),
            false => QueueGrowth::None,
        }
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

    /// Returns the growth of a load with 10 requests a second for 40 s.
    fn growth(latency: impl Fn(f64) -> f64) -> QueueGrowth {
        let arrivals = (0..400).map(|n| f64::from(n) * 0.1);
        let seen = arrivals.map(|at| (at, latency(at))).collect();
        LatencyTrend { seen }.queue_growth()
    }

    #[test]
    fn growing_queues_are_detected() {
        // The load is 1.5 times the capacity.
        let grown = "requests of the last quarter take 6.67 s longer than those of the second";
        assert_eq!(growth(|at| 0.5 + at / 3.0), QueueGrowth::Grows(grown.to_owned()));
        assert_eq!(growth(|at| 0.5 + (at * 1e3).sin().abs()), QueueGrowth::None);
        assert_eq!(growth(|_| 2.0), QueueGrowth::None);
    }

    #[test]
    fn a_slow_growth_of_long_latencies_is_detected() {
        // The load is 1.05 times the capacity: 1 s more in 20 s.
        let grown = "requests of the last quarter take 1.00 s longer than those of the second";
        assert_eq!(growth(|at| 5.0 + at / 20.0), QueueGrowth::Grows(grown.to_owned()));
    }

    #[test]
    fn the_fast_end_of_a_short_run_hides_no_overload() {
        // Seven of ten arriving requests are completed while others arrive; the rest end together.
        let latency = |at: f64| (10.0 + at / 0.7).min(45.0 + at / 100.0) - at;
        let grown = "139 requests are completed while 199 arrive in the second half";
        assert_eq!(growth(latency), QueueGrowth::Grows(grown.to_owned()));
    }

    #[test]
    fn runs_that_show_no_trend_say_why() {
        let short = "all requests arrive within 39.9 s, and one takes 30.0 s";
        assert_eq!(growth(|_| 30.0), QueueGrowth::Untested(short.to_owned()));
        let few = "2 requests were completed, and the test needs 80";
        let seen = vec![(0.0, 1.0), (1.0, 1.0)];
        assert_eq!(LatencyTrend { seen }.queue_growth(), QueueGrowth::Untested(few.to_owned()));
        let seen = vec![(0.0, 30.0), (100.0, 30.0)];
        assert_eq!(LatencyTrend { seen }.lengthening_factor(), Some(3.0));
    }
}
