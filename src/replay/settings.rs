use std::time::Duration;

use crate::sim::SimTime;

use super::route::RouterConfig;
use super::scale::Scaling;
use super::sessions::Pace;
use super::worker::EngineSpec;

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
    /// How often the sink is told of every worker.
    pub sample_every: Option<Duration>,
}

/// Workers of one kind, and how they are chosen.
#[derive(Debug, Clone)]
pub struct PoolSpec {
    /// The engine of each worker at the start; those that come later take them in turn. At least
    /// one.
    pub engines: Vec<EngineSpec>,
    /// How workers are chosen.
    pub router: RouterConfig,
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
            startup: Duration::ZERO,
            cold: false,
            scaling: Scaling::default(),
        }
    }
}
