use std::sync::Arc;
use std::time::Duration;

/// Names a sequence within one engine; given by the driver, never reused while it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u64);

/// Names an adapter within one engine; 0 is never used (vLLM's `lora_int_id` starts at 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoraId(pub u32);

/// Identity of one full block of tokens, with all that precedes it: the low 64 bits of its hash,
/// or the hash id of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey(pub u64);

/// The blocks a sequence will fill, prompt first, then planned output.
///
/// The script is finished before it is played, so every hash is known at submission and the
/// engine never hashes. The engine reads `keys` only; the rest is for KV events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockPlan {
    /// One key for each full block of prompt + output, in order.
    pub keys: Vec<BlockKey>,
    /// The whole hash of each block, when events carry bytes; otherwise empty. A shorter hash
    /// stands in front, followed by zeros.
    pub hashes: Vec<[u8; 32]>,
    /// Prompt and planned output token ids; empty when nobody listens to events.
    pub tokens: Vec<u32>,
    /// Tokens per block.
    pub block_size: u32,
    /// Tokens after a block that its key covers too (drafts of vLLM's eagle and mtp).
    pub lookahead: u32,
    /// Adapter, as events show it.
    pub lora: Option<(LoraId, Arc<str>)>,
    /// Per block: what else went into its hash, as events show it; empty when no block has any.
    pub extra_keys: Vec<Option<Arc<[ExtraKey]>>>,
}

/// Something besides tokens that went into the hash of a block (vLLM's `extra_keys`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ExtraKey {
    /// The name of an adapter, or a cache salt.
    Text(Arc<str>),
    /// An image, audio clip or video that overlaps the block.
    Media {
        /// Its content hash.
        identifier: Arc<str>,
        /// Where it begins, counted from the start of the block; it may begin before.
        offset: i64,
    },
}

/// Where the KV cache of the prompt comes from and goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transfer {
    /// Computed here, used here.
    #[default]
    Local,
    /// Computed elsewhere: the prompt is fetched instead of computed (`do_remote_prefill`).
    RemotePrefill,
    /// Computed here for somebody else (`do_remote_decode`).
    RemoteDecode,
}

/// What becomes of a sequence whose prompt could not be loaded (vLLM's `kv_load_failure_policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadFailurePolicy {
    /// It ends with an error.
    #[default]
    Fail,
    /// What did not come is computed here.
    Recompute,
}

/// The first load of a prompt, from another engine or the memory of the host, fails on purpose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadFailure {
    /// What follows.
    pub policy: LoadFailurePolicy,
    /// Share of the blocks from the memory of the host that come before the first one that does not, at
    /// least 0 and less than 1. Of a prompt from another engine nothing is used, as with NIXL.
    pub loaded: f32,
}

/// Draft tokens of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Draft {
    /// How many are proposed; 0: none.
    pub proposed: u8,
    /// Of these, how many are right, from the first on.
    pub accepted: u8,
}

/// What encodes an item of media.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EncoderKind {
    /// Images and videos.
    #[default]
    Vision,
    /// Audio.
    Audio,
}

/// An image, audio clip or video in a prompt.
///
/// **Source:** vLLM `vllm/multimodal/inputs.py`, `MultiModalFeatureSpec`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderInput {
    /// Identity of its content: equal ones are encoded once.
    pub key: u64,
    /// What encodes it.
    pub kind: EncoderKind,
    /// Its first placeholder token.
    pub start: u32,
    /// Its placeholder tokens, each of which stands for one embedding.
    pub len: u32,
}

impl EncoderInput {
    /// One past its last placeholder token.
    pub fn end(&self) -> u32 {
        self.start.saturating_add(self.len)
    }

    /// Items in the order of a prompt; of those that overlap the first one counts. `None`: there
    /// are none.
    pub fn in_order(mut items: Vec<Self>) -> Option<Arc<[Self]>> {
        items.sort_by_key(|item| item.start);
        let mut end = 0;
        items.retain(|item| {
            let apart = item.len > 0 && item.start >= end;
            if apart {
                end = item.end();
            }
            apart
        });
        (!items.is_empty()).then(|| items.into())
    }
}

/// What the engine plays: lengths and keys, no text.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequence {
    /// Its name, given by the driver.
    pub id: SeqId,
    /// Prompt tokens, at least one.
    pub prompt: u32,
    /// Planned output tokens, at least one. The sequence ends when they are all released.
    pub output: u32,
    /// Key of its random streams: a function of the request, not of its arrival.
    pub key: u64,
    /// Lower runs first under the priority policy; ties by arrival.
    pub priority: i64,
    /// Adapter, if any.
    pub lora: Option<LoraId>,
    /// Where its prompt comes from.
    pub transfer: Transfer,
    /// Its load fails; `None`: it does not. The SGLang scheduler ignores it.
    pub load_failure: Option<LoadFailure>,
    /// Its blocks, when the prefix cache is on.
    pub plan: Option<Arc<BlockPlan>>,
    /// Whether to skip the prefix-cache look-up (vLLM does for prompt logprobs).
    pub skip_cache_read: bool,
    /// End at once with [`super::End::Threshold`] when cached / prompt is below this share.
    pub hit_threshold: Option<f64>,
    /// Output positions that follow their predecessor without a gap (the first token of each
    /// further tool call, llm-d-inference-sim `latencies.go`). Sorted. Only the pool scheduler heeds
    /// it: in a batch every token takes a step.
    pub no_gap: Box<[u32]>,
    /// Delay after the last token, before the end (image generation).
    pub tail: Duration,
    /// Delays that it plays by in a pool; `None`: the engine's own when it is submitted.
    pub delays: Option<Arc<super::Delays>>,
    /// When each output token comes, counted from the start: a recorded reply. It stands in place
    /// of the delays of the pool scheduler, which draws those of tokens beyond its end; the
    /// batching schedulers ignore it. Never runs back.
    pub timeline: Option<Arc<[Duration]>>,
    /// What is drafted after its first, second, … output token, where the drafts follow from the
    /// text (`ngram`). `None`: as many as the engine drafts, right by chance. Only the vLLM
    /// scheduler heeds it.
    pub drafts: Option<Arc<[Draft]>>,
    /// Images, audio clips and videos of its prompt, as [`EncoderInput::in_order`] gives them. Only
    /// the vLLM scheduler heeds them.
    pub media: Option<Arc<[EncoderInput]>>,
    /// How long it was prepared before it was submitted. In a pool, if it starts at once, its first
    /// delay is that much shorter: delays count from the arrival of a request.
    pub spent: Duration,
}

impl Sequence {
    /// A plain sequence of `prompt` and `output` tokens.
    pub fn new(id: SeqId, prompt: u32, output: u32) -> Self {
        Self {
            id,
            prompt,
            output,
            key: id.0,
            priority: 0,
            lora: None,
            transfer: Transfer::Local,
            load_failure: None,
            plan: None,
            skip_cache_read: false,
            hit_threshold: None,
            no_gap: Box::default(),
            tail: Duration::ZERO,
            delays: None,
            timeline: None,
            drafts: None,
            media: None,
            spent: Duration::ZERO,
        }
    }
}
