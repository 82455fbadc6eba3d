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

/// As many workers as keep the gauges at their targets (the rule of Kubernetes' horizontal pod
/// autoscaler: `ceil(workers × value / target)`, the greatest over all gauges).
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

/// What the rule looks at, over the workers that serve.
#[derive(Debug, Clone, Copy)]
pub(super) struct PoolLoad {
    pub workers: u32,
    /// Mean over workers.
    pub waiting: f64,
    /// Mean over workers.
    pub kv_usage: f64,
}

impl ScaleRule {
    /// How many workers there should be.
    pub(super) fn wanted(&self, seen: PoolLoad) -> u32 {
        let pairs = [
            (seen.waiting, self.target_waiting),
            (seen.kv_usage, self.target_kv_usage),
        ];
        let wanted = pairs.into_iter().filter_map(|(value, target)| {
            let ratio = value / target?;
            if (ratio - 1.0).abs() <= self.tolerance {
                return Some(seen.workers);
            }
            Some((f64::from(seen.workers) * ratio).ceil().min(1e6) as u32)
        });
        let wanted = wanted.max().unwrap_or(seen.workers);
        wanted.clamp(self.min.max(1), self.max.max(self.min).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gauge_that_asks_for_most_wins_within_the_bounds() {
        let rule = ScaleRule {
            min: 2,
            max: 9,
            target_waiting: Some(10.0),
            target_kv_usage: Some(0.8),
            ..ScaleRule::default()
        };
        let wanted = |workers, waiting, kv_usage| {
            rule.wanted(PoolLoad {
                workers,
                waiting,
                kv_usage,
            })
        };
        assert_eq!(wanted(4, 15.0, 0.8), 6);
        assert_eq!(wanted(4, 10.5, 0.8), 4);
        assert_eq!(wanted(4, 1.0, 0.1), 2);
        assert_eq!(wanted(4, 90.0, 0.1), 9);
        assert_eq!(wanted(4, 0.0, 0.4), 2);
    }
}
