//! Tracks the number of workers, good requests and prefix reuse over time.

use std::collections::BTreeSet;

use crate::outcome::{PoolRole, RequestOutcome, WorkerChange};
use vllm_sim_engine::SimTime;

/// Maximum number of intervals in a time series; if there are more, pairs of intervals are merged.
const MAX_TIME_INTERVALS: usize = 480;

/// Time series of a replay: serving workers, requests within the latency bounds, and prefix reuse.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReportTimeSeries {
    /// Number of serving workers over time: times in seconds, each with the number of workers from
    /// that time on.
    pub workers: Vec<(f64, u32)>,
    serving: BTreeSet<(PoolRole, u32)>,
    existing: Vec<(f64, u32)>,
    there: BTreeSet<(PoolRole, u32)>,
    good: RatioOverTime,
    reused: RatioOverTime,
}

/// Numerators and denominators of a ratio over even time intervals.
#[derive(Debug, Clone, Default, PartialEq)]
struct RatioOverTime {
    stretches: Vec<(u64, u64)>,
    stretch_ns: u64,
}

impl RatioOverTime {
    fn add(&mut self, at: SimTime, (part, whole): (u64, u64)) {
        const SECOND: u64 = 1_000_000_000;
        self.stretch_ns = self.stretch_ns.max(SECOND / 4);
        while at.as_nanos() / self.stretch_ns >= MAX_TIME_INTERVALS as u64 {
            let pairs = self.stretches.chunks(2);
            let sum = |pair: &[(u64, u64)]| pair.iter().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
            self.stretches = pairs.map(sum).collect();
            self.stretch_ns *= 2;
        }
        let at = (at.as_nanos() / self.stretch_ns) as usize;
        if self.stretches.len() <= at {
            self.stretches.resize(at + 1, (0, 0));
        }
        self.stretches[at].0 += part;
        self.stretches[at].1 += whole;
    }

    fn percentages(&self) -> Vec<(f64, f64)> {
        let all = self.stretches.iter().enumerate();
        let some = all.filter(|(_, (_, whole))| *whole > 0);
        let points = some.map(|(at, (part, whole))| {
            let middle = (at as f64 + 0.5) * self.stretch_ns as f64 / 1e9;
            (middle, 100.0 * *part as f64 / *whole as f64)
        });
        points.collect()
    }
}

impl ReportTimeSeries {
    pub(super) fn record_worker_change(
        &mut self,
        at: SimTime,
        who: (PoolRole, u32),
        change: WorkerChange,
    ) {
        let paid = match change {
            WorkerChange::Starting => self.there.insert(who),
            WorkerChange::Gone => self.there.remove(&who),
            WorkerChange::Ready | WorkerChange::Draining => false,
        };
        if paid {
            push_count_change(&mut self.existing, at, self.there.len());
        }
        let changed = match change {
            WorkerChange::Ready => self.serving.insert(who),
            WorkerChange::Draining | WorkerChange::Gone => self.serving.remove(&who),
            WorkerChange::Starting => false,
        };
        if changed {
            push_count_change(&mut self.workers, at, self.serving.len());
        }
    }

    pub(super) fn record_request_goodput(&mut self, arrival: SimTime, is_good: bool) {
        self.good.add(arrival, (u64::from(is_good), 1));
    }

    pub(super) fn record_prefix_reuse(&mut self, outcome: &RequestOutcome<'_>) {
        let reused = outcome.admissions.iter().map(|a| a.reused).max();
        let Some(reused) = reused else {
            return;
        };
        let part = (reused.min(outcome.input).into(), outcome.input.into());
        self.reused.add(outcome.arrival, part);
    }

    /// Returns the percentage of requests within the latency bounds over time in seconds; a request
    /// counts at its scheduled time.
    pub fn slo_attainment_percent(&self) -> Vec<(f64, f64)> {
        self.good.percentages()
    }

    /// Returns the percentage of prompt tokens found in the prefix cache over time in seconds; a
    /// request counts at its scheduled time.
    pub fn prefix_reuse_percent(&self) -> Vec<(f64, f64)> {
        self.reused.percentages()
    }

    /// Returns whether the number of workers changed during the replay.
    pub fn has_worker_changes(&self) -> bool {
        self.workers.len() > 1
    }

    /// Returns the accumulated GPU cost over time in seconds, which is `total_cost` at
    /// `end_seconds` seconds.
    pub fn accumulated_cost(&self, end_seconds: f64, total_cost: f64) -> Vec<(f64, f64)> {
        let (mut paid, mut before) = (0.0, (0.0, 0));
        let ends = self.existing.iter().copied().chain([(end_seconds, 0)]);
        let corners = ends.map(|(at, workers): (f64, u32)| {
            let at = at.min(end_seconds);
            paid += f64::from(before.1) * (at - before.0);
            before = (at, workers);
            (at, paid)
        });
        let mut corners: Vec<(f64, f64)> = corners.collect();
        corners.iter_mut().for_each(|corner| corner.1 *= total_cost / paid.max(1e-12));
        corners
    }

    /// Returns the worker count over time as a step line, up to `end_seconds` seconds.
    pub fn worker_count_over_time(&self, end_seconds: f64) -> Vec<(f64, f64)> {
        let mut corners = Vec::with_capacity(2 * self.workers.len() + 1);
        let mut before = None;
        for &(at, workers) in &self.workers {
            corners.extend(before.map(|before| (at, before)));
            corners.push((at, f64::from(workers)));
            before = Some(f64::from(workers));
        }
        corners.extend(before.map(|before| (end_seconds, before)));
        corners
    }
}

fn push_count_change(steps: &mut Vec<(f64, u32)>, at: SimTime, now: usize) {
    let (at, now) = (at.as_secs_f64(), now as u32);
    match steps.last_mut() {
        Some(last) if last.0 == at => last.1 = now,
        _ => steps.push((at, now)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_counted_and_requests_kept_in_bounds() {
        let mut over = ReportTimeSeries::default();
        let at = SimTime::from_millis;
        over.record_worker_change(at(0), (PoolRole::Serving, 0), WorkerChange::Ready);
        over.record_worker_change(at(500), (PoolRole::Serving, 1), WorkerChange::Starting);
        over.record_worker_change(at(2000), (PoolRole::Serving, 1), WorkerChange::Ready);
        over.record_worker_change(at(9000), (PoolRole::Serving, 0), WorkerChange::Draining);
        over.record_worker_change(at(9500), (PoolRole::Serving, 0), WorkerChange::Gone);
        assert_eq!(over.workers, [(0.0, 1), (2.0, 2), (9.0, 1)]);
        let corners = [(0.0, 1.0), (2.0, 1.0), (2.0, 2.0), (9.0, 2.0), (9.0, 1.0), (10.0, 1.0)];
        assert_eq!(over.worker_count_over_time(10.0), corners);
        // Only the second worker has a start event, and none has an end event.
        assert_eq!(over.accumulated_cost(10.0, 9.5), [(0.5, 0.0), (10.0, 9.5)]);
        for second in 0..100_000 {
            over.record_request_goodput(at(second * 1000), second % 4 > 0);
        }
        let seen = over.slo_attainment_percent();
        assert!(
            seen.len() <= MAX_TIME_INTERVALS
                && seen.iter().all(|(_, good)| (*good - 75.0).abs() < 2.0)
        );
    }
}
