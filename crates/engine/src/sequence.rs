use std::sync::Arc;
use std::time::Duration;

/// Identifies a sequence within one engine. The driver assigns the id; it is unique among
/// unfinished sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u64);

/// Identifies a LoRA adapter within one engine; 0 is never used (vLLM's `lora_int_id` starts at 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoraId(pub u32);

/// Identifies the content of a full KV block and all tokens before it: the low 64 bits of its hash,
/// or the hash id of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey(pub u64);

/// Lists the KV blocks that a sequence will fill, first of the prompt, then of the planned output.
///
/// Replies are generated before submission, so all hashes are known then and the engine does not
/// hash. The engine reads only `keys`; the other fields are for KV events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockPlan {
    /// Key of each full block of prompt plus output, in order.
    pub keys: Vec<BlockKey>,
    /// Full hash of each block if KV events carry hashes as bytes, else empty. Shorter hashes are
    /// padded with zeros at the end.
    pub hashes: Vec<[u8; 32]>,
    /// Token ids of prompt and planned output; empty if no KV events are published.
    pub tokens: Vec<u32>,
    /// Number of tokens per KV block.
    pub block_size: u32,
    /// Number of tokens after a block that its key covers too (vLLM's eagle and mtp drafts).
    pub lookahead: u32,
    /// Id and name of the LoRA adapter, as in KV events.
    pub lora: Option<(LoraId, Arc<str>)>,
    /// Extra keys of each block, as in KV events; empty if no block has any.
    pub extra_keys: Vec<Option<Arc<[ExtraKey]>>>,
    /// Session of the request, as in KV events; it does not change the keys.
    pub session: Option<Arc<str>>,
    /// Whether blocks found in the prefix cache are reported as KV events (vLLM's
    /// `kv_cache_report_mode: full`).
    pub reports_reused: bool,
}

/// Input of a block hash other than tokens (vLLM's `extra_keys`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ExtraKey {
    /// LoRA adapter name or cache salt.
    Text(Arc<str>),
    /// Media item (image, audio clip or video) that overlaps the block.
    Media {
        /// Hash of the media item's content.
        identifier: Arc<str>,
        /// Start of the media item relative to the block, in tokens; negative if it begins before.
        offset: i64,
    },
}

/// Selects source and destination of a prompt's KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptTransfer {
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
pub enum LoadFailurePolicy {
    /// The sequence ends with an error.
    #[default]
    Fail,
    /// The missing part of the prompt is computed locally.
    Recompute,
}

/// Injects a failure into the first load of a prompt's KV cache, from another engine or from host
/// memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadFailure {
    /// Policy after the failed KV load: end or recompute.
    pub policy: LoadFailurePolicy,
    /// Fraction of the blocks from host memory that precede the first failed one, from 0 to below
    /// 1. A remote prompt is lost completely, as with NIXL.
    pub loaded: f32,
}

/// Describes the compilation of the grammar of a structured output. The sequence waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrammarCompilation {
    /// Time from the submission of the sequence to the end of the compilation.
    pub takes: Duration,
    /// Whether the compilation fails, so that the sequence ends with
    /// [`SequenceEndReason::Failed`](super::SequenceEndReason::Failed).
    pub fails: bool,
}

/// Counts the draft tokens of a sequence in one step of speculative decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepDrafts {
    /// Number of draft tokens proposed in one step.
    pub proposed: u8,
    /// Number of draft tokens accepted in one step.
    pub accepted: u8,
}

/// Selects the encoder of an image, audio clip or video.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EncoderKind {
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
    pub kind: EncoderKind,
    /// Index in the prompt of the media item's first placeholder token.
    pub start: u32,
    /// Number of the media item's placeholder tokens, one per embedding.
    pub len: u32,
}

impl PromptMediaItem {
    /// Returns the index in the prompt after the media item's last placeholder token.
    pub fn end_token_index(&self) -> u32 {
        self.start.saturating_add(self.len)
    }

    /// Sorts media items by their position and drops those that overlap an earlier one. Returns
    /// `None` if no items remain.
    pub fn sorted_without_overlap(mut items: Vec<Self>) -> Option<Arc<[Self]>> {
        items.sort_by_key(|item| item.start);
        let mut end = 0;
        items.retain(|item| {
            let apart = item.len > 0 && item.start >= end;
            if apart {
                end = item.end_token_index();
            }
            apart
        });
        (!items.is_empty()).then(|| items.into())
    }
}

/// Describes a request for the engine: numbers of tokens and block keys, no text.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequence {
    /// Id of the sequence, assigned by the driver.
    pub id: SeqId,
    /// Number of prompt tokens, at least one.
    pub prompt: u32,
    /// Number of planned output tokens, at least one. The sequence ends after the last one.
    pub output: u32,
    /// Key of the sequence's random numbers: depends on the request, not on its arrival.
    pub key: u64,
    /// Priority of the sequence under the priority policy; lower runs first, ties by arrival.
    pub priority: i64,
    /// LoRA adapter of the request, if any.
    pub lora: Option<LoraId>,
    /// Source and destination of the prompt's KV cache.
    pub transfer: PromptTransfer,
    /// Injected failure of the KV load; `None`: no failure. Ignored by the SGLang scheduler.
    pub load_failure: Option<LoadFailure>,
    /// Compilation of the grammar of a structured output; `None`: no grammar, or it is compiled. Only
    /// used by the vLLM scheduler.
    pub grammar: Option<GrammarCompilation>,
    /// Keys of the KV blocks that the sequence fills; `None` without a prefix cache.
    pub plan: Option<Arc<BlockPlan>>,
    /// Whether the prefix-cache lookup is skipped, as in vLLM for prompt logprobs.
    pub skip_cache_read: bool,
    /// Minimum cached fraction of the prompt; below it the sequence ends with
    /// [`SequenceEndReason::Threshold`](super::SequenceEndReason::Threshold).
    pub hit_threshold: Option<f64>,
    /// Indices of output tokens that follow without a delay, sorted (the first token of each
    /// further tool call, llm-d-inference-sim `latencies.go`). Only used by the pool scheduler: in
    /// a batch every token takes a step.
    pub tokens_without_gap: Box<[u32]>,
    /// Delay between the last token and the end of the sequence (image generation).
    pub tail: Duration,
    /// Token delays of the sequence in the pool scheduler; `None`: those of the engine at its
    /// submission.
    pub delays: Option<Arc<super::TokenDelays>>,
    /// Recorded release times of output tokens since the start of the sequence, never decreasing.
    /// They replace the delays of the pool scheduler, which draws delays for further tokens.
    /// Ignored by batching schedulers.
    pub timeline: Option<Arc<[Duration]>>,
    /// Numbers of draft tokens after the first, second, ... output token, if they follow from the
    /// text (`ngram`). `None`: random acceptance. Only used by the vLLM scheduler.
    pub drafts: Option<Arc<[StepDrafts]>>,
    /// Media items of the prompt, from [`PromptMediaItem::sorted_without_overlap`]. Only used by the vLLM scheduler.
    pub media: Option<Arc<[PromptMediaItem]>>,
    /// Time between arrival and submission of the request. The pool scheduler subtracts it from the
    /// first delay of a sequence that starts immediately.
    pub preparation_time: Duration,
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
            transfer: PromptTransfer::Local,
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
        }
    }
}
