//! Input of the content generator, independent of the protocol.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde_json::Value;

pub use super::steering::{Bias, StopString, TokenIds};
use super::tools::ToolCall;
use crate::scripted::ScriptedReply;
use vllm_sim_engine::{EncoderInput, EncoderKind, SimTime};
use vllm_sim_tokenizer::{MediaFeature, Modality, SpecialTokens};

/// The model that answers a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The base model, under any of its names.
    Base,
    /// A loaded LoRA adapter.
    Lora {
        /// Adapter name, shown as the model in responses.
        name: Arc<str>,
        /// Number of the adapter in the engines.
        id: u32,
    },
}

/// A tokenized prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids, as the engine receives them.
    pub tokens: Vec<u32>,
    /// Token id outside the 32-bit range, as sent; `tokens` has `u32::MAX` in its place.
    pub unknown_id: Option<i64>,
    /// Text of the reply in echo mode.
    pub echo: Box<str>,
    /// Token ids of the reply in echo mode, if they are not encoded from `echo`.
    pub echo_ids: Option<Arc<[u32]>>,
    /// Start marker of reasoning, if the client parses tokens and the prompt has none.
    pub reasoning_start: Option<Arc<[u32]>>,
    /// Images, audio clips and videos among the tokens, in order.
    pub media: Vec<MediaFeature>,
    /// Hash of the conversation, if the dataset hashes texts; `None` uses the hash of `echo`.
    pub text_hash: Option<[u8; 32]>,
    /// Audio to transcribe.
    pub audio: Option<AudioInput>,
    /// JSON Schema of the reply, found in the prompt text.
    pub schema: Option<Arc<Value>>,
}

impl Prompt {
    /// Returns the media in the form that the engine's encoders need.
    pub(crate) fn encoder_inputs(&self) -> Option<Arc<[EncoderInput]>> {
        if self.media.is_empty() {
            return None;
        }
        let inputs = self.media.iter().map(|item| {
            let mut hasher = DefaultHasher::new();
            item.identifier.hash(&mut hasher);
            EncoderInput {
                key: hasher.finish(),
                kind: match item.modality {
                    Modality::Image | Modality::Video => EncoderKind::Vision,
                    Modality::Audio => EncoderKind::Audio,
                },
                start: item.start,
                len: item.len,
            }
        });
        EncoderInput::in_order(inputs.collect())
    }
}

/// An audio clip to transcribe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AudioInput {
    /// Hash of the content; equal clips get equal texts.
    pub key: u64,
    /// Length of the transcript, in tokens.
    pub tokens: u32,
}

/// The stop conditions of a sequence.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StopConditions {
    /// Stop strings.
    pub strings: Vec<StopString>,
    /// Whether a matched string stays in the output.
    pub include: bool,
    /// Stop tokens, in addition to the model's end-of-sequence tokens.
    pub ids: TokenIds,
    /// Whether the model's end-of-sequence tokens are ignored.
    pub ignore_eos: bool,
    /// Minimum number of tokens before a stop condition applies.
    pub min_tokens: u32,
}

/// Selects the content of the output.
#[derive(Debug, Clone, Default)]
pub enum OutputForm {
    /// Free text.
    #[default]
    Text,
    /// A fixed text (structured output), cut only by the limit.
    Exact(Arc<str>),
    /// A fixed text that is parsed for tool calls in the format of Hermes models.
    Parsed(Arc<str>),
    /// Tool calls, written as the raw text of a model.
    Calls(Vec<ToolCall>),
    /// A scripted reply, cut only by the limit.
    Scripted(Arc<ScriptedReply>),
}

impl OutputForm {
    pub(crate) fn calls(&self) -> bool {
        match self {
            Self::Calls(_) => true,
            Self::Scripted(reply) => !reply.calls.is_empty(),
            Self::Text | Self::Exact(_) | Self::Parsed(_) => false,
        }
    }
}

/// One sequence to generate.
#[derive(Debug, Clone)]
pub struct GenerateRequest<'a> {
    /// Key of the random streams.
    pub key: u64,
    /// Maximum number of tokens, at least 1.
    pub limit: u32,
    /// Whether the client set the limit.
    pub limited: bool,
    /// Text of the reply in echo mode.
    pub echo: &'a str,
    /// Token ids of the reply in echo mode, if they are not encoded from `echo`.
    pub echo_ids: Option<&'a [u32]>,
    /// Stop conditions.
    pub stops: &'a StopConditions,
    /// Logit biases, allowed tokens and bad words.
    pub bias: &'a Bias,
    /// Content of the output.
    pub form: OutputForm,
    /// Fraction of reasoning tokens in the output; `None` means no reasoning.
    pub reasoning: Option<f64>,
    /// Start marker of reasoning, if the client parses tokens and the prompt has none.
    pub reasoning_start: &'a [u32],
    /// Maximum number of reasoning tokens.
    pub thinking_budget: Option<u32>,
    /// Text of special tokens: shown or empty.
    pub special_tokens: SpecialTokens,
    /// Arrival time of the request.
    pub arrived: SimTime,
    /// Hashes of the prompt in the dataset; empty without a dataset.
    pub hashes: Vec<[u8; 32]>,
    /// Fixed length of a free text, in tokens; `None` draws it at random.
    pub length: Option<u32>,
}
