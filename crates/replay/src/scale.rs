use std::time::Duration;

use vllm_sim_engine::SimTime;

/// Scheduled and automatic changes of the number of workers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WorkerScaling {
    /// Scheduled worker counts with the times from which they apply. Sorted by time.
    pub schedule: Vec<(SimTime, u32)>,
    /// Parameters of the autoscaler, if there is one.
    pub rule: Option<AutoscalerRule>,
    /// Scheduled failures: times, each with the number of oldest workers that are lost with all
    /// their requests.
    ///
    /// Replacements start immediately. Sorted by time.
    pub losses: Vec<(SimTime, u32)>,
}

/// Algorithm of the autoscaler for the target number of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AutoscalerPolicy {
    /// Kubernetes' horizontal pod autoscaler with pod metrics.
    ///
    /// The target is the maximum over all gauges, each kept at its target value. Starting workers
    /// have no gauge: they count as idle when the others would scale up, and as on target when they
    /// would scale down.
    #[default]
    Hpa,
    /// HPA with external metrics, as KEDA configures it.
    ///
    /// Divides the total of waiting sequences by the target per worker, and compares the mean cache
    /// usage with its target. Scales down only to the largest target computed within the cool-down.
    Keda,
    /// Workload variant autoscaler of llm-d, with its V1 saturation analyzer.
    ///
    /// Adds one worker when the unsaturated workers have little spare capacity. Removes one when
    /// the others could take its load. Does nothing while a worker starts. Scales down like
    /// [`AutoscalerPolicy::Keda`].
    Wva,
}

/// Usage of the KV cache and number of waiting requests at which a worker is saturated for
/// [`AutoscalerPolicy::Wva`]. Source: `deploy/configmap-saturation-scaling.yaml`.
const WVA_SATURATED: (f64, f64) = (0.8, 5.0);
/// Spare capacity of a worker that [`AutoscalerPolicy::Wva`] keeps, in the units of
/// [`WVA_SATURATED`].
const WVA_SPARE: (f64, f64) = (0.1, 3.0);

/// Parameters of the simulated autoscaler.
#[derive(Debug, Clone, PartialEq)]
pub struct AutoscalerRule {
    /// Algorithm of the autoscaler for the target number of workers.
    pub policy: AutoscalerPolicy,
    /// Minimum number of workers after scaling down, at least 1.
    pub min: u32,
    /// Maximum number of workers after scaling up.
    pub max: u32,
    /// Number of waiting sequences per worker that the autoscaler aims at.
    pub target_waiting: Option<f64>,
    /// Fraction of the KV cache in use that the autoscaler aims at.
    pub target_kv_usage: Option<f64>,
    /// Interval between two autoscaler checks. Default 15 s.
    pub interval: Duration,
    /// Time after a change in which the autoscaler removes no worker; the stabilization window of
    /// KEDA and WVA. Default 5 min.
    pub cool_down: Duration,
}

impl Default for AutoscalerRule {
    fn default() -> Self {
        Self {
            policy: AutoscalerPolicy::Hpa,
            min: 1,
            max: 1,
            target_waiting: None,
            target_kv_usage: None,
            interval: Duration::from_secs(15),
            cool_down: Duration::from_secs(300),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct WorkerPoolLoad {
    /// Number of waiting sequences and fraction of the KV cache in use, per ready worker.
    ///
    /// Requests in the router's queue are spread evenly over the workers.
    pub ready: Vec<(f64, f64)>,
    pub starting: u32,
}

impl WorkerPoolLoad {
    fn present_workers(&self) -> u32 {
        self.ready.len() as u32 + self.starting
    }

    fn mean_queue_and_kv_usage(&self) -> (f64, f64) {
        let workers = self.ready.len().max(1) as f64;
        let sum = |all: (f64, f64), one: &(f64, f64)| (all.0 + one.0, all.1 + one.1);
        let (waiting, kv_usage) = self.ready.iter().fold((0.0, 0.0), sum);
        (waiting / workers, kv_usage / workers)
    }
}

impl AutoscalerRule {
    pub(super) fn target_worker_count(&self, load: &WorkerPoolLoad) -> u32 {
        let wanted = match self.policy {
            // No worker is ready, so there are no gauges.
            _ if load.ready.is_empty() => load.present_workers(),
            AutoscalerPolicy::Hpa => self.hpa_pods_target(load),
            AutoscalerPolicy::Keda => self.keda_external_target(load),
            AutoscalerPolicy::Wva => wva_saturation_target(load),
        };
        wanted.clamp(self.min.max(1), self.max.max(self.min).max(1))
    }

    /// Returns the number of workers that the autoscaler wants: the larger of those for the waiting
    /// queue and for the KV cache usage.
    fn largest_gauge_target(
        &self,
        seen: &WorkerPoolLoad,
        waiting: impl Fn(f64) -> u32,
        kv: impl Fn(f64) -> u32,
    ) -> u32 {
        let by_waiting = self.target_waiting.map(waiting);
        let by_kv_usage = self.target_kv_usage.map(kv);
        by_waiting.max(by_kv_usage).unwrap_or(seen.present_workers())
    }

    fn hpa_pods_target(&self, seen: &WorkerPoolLoad) -> u32 {
        let (waiting, kv_usage) = seen.mean_queue_and_kv_usage();
        let by_gauge = |ratio| self.target_for_gauge_ratio(seen, ratio);
        self.largest_gauge_target(seen, |t| by_gauge(waiting / t), |t| by_gauge(kv_usage / t))
    }

    /// Returns the number of workers that the autoscaler wants because of one gauge, whose value is
    /// `ratio` times its target.
    fn target_for_gauge_ratio(&self, seen: &WorkerPoolLoad, ratio: f64) -> u32 {
        let present = seen.present_workers();
        let (ready, all) = (seen.ready.len() as f64, f64::from(present));
        let assumed = if ratio < 1.0 { 1.0 } else { 0.0 };
        let whole = (ratio * ready + assumed * f64::from(seen.starting)) / all;
        // Ignored: the change is within the tolerance, or the starting workers reverse its
        // direction.
        let turned = (ratio - 1.0) * (whole - 1.0) < 0.0;
        if turned || is_within_tolerance(whole) {
            return present;
        }
        round_up_workers(all * whole)
    }

    fn keda_external_target(&self, seen: &WorkerPoolLoad) -> u32 {
        let (waiting, kv_usage) = seen.mean_queue_and_kv_usage();
        let (present, ready) = (seen.present_workers(), seen.ready.len() as f64);
        let unless_near = |ratio: f64, wanted: f64| match is_within_tolerance(ratio) {
            true => present,
            false => round_up_workers(wanted),
        };
        let sum = waiting * ready;
        self.largest_gauge_target(
            seen,
            |target| unless_near(sum / target / f64::from(present), sum / target),
            |target| unless_near(kv_usage / target, kv_usage / target * ready),
        )
    }
}

/// Returns whether a gauge is so near to its target that the autoscaler changes nothing.
fn is_within_tolerance(ratio: f64) -> bool {
    (ratio - 1.0).abs() <= 0.1
}

fn round_up_workers(wanted: f64) -> u32 {
    wanted.ceil().min(1e6) as u32
}

fn wva_saturation_target(seen: &WorkerPoolLoad) -> u32 {
    let (full_kv_usage, full_waiting) = WVA_SATURATED;
    let present = seen.present_workers();
    if seen.starting > 0 {
        return present;
    }
    let others = seen.ready.iter();
    let others = others.filter(|(waiting, kv)| *kv < full_kv_usage && *waiting < full_waiting);
    let others = WorkerPoolLoad { ready: others.copied().collect(), starting: 0 };
    let count = others.ready.len() as f64;
    let spares = |(waiting, kv_usage): (f64, f64)| {
        full_waiting - waiting >= WVA_SPARE.1 && full_kv_usage - kv_usage >= WVA_SPARE.0
    };
    let (waiting, kv_usage) = others.mean_queue_and_kv_usage();
    if others.ready.is_empty() || !spares((waiting, kv_usage)) {
        return present + 1;
    }
    let more = count / (count - 1.0);
    match count >= 2.0 && spares((waiting * more, kv_usage * more)) {
        true => present - 1,
        false => present,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> AutoscalerRule {
        AutoscalerRule {
            min: 2,
            max: 9,
            target_waiting: Some(10.0),
            target_kv_usage: Some(0.8),
            ..AutoscalerRule::default()
        }
    }

    fn load(ready: usize, starting: u32, waiting: f64, kv_usage: f64) -> WorkerPoolLoad {
        WorkerPoolLoad { ready: vec![(waiting, kv_usage); ready], starting }
    }

    fn wanted(ready: usize, starting: u32, waiting: f64, kv_usage: f64) -> u32 {
        rule().target_worker_count(&load(ready, starting, waiting, kv_usage))
    }

    #[test]
    fn keda_ignores_starting_workers_in_average() {
        let keda = AutoscalerRule { policy: AutoscalerPolicy::Keda, ..rule() };
        let wanted = |ready, starting, waiting, kv| {
            keda.target_worker_count(&load(ready, starting, waiting, kv))
        };
        assert_eq!(wanted(4, 0, 15.0, 0.1), 6);
        assert_eq!(wanted(4, 2, 15.0, 0.1), 6);
        // Sixty sequences wait, and six workers may have sixty waiting.
        assert_eq!(wanted(4, 2, 16.0, 0.1), 6);
        assert_eq!(wanted(4, 0, 0.0, 1.0), 5);
        assert_eq!(wanted(0, 3, 0.0, 0.0), 3);
    }

    #[test]
    fn wva_scales_by_spare_capacity() {
        let wva = AutoscalerRule { policy: AutoscalerPolicy::Wva, ..rule() };
        // Example of WVA's own tests: spare cache of 0.045 is below 0.1.
        let tight = WorkerPoolLoad { ready: vec![(2.0, 0.75), (2.0, 0.76)], starting: 0 };
        assert_eq!(wva.target_worker_count(&tight), 3);
        assert_eq!(wva.target_worker_count(&WorkerPoolLoad { starting: 1, ..tight }), 3);
        assert_eq!(wva.target_worker_count(&load(3, 0, 0.0, 0.5)), 3);
        assert_eq!(wva.target_worker_count(&load(3, 0, 0.0, 0.4)), 2);
        assert_eq!(wva.target_worker_count(&load(3, 0, 2.5, 0.1)), 4);
        // All workers are saturated.
        assert_eq!(wva.target_worker_count(&load(3, 0, 9.0, 0.1)), 4);
        assert_eq!(wva.target_worker_count(&load(2, 0, 0.0, 0.0)), 2);
    }

    #[test]
    fn hpa_takes_largest_gauge_target_within_bounds() {
        assert_eq!(wanted(4, 0, 15.0, 0.8), 6);
        assert_eq!(wanted(4, 0, 10.5, 0.8), 4);
        assert_eq!(wanted(4, 0, 1.0, 0.1), 2);
        assert_eq!(wanted(4, 0, 90.0, 0.1), 9);
        assert_eq!(wanted(4, 0, 0.0, 0.4), 2);
    }

    #[test]
    fn starting_workers_count_as_at_target() {
        // Two workers with full caches need three; a third that starts changes nothing.
        assert_eq!(wanted(2, 0, 0.0, 1.0), 3);
        assert_eq!(wanted(2, 1, 0.0, 1.0), 3);
        // Twice the load of one worker needs two, of which one is ready.
        assert_eq!(wanted(1, 1, 20.0, 0.0), 2);
        // Starting workers count as on target, so the pool shrinks less than without them.
        assert_eq!(wanted(4, 4, 5.0, 0.0), 6);
        assert_eq!(wanted(0, 3, 0.0, 0.0), 3);
    }
}
