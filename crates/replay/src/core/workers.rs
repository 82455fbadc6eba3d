//! Starts and removes workers of a pool, and samples their gauges.

use std::time::Duration;

use crate::outcome::{RequestStatus, WorkerChange, WorkerSample};
use crate::pool::{DECODE_OR_UNIFIED_POOL_INDEX, PREFILL_POOL_INDEX, WorkerPool};
use crate::requests::ReplayRequest;
use crate::worker::WorkerPhase;
use vllm_sim_engine::SimTime;

use super::report_position::PositionedReplaySink;
use super::{EventLoop, ReplayError, STEP_LOG_FLUSH_LEN, TimerEvent, WorkerAddress};
use crate::sessions::NumberedSessionSource;

impl<S: PositionedReplaySink + ?Sized, N: NumberedSessionSource> EventLoop<'_, S, N> {
    /// Reports the inter-token gaps of steps in a worker's log to which no request in flight
    /// refers.
    pub(super) fn flush_worker_step_log(&mut self, (pool, at): WorkerAddress) {
        let worker = &mut self.pools[pool].workers[at as usize];
        let here = |request: &ReplayRequest| request.worker == Some(at);
        let oldest = self.requests.requests_in_flight().filter(|(_, request)| here(request));
        let oldest = oldest.filter_map(|(_, request)| request.tokens.oldest_referenced_step());
        let next = worker.log.next_step_number();
        let upto = oldest.min().unwrap_or(next).min(next.saturating_sub(1));
        worker.log.report_token_gaps_below_step(upto, self.sink);
        worker.log_limit = STEP_LOG_FLUSH_LEN.max(2 * worker.log.len());
    }

    pub(super) fn start_worker(
        &mut self,
        pool: usize,
        startup: Duration,
    ) -> Result<(), ReplayError> {
        let at = self.pools[pool].add_worker(self.now, STEP_LOG_FLUSH_LEN)?;
        self.report_worker_change((pool, at), WorkerChange::Starting);
        if startup.is_zero() {
            return self.handle_worker_ready((pool, at));
        }
        self.timers.schedule_item(self.now + startup, TimerEvent::Ready((pool, at)));
        Ok(())
    }

    pub(super) fn report_worker_change(&mut self, (pool, at): WorkerAddress, change: WorkerChange) {
        let there = self.pools.iter().map(WorkerPool::present_worker_count).sum();
        self.totals.most_workers = self.totals.most_workers.max(there);
        let role = self.pools[pool].role;
        self.sink.on_worker_change(self.now, at, role, change);
    }

    pub(super) fn handle_worker_ready(
        &mut self,
        (pool, at): WorkerAddress,
    ) -> Result<(), ReplayError> {
        if self.pools[pool].workers[at as usize].phase != WorkerPhase::Starting {
            return Ok(());
        }
        self.pools[pool].make_worker_ready(at);
        self.report_worker_change((pool, at), WorkerChange::Ready);
        self.place_queued_requests(pool);
        self.submit_routed_requests()
    }

    pub(super) fn remove_worker(&mut self, (pool, at): WorkerAddress) {
        self.retire_worker((pool, at));
        self.report_worker_change((pool, at), WorkerChange::Gone);
    }

    pub(super) fn retire_worker(&mut self, (pool, at): WorkerAddress) {
        let log = &mut self.pools[pool].workers[at as usize].log;
        log.report_token_gaps_below_step(u64::MAX, self.sink);
        let existed = self.pools[pool].remove_worker(at, self.now);
        match pool {
            PREFILL_POOL_INDEX => self.totals.prefill_worker_seconds += existed,
            _ => self.totals.worker_seconds += existed,
        }
    }

    /// Starts or drains workers until the pool has its target number of workers.
    pub(super) fn scale_pool_to_target(&mut self, pool: usize) -> Result<(), ReplayError> {
        if let Some(again) = self.pools[pool].next_autoscaler_check(self.now) {
            self.timers.schedule_item(again, TimerEvent::Scale(pool));
        }
        let present = self.pools[pool].present_worker_count();
        let Some(wanted) = self.pools[pool].target_worker_count(self.now) else {
            return Ok(());
        };
        for _ in present..wanted {
            self.start_worker(pool, self.pools[pool].worker_startup_duration())?;
        }
        for _ in wanted..present {
            let Some(at) = self.pools[pool].mark_one_worker_draining() else {
                break;
            };
            self.report_worker_change((pool, at), WorkerChange::Draining);
            if self.pools[pool].workers[at as usize].load == 0 {
                self.remove_worker((pool, at));
            }
        }
        Ok(())
    }

    /// Fails the oldest `workers` decode workers with all their requests, and starts replacements.
    pub(super) fn fail_oldest_decode_workers(&mut self, workers: u32) -> Result<(), ReplayError> {
        for at in self.pools[DECODE_OR_UNIFIED_POOL_INDEX].oldest_workers(workers) {
            let here =
                |request: &ReplayRequest| request.worker == Some(at) && request.over.is_none();
            let had = self.requests.requests_in_flight();
            let had = had.filter(|(_, request)| here(request));
            let had: Vec<u32> = had.map(|(slot, _)| slot).collect();
            let was_serving = self.pools[DECODE_OR_UNIFIED_POOL_INDEX].mark_worker_lost(at);
            for slot in had {
                self.complete_request(
                    (DECODE_OR_UNIFIED_POOL_INDEX, at),
                    slot,
                    self.now,
                    RequestStatus::Failed,
                )?;
            }
            self.remove_worker((DECODE_OR_UNIFIED_POOL_INDEX, at));
            if was_serving {
                self.start_worker(
                    DECODE_OR_UNIFIED_POOL_INDEX,
                    self.pools[DECODE_OR_UNIFIED_POOL_INDEX].worker_startup_duration(),
                )?;
            }
        }
        Ok(())
    }
}

pub(super) fn samples_of_pools(
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
