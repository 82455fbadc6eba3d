use std::time::Duration;

use crate::PromptMediaItem;
use crate::kv::{HostCacheConfig, KvCacheLayerGroups, LayerGroupLimits, SparseLayerKind};
use crate::latency::{
    BatchWork, DraftLatencyModel, LatencyModel, MediaEncoderLatency, SimulationSpeedFactors,
};
use crate::sched::{MAX_KV_BLOCKS, SchedulerConfigError, check_at_least_one, check_range};

/// Configures the vLLM scheduler. Fields have the names of vLLM's settings.
#[derive(Debug, Clone, PartialEq)]
pub struct VllmSchedulerConfig {
    /// Latency model of step times.
    pub latency: LatencyModel,
    /// Divisors of step times and other durations.
    pub speed: SimulationSpeedFactors,
    /// Number of usable KV blocks on the GPU; vLLM's own count includes one null block.
    pub num_gpu_blocks: u32,
    /// Number of tokens per KV block. Default: 16.
    pub block_size: u32,
    /// Maximum number of running sequences. Default: 256.
    pub max_num_seqs: u32,
    /// Maximum number of tokens that a step computes. Default: 8192.
    pub max_num_batched_tokens: u32,
    /// Maximum number of prompt plus output tokens; longer outputs are cut. Default: no limit.
    pub max_model_len: u32,
    /// Configuration of chunked prefill: the division of prompts among steps.
    pub prefill: ChunkedPrefillConfig,
    /// Whether full KV blocks are kept for later prompts. Default: true.
    pub enable_prefix_caching: bool,
    /// Layer groups of models with sliding-window or state layers. Default: none.
    pub layer_groups: Option<KvCacheLayerGroups>,
    /// Order of the waiting queue. Default: first come, first served.
    pub policy: SchedulingPolicy,
    /// Whether the next step is scheduled while one runs. Default: true.
    pub async_scheduling: bool,
    /// Rule for choosing the sequence to preempt. Default: the last admitted.
    pub victim: PreemptionVictim,
    /// Fraction of the KV blocks that stay free when a waiting sequence joins a running batch.
    /// Default: 0.
    pub watermark: f64,
    /// Configuration of speculative decoding: number and acceptance rates of draft tokens. Default:
    /// no draft tokens.
    pub speculation: Option<SpeculativeDecodingConfig>,
    /// Time per step to propose draft tokens. Default: zero.
    pub drafting: Option<Box<DraftLatencyModel>>,
    /// Time per step to read offloaded model weights from host memory. Default: zero.
    pub weights_from_host: Duration,
    /// Limits of LoRA adapters. Default: no limits.
    pub loras: LoraConfig,
    /// Configuration of the encoder of images and audio. Default: none; media count as ordinary
    /// tokens.
    pub encoder: Option<Box<EncoderSchedulingConfig>>,
    /// Maximum length of the waiting queue. Default: no limit.
    pub max_waiting: Option<usize>,
    /// Configuration of the transfer of prompts' KV cache between prefill and decode engines.
    pub transfer: PrefillTransferConfig,
    /// Whether the engine's steps begin and end together with those of other data-parallel ranks
    /// ([`RankLockStep`](crate::lock_step::RankLockStep)). Default: false.
    pub lock_step: bool,
    /// Prefix cache in host memory. Default: none.
    pub host_tier: Option<HostCacheConfig>,
    /// Selection of the events that the caller receives.
    pub reporting: SchedulerReportingConfig,
    /// Seed of the random acceptance of draft tokens.
    pub seed: u64,
}

/// Configures the division of prompts among steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkedPrefillConfig {
    /// Maximum number of tokens that a step schedules; `None`: `max_num_batched_tokens`. Default:
    /// `None`.
    pub max_num_scheduled_tokens: Option<u32>,
    /// Whether a prompt may be computed in several steps. Default: true.
    pub enable_chunked_prefill: bool,
    /// Maximum prompt chunk, in tokens, if other sequences exist; 0: the token budget. Default: 0.
    pub long_prefill_token_threshold: u32,
    /// Whether `long_prefill_token_threshold` is raised to at least the token budget divided by the
    /// number of sequences. Default: false.
    pub long_prefill_token_threshold_adaptive: bool,
    /// Number of steps from one step with prompt tokens to the next while sequences decode.
    /// Default: 1.
    pub prefill_schedule_interval: u32,
    /// Whether a prompt is admitted only when KV blocks for the whole prompt are available
    /// (`scheduler_reserve_full_isl`). Default: true.
    pub reserve_full_prompt: bool,
}

impl Default for ChunkedPrefillConfig {
    fn default() -> Self {
        Self {
            max_num_scheduled_tokens: None,
            enable_chunked_prefill: true,
            long_prefill_token_threshold: 0,
            long_prefill_token_threshold_adaptive: false,
            prefill_schedule_interval: 1,
            reserve_full_prompt: true,
        }
    }
}

/// Configures the limits of LoRA adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoraConfig {
    /// Maximum number of LoRA adapters in one batch; 0: no limit. Default: 0.
    pub max_loras: u32,
    /// Maximum number of LoRA adapters that stay loaded, at least `max_loras`. Default: 0.
    pub max_cpu_loras: u32,
    /// Delay of a step for each LoRA adapter that must first be loaded. Default: zero.
    pub load_time: Duration,
}

/// Configures the transfer of prompts' KV cache between prefill and decode engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefillTransferConfig {
    /// Time to fetch the KV cache of a prompt from another engine: fixed, and per token. Default:
    /// zero.
    pub fetch: (Duration, Duration),
    /// Whether the fetch of a remote prompt includes tokens that are cached locally. Default:
    /// false.
    pub fetch_whole_prompt: bool,
    /// Time to keep the KV blocks of a prefilled prompt for a remote decode engine; `None`: not
    /// kept. Default: `None`.
    pub lease: Option<Duration>,
    /// Whether the engine computes prompts for other engines (`kv_role`). If so, a preempted
    /// sequence recomputes the output of its steps in flight.
    pub is_producer: bool,
    /// Whether the engine fetches prompts from other engines (`kv_role`). If so, with asynchronous
    /// scheduling, KV blocks that a step in flight may write are freed only when that step ends.
    pub is_consumer: bool,
}

/// Selects the events that the caller of the scheduler receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchedulerReportingConfig {
    /// Whether KV block events are emitted. Default: false.
    pub kv_events: bool,
    /// Whether several steps in which a sequence emits one token each are reported as one
    /// [`SchedulerEvent::Decoded`](crate::SchedulerEvent::Decoded), for speed, even if they take time.
    /// Default: false.
    pub run_lengths: bool,
    /// Whether admissions of sequences are recorded for
    /// [`Scheduler::take_admissions`](crate::Scheduler::take_admissions). Default: false.
    pub log_admissions: bool,
    /// Whether every planned and updated step is recorded for
    /// [`Scheduler::take_step_log`](crate::Scheduler::take_step_log). The scheduler then keeps full
    /// bookkeeping of every sequence in every step. Default: false.
    pub step_log: bool,
}

/// Selects the order in which waiting sequences are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SchedulingPolicy {
    /// Waiting sequences are admitted in order of arrival; preempted sequences come first.
    #[default]
    Fcfs,
    /// The waiting sequence with the lowest priority value is admitted first; among equal ones, the
    /// one that arrived first.
    Priority,
}

/// Selects the sequence to preempt under the FCFS policy. The priority policy preempts the sequence
/// of lowest priority; of several such sequences, the one that arrived last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PreemptionVictim {
    /// The last admitted sequence is preempted.
    #[default]
    Last,
    /// The first admitted sequence is preempted, unless it was preempted several times without a
    /// new token, since two sequences could preempt each other forever. For the same reason,
    /// admission reserves KV blocks for full prompts.
    First,
}

/// Configures speculative decoding by its acceptance rates.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SpeculativeDecodingConfig {
    /// Acceptance probability of draft token i if all draft tokens before it were accepted. One
    /// entry per draft token.
    pub accept: Vec<f64>,
    /// Whether a prefix-cache hit is shortened by its last block, because the draft model's KV
    /// cache of that block may be invalid (eagle and mtp with plain block hashes).
    pub drops_last_block: bool,
    /// Number of tokens after the tokens that a step computes for which KV blocks are also
    /// allocated, because the drafter writes there (`num_lookahead_tokens`).
    pub lookahead_slots: u32,
    /// Number of tokens by which drafting for each sequence reduces the token budget, in addition
    /// to the sequence's own tokens (`max_num_new_slots_for_drafting`).
    pub input_slots: u32,
}

/// Configures the encoders of images and audio.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderSchedulingConfig {
    /// Maximum number of embeddings that a step encodes, at least 1.
    pub budget: u32,
    /// Capacity of the encoder cache, in embeddings, at least 1.
    pub cache_size: u32,
    /// Whether a prompt chunk may end inside a media item (without `disable_chunked_mm_input`).
    pub chunked_input: bool,
    /// Encoding time of media items, added before the step; `None`: zero.
    pub latency: Option<Box<MediaEncoderLatency>>,
}

impl Default for VllmSchedulerConfig {
    fn default() -> Self {
        Self {
            latency: LatencyModel::ZERO,
            speed: SimulationSpeedFactors::default(),
            num_gpu_blocks: 16_384,
            block_size: 16,
            max_num_seqs: 256,
            max_num_batched_tokens: 8192,
            max_model_len: u32::MAX,
            prefill: ChunkedPrefillConfig::default(),
            enable_prefix_caching: true,
            layer_groups: None,
            policy: SchedulingPolicy::default(),
            async_scheduling: true,
            victim: PreemptionVictim::default(),
            watermark: 0.0,
            speculation: None,
            drafting: None,
            weights_from_host: Duration::ZERO,
            loras: LoraConfig::default(),
            encoder: None,
            max_waiting: None,
            transfer: PrefillTransferConfig::default(),
            lock_step: false,
            host_tier: None,
            reporting: SchedulerReportingConfig::default(),
            seed: 0,
        }
    }
}

impl VllmSchedulerConfig {
    pub(super) fn check_config(&self) -> Result<(), SchedulerConfigError> {
        check_range("num_gpu_blocks", self.num_gpu_blocks.into(), 1.0, MAX_KV_BLOCKS)?;
        check_at_least_one("block_size", self.block_size)?;
        check_at_least_one("max_num_seqs", self.max_num_seqs)?;
        check_at_least_one("max_num_batched_tokens", self.max_num_batched_tokens)?;
        if let Some(tokens) = self.prefill.max_num_scheduled_tokens {
            check_at_least_one("max_num_scheduled_tokens", tokens)?;
        }
        check_at_least_one(
            "max_num_batched_tokens without slots for drafting",
            self.max_sequence_tokens_per_step(),
        )?;
        check_at_least_one("max_model_len", self.max_model_len)?;
        let interval = self.prefill.prefill_schedule_interval;
        check_at_least_one("prefill_schedule_interval", interval)?;
        if let Some(tier) = &self.host_tier {
            check_range("host chunks", tier.chunks.into(), 1.0, MAX_KV_BLOCKS)?;
            check_at_least_one("blocks_per_chunk", tier.blocks_per_chunk)?;
            if self.layer_groups.is_some() {
                let blocks = tier.blocks_per_chunk;
                check_range("blocks_per_chunk of layer groups", blocks.into(), 1.0, 1.0)?;
            }
        }
        if let Some(encoder) = &self.encoder {
            check_at_least_one("encoder budget", encoder.budget)?;
            check_at_least_one("encoder cache size", encoder.cache_size)?;
        }
        check_range("watermark", self.watermark, 0.0, 1.0)?;
        check_range("speedup_ratio", self.speed.all, 0.0, f64::MAX)?;
        check_range("decode_speedup_ratio", self.speed.decode, 0.0, f64::MAX)?;
        for &rate in self.speculation.iter().flat_map(|s| &s.accept) {
            check_range("acceptance rate", rate, 0.0, 1.0)?;
        }
        Ok(())
    }

    /// Returns whether every decode step of a sequence is alike, so that several may be simulated
    /// without bookkeeping per step.
    ///
    /// The pattern names every setting, so that a new one does not compile until it is classified.
    pub(super) fn has_alike_decode_steps(&self) -> bool {
        let Self {
            // Events of the cache and of admissions are the same in bulk. `run_lengths` decides how
            // such steps are simulated.
            reporting:
                SchedulerReportingConfig {
                    run_lengths: _,
                    kv_events: _,
                    log_admissions: _,
                    // Every step is recorded with its sequences.
                    step_log,
                },
            // These steps yield several tokens of one sequence.
            speculation,
            // These sequences alternate or wait for each other. Other settings of prefill and
            // adapters concern waiting sequences.
            loras: LoraConfig { max_loras, max_cpu_loras: _, load_time: _ },
            prefill:
                ChunkedPrefillConfig {
                    prefill_schedule_interval,
                    max_num_scheduled_tokens: _,
                    enable_chunked_prefill: _,
                    long_prefill_token_threshold: _,
                    long_prefill_token_threshold_adaptive: _,
                    reserve_full_prompt: _,
                },
            // Each step offers the generated blocks to the host tier.
            host_tier,
            // The bulk keeps the sums over its batch that determine the step time.
            latency: _,
            speed: _,
            drafting: _,
            weights_from_host: _,
            // A step that may lack tokens or blocks is scheduled sequence by sequence.
            num_gpu_blocks: _,
            block_size: _,
            max_num_seqs: _,
            max_num_batched_tokens: _,
            max_model_len: _,
            async_scheduling: _,
            victim: _,
            layer_groups: _,
            enable_prefix_caching: _,
            // These settings concern waiting sequences and prefill.
            policy: _,
            watermark: _,
            encoder: _,
            max_waiting: _,
            // These settings apply before the first token, after the last one or outside of steps.
            transfer:
                PrefillTransferConfig {
                    fetch: _,
                    fetch_whole_prompt: _,
                    lease: _,
                    is_producer: _,
                    is_consumer: _,
                },
            lock_step: _,
            seed: _,
        } = self;
        let one_token = speculation.as_ref().is_none_or(|s| s.accept.is_empty());
        let offers_outputs = host_tier.as_ref().is_some_and(|tier| tier.outputs);
        !*step_log
            && one_token
            && *max_loras == 0
            && *prefill_schedule_interval == 1
            && !offers_outputs
    }

    /// Returns whether the KV blocks of an ended sequence, into which a step in flight may write,
    /// are freed only when that step ends.
    ///
    /// **Source:** `defer_block_free`, `vllm/v1/core/sched/scheduler.py`.
    pub(super) fn defers_block_frees(&self) -> bool {
        self.async_scheduling && self.transfer.is_consumer
    }

    pub(super) fn extra_steps_in_flight(&self) -> u32 {
        if self.async_scheduling { 2 } else { 1 }
    }

    pub(super) fn layer_group_limits(&self) -> LayerGroupLimits {
        let steps = self.extra_steps_in_flight();
        let in_flight = match self.prefill.enable_chunked_prefill {
            true => self.max_num_batched_tokens.saturating_mul(steps),
            false => u32::MAX,
        };
        let speculation = self.speculation.as_ref();
        LayerGroupLimits {
            in_flight,
            max_model_len: self.max_model_len,
            drafts: self.drafts_per_step(),
            drops_last: speculation.is_some_and(|s| s.drops_last_block),
        }
    }

    /// Returns whether prompt chunks end at block boundaries, so that later prompts can reuse the
    /// Mamba states there.
    pub(super) fn aligns_chunks_to_blocks(&self) -> bool {
        let kind = self.layer_groups.map(|groups| groups.kind);
        self.enable_prefix_caching && matches!(kind, Some(SparseLayerKind::State(_)))
    }

    /// Returns the duration of a step that computes `batch`, including the time to draft for the
    /// next step.
    pub fn step_time(&self, batch: &BatchWork) -> Duration {
        let drafting = self.drafting.as_ref();
        let drafting = drafting.map(|drafting| drafting.draft_time(batch, self.speed));
        let computing = self.latency.step_time(batch, self.speed) + drafting.unwrap_or_default();
        computing + self.weights_from_host
    }

    /// Returns whether steps that only decode take no time, at any context length.
    pub(super) fn decodes_instantly(&self) -> bool {
        let decode = match &self.latency {
            LatencyModel::Constant { decode, .. } => *decode,
            LatencyModel::Delays(delays) => delays.itl.0,
            _ => return false,
        };
        decode.is_zero() && self.drafting.is_none() && self.weights_from_host.is_zero()
    }

    /// Returns the time to encode the media items `inputs` together.
    pub fn media_encoding_time(
        &self,
        inputs: impl Iterator<Item = PromptMediaItem> + Clone,
    ) -> Duration {
        let latency = self.encoder.as_ref().and_then(|encoder| encoder.latency.as_ref());
        latency
            .map_or(Duration::ZERO, |latency| latency.media_encoding_time(inputs, self.speed.all))
    }

    pub(super) fn loaded_lora_capacity(&self) -> usize {
        self.loras.max_loras.max(self.loras.max_cpu_loras) as usize
    }

    /// Returns the number of prompt tokens that the drafter reads after the end of a chunk
    /// (`num_prefill_lookahead_tokens`).
    pub(super) fn prompt_tokens_read_by_drafter(&self) -> u32 {
        // A drafter of the target model's hidden states has KV slots but no input slots.
        let speculation = self.speculation.as_ref();
        speculation.map_or(0, |s| u32::from(s.lookahead_slots > 0 && s.input_slots == 0))
    }

    /// Returns the maximum number of tokens that a step schedules.
    pub(super) fn max_scheduled_tokens(&self) -> u32 {
        let limit = self.prefill.max_num_scheduled_tokens.unwrap_or(u32::MAX);
        limit.min(self.max_num_batched_tokens)
    }

    /// Returns the maximum number of tokens that a step computes of one sequence.
    pub(super) fn max_sequence_tokens_per_step(&self) -> u32 {
        let slots = self.speculation.as_ref().map_or(0, |s| s.input_slots);
        self.max_scheduled_tokens().min(self.max_num_batched_tokens.saturating_sub(slots))
    }

    /// Returns the maximum number of KV slots that a step needs after the known tokens of a
    /// sequence. They are for its draft tokens, also those of the step in flight, and for the
    /// drafter.
    pub(super) fn max_draft_kv_slots(&self) -> u32 {
        let steps = u32::from(self.async_scheduling) + 1;
        let lookahead = self.speculation.as_ref().map_or(0, |s| s.lookahead_slots);
        lookahead.saturating_add(self.drafts_per_step().saturating_mul(steps))
    }

    pub(super) fn drafts_per_step(&self) -> u32 {
        self.speculation.as_ref().map_or(0, |s| s.accept.len() as u32)
    }
}
