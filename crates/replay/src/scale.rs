use std::time::Duration;

use vllm_sim_engine::SimTime;

/// When workers come and go.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scaling {
    /// From these instants on, this many workers. Sorted.
    pub schedule: Vec<(SimTime, u32)>,
    /// A rule that follows the load.
    pub rule: Option<ScaleRule>,
    /// At these instants so many workers are lost with all that they have, the longest-serving ones,
    /// and as many others start. Sorted.
    pub losses: Vec<(SimTime, u32)>,
}

/// Who says how many workers there should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ScalePolicy {
    /// Kubernetes' horizontal pod autoscaler with metrics of the pods: as many workers as keep the
    /// gauges at their targets, the greatest over all gauges. A worker that starts has no gauge yet;
    /// it counts as idle when the others ask for more, and as being at the target when they ask for
    /// less.
    ///
    /// Source: kubernetes `pkg/controller/podautoscaler/replica_calculator.go`,
    /// `calcPlainMetricReplicas`.
    #[default]
    Hpa,
    /// The same with external metrics, as KEDA sets it up: the sum of what waits by its target for
    /// one worker, and the mean use of the caches; workers that start count for the sum. Fewer only
    /// when every look for the length of the cool-down has said so.
    ///
    /// Source: the same file, `GetExternalPerPodMetricReplicas` and `GetExternalMetricReplicas`;
    /// `horizontal.go`, `stabilizeRecommendation`.
    Keda,
    /// llm-d's workload variant autoscaler, its analyzer of saturation (V1): one more when the
    /// workers that are not full have little to spare, one less when the others could take its load;
    /// nothing while one starts. Fewer only as with [`ScalePolicy::Keda`].
    ///
    /// Source: llm-d-workload-variant-autoscaler 0.7 `internal/saturation/analyzer.go`.
    Wva,
}

/// When a worker is full for [`ScalePolicy::Wva`], and how much the others should have to spare.
/// Source: `deploy/configmap-saturation-scaling.yaml`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Saturation {
    kv_usage: f64,
    waiting: f64,
    spare_kv_usage: f64,
    spare_waiting: f64,
}

const SATURATION: Saturation = Saturation {
    kv_usage: 0.8,
    waiting: 5.0,
    spare_kv_usage: 0.1,
    spare_waiting: 3.0,
};

/// A rule that follows the load.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaleRule {
    /// Whose.
    pub policy: ScalePolicy,
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
            policy: ScalePolicy::Hpa,
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
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PoolLoad {
    /// What waits on each worker that serves, and the share of its cache in use. What waits at the
    /// router is spread over them.
    pub ready: Vec<(f64, f64)>,
    /// Workers that will.
    pub starting: u32,
}

impl PoolLoad {
    fn present(&self) -> u32 {
        self.ready.len() as u32 + self.starting
    }

    /// Means over the workers that serve.
    fn means(&self) -> (f64, f64) {
        let workers = self.ready.len().max(1) as f64;
        let sum = |all: (f64, f64), one: &(f64, f64)| (all.0 + one.0, all.1 + one.1);
        let (waiting, kv_usage) = self.ready.iter().fold((0.0, 0.0), sum);
        (waiting / workers, kv_usage / workers)
    }
}

impl ScaleRule {
    /// How many workers there should be.
    pub(super) fn wanted(&self, seen: &PoolLoad) -> u32 {
        let wanted = match self.policy {
            // Nobody can say how much there is to do.
            _ if seen.ready.is_empty() => seen.present(),
            ScalePolicy::Hpa => self.by_pods(seen),
            ScalePolicy::Keda => self.by_external(seen),
            ScalePolicy::Wva => by_saturation(seen),
        };
        wanted.clamp(self.min.max(1), self.max.max(self.min).max(1))
    }

    /// The greatest over the gauges that have a target, of which each gives its own.
    fn greatest(
        &self,
        seen: &PoolLoad,
        waiting: impl Fn(f64) -> u32,
        kv: impl Fn(f64) -> u32,
    ) -> u32 {
        let by_waiting = self.target_waiting.map(waiting);
        let by_kv_usage = self.target_kv_usage.map(kv);
        by_waiting.max(by_kv_usage).unwrap_or(seen.present())
    }

    fn by_pods(&self, seen: &PoolLoad) -> u32 {
        let (waiting, kv_usage) = seen.means();
        let by_gauge = |ratio| self.by_gauge(seen, ratio);
        self.greatest(seen, |t| by_gauge(waiting / t), |t| by_gauge(kv_usage / t))
    }

    /// By one gauge, which is `ratio` times its target.
    fn by_gauge(&self, seen: &PoolLoad, ratio: f64) -> u32 {
        let present = seen.present();
        let (ready, all) = (seen.ready.len() as f64, f64::from(present));
        let assumed = if ratio < 1.0 { 1.0 } else { 0.0 };
        let whole = (ratio * ready + assumed * f64::from(seen.starting)) / all;
        // Too little to act on, or the workers that start are what was missing.
        let turned = (ratio - 1.0) * (whole - 1.0) < 0.0;
        if turned || self.is_near(whole) {
            return present;
        }
        whole_workers(all * whole)
    }

    fn by_external(&self, seen: &PoolLoad) -> u32 {
        let (waiting, kv_usage) = seen.means();
        let (present, ready) = (seen.present(), seen.ready.len() as f64);
        let unless_near = |ratio: f64, wanted: f64| match self.is_near(ratio) {
            true => present,
            false => whole_workers(wanted),
        };
        let sum = waiting * ready;
        self.greatest(
            seen,
            |target| unless_near(sum / target / f64::from(present), sum / target),
            |target| unless_near(kv_usage / target, kv_usage / target * ready),
        )
    }

    fn is_near(&self, ratio: f64) -> bool {
        (ratio - 1.0).abs() <= self.tolerance
    }

    /// Whether workers go only when all looks of the last [`ScaleRule::cool_down`] said so, rather
    /// than when nothing has changed for so long.
    pub(super) fn stabilizes(&self) -> bool {
        self.policy != ScalePolicy::Hpa
    }
}

fn whole_workers(wanted: f64) -> u32 {
    wanted.ceil().min(1e6) as u32
}

fn by_saturation(seen: &PoolLoad) -> u32 {
    let full = SATURATION;
    let present = seen.present();
    if seen.starting > 0 {
        return present;
    }
    let others = seen.ready.iter();
    let others = others.filter(|(waiting, kv)| *kv < full.kv_usage && *waiting < full.waiting);
    let others = PoolLoad {
        ready: others.copied().collect(),
        starting: 0,
    };
    let count = others.ready.len() as f64;
    let spares = |(waiting, kv_usage): (f64, f64)| {
        full.waiting - waiting >= full.spare_waiting
            && full.kv_usage - kv_usage >= full.spare_kv_usage
    };
    let (waiting, kv_usage) = others.means();
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

    fn rule() -> ScaleRule {
        ScaleRule {
            min: 2,
            max: 9,
            target_waiting: Some(10.0),
            target_kv_usage: Some(0.8),
            ..ScaleRule::default()
        }
    }

    fn load(ready: usize, starting: u32, waiting: f64, kv_usage: f64) -> PoolLoad {
        PoolLoad {
            ready: vec![(waiting, kv_usage); ready],
            starting,
        }
    }

    fn wanted(ready: usize, starting: u32, waiting: f64, kv_usage: f64) -> u32 {
        rule().wanted(&load(ready, starting, waiting, kv_usage))
    }

    #[test]
    fn keda_sums_what_waits_whoever_starts() {
        let keda = ScaleRule {
            policy: ScalePolicy::Keda,
            ..rule()
        };
        let wanted =
            |ready, starting, waiting, kv| keda.wanted(&load(ready, starting, waiting, kv));
        assert_eq!(wanted(4, 0, 15.0, 0.1), 6);
        assert_eq!(wanted(4, 2, 15.0, 0.1), 6);
        // Sixty wait, and six workers may have sixty.
        assert_eq!(wanted(4, 2, 16.0, 0.1), 6);
        assert_eq!(wanted(4, 0, 0.0, 1.0), 5);
        assert_eq!(wanted(0, 3, 0.0, 0.0), 3);
    }

    #[test]
    fn wva_goes_by_what_is_left_to_spare() {
        let wva = ScaleRule {
            policy: ScalePolicy::Wva,
            ..rule()
        };
        // The examples of its own tests: 0.045 of the cache to spare are less than 0.1.
        let tight = PoolLoad {
            ready: vec![(2.0, 0.75), (2.0, 0.76)],
            starting: 0,
        };
        assert_eq!(wva.wanted(&tight), 3);
        assert_eq!(
            wva.wanted(&PoolLoad {
                starting: 1,
                ..tight
            }),
            3
        );
        assert_eq!(wva.wanted(&load(3, 0, 0.0, 0.5)), 3);
        assert_eq!(wva.wanted(&load(3, 0, 0.0, 0.4)), 2);
        assert_eq!(wva.wanted(&load(3, 0, 2.5, 0.1)), 4);
        // All are full.
        assert_eq!(wva.wanted(&load(3, 0, 9.0, 0.1)), 4);
        assert_eq!(wva.wanted(&load(2, 0, 0.0, 0.0)), 2);
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
