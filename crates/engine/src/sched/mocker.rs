//! Dynamo's mocker of vLLM's scheduler: the same batches by rules of its own.
//!
//! It makes one step at a time. What can never run is cancelled when it reaches the head of the queue,
//! and output that is computed again costs nothing.
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

pub use config::{MockerConfig, MockerRole};
pub use rules::MockerRules;

use super::ConfigError;
use super::vllm::BatchScheduler;

/// Dynamo's mocker.
pub type Mocker = BatchScheduler<MockerRules>;

impl Mocker {
    /// An idle engine.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting that cannot work.
    pub fn new(config: MockerConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let rules = MockerRules::new(&config);
        Self::with_rules(config.shared(), rules)
    }
}
