use std::time::Duration;

use crate::Delays;
use crate::kv::KvConfig;

/// Settings of the pool.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Sequences that run at once, at least one.
    pub slots: usize,
    /// Sequences that may wait; `None`: any number.
    pub queue: Option<usize>,
    /// Delays.
    pub delays: Delays,
    /// Seed of the random delays.
    pub seed: u64,
    /// Adapters that may be loaded at once; `None`: any number.
    pub max_loras: Option<usize>,
    /// Time to load an adapter that holds no slot.
    pub lora_load: Duration,
    /// KV cache; `None`: not simulated.
    pub kv: Option<KvConfig>,
    /// A prompt may be cached to its last token (llm-d); otherwise that one is always computed.
    pub caches_whole_prompts: bool,
    /// Whether only the full blocks of prompts take room in the cache (llm-d-inference-sim).
    pub prompt_blocks_only: bool,
    /// Whether a sequence has the delays that are in force when it starts, not those it came under.
    pub delays_at_start: bool,
    /// How long blocks are kept for another engine that decodes; `None`: not at all.
    pub lease: Option<Duration>,
}

impl PoolConfig {
    /// Tokens of a prompt that take room in the cache.
    pub(super) fn kept_prompt(&self, prompt: u32, block_size: u32) -> u32 {
        match self.prompt_blocks_only {
            true => prompt - prompt % block_size.max(1),
            false => prompt,
        }
    }
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            slots: 5,
            queue: Some(1000),
            delays: Delays::default(),
            seed: 0,
            max_loras: None,
            lora_load: Duration::ZERO,
            kv: None,
            caches_whole_prompts: false,
            prompt_blocks_only: false,
            delays_at_start: false,
            lease: None,
        }
    }
}
