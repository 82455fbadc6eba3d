//! Input of the generator of reply content, independent of the protocol.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde_json::Value;

pub use super::steering::{StopString, TokenIdSet, TokenSteering};
use super::tools::ToolCall;
use crate::scripted::ScriptedReply;
use vllm_sim_engine::{EncoderKind, PromptMediaItem, SimTime};
use vllm_sim_tokenizer::{MediaModality, PlacedMediaItem, SpecialTokens};

/// The model that answers a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelTarget {
    /// The base model, under any of its served names.
    Base,
    /// A loaded LoRA adapter.
    Lora {
        /// Name of the adapter, shown as the model in responses.
        name: Arc<str>,
        /// Numeric id of the adapter in the engines.
        id: u32,
    },
}

/// A tokenized prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenizedPrompt {
    /// Token ids of the prompt, as the engine receives them.
    pub tokens: Vec<u32>,
    /// Token id outside the 32-bit range, as the client sent it; `tokens` has `u32::MAX` in its
    /// place.
    pub unknown_id: Option<i64>,
    /// Text of the reply in echo mode.
    pub echo: Box<str>,
    /// Token ids of the reply in echo mode; `None` encodes `echo`.
    pub echo_ids: Option<Arc<[u32]>>,
    /// Token ids of the reasoning's start; `None` unless the client parses tokens and the prompt
    /// lacks them.
    pub reasoning_start: Option<Arc<[u32]>>,
    /// Images, audio clips and videos among the tokens, in order.
    pub media: Vec<PlacedMediaItem>,
    /// Hash of the conversation, if the dataset identifies prompts by their text; `None` uses the
    /// hash of `echo`.
    pub text_hash: Option<[u8; 32]>,
    /// Audio clip to transcribe.
    pub audio: Option<AudioInput>,
    /// JSON Schema of the reply, found in the prompt text.
    pub schema: Option<Arc<Value>>,
}

impl TokenizedPrompt {
    /// Returns the media of the prompt in the form that the engine's encoders need.
    pub(crate) fn encoder_inputs(&self) -> Option<Arc<[PromptMediaItem]>> {
        if self.media.is_empty() {
            return None;
        }
        let inputs = self.media.iter().map(|item| {
            let mut hasher = DefaultHasher::new();
            item.identifier.hash(&mut hasher);
            PromptMediaItem {
                key: hasher.finish(),
                kind: match item.modality {
                    MediaModality::Image | MediaModality::Video => EncoderKind::Vision,
                    MediaModality::Audio => EncoderKind::Audio,
                },
                start: item.start,
                len: item.len,
            }
        });
        PromptMediaItem::sorted_without_overlap(inputs.collect())
    }
}

/// An audio clip to transcribe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AudioInput {
    /// Hash of the clip's content; equal clips get equal transcripts.
    pub key: u64,
    /// Length of the clip's transcript, in tokens.
    pub tokens: u32,
}

/// The conditions, other than the token limit, that end a sequence.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StopConditions {
    /// Stop strings; the one that occurs first in the output ends it.
    pub strings: Vec<StopString>,
    /// Whether a matched stop string stays in the output.
    pub include: bool,
    /// Stop token ids, in addition to the model's end-of-sequence tokens.
    pub ids: TokenIdSet,
    /// Whether the model's end-of-sequence tokens are ignored.
    pub ignore_eos: bool,
    /// Minimum number of output tokens before a stop condition applies.
    pub min_tokens: u32,
}

/// The form of a reply's content.
#[derive(Debug, Clone, Default)]
pub enum ReplyForm {
    /// Free text, from the generator's text mode.
    #[default]
    Text,
    /// A fixed text (structured output), cut only by the token limit.
    Exact(Arc<str>),
    /// A fixed text that is parsed for tool calls in the format of Hermes models.
    Parsed(Arc<str>),
    /// Tool calls, written as the raw text of a model.
    Calls(Vec<ToolCall>),
    /// A scripted reply, cut only by the token limit.
    Scripted(Arc<ScriptedReply>),
}

impl ReplyForm {
    pub(crate) fn has_tool_calls(&self) -> bool {
        match self {
            Self::Calls(_) => true,
            Self::Scripted(reply) => !reply.calls.is_empty(),
            Self::Text | Self::Exact(_) | Self::Parsed(_) => false,
        }
    }
}

/// Input of the generator for one sequence.
#[derive(Debug, Clone)]
pub struct GeneratorInput<'a> {
    /// Key of the random streams; equal keys give equal content.
    pub key: u64,
    /// Maximum number of output tokens, at least 1.
    pub limit: u32,
    /// Whether the client set the limit of output tokens.
    pub limited: bool,
    /// Text of the reply in echo mode.
    pub echo: &'a str,
    /// Token ids of the reply in echo mode; `None` encodes `echo`.
    pub echo_ids: Option<&'a [u32]>,
    /// Conditions, other than the limit, for the end of the output.
    pub stops: &'a StopConditions,
    /// Logit biases, allowed tokens and bad words of the request.
    pub bias: &'a TokenSteering,
    /// Form of the reply's content.
    pub form: ReplyForm,
    /// Fraction of output tokens that is reasoning, 0 to 1; `None` means no reasoning.
    pub reasoning: Option<f64>,
    /// Token ids of the reasoning's start; empty unless the client parses tokens and the prompt
    /// lacks them.
    pub reasoning_start: &'a [u32],
    /// Maximum number of reasoning tokens.
    pub thinking_budget: Option<u32>,
    /// Rule for special tokens: their text is shown, or empty.
    pub special_tokens: SpecialTokens,
    /// Arrival time of the request at the server.
    pub arrived: SimTime,
    /// Possible hashes of the prompt in the dataset; empty without a dataset.
    pub hashes: Vec<[u8; 32]>,
    /// Fixed length of a free text, in tokens; `None` draws it at random.
    pub length: Option<u32>,
}
