use vllm_sim_engine::SimTime;
use vllm_sim_engine::lock_step::Rank;
use vllm_sim_engine::sched::pool::Pool;
use vllm_sim_engine::sched::sglang::{Sglang, SglangConfig};
use vllm_sim_engine::sched::vllm::{Vllm, VllmConfig};
use vllm_sim_engine::sched::{Admitted, ConfigError, EngineSpec};
use vllm_sim_engine::{Command, Outbox, Scheduler, SeqId, Sequence, Stats, SubmitError};

use super::steps::StepLog;

enum Engine {
    Pool(Box<Pool>),
    Vllm(Box<Vllm>),
    Sglang(Box<Sglang>),
}

impl Engine {
    fn new(spec: EngineSpec) -> Result<Self, ConfigError> {
        Ok(match spec {
            EngineSpec::Pool(config) => Self::Pool(Box::new(Pool::new(*config))),
            EngineSpec::Vllm(config) => Self::Vllm(Box::new(Vllm::new(VllmConfig {
                log_admissions: true,
                run_lengths: true,
                ..*config
            })?)),
            EngineSpec::Sglang(config) => Self::Sglang(Box::new(Sglang::new(SglangConfig {
                log_admissions: true,
                ..*config
            })?)),
        })
    }
}

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
    engine: Engine,
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
        let batched_tokens = spec.batched_tokens();
        Ok(Self {
            engine: Engine::new(spec)?,
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

    /// Whether tokens come by steps that the engine reports.
    pub(super) fn has_steps(&self) -> bool {
        !matches!(self.engine, Engine::Pool(_))
    }

    pub(super) fn submit(
        &mut self,
        now: SimTime,
        sequence: Sequence,
        out: &mut Outbox,
    ) -> Result<(), SubmitError> {
        match &mut self.engine {
            Engine::Pool(engine) => engine.submit(now, sequence, out),
            Engine::Vllm(engine) => engine.submit(now, sequence, out),
            Engine::Sglang(engine) => engine.submit(now, sequence, out),
        }
    }

    /// Another worker has fetched the prompt of a sequence.
    pub(super) fn release_prompt(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) -> bool {
        let release = Command::Release(id);
        match &mut self.engine {
            Engine::Pool(engine) => engine.command(now, release, out),
            Engine::Vllm(engine) => engine.command(now, release, out),
            Engine::Sglang(engine) => engine.command(now, release, out),
        }
    }

    /// Whether a step runs.
    pub(super) fn is_busy(&self) -> bool {
        match &self.engine {
            Engine::Pool(_) => false,
            Engine::Vllm(engine) => engine.is_busy(),
            Engine::Sglang(engine) => engine.is_busy(),
        }
    }

    /// As one of the ranks that step together.
    pub(super) fn rank(&mut self) -> Option<&mut dyn Rank> {
        match &mut self.engine {
            Engine::Vllm(engine) => engine.rank(),
            Engine::Pool(_) | Engine::Sglang(_) => None,
        }
    }

    /// When its step ends, if one runs.
    pub(super) fn step_end(&self) -> Option<SimTime> {
        match &self.engine {
            Engine::Pool(_) => None,
            Engine::Vllm(engine) => engine.step_end(),
            Engine::Sglang(engine) => engine.step_end(),
        }
    }

    /// Its step ends with that of others, and not before.
    pub(super) fn stretch(&mut self, end: SimTime) {
        match &mut self.engine {
            Engine::Pool(_) => {}
            Engine::Vllm(engine) => engine.stretch(end),
            Engine::Sglang(engine) => engine.stretch(end),
        }
    }

    /// It may start a step again, from now on.
    pub(super) fn postpone(&mut self, now: SimTime) {
        match &mut self.engine {
            Engine::Pool(_) => {}
            Engine::Vllm(engine) => engine.postpone(now),
            Engine::Sglang(engine) => engine.postpone(now),
        }
    }

    /// Sequences that have room for their prompts since the last call, and how many tokens of these
    /// are missing.
    pub(super) fn take_reserved(&mut self) -> Vec<(SeqId, u32)> {
        match &mut self.engine {
            Engine::Pool(_) => Vec::new(),
            Engine::Vllm(engine) => engine.take_reserved(),
            Engine::Sglang(engine) => engine.take_reserved(),
        }
    }

    /// The prompt of a sequence is here.
    pub(super) fn activate(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) -> bool {
        match &mut self.engine {
            Engine::Pool(_) => false,
            Engine::Vllm(engine) => engine.activate(now, id, out),
            Engine::Sglang(engine) => engine.activate(now, id, out),
        }
    }

    /// A sequence is not wanted any more.
    pub(super) fn abort(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) {
        match &mut self.engine {
            Engine::Pool(engine) => engine.abort(now, id, out),
            Engine::Vllm(engine) => engine.abort(now, id, out),
            Engine::Sglang(engine) => engine.abort(now, id, out),
        }
    }

    pub(super) fn advance(&mut self, now: SimTime, out: &mut Outbox) {
        match &mut self.engine {
            Engine::Pool(engine) => engine.advance(now, out),
            Engine::Vllm(engine) => engine.advance(now, out),
            Engine::Sglang(engine) => engine.advance(now, out),
        }
    }

    pub(super) fn next_wakeup(&self) -> Option<SimTime> {
        match &self.engine {
            Engine::Pool(engine) => engine.next_wakeup(),
            Engine::Vllm(engine) => engine.next_wakeup(),
            Engine::Sglang(engine) => engine.next_wakeup(),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        match &self.engine {
            Engine::Pool(engine) => engine.stats(),
            Engine::Vllm(engine) => engine.stats(),
            Engine::Sglang(engine) => engine.stats(),
        }
    }

    /// Moves admissions since the last call into a list; the pool reports them as events.
    pub(super) fn take_admissions(&mut self, into: &mut Vec<Admitted>) {
        match &mut self.engine {
            Engine::Pool(_) => {}
            Engine::Vllm(engine) => engine.take_admissions(into),
            Engine::Sglang(engine) => engine.take_admissions(into),
        }
    }
}
