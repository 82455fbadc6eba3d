use std::time::Duration;

use vllm_sim_engine::SimTime;
use vllm_sim_engine::sched::pool::{Pool, PoolConfig};
use vllm_sim_engine::sched::sglang::{Sglang, SglangConfig};
use vllm_sim_engine::sched::vllm::{Admission, Recompute, Vllm, VllmConfig};
use vllm_sim_engine::sched::{Admitted, ConfigError};
use vllm_sim_engine::{Command, Outbox, Scheduler, SeqId, Sequence, Stats, SubmitError};

use super::steps::StepLog;

/// Who is ready first when a prompt moves from one pool to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The prompt is computed, then the other side finds room (vLLM).
    SourceFirst,
    /// The other side finds room, then the prompt is computed (SGLang).
    DestinationFirst,
}

/// The engine of a worker.
#[derive(Debug, Clone)]
pub enum EngineSpec {
    /// llm-d's pool of slots.
    Pool(Box<PoolConfig>),
    /// vLLM's scheduler.
    Vllm(Box<VllmConfig>),
    /// SGLang's scheduler.
    Sglang(Box<SglangConfig>),
}

impl EngineSpec {
    /// Tokens per block; 0 without a cache.
    pub fn block_size(&self) -> u32 {
        match self {
            Self::Pool(config) => config.kv.as_ref().map_or(0, |kv| kv.block_size),
            Self::Vllm(config) => config.block_size,
            Self::Sglang(config) => config.page_size,
        }
    }

    /// Prompt tokens that one step may compute.
    pub fn batched_tokens(&self) -> u32 {
        match self {
            Self::Pool(_) => u32::MAX,
            Self::Vllm(config) => config.max_num_batched_tokens,
            Self::Sglang(config) => config.max_prefill_tokens,
        }
    }

    /// How prompts get from engines like this one to those that make output, if somebody has to
    /// look after it; else they fetch them.
    pub(super) fn handoff(&self) -> Option<Order> {
        match self {
            Self::Vllm(config) if config.admission == Admission::Mocker => Some(Order::SourceFirst),
            Self::Sglang(_) => Some(Order::DestinationFirst),
            Self::Vllm(_) | Self::Pool(_) => None,
        }
    }

    /// An engine that makes output for prompts that others computed.
    pub(super) fn for_output(&self) -> Self {
        let mut spec = self.clone();
        match &mut spec {
            Self::Vllm(config) if config.admission == Admission::Mocker => {
                config.handoff = true;
                config.recompute = Recompute::AllFree;
            }
            Self::Sglang(config) => (config.handoff, config.free_prompts) = (true, true),
            Self::Vllm(_) | Self::Pool(_) => {}
        }
        spec
    }

    /// The worker at this place: its draws are its own.
    pub(super) fn at(&self, place: usize) -> Self {
        let mut spec = self.clone();
        match &mut spec {
            Self::Vllm(config) if config.speculation.as_ref().is_some_and(|s| s.free) => {
                config.seed = config.seed.wrapping_add(place as u64);
            }
            Self::Sglang(config) => config.seed = config.seed.wrapping_add(place as u64),
            Self::Vllm(_) | Self::Pool(_) => {}
        }
        spec
    }

    /// Tells about its blocks, or does not; keeps those of prompts that others fetch, or does not.
    pub(super) fn in_pool(&self, events: bool, lends: bool) -> Self {
        let mut spec = self.clone();
        match &mut spec {
            Self::Pool(config) => {
                if let Some(kv) = &mut config.kv {
                    kv.events = events;
                }
            }
            Self::Vllm(config) => {
                config.kv_events = events;
                // Until they are fetched, however long that takes.
                config.lease = lends.then_some(Duration::MAX);
                config.handoff |= lends && config.admission == Admission::Mocker;
            }
            Self::Sglang(config) => {
                config.kv_events = events;
                config.handoff |= lends;
            }
        }
        spec
    }

    /// The scheduler alone, to be driven by somebody else.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting that cannot work.
    pub fn scheduler(self) -> Result<Box<dyn Scheduler + Send>, ConfigError> {
        Ok(match self {
            Self::Pool(config) => Box::new(Pool::new(*config)),
            Self::Vllm(config) => Box::new(Vllm::new(*config)?),
            Self::Sglang(config) => Box::new(Sglang::new(*config)?),
        })
    }

    fn build(&self) -> Result<Engine, ConfigError> {
        Ok(match self {
            Self::Pool(config) => Engine::Pool(Box::new(Pool::new((**config).clone()))),
            Self::Vllm(config) => {
                let config = VllmConfig {
                    log_admissions: true,
                    run_lengths: true,
                    ..(**config).clone()
                };
                Engine::Vllm(Box::new(Vllm::new(config)?))
            }
            Self::Sglang(config) => {
                let config = SglangConfig {
                    log_admissions: true,
                    ..(**config).clone()
                };
                Engine::Sglang(Box::new(Sglang::new(config)?))
            }
        })
    }
}

enum Engine {
    Pool(Box<Pool>),
    Vllm(Box<Vllm>),
    Sglang(Box<Sglang>),
}

/// Whether a worker serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not yet.
    Starting,
    Ready,
    /// Only what it has.
    Draining,
    Gone,
}

/// One engine and what is remembered of its steps.
pub(super) struct Worker {
    engine: Engine,
    pub log: StepLog,
    pub phase: Phase,
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
        spec: &EngineSpec,
        log_limit: usize,
        now: SimTime,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            engine: spec.build()?,
            log: StepLog::default(),
            phase: Phase::Starting,
            load: 0,
            wake: SimTime::MAX,
            held: false,
            since: now,
            log_limit,
            batched_tokens: spec.batched_tokens(),
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
    pub(super) fn let_go(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) -> bool {
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

    /// Admissions since the last call; the pool tells them as events.
    pub(super) fn take_admissions(&mut self) -> Vec<Admitted> {
        match &mut self.engine {
            Engine::Pool(_) => Vec::new(),
            Engine::Vllm(engine) => engine.take_admissions(),
            Engine::Sglang(engine) => engine.take_admissions(),
        }
    }
}
