use vllm_sim_engine::sched::{ConfigError, EngineSpec};
use vllm_sim_engine::{Scheduler, SimTime};

use super::steps::StepLog;

/// Whether a worker serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerPhase {
    /// Not yet.
    Starting,
    Ready,
    /// Only what it has.
    Draining,
    /// Nothing any more, but it is still accounted for.
    Lost,
    Gone,
}

/// One engine and what is remembered of its steps.
pub(super) struct Worker {
    pub engine: Box<dyn Scheduler + Send>,
    /// Tokens come by steps that the engine reports.
    pub has_steps: bool,
    pub log: StepLog,
    pub phase: WorkerPhase,
    /// Requests that it has.
    pub load: u32,
    /// When it has to be looked at next, as entered in the calendar.
    pub wake: SimTime,
    /// It may not start a step before other ranks of its worker have ended theirs.
    pub held: bool,
    /// When it came into being.
    pub since: SimTime,
    /// Steps in the log before it is looked through.
    pub log_limit: usize,
    /// Prompt tokens that one step may compute.
    pub batched_tokens: u32,
}

impl Worker {
    pub(super) fn new(
        spec: EngineSpec,
        log_limit: usize,
        now: SimTime,
    ) -> Result<Self, ConfigError> {
        let (batched_tokens, has_steps) = (spec.batched_tokens(), spec.has_steps());
        Ok(Self {
            engine: spec.in_virtual_time().scheduler()?,
            has_steps,
            log: StepLog::default(),
            phase: WorkerPhase::Starting,
            load: 0,
            wake: SimTime::MAX,
            held: false,
            since: now,
            log_limit,
            batched_tokens,
        })
    }

    /// As one of the ranks that step together.
    pub(super) fn rank(&mut self) -> Option<&mut dyn Scheduler> {
        match self.engine.is_in_lock_step() {
            true => Some(&mut *self.engine),
            false => None,
        }
    }
}
