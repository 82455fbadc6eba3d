use std::time::Duration;

use vllm_sim_engine::SimTime;

/// When workers come and go.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scaling {
    /// From these instants on, this many workers. Sorted.
    pub schedule: Vec<(SimTime, u32)>,
    /// A rule that follows the load.
    pub rule: Option<ScaleRule>,
}

/// As many workers as keep the gauges at their targets: the rule of Kubernetes' horizontal pod
/// autoscaler, the greatest over all gauges. A worker that starts has no gauge yet; it counts as idle
/// when the others ask for more, and as being at the target when they ask for less.
///
/// Source: kubernetes `pkg/controller/podautoscaler/replica_calculator.go`, `calcPlainMetricReplicas`.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaleRule {
    /// Fewest workers, at least 1.
    pub min: u32,
    /// Most workers.
    pub max: u32,
    /// Waiting sequences per worker.
    pub target_waiting: Option<f64>,
    /// Share of the cache in use.
    pub target_kv_usage: Option<f64>,
    /// How often the gauges are read. Default 15 s.
    pub interval: Duration,
    /// How long no worker is taken away after a change. Default 5 min.
    pub cool_down: Duration,
    /// Differences from the target below this share change nothing. Default 0.1.
    pub tolerance: f64,
}

impl Default for ScaleRule {
    fn default() -> Self {
        Self {
            min: 1,
            max: 1,
            target_waiting: None,
            target_kv_usage: None,
            interval: Duration::from_secs(15),
            cool_down: Duration::from_secs(300),
            tolerance: 0.1,
        }
    }
}

/// What the rule looks at.
#[derive(Debug, Clone, Copy)]
pub(super) struct PoolLoad {
    /// Workers that serve.
    pub ready: u32,
    /// Workers that will.
    pub starting: u32,
    /// Mean over the workers that serve.
    pub waiting: f64,
    /// Mean over the workers that serve.
    pub kv_usage: f64,
}

impl ScaleRule {
    /// How many workers there should be.
    pub(super) fn wanted(&self, seen: PoolLoad) -> u32 {
        let pairs = [
            (seen.waiting, self.target_waiting),
            (seen.kv_usage, self.target_kv_usage),
        ];
        let wanted = pairs
            .into_iter()
            .filter_map(|(value, target)| Some(self.by_gauge(seen, value / target?)));
        let present = seen.ready + seen.starting;
        let wanted = wanted.max().unwrap_or(present);
        wanted.clamp(self.min.max(1), self.max.max(self.min).max(1))
    }

    /// The same by one gauge, which is `ratio` times its target.
    fn by_gauge(&self, seen: PoolLoad, ratio: f64) -> u32 {
        let present = seen.ready + seen.starting;
        if seen.ready == 0 {
            // Nobody can say how much there is to do.
            return present;
        }
        let (ready, all) = (f64::from(seen.ready), f64::from(present));
        let assumed = if ratio < 1.0 { 1.0 } else { 0.0 };
        let whole = (ratio * ready + assumed * f64::from(seen.starting)) / all;
        // Too little to act on, or the workers that start are what was missing.
        let turned = (ratio - 1.0) * (whole - 1.0) < 0.0;
        if turned || (whole - 1.0).abs() <= self.tolerance {
            return present;
        }
        (all * whole).ceil().min(1e6) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> ScaleRule {
        ScaleRule {
            min: 2,
            max: 9,
            target_waiting: Some(10.0),
            target_kv_usage: Some(0.8),
            ..ScaleRule::default()
        }
    }

    fn wanted(ready: u32, starting: u32, waiting: f64, kv_usage: f64) -> u32 {
        rule().wanted(PoolLoad {
            ready,
            starting,
            waiting,
            kv_usage,
        })
    }

    #[test]
    fn the_gauge_that_asks_for_most_wins_within_the_bounds() {
        assert_eq!(wanted(4, 0, 15.0, 0.8), 6);
        assert_eq!(wanted(4, 0, 10.5, 0.8), 4);
        assert_eq!(wanted(4, 0, 1.0, 0.1), 2);
        assert_eq!(wanted(4, 0, 90.0, 0.1), 9);
        assert_eq!(wanted(4, 0, 0.0, 0.4), 2);
    }

    #[test]
    fn workers_that_start_are_neither_asked_for_again_nor_sent_away() {
        // Two at a full cache want three; the third on its way changes nothing.
        assert_eq!(wanted(2, 0, 0.0, 1.0), 3);
        assert_eq!(wanted(2, 1, 0.0, 1.0), 3);
        // Twice the load of one wants two, of which one is here.
        assert_eq!(wanted(1, 1, 20.0, 0.0), 2);
        // Those on their way are taken to be at the target, so fewer go than without them.
        assert_eq!(wanted(4, 4, 5.0, 0.0), 6);
        assert_eq!(wanted(0, 3, 0.0, 0.0), 3);
    }
}
