use std::time::Duration;

use vllm_sim_engine::SimTime;
use vllm_sim_engine::lock_step::RankLockStep;
use vllm_sim_engine::sched::{SchedulerConfigError, SchedulerSpec};

use super::disaggregation::{
    configure_decode_engine, derive_worker_seed, set_kv_cache_event_options,
};
use super::outcome::PoolRole;
use super::route::{Router, RouterConfig};
use super::scale::{AutoscalerPolicy, WorkerPoolLoad};
use super::settings::PoolSpec;
use super::worker::{SimulatedWorker, WorkerPhase};

pub(super) const PREFILL_POOL_INDEX: usize = 0;
/// Index of the worker pool that generates output; the other pool is for prefill.
pub(super) const DECODE_OR_UNIFIED_POOL_INDEX: usize = 1;

pub(super) struct WorkerPool {
    pub spec: Option<PoolSpec>,
    pub workers: Vec<SimulatedWorker>,
    /// Index, within the whole deployment, of the pool's first worker.
    pub first: u32,
    pub router: Router,
    pub block_size: u32,
    /// Number of data-parallel ranks per worker; each rank has its own entry in `workers`.
    pub ranks: u32,
    /// Lockstep state of each worker with several data-parallel ranks; empty unless all engines use
    /// vLLM's scheduler.
    pub lock_steps: Vec<RankLockStep>,
    pub role: PoolRole,
    /// Whether prefill workers compute the prompts of this pool.
    pub fetches: bool,
    started: usize,
    changed: SimTime,
    /// Worker counts recommended by the autoscaler within its stabilization window.
    asked: Vec<(SimTime, u32)>,
}

impl WorkerPool {
    pub(super) fn new(spec: Option<&PoolSpec>, seed: u64, role: PoolRole) -> Self {
        let config = spec.map_or(RouterConfig::RoundRobin, |spec| spec.router.clone());
        let block_size = spec.and_then(|spec| spec.engines.first());
        Self {
            block_size: block_size.map_or(0, |engine| engine.block_size()),
            ranks: spec.map_or(1, |spec| spec.ranks.max(1)),
            lock_steps: spec.map_or_else(Vec::new, lock_steps),
            role,
            fetches: false,
            router: Router::new(config, seed, spec.map_or(1, |spec| spec.ranks.max(1))),
            spec: spec.cloned(),
            workers: Vec::new(),
            first: 0,
            started: 0,
            changed: SimTime::ZERO,
            asked: Vec::new(),
        }
    }

    pub(super) fn add_worker(
        &mut self,
        now: SimTime,
        log_limit: usize,
    ) -> Result<u32, SchedulerConfigError> {
        let pool = self.spec.as_ref().expect("only pools with engines start workers");
        let mut spec = pool.engines[self.started % pool.engines.len()].clone();
        set_kv_cache_event_options(&mut spec, &pool.router, self.role);
        if self.fetches {
            configure_decode_engine(&mut spec);
        }
        if let SchedulerSpec::Vllm(config) = &mut spec {
            config.lock_step = !self.lock_steps.is_empty();
        }
        self.started += 1;
        self.changed = now;
        let gone = |worker: &SimulatedWorker| worker.phase == WorkerPhase::Gone;
        let free = self.workers.iter().position(gone);
        let place = free.unwrap_or(self.workers.len());
        derive_worker_seed(&mut spec, self.first as usize + place);
        let worker = SimulatedWorker::new(spec, log_limit, now)?;
        let at = match free {
            Some(at) => {
                self.workers[at] = worker;
                at
            }
            None => {
                self.workers.push(worker);
                self.workers.len() - 1
            }
        };
        Ok(at as u32)
    }

    /// Returns the time from the start of a worker until it is ready.
    pub(super) fn worker_startup_duration(&self) -> Duration {
        let spec = self.spec.as_ref();
        spec.map_or(Duration::ZERO, |spec| spec.startup)
    }

    pub(super) fn make_worker_ready(&mut self, worker_index: u32) {
        let worker = &mut self.workers[worker_index as usize];
        worker.phase = WorkerPhase::Ready;
        self.router.add_worker(worker_index, worker.batched_tokens);
    }

    /// Removes a worker from the pool and returns its lifetime in seconds.
    pub(super) fn remove_worker(&mut self, worker_index: u32, now: SimTime) -> f64 {
        let worker = &mut self.workers[worker_index as usize];
        if worker.phase == WorkerPhase::Gone {
            return 0.0;
        }
        worker.phase = WorkerPhase::Gone;
        self.router.remove_worker(worker_index);
        now.duration_since(worker.since).as_secs_f64()
    }

    /// Chooses a worker to remove and marks it as draining.
    ///
    /// Prefers a starting worker, else takes the one with the fewest requests (the newest of
    /// several). The last ready worker remains.
    pub(super) fn mark_one_worker_draining(&mut self) -> Option<u32> {
        let with = |phase| {
            let all = (0..).zip(&self.workers);
            all.filter(move |(_, worker)| worker.phase == phase)
        };
        let starting = with(WorkerPhase::Starting).last();
        let ready = with(WorkerPhase::Ready)
            .min_by_key(|(at, worker)| (worker.load, std::cmp::Reverse(*at)));
        let may = with(WorkerPhase::Ready).count() > 1;
        let (at, _) = starting.or(ready.filter(|_| may))?;
        self.workers[at as usize].phase = WorkerPhase::Draining;
        self.router.stop_routing_to(at);
        Some(at)
    }

    pub(super) fn present_worker_count(&self) -> u32 {
        let present = |worker: &&SimulatedWorker| {
            matches!(worker.phase, WorkerPhase::Starting | WorkerPhase::Ready)
        };
        self.workers.iter().filter(present).count() as u32
    }

    pub(super) fn has_starting_workers(&self) -> bool {
        let mut workers = self.workers.iter();
        workers.any(|worker| worker.phase == WorkerPhase::Starting)
    }

    /// Returns the time of the next autoscaler check, if `now` is a check time.
    pub(super) fn next_autoscaler_check(&self, now: SimTime) -> Option<SimTime> {
        let rule = self.spec.as_ref()?.scaling.rule.as_ref()?;
        let every = rule.interval.as_nanos().max(1) as u64;
        now.as_nanos().is_multiple_of(every).then(|| now + rule.interval)
    }

    /// Returns the target number of workers at the time `now`, at which a scheduled or automatic
    /// change is due; `None` for no change.
    pub(super) fn target_worker_count(&mut self, now: SimTime) -> Option<u32> {
        let scaling = &self.spec.as_ref()?.scaling;
        let planned = scaling.schedule.iter().find(|(at, _)| *at == now);
        let present = self.present_worker_count();
        let wanted = match (planned, &scaling.rule) {
            (Some((_, workers)), _) => (*workers).max(1),
            (None, Some(rule)) => {
                let wanted = rule.target_worker_count(&self.current_load());
                // Scales down no further than to the highest number of workers wanted within the
                // cool-down.
                if rule.policy != AutoscalerPolicy::Hpa {
                    // Like the HPA, count the current size as the first recommendation.
                    if self.asked.is_empty() {
                        self.asked.push((now, present));
                    }
                    let since = now.as_nanos().saturating_sub(rule.cool_down.as_nanos() as u64);
                    self.asked.retain(|(at, _)| at.as_nanos() > since);
                    self.asked.push((now, wanted));
                    let most = self.asked.iter().map(|(_, wanted)| *wanted).max();
                    return most.map(|most| wanted.max(most.min(present)));
                }
                let cooling = now.duration_since(self.changed) < rule.cool_down;
                if wanted < present && cooling {
                    return None;
                }
                wanted
            }
            (None, None) => return None,
        };
        if wanted != present {
            self.changed = now;
        }
        Some(wanted)
    }

    fn current_load(&self) -> WorkerPoolLoad {
        let serves = |worker: &&SimulatedWorker| worker.phase == WorkerPhase::Ready;
        let ready = self.workers.iter().filter(serves);
        let queued = self.router.queued_requests() as f64 / ready.clone().count().max(1) as f64;
        let ready = ready.map(|worker| {
            let stats = worker.engine.stats();
            let usage = f64::from(stats.used_blocks) / f64::from(stats.total_blocks.max(1));
            ((stats.waiting + stats.deferred) as f64 + queued, usage)
        });
        let ready: Vec<_> = ready.collect();
        WorkerPoolLoad { starting: self.present_worker_count() - ready.len() as u32, ready }
    }

    /// Marks a worker as lost and returns whether it was ready before.
    pub(super) fn mark_worker_lost(&mut self, worker_index: u32) -> bool {
        self.router.stop_routing_to(worker_index);
        let worker = &mut self.workers[worker_index as usize];
        worker.wake = SimTime::MAX;
        std::mem::replace(&mut worker.phase, WorkerPhase::Lost) == WorkerPhase::Ready
    }

    pub(super) fn oldest_workers(&self, count: u32) -> Vec<u32> {
        let there = (0..).zip(&self.workers);
        let there = there.filter(|(_, worker)| {
            matches!(worker.phase, WorkerPhase::Ready | WorkerPhase::Draining)
        });
        let mut there: Vec<_> = there.map(|(at, worker)| (worker.since, at)).collect();
        there.sort_unstable();
        let oldest = there.into_iter().take(count as usize);
        oldest.map(|(_, at)| at).collect()
    }
}

/// Returns a lockstep state for each worker with several vLLM ranks; empty for the schedulers of
/// SGLang and Dynamo.
fn lock_steps(spec: &PoolSpec) -> Vec<RankLockStep> {
    let of_vllm = |engine: &SchedulerSpec| matches!(engine, SchedulerSpec::Vllm(_));
    let workers = match spec.ranks > 1 && spec.engines.iter().all(of_vllm) {
        true => spec.engines.len().div_ceil(spec.ranks as usize),
        false => 0,
    };
    (0..workers).map(|_| RankLockStep::default()).collect()
}
