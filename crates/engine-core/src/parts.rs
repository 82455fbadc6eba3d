use std::sync::{Arc, Mutex};

use vllm_sim_config::Config;
use vllm_sim_service::{InferenceService, RequestRules};

use super::reasoning::ReasoningMarkers;
use super::waves::DataParallelWaves;

/// The configuration and services that an engine core uses.
#[derive(Clone)]
pub struct EngineCoreDependencies {
    /// Configuration of the simulator process.
    pub config: Arc<Config>,
    /// Limits and defaults of request values.
    pub rules: RequestRules,
    /// The inference service whose only engine is that of this data-parallel rank.
    pub service: Arc<InferenceService>,
    /// Data-parallel rank of the engine.
    pub rank: u32,
    /// A function that returns whether the process is down in a simulated restart. No message is
    /// sent while the process is down.
    pub is_gone: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Start and end tokens of reasoning; `None` disables reasoning.
    pub thoughts: Option<ReasoningMarkers>,
    /// State of the data-parallel waves that the ranks share; `None` if ranks run independently.
    pub waves: Option<Arc<DataParallelWaves>>,
    /// Label of the model weights, which front ends set and messages with outputs carry.
    pub weight_version: Arc<Mutex<String>>,
}
