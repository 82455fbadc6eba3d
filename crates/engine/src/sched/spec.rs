use super::SchedulerConfigError;
use super::dynamo_mocker::{DynamoMockerConfig, DynamoMockerScheduler};
use super::pool::{SlotScheduler, SlotSchedulerConfig};
use super::sglang::{SglangConfig, SglangScheduler};
use super::vllm::{VllmScheduler, VllmSchedulerConfig};
use crate::Scheduler;

/// Selects the scheduler of an engine and holds its configuration.
#[derive(Debug, Clone)]
pub enum SchedulerSpec {
    /// Sequences run on independent slots without batching, as in llm-d-inference-sim.
    Pool(Box<SlotSchedulerConfig>),
    /// Continuous batching as vLLM's scheduler does it.
    Vllm(Box<VllmSchedulerConfig>),
    /// Continuous batching as Dynamo's mocker of vLLM's scheduler does it.
    Mocker(Box<DynamoMockerConfig>),
    /// Continuous batching as SGLang's scheduler does it.
    Sglang(Box<SglangConfig>),
}

impl SchedulerSpec {
    /// Returns the number of tokens per KV block; 0 without a KV cache.
    pub fn block_size(&self) -> u32 {
        match self {
            Self::Pool(config) => config.kv.as_ref().map_or(0, |kv| kv.block_size),
            Self::Vllm(config) => config.block_size,
            Self::Mocker(config) => config.block_size,
            Self::Sglang(config) => config.page_size,
        }
    }

    /// Returns the maximum number of prompt tokens that one step computes.
    pub fn max_batched_tokens(&self) -> u32 {
        match self {
            Self::Pool(_) => u32::MAX,
            Self::Vllm(config) => config.max_num_batched_tokens,
            Self::Mocker(config) => config.max_num_batched_tokens,
            Self::Sglang(config) => config.max_prefill_tokens,
        }
    }

    /// Returns whether the scheduler runs steps and reports them as events.
    pub fn schedules_in_steps(&self) -> bool {
        match self {
            Self::Pool(_) => false,
            Self::Vllm(_) | Self::Mocker(_) | Self::Sglang(_) => true,
        }
    }

    /// Configures the engine for a run in virtual time.
    ///
    /// Batching schedulers record admissions. vLLM and the mocker also report several steps that
    /// release one token each as one event.
    #[must_use]
    pub fn configured_for_virtual_time(mut self) -> Self {
        match &mut self {
            Self::Pool(_) => {}
            Self::Vllm(config) => {
                config.reporting.log_admissions = true;
                config.reporting.run_lengths = true;
            }
            Self::Mocker(config) => (config.log_admissions, config.run_lengths) = (true, true),
            Self::Sglang(config) => config.log_admissions = true,
        }
        self
    }

    /// Configures the engine to record every step, with KV events, for
    /// [`Scheduler::take_step_log`]; `None` if its scheduler keeps no step log.
    #[must_use]
    pub fn with_step_log(mut self) -> Option<Self> {
        match &mut self {
            Self::Vllm(config) => {
                let reporting = &mut config.reporting;
                (reporting.step_log, reporting.kv_events) = (true, true);
            }
            Self::Pool(_) | Self::Mocker(_) | Self::Sglang(_) => return None,
        }
        Some(self)
    }

    /// Creates the scheduler without sequences.
    ///
    /// # Errors
    /// [`SchedulerConfigError`] names the setting that cannot work.
    pub fn build_scheduler(self) -> Result<Box<dyn Scheduler + Send>, SchedulerConfigError> {
        Ok(match self {
            Self::Pool(config) => Box::new(SlotScheduler::new(*config)),
            Self::Vllm(config) => Box::new(VllmScheduler::new(*config)?),
            Self::Mocker(config) => Box::new(DynamoMockerScheduler::new(*config)?),
            Self::Sglang(config) => Box::new(SglangScheduler::new(*config)?),
        })
    }
}
