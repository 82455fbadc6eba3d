use std::sync::Arc;

use vllm_sim_config::Config;
use vllm_sim_service::{RequestRules, Service};

use super::thoughts::Thoughts;
use super::waves::Waves;

/// What an engine core needs.
#[derive(Clone)]
pub struct Parts {
    /// What was chosen at start.
    pub config: Arc<Config>,
    /// The bounds and defaults of requests.
    pub rules: RequestRules,
    /// The use cases, over the engine of this rank alone.
    pub service: Arc<Service>,
    /// Its data-parallel rank.
    pub rank: u32,
    /// Whether a drill has taken the process away: nothing is sent any more.
    pub is_gone: Arc<dyn Fn() -> bool + Send + Sync>,
    /// `None`: answers have no thoughts.
    pub thoughts: Option<Thoughts>,
    /// `None`: ranks do not wait for each other.
    pub waves: Option<Arc<Waves>>,
}
