//! Data-parallel ranks: engines that start their steps together.
//!
//! Source: aisimulate-core 0.13.0 `src/engine/generalized/engine.rs` (attention data parallelism).

use super::moment::OrderedSink;
use super::{Address, Core};
use crate::sessions::NumberedSource;

impl<S: OrderedSink, N: NumberedSource> Core<'_, S, N> {
    /// The ranks of a worker end their steps together: those that have just started one wait for
    /// the slowest, and those that have not for the end of that.
    pub(super) fn align(&mut self, pool: usize, due: &[Address]) {
        let ranks = self.pools[pool].ranks;
        let here = due.iter().filter(|(other, _)| *other == pool);
        let mut groups: Vec<u32> = here.map(|(_, at)| at / ranks).collect();
        groups.dedup();
        for group in groups {
            let members = group * ranks..(group + 1) * ranks;
            let workers = &mut self.pools[pool].workers;
            let ends = members.clone();
            let ends = ends.filter_map(|at| workers[at as usize].step_end());
            let end = ends.max();
            for at in members {
                let worker = &mut self.pools[pool].workers[at as usize];
                match end {
                    Some(end) => worker.stretch(end),
                    None => worker.postpone(self.now),
                }
                worker.held = end.is_some() && !worker.is_busy();
                self.reschedule((pool, at));
            }
        }
    }
}
