use std::time::Duration;

use crate::EncoderInput;
use crate::kv::{GroupLimits, HostTierConfig, LayerGroups, SparseKind};
use crate::latency::{Batch, Drafting, EncoderLatency, LatencyModel, Speed};
use crate::sched::{ConfigError, MOST_BLOCKS, at_least_one, within};

/// Settings of the vLLM scheduler, named as vLLM names them.
#[derive(Debug, Clone, PartialEq)]
pub struct VllmConfig {
    /// The model of step times.
    pub latency: LatencyModel,
    /// By what durations are divided.
    pub speed: Speed,
    /// Blocks that can be used (vLLM's own count includes one null block).
    pub num_gpu_blocks: u32,
    /// Tokens per block. Default 16.
    pub block_size: u32,
    /// Sequences in the running batch. Default 256.
    pub max_num_seqs: u32,
    /// Tokens of one step. Default 8192.
    pub max_num_batched_tokens: u32,
    /// Prompt + output; longer outputs are cut. Default: no limit.
    pub max_model_len: u32,
    /// Whether a prompt may be computed in several steps. Default yes.
    pub enable_chunked_prefill: bool,
    /// Whether full blocks are kept for later prompts. Default yes.
    pub enable_prefix_caching: bool,
    /// Groups of layers, where not all see everything. Default none.
    pub layer_groups: Option<LayerGroups>,
    /// Longest chunk of a prompt, unless it is alone in the engine; 0: the token budget. Default 0.
    pub long_prefill_token_threshold: u32,
    /// Whether such a chunk may be at least the sequence's share of the budget. Default no.
    pub long_prefill_token_threshold_adaptive: bool,
    /// While sequences decode, steps from one with prompt work to the next. Default 1.
    pub prefill_schedule_interval: u32,
    /// Order of the waiting queue. Default first come, first served.
    pub policy: Policy,
    /// Whether the next step is scheduled while one runs. Default yes.
    pub async_scheduling: bool,
    /// Which running sequence loses its blocks. Default the last.
    pub victim: Victim,
    /// Whether a prompt waits until all of it fits (`scheduler_reserve_full_isl`). Default yes.
    pub reserve_full_prompt: bool,
    /// Share of the blocks that stay free when a waiting sequence joins others. Default 0.
    pub watermark: f64,
    /// Draft tokens. Default none.
    pub speculation: Option<Speculation>,
    /// How long it takes to make them. Default no time.
    pub drafting: Option<Box<Drafting>>,
    /// What every step takes to read the weights that are not on the GPU. Default no time.
    pub weights_from_host: Duration,
    /// Adapters in one batch; 0: no limit. Default 0.
    pub max_loras: u32,
    /// Adapters kept at hand, in slots or beside them; at least `max_loras`. Default 0.
    pub max_cpu_loras: u32,
    /// How long the batch waits for an adapter that is not at hand yet. Default not at all.
    pub lora_load: Duration,
    /// What the encoders of images and audio may do. Default none: media are tokens like others.
    pub encoder: Option<Box<EncoderConfig>>,
    /// Bound of the waiting queue. Default none.
    pub max_waiting: Option<usize>,
    /// Time to fetch a remote prompt: fixed, and per token. Default none.
    pub fetch: (Duration, Duration),
    /// Whether tokens that are cached here are fetched all the same. Default no.
    pub fetch_whole_prompt: bool,
    /// How long the blocks of a prompt that another engine decodes are kept for it; `None`: not at
    /// all. Default none.
    pub lease: Option<Duration>,
    /// Whether it is a rank whose steps begin and end with those of others
    /// ([`LockStep`](crate::lock_step::LockStep)). Default no.
    pub lock_step: bool,
    /// A second prefix cache in the memory of the host. Default none.
    pub host_tier: Option<HostTierConfig>,
    /// Whether anybody wants block events. Default no.
    pub kv_events: bool,
    /// Whether runs of single tokens are reported as one [`Event::Decoded`](crate::Event), for
    /// speed, instead of token by token. Default no.
    pub run_lengths: bool,
    /// Decides whether [`Scheduler::take_admissions`](crate::Scheduler::take_admissions) is fed. Default no.
    pub log_admissions: bool,
    /// Seed of the speculative draws.
    pub seed: u64,
}

/// Order of the waiting queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// By arrival; preempted sequences first.
    #[default]
    Fcfs,
    /// By priority (lower first), then by arrival.
    Priority,
}

/// Which running sequence is preempted (the priority policy ignores this: lowest priority, then
/// latest arrival).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Victim {
    /// The one admitted last.
    #[default]
    Last,
    /// The one admitted first, but not again and again before it made a token: two sequences could
    /// take turns in robbing each other. For the same reason full prompts are reserved.
    First,
}

/// Speculative decoding, reduced to its acceptance rates.
#[derive(Debug, Clone, PartialEq)]
pub struct Speculation {
    /// Chance that draft token i is accepted when all before it were. One entry per draft token.
    pub accept: Vec<f64>,
    /// Whether a hit in the prefix cache gives up its last block, whose cache of the draft model is
    /// not to be trusted (eagle and mtp with plain block hashes).
    pub drops_last_block: bool,
}

/// What the encoders of images and audio may do.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderConfig {
    /// Embeddings that a step may make, at least one.
    pub budget: u32,
    /// Embeddings that stay for later steps and requests, at least one.
    pub cache_size: u32,
    /// Whether a chunk of a prompt may end inside an item (without `disable_chunked_mm_input`).
    pub chunked_input: bool,
    /// How long it takes, in front of the step; `None`: no time.
    pub latency: Option<Box<EncoderLatency>>,
}

impl Default for VllmConfig {
    fn default() -> Self {
        Self {
            latency: LatencyModel::ZERO,
            speed: Speed::default(),
            num_gpu_blocks: 16_384,
            block_size: 16,
            max_num_seqs: 256,
            max_num_batched_tokens: 8192,
            max_model_len: u32::MAX,
            enable_chunked_prefill: true,
            enable_prefix_caching: true,
            layer_groups: None,
            long_prefill_token_threshold: 0,
            long_prefill_token_threshold_adaptive: false,
            prefill_schedule_interval: 1,
            policy: Policy::default(),
            async_scheduling: true,
            victim: Victim::default(),
            reserve_full_prompt: true,
            watermark: 0.0,
            speculation: None,
            drafting: None,
            weights_from_host: Duration::ZERO,
            max_loras: 0,
            max_cpu_loras: 0,
            lora_load: Duration::ZERO,
            encoder: None,
            max_waiting: None,
            fetch: (Duration::ZERO, Duration::ZERO),
            fetch_whole_prompt: false,
            lease: None,
            lock_step: false,
            host_tier: None,
            kv_events: false,
            run_lengths: false,
            log_admissions: false,
            seed: 0,
        }
    }
}

impl VllmConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within(
            "num_gpu_blocks",
            self.num_gpu_blocks.into(),
            1.0,
            MOST_BLOCKS,
        )?;
        at_least_one("block_size", self.block_size)?;
        at_least_one("max_num_seqs", self.max_num_seqs)?;
        at_least_one("max_num_batched_tokens", self.max_num_batched_tokens)?;
        at_least_one("max_model_len", self.max_model_len)?;
        at_least_one("prefill_schedule_interval", self.prefill_schedule_interval)?;
        if let Some(tier) = &self.host_tier {
            within("host chunks", tier.chunks.into(), 1.0, MOST_BLOCKS)?;
            at_least_one("blocks_per_chunk", tier.blocks_per_chunk)?;
            if self.layer_groups.is_some() {
                let blocks = tier.blocks_per_chunk;
                within("blocks_per_chunk of layer groups", blocks.into(), 1.0, 1.0)?;
            }
        }
        if let Some(encoder) = &self.encoder {
            at_least_one("encoder budget", encoder.budget)?;
            at_least_one("encoder cache size", encoder.cache_size)?;
        }
        within("watermark", self.watermark, 0.0, 1.0)?;
        within("speedup_ratio", self.speed.all, 0.0, f64::MAX)?;
        within("decode_speedup_ratio", self.speed.decode, 0.0, f64::MAX)?;
        for &rate in self.speculation.iter().flat_map(|s| &s.accept) {
            within("acceptance rate", rate, 0.0, 1.0)?;
        }
        Ok(())
    }

    /// Returns whether sequences are decoded in bulk: somebody asks for run lengths, and a sequence that
    /// decodes does the same in every step.
    ///
    /// Names every setting, so that a new one does not compile until its place is decided.
    pub(super) fn decodes_in_bulk(&self) -> bool {
        let Self {
            run_lengths,
            // Steps that yield several tokens of one sequence.
            speculation,
            // Sequences that take turns, or wait for each other.
            max_loras,
            prefill_schedule_interval,
            // What is generated is offered to the host step by step.
            host_tier,
            // The time of a step follows from sums over its batch, which the bulk keeps.
            latency: _,
            speed: _,
            drafting: _,
            weights_from_host: _,
            // A step in which somebody might lack tokens or blocks is made sequence by sequence.
            num_gpu_blocks: _,
            block_size: _,
            max_num_seqs: _,
            max_num_batched_tokens: _,
            max_model_len: _,
            async_scheduling: _,
            victim: _,
            layer_groups: _,
            enable_prefix_caching: _,
            // These concern sequences that wait, or compute their prompts.
            enable_chunked_prefill: _,
            long_prefill_token_threshold: _,
            long_prefill_token_threshold_adaptive: _,
            policy: _,
            reserve_full_prompt: _,
            watermark: _,
            max_cpu_loras: _,
            lora_load: _,
            encoder: _,
            max_waiting: _,
            fetch: _,
            fetch_whole_prompt: _,
            // What follows a sequence's last token, or lies outside of a step.
            lease: _,
            lock_step: _,
            kv_events: _,
            log_admissions: _,
            seed: _,
        } = self;
        let one_token = speculation.as_ref().is_none_or(|s| s.accept.is_empty());
        let offers_outputs = host_tier.as_ref().is_some_and(|tier| tier.outputs);
        *run_lengths
            && one_token
            && *max_loras == 0
            && *prefill_schedule_interval == 1
            && !offers_outputs
    }

    /// Steps that may be scheduled and not settled.
    pub(super) fn steps_ahead(&self) -> u32 {
        if self.async_scheduling { 2 } else { 1 }
    }

    /// What the rules of groups need to know.
    pub(super) fn group_limits(&self) -> GroupLimits {
        let steps = self.steps_ahead();
        let in_flight = match self.enable_chunked_prefill {
            true => self.max_num_batched_tokens.saturating_mul(steps),
            false => u32::MAX,
        };
        let speculation = self.speculation.as_ref();
        GroupLimits {
            in_flight,
            max_model_len: self.max_model_len,
            drafts: self.drafts(),
            drops_last: speculation.is_some_and(|s| s.drops_last_block),
        }
    }

    /// Whether chunks of prompts end where blocks do, so that others find the states there.
    pub(super) fn aligns_chunks(&self) -> bool {
        let kind = self.layer_groups.map(|groups| groups.kind);
        self.enable_prefix_caching && matches!(kind, Some(SparseKind::State(_)))
    }

    /// How long a step takes, the drafts for the next one included.
    pub fn step_time(&self, batch: &Batch) -> Duration {
        let drafting = self.drafting.as_ref();
        let drafting = drafting.map(|drafting| drafting.step(batch, self.speed));
        let computing = self.latency.step(batch, self.speed) + drafting.unwrap_or_default();
        computing + self.weights_from_host
    }

    /// How long encoders take to make embeddings of these items together.
    pub fn encoder_time(&self, inputs: impl Iterator<Item = EncoderInput> + Clone) -> Duration {
        let latency = self
            .encoder
            .as_ref()
            .and_then(|encoder| encoder.latency.as_ref());
        latency.map_or(Duration::ZERO, |latency| {
            latency.time(inputs, self.speed.all)
        })
    }

    /// Adapters that need not be loaded again.
    pub(super) fn kept_loras(&self) -> usize {
        self.max_loras.max(self.max_cpu_loras) as usize
    }

    /// Draft tokens per step.
    pub(super) fn drafts(&self) -> u32 {
        self.speculation
            .as_ref()
            .map_or(0, |s| s.accept.len() as u32)
    }
}
