use std::sync::Arc;
use std::time::Duration;

use vllm_sim_random::DrawRandom;

/// Identifies a sequence within one engine. The driver assigns the id; it is unique among
/// unfinished sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u64);

/// Identifies a LoRA adapter within one engine; 0 is never used (vLLM's `lora_int_id` starts at 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoraId(pub u32);

/// Identifies the content of a full KV block and all tokens before it: the low 64 bits of the
/// block's hash, or the block's hash id in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey(pub u64);

/// Lists the KV blocks that a sequence will fill, first of the prompt, then of the planned output.
///
/// Replies are generated before submission, so all hashes are known then and the engine does not
/// hash. The engine reads only `keys`; the other fields are for KV events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlannedKvBlocks {
    /// Key of each full KV block of prompt plus planned output, in order.
    pub keys: Vec<BlockKey>,
    /// Full hash of each planned KV block if KV events carry hashes as bytes, else empty. Shorter
    /// hashes are padded with zeros at the end.
    pub hashes: Vec<[u8; 32]>,
    /// Token ids of prompt and planned output; empty if no KV events are published.
    pub tokens: Vec<u32>,
    /// Number of tokens per KV block.
    pub block_size: u32,
    /// Number of tokens after a KV block that the block's key covers too (for vLLM's draft methods
    /// eagle and mtp).
    pub lookahead: u32,
    /// Id and name of the LoRA adapter, as in KV events.
    pub lora: Option<(LoraId, Arc<str>)>,
    /// Extra hash keys of each KV block, as in KV events; empty if no block has any.
    pub extra_keys: Vec<Option<Arc<[BlockHashExtraKey]>>>,
    /// Session of the request, as in KV events; it does not change the keys of KV blocks.
    pub session: Option<Arc<str>>,
    /// Whether KV blocks found in the prefix cache are reported as KV events (vLLM's
    /// `kv_cache_report_mode: full`).
    pub reports_reused: bool,
}

/// Input of a block hash other than tokens (vLLM's `extra_keys`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum BlockHashExtraKey {
    /// Name of the LoRA adapter, or the cache salt, which is hashed into the KV block's hash.
    Text(Arc<str>),
    /// Media item (image, audio clip or video) that overlaps the KV block.
    Media {
        /// Hash of the media item's content.
        identifier: Arc<str>,
        /// Start of the media item relative to the start of the KV block, in tokens; negative if
        /// the item begins before the block.
        offset: i64,
    },
}

/// Selects source and destination of a prompt's KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptKvTransfer {
    /// The KV cache of the prompt is computed and used locally.
    #[default]
    Local,
    /// The KV cache of the prompt is fetched from another engine (`do_remote_prefill`).
    RemotePrefill,
    /// The KV cache of the prompt is computed for another engine (`do_remote_decode`).
    RemoteDecode,
}

/// Selects how a sequence continues after the KV cache of its prompt could not be loaded (vLLM's
/// `kv_load_failure_policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvLoadFailurePolicy {
    /// The sequence ends with an error.
    #[default]
    Fail,
    /// The part of the prompt whose KV cache could not be loaded is computed locally.
    Recompute,
}

/// Injects a failure into the first load of a prompt's KV cache, from another engine or from host
/// memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InjectedKvLoadFailure {
    /// Policy after the failed KV load: end or recompute.
    pub policy: KvLoadFailurePolicy,
    /// Fraction of the KV blocks loaded from host memory that precede the first failed block, from
    /// 0 to below 1. A remote prompt is lost completely, as with NIXL.
    pub loaded: f32,
}

/// Describes the compilation of the grammar of a structured output, for which the sequence waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrammarCompilation {
    /// Time from the submission of the sequence to the end of the compilation of its grammar.
    pub takes: Duration,
    /// Whether the compilation of the grammar fails, so that the sequence ends with
    /// [`SequenceEndReason::Failed`](super::SequenceEndReason::Failed).
    pub fails: bool,
}

/// Counts the draft tokens of a sequence in one step of speculative decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepDraftCounts {
    /// Number of draft tokens proposed in one step.
    pub proposed: u8,
    /// Number of draft tokens accepted in one step.
    pub accepted: u8,
}

/// Selects the encoder of an image, audio clip or video.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MediaEncoderKind {
    /// Encoder of images and videos.
    #[default]
    Vision,
    /// Encoder of audio.
    Audio,
}

/// Describes an image, audio clip or video in a prompt.
///
/// **Source:** vLLM `vllm/multimodal/inputs.py`, `MultiModalFeatureSpec`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptMediaItem {
    /// Hash of the media item's content; equal items are encoded once.
    pub key: u64,
    /// Encoder of the media item.
    pub kind: MediaEncoderKind,
    /// Index in the prompt of the media item's first placeholder token.
    pub start: u32,
    /// Number of the media item's placeholder tokens, one per embedding.
    pub len: u32,
}

impl PromptMediaItem {
    /// Returns the prompt index after the media item's last placeholder token.
    pub fn end_token_index(&self) -> u32 {
        self.start.saturating_add(self.len)
    }

    /// Sorts media items by their position and drops those that overlap an earlier one. Returns
    /// `None` if no items remain.
    pub fn sorted_without_overlap(mut media_items: Vec<Self>) -> Option<Arc<[Self]>> {
        media_items.sort_by_key(|item| item.start);
        let mut end = 0;
        media_items.retain(|item| {
            let apart = item.len > 0 && item.start >= end;
            if apart {
                end = item.end_token_index();
            }
            apart
        });
        (!media_items.is_empty()).then(|| media_items.into())
    }
}

/// Describes a request for the engine: numbers of tokens and block keys, no text.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequence {
    /// Id of the sequence, assigned by the driver.
    pub id: SeqId,
    /// Number of prompt tokens, at least one.
    pub prompt: u32,
    /// Number of planned output tokens, at least one. The sequence ends after the last of these
    /// tokens.
    pub output: u32,
    /// Key of the sequence's random numbers: depends on the request, not on its arrival.
    pub key: u64,
    /// Priority of the sequence under the priority policy; lower runs first, ties by arrival.
    pub priority: i64,
    /// LoRA adapter of the request, if any.
    pub lora: Option<LoraId>,
    /// Source and destination of the prompt's KV cache.
    pub transfer: PromptKvTransfer,
    /// Injected failure of the KV load; `None`: no failure. Ignored by the SGLang scheduler.
    pub load_failure: Option<InjectedKvLoadFailure>,
    /// Compilation of the grammar of a structured output; `None`: no grammar, or an already
    /// compiled one. Only used by the vLLM scheduler.
    pub grammar: Option<GrammarCompilation>,
    /// Keys of the KV blocks that the sequence fills; `None` without a prefix cache.
    pub plan: Option<Arc<PlannedKvBlocks>>,
    /// Whether the prefix-cache lookup is skipped, as in vLLM for prompt logprobs.
    pub skip_cache_read: bool,
    /// Minimum fraction of the prompt that must be in the prefix cache. A sequence with a lower
    /// fraction ends with [`SequenceEndReason::Threshold`](super::SequenceEndReason::Threshold).
    pub hit_threshold: Option<f64>,
    /// Indices of output tokens that follow without a delay, sorted (the first token of each
    /// further tool call, llm-d-inference-sim `latencies.go`). Only used by the pool scheduler: in
    /// a batch every token takes a step.
    pub tokens_without_gap: Box<[u32]>,
    /// Delay between the last token and the end of the sequence (image generation).
    pub tail: Duration,
    /// Token delays of the sequence in the pool scheduler; `None`: the delays of the engine when
    /// the sequence is submitted.
    pub delays: Option<Arc<super::TokenDelays>>,
    /// Recorded times of the output tokens since the start of the sequence, never decreasing. They
    /// replace the delays of the pool scheduler, which draws delays only for later tokens. Ignored
    /// by batching schedulers.
    pub timeline: Option<Arc<[Duration]>>,
    /// Numbers of draft tokens after the first, second, ... output token, if the text determines
    /// them (`ngram`). `None`: random acceptance. Only used by the vLLM scheduler.
    pub drafts: Option<Arc<[StepDraftCounts]>>,
    /// Media items of the prompt, from [`PromptMediaItem::sorted_without_overlap`]. Only used by
    /// the vLLM scheduler.
    pub media: Option<Arc<[PromptMediaItem]>>,
    /// Time between arrival and submission of the request. The pool scheduler subtracts this time
    /// from the first delay of a sequence that starts immediately.
    pub preparation_time: Duration,
    /// Remaining time in the simulated API server, before the sequence reaches the scheduler's queue
    /// ([`Scheduler::front_end_delay`]).
    ///
    /// [`Scheduler::front_end_delay`]: crate::Scheduler::front_end_delay
    pub front_end_delay: Duration,
}

impl Sequence {
    /// Creates a sequence of `prompt` and `output` tokens, with defaults for all other fields.
    pub fn new(id: SeqId, prompt: u32, output: u32) -> Self {
        Self {
            id,
            prompt,
            output,
            key: id.0,
            priority: 0,
            lora: None,
            transfer: PromptKvTransfer::Local,
            load_failure: None,
            grammar: None,
            plan: None,
            skip_cache_read: false,
            hit_threshold: None,
            tokens_without_gap: Box::default(),
            tail: Duration::ZERO,
            delays: None,
            timeline: None,
            drafts: None,
            media: None,
            preparation_time: Duration::ZERO,
            front_end_delay: Duration::ZERO,
        }
    }
}

/// Maximum length of one simulated delay, both as configured and after multiplication with load
/// factors.
pub const MAX_SIMULATED_DELAY: Duration = Duration::from_secs(24 * 3600);

/// Selects the formula of the simulated delay before the first token.
///
/// **Source:** `pkg/llm-d-inference-sim/latencies.go`, llm-d-inference-sim HEAD of 2026-08.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TtftFormula {
    /// A constant TTFT if one is set, and otherwise a delay per uncached prompt token.
    #[default]
    Default,
    /// The constant TTFT only.
    Constant,
    /// A delay per uncached prompt token only.
    PerToken,
}

/// Holds the configured token delays of the pool scheduler, and of batching schedulers without a
/// latency model.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenDelays {
    /// Formula of the delay before the first token.
    pub calculator: TtftFormula,
    /// Mean delay before the first token, and its standard deviation.
    pub ttft: (Duration, Duration),
    /// Mean delay before each further token, and its standard deviation.
    pub itl: (Duration, Duration),
    /// Mean time to fetch the KV cache of a remote prompt, and its standard deviation.
    pub kv_transfer: (Duration, Duration),
    /// Fixed part of the prefill time, if the prefill time depends on the prompt length.
    pub prefill_overhead: Duration,
    /// Prefill time per uncached prompt token.
    pub prefill_per_token: Duration,
    /// Standard deviation of the prefill time, if the prefill time depends on the prompt length.
    pub prefill_std_dev: Duration,
    /// Time to fetch the KV cache of one prompt token from another engine.
    pub kv_transfer_per_token: Duration,
    /// Standard deviation of the time to fetch the KV cache of one prompt token.
    pub kv_transfer_per_token_std_dev: Duration,
    /// Factor of all delays when all slots are busy, relative to a single running sequence; at
    /// least 1.
    pub factor_under_load: f64,
    /// Divisor of all delays; above 0.
    pub speedup: f64,
}

impl Default for TokenDelays {
    fn default() -> Self {
        Self {
            calculator: TtftFormula::Default,
            ttft: Default::default(),
            itl: Default::default(),
            kv_transfer: Default::default(),
            prefill_overhead: Duration::ZERO,
            prefill_per_token: Duration::ZERO,
            prefill_std_dev: Duration::ZERO,
            kv_transfer_per_token: Duration::ZERO,
            kv_transfer_per_token_std_dev: Duration::ZERO,
            factor_under_load: 1.0,
            speedup: 1.0,
        }
    }
}

impl TokenDelays {
    /// Returns the factor of delays while `running` of `slots` sequence slots are busy: `1 + (F -
    /// 1) x (running - 1) / (slots - 1)`, where F is `factor_under_load`.
    pub fn delay_factor_under_load(&self, running: usize, slots: usize) -> f64 {
        if slots <= 1 || self.factor_under_load <= 1.0 {
            return 1.0;
        }
        let share = running.saturating_sub(1) as f64 / (slots - 1) as f64;
        1.0 + (self.factor_under_load - 1.0) * share
    }

    /// Draws the delay before the first token of a prompt, `cached` tokens of which are in the
    /// prefix cache.
    ///
    /// `load` is a factor of prefill times; it does not change the time of a KV transfer.
    pub fn draw_first_token_delay(
        &self,
        prompt: u32,
        cached: u32,
        transfer: PromptKvTransfer,
        load: f64,
        rng: &mut impl DrawRandom,
    ) -> Duration {
        let constant = match self.calculator {
            TtftFormula::Constant => true,
            TtftFormula::PerToken => false,
            TtftFormula::Default if transfer == PromptKvTransfer::RemotePrefill => {
                self.kv_transfer != (Duration::ZERO, Duration::ZERO)
            }
            TtftFormula::Default => !self.ttft.0.is_zero(),
        };
        let delay = match (transfer, constant) {
            (PromptKvTransfer::RemotePrefill, true) => {
                rng.draw_clamped_delay(self.kv_transfer.0, self.kv_transfer.1)
            }
            (PromptKvTransfer::RemotePrefill, false) => rng.draw_clamped_delay(
                self.kv_transfer_per_token.saturating_mul(prompt),
                self.kv_transfer_per_token_std_dev,
            ),
            (_, true) => rng.draw_clamped_delay(
                scale_duration(self.ttft.0, load),
                scale_duration(self.ttft.1, load),
            ),
            (_, false) => {
                let work = self.prefill_per_token.saturating_mul(prompt.saturating_sub(cached));
                let mean = scale_duration(self.prefill_overhead.saturating_add(work), load);
                rng.draw_clamped_delay(mean, self.prefill_std_dev)
            }
        };
        self.divide_by_speedup(delay)
    }

    /// Returns the mean time of a step that computes `tokens` prompt tokens, before the load factor
    /// and the speedup.
    pub fn mean_prefill_time(&self, tokens: u64) -> Duration {
        let constant = match self.calculator {
            TtftFormula::Constant => true,
            TtftFormula::PerToken => false,
            TtftFormula::Default => !self.ttft.0.is_zero(),
        };
        if constant {
            return self.ttft.0;
        }
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let work = self.prefill_per_token.saturating_mul(tokens);
        self.prefill_overhead.saturating_add(work)
    }

    /// Draws the delay before each token after the first.
    pub fn draw_inter_token_delay(&self, load: f64, rng: &mut impl DrawRandom) -> Duration {
        let delay = rng
            .draw_clamped_delay(scale_duration(self.itl.0, load), scale_duration(self.itl.1, load));
        self.divide_by_speedup(delay)
    }

    pub(crate) fn mean_inter_token_delay(&self, load: f64) -> Duration {
        scale_duration(self.itl.0, load / self.speedup).min(MAX_SIMULATED_DELAY)
    }

    pub(crate) fn divide_by_speedup(&self, delay: Duration) -> Duration {
        scale_duration(delay, 1.0 / self.speedup).min(MAX_SIMULATED_DELAY)
    }

    /// Returns whether all standard deviations are zero, so that delays need no random numbers.
    pub fn has_deterministic_delays(&self) -> bool {
        [
            self.ttft.1,
            self.itl.1,
            self.kv_transfer.1,
            self.prefill_std_dev,
            self.kv_transfer_per_token_std_dev,
        ]
        .iter()
        .all(Duration::is_zero)
    }
}

fn scale_duration(d: Duration, by: f64) -> Duration {
    if by == 1.0 || d.is_zero() {
        return d;
    }
    let nanos = d.as_nanos() as f64 * by;
    if nanos.is_finite() { Duration::from_nanos(nanos.round() as u64) } else { Duration::MAX }
}
