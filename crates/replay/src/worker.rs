use vllm_sim_engine::sched::{SchedulerConfigError, SchedulerSpec};
use vllm_sim_engine::{Scheduler, SimTime};

use super::steps::EngineStepLog;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerPhase {
    Starting,
    Ready,
    Draining,
    /// The worker has failed, but its unfinished requests are not yet reported as failed.
    Lost,
    Gone,
}

pub(super) struct SimulatedWorker {
    pub engine: Box<dyn Scheduler + Send>,
    pub has_steps: bool,
    pub log: EngineStepLog,
    pub phase: WorkerPhase,
    /// Number of requests routed to the worker.
    pub load: u32,
    pub wake: SimTime,
    /// Whether the data-parallel rank waits until the steps of the other ranks end.
    pub held: bool,
    pub since: SimTime,
    pub log_limit: usize,
    pub batched_tokens: u32,
}

impl SimulatedWorker {
    pub(super) fn new(
        spec: SchedulerSpec,
        log_limit: usize,
        now: SimTime,
    ) -> Result<Self, SchedulerConfigError> {
        let (batched_tokens, has_steps) = (spec.max_batched_tokens(), spec.schedules_in_steps());
        Ok(Self {
            engine: spec.configured_for_virtual_time().build_scheduler()?,
            has_steps,
            log: EngineStepLog::default(),
            phase: WorkerPhase::Starting,
            load: 0,
            wake: SimTime::MAX,
            held: false,
            since: now,
            log_limit,
            batched_tokens,
        })
    }

    /// Returns the worker's engine if it runs in lockstep with other data-parallel ranks.
    pub(super) fn lockstep_engine(&mut self) -> Option<&mut dyn Scheduler> {
        match self.engine.is_in_lock_step() {
            true => Some(&mut *self.engine),
            false => None,
        }
    }
}
