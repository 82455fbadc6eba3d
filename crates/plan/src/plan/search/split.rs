//! Searches the numbers of prefill and of decode workers with the fewest GPUs.

use anyhow::Result;

use super::{RunExtent, SimulatedDeploymentTrial, TrialRunner};
use crate::plan::worker_count::{WorkerCountByKind, gpus_of_workers};

impl TrialRunner<'_> {
    /// Finds the split into prefill and decode workers that serves `traffic` with the fewest GPUs.
    ///
    /// The search assumes that more workers of either kind are no worse. The fewest of one kind
    /// with the most of the other bound the search. Then each number of prefill workers gets the
    /// fewest decode workers, as long as that can be fewer GPUs than the best split so far.
    pub(super) fn search_fewest_prefill_decode_workers(
        &mut self,
        traffic: f64,
    ) -> Result<Option<SimulatedDeploymentTrial>> {
        let most = self.most_workers();
        let beside_all_decode = |prefill| WorkerCountByKind::Split { prefill, decode: most.1 };
        let beside_all_prefill = |decode| WorkerCountByKind::Split { prefill: most.0, decode };
        let fewest = match self.fewest_between((0, most.0), traffic, beside_all_decode)? {
            None => None,
            Some((prefill, _)) => {
                let decode = self.fewest_between((0, most.1), traffic, beside_all_prefill)?;
                decode.map(|(decode, _)| (prefill, decode))
            }
        };
        let Some((least_prefill, least_decode)) = fewest else {
            return self.largest_split(traffic);
        };
        let mut best: Option<SimulatedDeploymentTrial> = None;
        for prefill in least_prefill..=most.0 {
            let budget = best.as_ref().map_or(self.most_gpus, |best| best.gpus - 1);
            let count = |decode| WorkerCountByKind::Split { prefill, decode };
            let fits = |decode: &u32| gpus_of_workers(self.pools, count(*decode)) <= budget;
            let Some(largest) = (least_decode..=most.1).take_while(fits).last() else {
                break;
            };
            let trial = self.simulate_trial(count(largest), traffic, RunExtent::UntilMissed)?;
            if self.meets_requirements(&trial) {
                let bounds = (least_decode - 1, largest);
                let found = self.fewest_between(bounds, traffic, count)?;
                best = found.map(|(_, trial)| trial);
            }
        }
        match best {
            None => self.largest_split(traffic),
            best => Ok(best),
        }
    }

    /// Returns the maximum number of prefill workers with one decode worker, and of decode workers
    /// with one prefill worker, within the GPU budget.
    fn most_workers(&self) -> (u32, u32) {
        let one = gpus_of_workers(self.pools, WorkerCountByKind::Groups(1));
        let of = |count: WorkerCountByKind| {
            let each = gpus_of_workers(self.pools, count) - one;
            1 + self.most_gpus.saturating_sub(one) / each.max(1)
        };
        (
            of(WorkerCountByKind::Split { prefill: 2, decode: 1 }),
            of(WorkerCountByKind::Split { prefill: 1, decode: 2 }),
        )
    }

    /// Simulates the largest deployment with equally many prefill and decode workers until the
    /// workload ends, so that the report can name the missed bounds.
    fn largest_split(&mut self, traffic: f64) -> Result<Option<SimulatedDeploymentTrial>> {
        let groups = self.most_groups();
        let count = WorkerCountByKind::Split { prefill: groups, decode: groups };
        let trial = self.simulate_trial(count, traffic, RunExtent::Whole)?;
        // The report names what the last trial misses, so a known run moves to the end.
        let is_same =
            |other: &SimulatedDeploymentTrial| other.workers == count && other.traffic == traffic;
        self.trials.retain(|other| !is_same(other));
        self.trials.push(trial.clone());
        Ok(self.meets_requirements(&trial).then_some(trial))
    }
}
