use super::ConfigError;
use super::pool::{Pool, PoolConfig};
use super::sglang::{Sglang, SglangConfig};
use super::vllm::{Vllm, VllmConfig};
use crate::Scheduler;

/// Which scheduler an engine has, and its settings.
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

    /// The scheduler, idle.
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
}
