use std::time::Duration;

use vllm_sim_engine::SimTime;

use super::outcome::RequestStatus;
use super::route::RouterConfig;
use super::scale::WorkerScaling;
use super::sessions::ArrivalPacing;
use vllm_sim_engine::sched::SchedulerSpec;

/// Settings of a replay: the workers and the pacing of the workload.
#[derive(Debug, Clone)]
pub struct ReplaySettings {
    /// Pool of the workers that generate output tokens.
    pub pool: PoolSpec,
    /// Pool of the workers that compute prompts; `None` for an aggregated deployment.
    pub prefill: Option<PoolSpec>,
    /// Pacing of the session arrivals of the workload.
    pub pace: ArrivalPacing,
    /// Virtual time at which the replay ends; `None` runs the whole workload.
    pub limit: Option<SimTime>,
    /// Seed of the router's random choices.
    pub seed: u64,
    /// Interval between samples of the workers' gauges, in virtual time; `None`: no samples.
    pub sample_every: Option<Duration>,
    /// Maximum number of threads that simulate independent workers; with 0 and 1, only the calling
    /// thread simulates.
    pub threads: usize,
    /// Status of a request that the engine ends without a token, such as one whose prompt is beyond
    /// the model's limit. Default [`RequestStatus::Rejected`]; Dynamo's replay has
    /// [`RequestStatus::Completed`].
    pub without_tokens: RequestStatus,
}

impl ReplaySettings {
    /// Creates settings for an aggregated deployment with open-loop arrivals, no time limit and
    /// seed 42.
    pub fn new(pool: PoolSpec) -> Self {
        Self {
            pool,
            prefill: None,
            pace: ArrivalPacing::default(),
            limit: None,
            seed: 42,
            sample_every: None,
            threads: 1,
            without_tokens: RequestStatus::Rejected,
        }
    }
}

/// Duration of a KV cache transfer between workers. Transfers do not share bandwidth.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct KvTransferTime {
    /// Part of the KV cache transfer time that does not depend on the prompt.
    pub fixed: Duration,
    /// KV cache transfer time per prompt token, in ns.
    pub ns_per_token: f64,
    /// Whether the KV cache of tokens that the receiver has cached is transferred too.
    pub whole: bool,
}

impl KvTransferTime {
    /// Returns the duration of a prompt's KV transfer; `missing_tokens` of its tokens are not
    /// cached at the receiver.
    pub(super) fn duration_for_prompt(self, prompt_tokens: u32, missing_tokens: u32) -> Duration {
        let tokens = if self.whole { prompt_tokens } else { missing_tokens };
        let nanos = (f64::from(tokens) * self.ns_per_token).round() as u64;
        self.fixed.saturating_add(Duration::from_nanos(nanos))
    }
}

/// Pool of workers, with their router and scaling.
#[derive(Debug, Clone)]
pub struct PoolSpec {
    /// Engines of the initial workers, at least one. Later workers use these engines in rotation.
    pub engines: Vec<SchedulerSpec>,
    /// Number of data-parallel ranks per worker of the pool.
    ///
    /// This number of consecutive engines forms a worker; they start and end their steps together.
    pub ranks: u32,
    /// Routing policy of the pool's router.
    pub router: RouterConfig,
    /// Duration of KV transfers to the decode pool, for engines whose handoff the replay simulates.
    pub transfer: KvTransferTime,
    /// Time from the start of a new worker until it accepts requests.
    pub startup: Duration,
    /// Whether the initial workers also take the startup time before they accept requests.
    pub cold: bool,
    /// Scheduled and automatic changes of the number of workers.
    pub scaling: WorkerScaling,
}

impl PoolSpec {
    /// Creates a pool of `workers` workers with equal engines.
    pub fn new(engine: SchedulerSpec, workers: u32, router: RouterConfig) -> Self {
        Self {
            engines: vec![engine; workers as usize],
            router,
            ranks: 1,
            transfer: KvTransferTime::default(),
            startup: Duration::ZERO,
            cold: false,
            scaling: WorkerScaling::default(),
        }
    }
}
