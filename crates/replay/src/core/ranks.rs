//! Synchronizes data-parallel ranks, which start their engine steps together.

use super::report_position::PositionedReplaySink;
use super::{EventLoop, WorkerAddress};
use crate::sessions::NumberedSessionSource;
use crate::worker::SimulatedWorker;

impl<S: PositionedReplaySink + ?Sized, N: NumberedSessionSource> EventLoop<'_, S, N> {
    /// Synchronizes the data-parallel ranks of each worker whose engine has just advanced.
    pub(super) fn synchronize_lockstep_ranks(&mut self, pool: usize, due: &[WorkerAddress]) {
        let ranks = self.pools[pool].ranks;
        let here = due.iter().filter(|(other, _)| *other == pool);
        let mut workers: Vec<u32> = here.map(|(_, at)| at / ranks).collect();
        workers.dedup();
        for worker in workers {
            match self.pools[pool].lock_steps.is_empty() {
                true => self.wait_for_slowest(pool, worker),
                false => self.apply_lockstep_rules(pool, worker),
            }
        }
    }

    /// Applies vLLM's lockstep rules once all ranks of a worker have done the work of this virtual
    /// time.
    fn apply_lockstep_rules(&mut self, pool: usize, worker: u32) {
        let found = &mut self.pools[pool];
        let members = worker * found.ranks..(worker + 1) * found.ranks;
        let ranks = &mut found.workers[members.start as usize..members.end as usize];
        let is_due =
            |rank: &SimulatedWorker| rank.engine.next_wakeup().is_some_and(|at| at <= self.now);
        if ranks.iter().any(is_due) {
            return;
        }
        found.lock_steps[worker as usize].synchronize_rank_steps(
            self.now,
            ranks,
            SimulatedWorker::lockstep_engine,
        );
        members.for_each(|at| self.update_next_wakeup((pool, at)));
    }

    /// Extends every running step to the end of the longest one, and delays idle ranks to that
    /// time.
    ///
    /// Source: aisimulate-core 0.13.0 `src/engine/generalized/engine.rs` (attention data
    /// parallelism).
    fn wait_for_slowest(&mut self, pool: usize, worker: u32) {
        let ranks = self.pools[pool].ranks;
        let members = worker * ranks..(worker + 1) * ranks;
        let workers = &mut self.pools[pool].workers;
        let ends = members.clone();
        let ends = ends.filter_map(|at| workers[at as usize].engine.running_step_end());
        let end = ends.max();
        for at in members {
            let worker = &mut self.pools[pool].workers[at as usize];
            match end {
                Some(end) => worker.engine.extend_step_to(end),
                None => worker.engine.postpone_pass_to(self.now),
            }
            worker.held = end.is_some() && !worker.engine.is_busy();
            self.update_next_wakeup((pool, at));
        }
    }
}
