use std::time::Duration;

use crate::kv::MockerTierConfig;
use crate::latency::{LatencyModel, Speed};
use crate::sched::vllm::{Victim, VllmConfig};
use crate::sched::{ConfigError, MOST_BLOCKS, within};

/// Settings of Dynamo's mocker, named as vLLM names them where it has them.
#[derive(Debug, Clone, PartialEq)]
pub struct MockerConfig {
    /// The model of step times.
    pub latency: LatencyModel,
    /// By what durations are divided.
    pub speed: Speed,
    /// Blocks that can be used.
    pub num_gpu_blocks: u32,
    /// Tokens per block. Default 64.
    pub block_size: u32,
    /// Sequences in the running batch. Default 256.
    pub max_num_seqs: u32,
    /// Tokens of one step. Default 8192.
    pub max_num_batched_tokens: u32,
    /// Prompt + output; longer outputs are cut. Default: no limit.
    pub max_model_len: u32,
    /// Decides whether a prompt may be computed in several steps. Default yes.
    pub enable_chunked_prefill: bool,
    /// Decides whether full blocks are kept for later prompts. Default yes.
    pub enable_prefix_caching: bool,
    /// While sequences decode, steps from one with prompt work to the next. Default 1.
    pub prefill_schedule_interval: u32,
    /// Which running sequence loses its blocks. Default the last.
    pub victim: Victim,
    /// Decides whether a sequence joins only when all running ones and it can end with the blocks there are,
    /// so that nobody is preempted (TensorRT-LLM's `GUARANTEED_NO_EVICT`). Default no.
    pub no_evict: bool,
    /// Chance that draft token i is accepted when all before it were; drafts cost no tokens of a step.
    /// Default none.
    pub accept: Vec<f64>,
    /// Part that it has in a deployment. Default the whole.
    pub role: MockerRole,
    /// A second prefix cache in the memory of the host; of an engine that is whole. Default none.
    pub tier: Option<MockerTierConfig>,
    /// Bound of the waiting queue. Default none.
    pub max_waiting: Option<usize>,
    /// Decides whether anybody wants block events. Default no.
    pub kv_events: bool,
    /// Decides whether runs of single tokens are reported as one [`Event::Decoded`](crate::Event). Default no.
    pub run_lengths: bool,
    /// Decides whether [`Scheduler::take_admissions`](crate::Scheduler::take_admissions) is fed. Default no.
    pub log_admissions: bool,
    /// Seed of the draws of drafts.
    pub seed: u64,
}

/// Part of an engine in a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MockerRole {
    /// The engine computes prompts and generates their output.
    #[default]
    Whole,
    /// The engine computes prompts, and keeps their blocks until another engine has fetched them.
    Prefill,
    /// The engine generates output for prompts of others; computing lost ones again costs nothing.
    Decode,
}

impl Default for MockerConfig {
    fn default() -> Self {
        let VllmConfig {
            latency,
            speed,
            num_gpu_blocks,
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            ..
        } = VllmConfig::default();
        Self {
            latency,
            speed,
            num_gpu_blocks,
            block_size: 64,
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            enable_chunked_prefill: true,
            enable_prefix_caching: true,
            prefill_schedule_interval: 1,
            victim: Victim::default(),
            no_evict: false,
            accept: Vec::new(),
            role: MockerRole::default(),
            tier: None,
            max_waiting: None,
            kv_events: false,
            run_lengths: false,
            log_admissions: false,
            seed: 0,
        }
    }
}

impl MockerConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if let Some(tier) = &self.tier {
            within("host blocks", tier.blocks.into(), 1.0, MOST_BLOCKS)?;
            if self.role != MockerRole::Whole {
                return Err(ConfigError::Excludes {
                    field: "a tier of the mocker",
                    other: "prompts that another engine computes",
                });
            }
        }
        for &rate in &self.accept {
            within("acceptance rate", rate, 0.0, 1.0)?;
        }
        Ok(())
    }

    /// The settings that vLLM's scheduler has too: one step at a time.
    pub(super) fn shared(self) -> VllmConfig {
        VllmConfig {
            latency: self.latency,
            speed: self.speed,
            num_gpu_blocks: self.num_gpu_blocks,
            block_size: self.block_size,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            enable_chunked_prefill: self.enable_chunked_prefill,
            enable_prefix_caching: self.enable_prefix_caching,
            prefill_schedule_interval: self.prefill_schedule_interval,
            async_scheduling: false,
            victim: self.victim,
            // Until they are fetched, however long that takes.
            lease: (self.role == MockerRole::Prefill).then_some(Duration::MAX),
            max_waiting: self.max_waiting,
            kv_events: self.kv_events,
            run_lengths: self.run_lengths,
            log_admissions: self.log_admissions,
            seed: self.seed,
            ..VllmConfig::default()
        }
    }
}
