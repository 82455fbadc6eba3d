//! Starts and removes workers of a pool, and samples their gauges.

use std::time::Duration;

use crate::outcome::{Status, WorkerChange, WorkerSample};
use crate::pool::{PREFILL, SERVING, WorkerPool};
use crate::requests::Request;
use crate::worker::WorkerPhase;
use vllm_sim_engine::SimTime;

use super::report_position::OrderedSink;
use super::{Address, Core, LOG_STEPS, ReplayError, Timer};
use crate::sessions::NumberedSource;

impl<S: OrderedSink, N: NumberedSource> Core<'_, S, N> {
    /// Reports the inter-token gaps of logged steps that no request in flight refers to.
    pub(super) fn flush_log(&mut self, (pool, at): Address) {
        let worker = &mut self.pools[pool].workers[at as usize];
        let here = |request: &Request| request.worker == Some(at);
        let oldest = self
            .requests
            .in_flight()
            .filter(|(_, request)| here(request));
        let oldest = oldest.filter_map(|(_, request)| request.tokens.oldest_step());
        let next = worker.log.next();
        let upto = oldest.min().unwrap_or(next).min(next.saturating_sub(1));
        worker.log.flush(upto, &mut self.sink);
        worker.log_limit = LOG_STEPS.max(2 * worker.log.len());
    }

    pub(super) fn start_worker(
        &mut self,
        pool: usize,
        startup: Duration,
    ) -> Result<(), ReplayError> {
        let at = self.pools[pool].add(self.now, LOG_STEPS)?;
        self.report_worker((pool, at), WorkerChange::Starting);
        if startup.is_zero() {
            return self.worker_ready((pool, at));
        }
        self.timers
            .set(self.now + startup, Timer::Ready((pool, at)));
        Ok(())
    }

    pub(super) fn report_worker(&mut self, (pool, at): Address, change: WorkerChange) {
        let there = self.pools.iter().map(WorkerPool::present).sum();
        self.totals.most_workers = self.totals.most_workers.max(there);
        let role = self.pools[pool].role;
        self.sink.worker(self.now, at, role, change);
    }

    pub(super) fn worker_ready(&mut self, (pool, at): Address) -> Result<(), ReplayError> {
        if self.pools[pool].workers[at as usize].phase != WorkerPhase::Starting {
            return Ok(());
        }
        self.pools[pool].make_ready(at);
        self.report_worker((pool, at), WorkerChange::Ready);
        self.release_queued(pool);
        self.submit_outgoing()
    }

    pub(super) fn remove_worker(&mut self, (pool, at): Address) {
        self.retire((pool, at));
        self.report_worker((pool, at), WorkerChange::Gone);
    }

    pub(super) fn retire(&mut self, (pool, at): Address) {
        let log = &mut self.pools[pool].workers[at as usize].log;
        log.flush(u64::MAX, &mut self.sink);
        let existed = self.pools[pool].remove(at, self.now);
        match pool {
            PREFILL => self.totals.prefill_worker_seconds += existed,
            _ => self.totals.worker_seconds += existed,
        }
    }

    /// Starts or drains workers until the pool has its target number.
    pub(super) fn scale(&mut self, pool: usize) -> Result<(), ReplayError> {
        if let Some(again) = self.pools[pool].next_check(self.now) {
            self.timers.set(again, Timer::Scale(pool));
        }
        let present = self.pools[pool].present();
        let Some(wanted) = self.pools[pool].wanted(self.now) else {
            return Ok(());
        };
        for _ in present..wanted {
            self.start_worker(pool, self.pools[pool].startup())?;
        }
        for _ in wanted..present {
            let Some(at) = self.pools[pool].drain_one() else {
                break;
            };
            self.report_worker((pool, at), WorkerChange::Draining);
            if self.pools[pool].workers[at as usize].load == 0 {
                self.remove_worker((pool, at));
            }
        }
        Ok(())
    }

    /// Fails the oldest `workers` decode workers with all their requests, and starts replacements.
    pub(super) fn lose(&mut self, workers: u32) -> Result<(), ReplayError> {
        for at in self.pools[SERVING].oldest(workers) {
            let here = |request: &Request| request.worker == Some(at) && request.over.is_none();
            let had = self.requests.in_flight();
            let had = had.filter(|(_, request)| here(request));
            let had: Vec<u32> = had.map(|(slot, _)| slot).collect();
            let was_serving = self.pools[SERVING].lose(at);
            for slot in had {
                self.over((SERVING, at), slot, self.now, Status::Failed)?;
            }
            self.remove_worker((SERVING, at));
            if was_serving {
                self.start_worker(SERVING, self.pools[SERVING].startup())?;
            }
        }
        Ok(())
    }

    pub(super) fn sample(&mut self, at: SimTime) {
        for sample in samples(&self.pools, self.first_worker, at) {
            self.sink.sample(&sample);
        }
    }

    pub(super) fn samples(&self, at: SimTime) -> impl Iterator<Item = WorkerSample> {
        samples(&self.pools, self.first_worker, at)
    }
}

fn samples(
    pools: &[WorkerPool],
    first_worker: u32,
    at: SimTime,
) -> impl Iterator<Item = WorkerSample> {
    pools.iter().flat_map(move |found| {
        let there = (0..).zip(&found.workers);
        let there = there.filter(|(_, worker)| worker.phase != WorkerPhase::Gone);
        there.map(move |(place, worker): (u32, _)| {
            let stats = worker.engine.stats();
            let total = f64::from(stats.total_blocks.max(1));
            WorkerSample {
                at,
                worker: first_worker + place,
                pool: found.role,
                running: stats.running as u32,
                waiting: (stats.waiting + stats.deferred) as u32,
                kv_usage: f64::from(stats.used_blocks) / total,
                kv_blocks: stats.total_blocks,
                preemptions: stats.preemptions,
            }
        })
    })
}
