//! Implements Dynamo's mocker of vLLM's scheduler: the same batching with different rules.
//!
//! The engine runs one step at a time. A sequence that can never run is cancelled at the head of
//! the queue. Recomputing output after a preemption takes no time.
//!
//! **Source:** aisimulate-core 0.13.0 `scheduler/vllm/core.rs`.

mod capacity;
mod config;
mod destinations;
mod drafts;
mod handoff;
mod host;
mod offload;
mod rules;

pub use config::{DynamoMockerConfig, DynamoMockerRole};
pub use rules::DynamoMockerRules;

use super::SchedulerConfigError;
use super::vllm::BatchScheduler;

/// Schedules sequences with the rules of Dynamo's mocker.
pub type DynamoMockerScheduler = BatchScheduler<DynamoMockerRules>;

impl DynamoMockerScheduler {
    /// Creates an engine with the rules of Dynamo's mocker, without sequences.
    ///
    /// # Errors
    /// [`SchedulerConfigError`] names the setting that cannot work.
    pub fn new(config: DynamoMockerConfig) -> Result<Self, SchedulerConfigError> {
        config.check_config()?;
        let rules = DynamoMockerRules::new(&config);
        Self::with_rules(config.into_vllm_config(), rules)
    }
}
