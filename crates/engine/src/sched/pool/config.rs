use std::time::Duration;

use crate::TokenDelays;
use crate::kv::BlockPoolConfig;

/// Configures the `SlotScheduler`.
#[derive(Debug, Clone)]
pub struct SlotSchedulerConfig {
    /// Maximum number of running sequences, at least 1. Default: 5.
    pub slots: usize,
    /// Maximum number of waiting sequences; `None`: no limit. Default: 1000.
    pub queue: Option<usize>,
    /// Delays before the first token and before each further token.
    pub delays: TokenDelays,
    /// Seed of the random delays.
    pub seed: u64,
    /// Maximum number of loaded LoRA adapters; `None`: no limit.
    pub max_loras: Option<usize>,
    /// Time to load a LoRA adapter.
    pub lora_load: Duration,
    /// KV cache of the engine; `None`: not simulated.
    pub kv: Option<BlockPoolConfig>,
    /// Whether the last token of a prompt may be found in the prefix cache, as in llm-d; if false,
    /// the last token is always computed.
    pub caches_whole_prompts: bool,
    /// Whether KV blocks are allocated only for the full blocks of prompts (llm-d-inference-sim).
    pub prompt_blocks_only: bool,
    /// Whether a sequence has the token delays configured at its start instead of those configured
    /// at its submission.
    pub delays_at_start: bool,
    /// Time to keep the KV blocks of a prefilled prompt for a remote decode engine; `None`: not
    /// kept.
    pub lease: Option<Duration>,
}

impl SlotSchedulerConfig {
    pub(super) fn cached_prompt_tokens(&self, prompt: u32, block_size: u32) -> u32 {
        match self.prompt_blocks_only {
            true => prompt - prompt % block_size.max(1),
            false => prompt,
        }
    }
}

impl Default for SlotSchedulerConfig {
    fn default() -> Self {
        Self {
            slots: 5,
            queue: Some(1000),
            delays: TokenDelays::default(),
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
