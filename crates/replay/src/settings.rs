use std::time::Duration;

use vllm_sim_engine::SimTime;

use super::route::RouterConfig;
use super::scale::Scaling;
use super::sessions::Pace;
use vllm_sim_engine::sched::EngineSpec;

/// What a workload is played against, and how.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The workers that make output tokens.
    pub pool: PoolSpec,
    /// Workers that compute prompts for them; `None`: every worker does both.
    pub prefill: Option<PoolSpec>,
    /// How the workload is paced.
    pub pace: Pace,
    /// Nothing happens after this instant.
    pub limit: Option<SimTime>,
    /// Seed of routing ties.
    pub seed: u64,
    /// How often every worker is reported to the sink.
    pub sample_every: Option<Duration>,
    /// Threads for workers that do not depend on each other; 0 and 1: the caller's.
    pub threads: usize,
}

impl Settings {
    /// A plain deployment: one pool, every request at its time, to the end.
    pub fn new(pool: PoolSpec) -> Self {
        Self {
            pool,
            prefill: None,
            pace: Pace::default(),
            limit: None,
            seed: 42,
            sample_every: None,
            threads: 1,
        }
    }
}

/// Time that the cache of a prompt takes from one worker to another. Transfers do not share
/// bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TransferTime {
    /// Nanoseconds per token.
    pub ns_per_token: f64,
    /// What is there already is moved all the same.
    pub whole: bool,
}

impl TransferTime {
    /// The time of a prompt of which `missing` tokens are not there yet.
    pub(super) fn of(self, prompt: u32, missing: u32) -> Duration {
        let tokens = if self.whole { prompt } else { missing };
        Duration::from_nanos((f64::from(tokens) * self.ns_per_token).round() as u64)
    }
}

/// Workers of one kind, and how they are chosen.
#[derive(Debug, Clone)]
pub struct PoolSpec {
    /// The engine of each worker at the start; those that come later take them in turn. At least
    /// one.
    pub engines: Vec<EngineSpec>,
    /// Data-parallel ranks of a worker: so many engines in a row start their steps together, and end
    /// them with the slowest.
    pub ranks: u32,
    /// How workers are chosen.
    pub router: RouterConfig,
    /// How long prompts are on their way to another pool, where the core looks after it.
    pub transfer: TransferTime,
    /// How long a new worker takes until it serves.
    pub startup: Duration,
    /// Whether those of the start take that long too.
    pub cold: bool,
    /// When workers come and go.
    pub scaling: Scaling,
}

impl PoolSpec {
    /// A pool of equal workers.
    pub fn new(engine: EngineSpec, workers: u32, router: RouterConfig) -> Self {
        Self {
            engines: vec![engine; workers as usize],
            router,
            ranks: 1,
            transfer: TransferTime::default(),
            startup: Duration::ZERO,
            cold: false,
            scaling: Scaling::default(),
        }
    }
}
