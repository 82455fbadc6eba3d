use std::time::Duration;

use crate::kv::DynamoMockerHostCacheConfig;
use crate::latency::{LatencyModel, SimulationSpeedFactors};
use crate::sched::vllm::{
    ChunkedPrefillConfig, PreemptionVictim, PrefillTransferConfig, SchedulerReportingConfig,
    VllmSchedulerConfig,
};
use crate::sched::{MAX_KV_BLOCKS, SchedulerConfigError, check_range};

/// Configures Dynamo's mocker. Shared settings have the names of vLLM.
#[derive(Debug, Clone, PartialEq)]
pub struct DynamoMockerConfig {
    /// Latency model of step times.
    pub latency: LatencyModel,
    /// Divisors of step times and other durations.
    pub speed: SimulationSpeedFactors,
    /// Number of usable KV blocks on the GPU.
    pub num_gpu_blocks: u32,
    /// Number of tokens per KV block. Default: 64.
    pub block_size: u32,
    /// Maximum number of running sequences. Default: 256.
    pub max_num_seqs: u32,
    /// Maximum number of tokens that a step computes. Default: 8192.
    pub max_num_batched_tokens: u32,
    /// Maximum number of prompt plus output tokens; longer outputs are cut. Default: no limit.
    pub max_model_len: u32,
    /// Whether a prompt may be computed in several steps. Default: true.
    pub enable_chunked_prefill: bool,
    /// Whether full KV blocks are kept for later prompts. Default: true.
    pub enable_prefix_caching: bool,
    /// Number of steps from one step with prompt tokens to the next while sequences decode.
    /// Default: 1.
    pub prefill_schedule_interval: u32,
    /// Rule for choosing the sequence to preempt. Default: the last admitted.
    pub victim: PreemptionVictim,
    /// Whether a waiting sequence is admitted only if this sequence and all running ones can end
    /// without preemption (TensorRT-LLM's `GUARANTEED_NO_EVICT`). Default: false.
    pub no_evict: bool,
    /// Acceptance probability of draft token i if all draft tokens before it were accepted. Draft
    /// tokens do not count against `max_num_batched_tokens`. Default: no draft tokens.
    pub accept: Vec<f64>,
    /// Role of the engine in a disaggregated deployment. Default: [`DynamoMockerRole::Whole`].
    pub role: DynamoMockerRole,
    /// Prefix cache in host memory, for [`DynamoMockerRole::Whole`] only. Default: none.
    pub tier: Option<DynamoMockerHostCacheConfig>,
    /// Maximum number of waiting sequences. Default: no limit.
    pub max_waiting: Option<usize>,
    /// Whether KV block events are emitted. Default: false.
    pub kv_events: bool,
    /// Whether several steps in which a sequence emits one token each are reported as one
    /// [`SchedulerEvent::Decoded`](crate::SchedulerEvent::Decoded). Default: false.
    pub run_lengths: bool,
    /// Whether admissions of sequences are recorded for
    /// [`Scheduler::take_admissions`](crate::Scheduler::take_admissions). Default: false.
    pub log_admissions: bool,
    /// Seed of the random acceptance of draft tokens.
    pub seed: u64,
}

/// Selects the role of an engine in a disaggregated deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DynamoMockerRole {
    /// The engine computes prompts and generates their output.
    #[default]
    Whole,
    /// The engine computes prompts and keeps their KV blocks until another engine has fetched them.
    Prefill,
    /// The engine generates output for prompts of other engines; recomputing prompts after a
    /// preemption takes no time.
    Decode,
}

impl Default for DynamoMockerConfig {
    fn default() -> Self {
        let VllmSchedulerConfig {
            latency,
            speed,
            num_gpu_blocks,
            max_num_seqs,
            max_num_batched_tokens,
            max_model_len,
            ..
        } = VllmSchedulerConfig::default();
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
            victim: PreemptionVictim::default(),
            no_evict: false,
            accept: Vec::new(),
            role: DynamoMockerRole::default(),
            tier: None,
            max_waiting: None,
            kv_events: false,
            run_lengths: false,
            log_admissions: false,
            seed: 0,
        }
    }
}

impl DynamoMockerConfig {
    pub(super) fn check_config(&self) -> Result<(), SchedulerConfigError> {
        if let Some(tier) = &self.tier {
            check_range("host blocks", tier.blocks.into(), 1.0, MAX_KV_BLOCKS)?;
            if self.role != DynamoMockerRole::Whole {
                return Err(SchedulerConfigError::Excludes {
                    field: "a tier of the mocker",
                    other: "prompts that another engine computes",
                });
            }
        }
        for &rate in &self.accept {
            check_range("acceptance rate", rate, 0.0, 1.0)?;
        }
        Ok(())
    }

    /// Converts the configuration of Dynamo's mocker to that of vLLM's scheduler, with one step in
    /// flight.
    pub(super) fn into_vllm_config(self) -> VllmSchedulerConfig {
        VllmSchedulerConfig {
            latency: self.latency,
            speed: self.speed,
            num_gpu_blocks: self.num_gpu_blocks,
            block_size: self.block_size,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            max_model_len: self.max_model_len,
            prefill: ChunkedPrefillConfig {
                enable_chunked_prefill: self.enable_chunked_prefill,
                prefill_schedule_interval: self.prefill_schedule_interval,
                ..ChunkedPrefillConfig::default()
            },
            enable_prefix_caching: self.enable_prefix_caching,
            async_scheduling: false,
            victim: self.victim,
            transfer: PrefillTransferConfig {
                // Blocks stay until they are fetched, without a time limit.
                lease: (self.role == DynamoMockerRole::Prefill).then_some(Duration::MAX),
                ..PrefillTransferConfig::default()
            },
            max_waiting: self.max_waiting,
            reporting: SchedulerReportingConfig {
                kv_events: self.kv_events,
                run_lengths: self.run_lengths,
                log_admissions: self.log_admissions,
                step_log: false,
            },
            seed: self.seed,
            ..VllmSchedulerConfig::default()
        }
    }
}
