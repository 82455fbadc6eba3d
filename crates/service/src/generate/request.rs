//! What is wanted, in no protocol's words.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde_json::Value;

pub use super::steering::{Bias, StopString, TokenIds};
use super::tools::ToolCall;
use crate::scripted::ScriptedReply;
use vllm_sim_engine::{EncoderInput, EncoderKind, SimTime};
use vllm_sim_tokenizer::{MediaFeature, Modality, SpecialTokens};

/// What the model answers with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The base model, whatever alias was asked for.
    Base,
    /// A loaded adapter.
    Lora {
        /// Its name, which the reply shows as the model.
        name: Arc<str>,
        /// Its number in the engines.
        id: u32,
    },
}

/// A prompt, tokenised.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Token ids as the engine sees them.
    pub tokens: Vec<u32>,
    /// One that no engine has, as the client wrote it: the last number stands for it.
    pub unknown_id: Option<i64>,
    /// What echo mode answers with.
    pub echo: Box<str>,
    /// The tokens that it answers with, where they are not those of the text.
    pub echo_ids: Option<Arc<[u32]>>,
    /// Tokens that open a thought, where the client parses tokens and the prompt opens none.
    pub thought_start: Option<Arc<[u32]>>,
    /// Images, audio clips and videos among the tokens, in order.
    pub media: Vec<MediaFeature>,
    /// The name of a conversation in a dataset that hashes texts; `None`: `echo` is all there is,
    /// or there is no such dataset.
    pub text_hash: Option<[u8; 32]>,
    /// The audio that the answer transcribes.
    pub audio: Option<AudioInput>,
    /// A JSON Schema that the prompt describes its answer by, where nothing else says what it is.
    pub schema: Option<Arc<Value>>,
}

impl Prompt {
    /// Its media as an engine's encoders see them.
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

/// An audio clip that is to be transcribed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AudioInput {
    /// Key of its content: the same clip gets the same text.
    pub key: u64,
    /// Tokens of its transcript.
    pub tokens: u32,
}

/// How a sequence may end.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stops {
    /// Strings that end the output when they appear in it.
    pub strings: Vec<StopString>,
    /// Whether a matched string stays in the output.
    pub include: bool,
    /// Token ids that end the output, besides the model's own.
    pub ids: TokenIds,
    /// The model's end-of-sequence tokens do not end the output.
    pub ignore_eos: bool,
    /// No stop before this many tokens.
    pub min_tokens: u32,
}

/// What the output is made of.
#[derive(Debug, Clone, Default)]
pub enum OutputForm {
    /// Free text.
    #[default]
    Text,
    /// This text exactly (structured output, already generated), cut by the limit alone.
    Exact(Arc<str>),
    /// This text exactly, in which a parser looks for calls as a Hermes model writes them.
    Parsed(Arc<str>),
    /// Calls of tools, with the raw text a model would write for them.
    Calls(Vec<ToolCall>),
    /// What a script says, cut by the limit alone.
    Scripted(Arc<ScriptedReply>),
}

impl OutputForm {
    /// Whether tools are called.
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
    /// Key of its random streams.
    pub key: u64,
    /// Most tokens it may have, at least one.
    pub limit: u32,
    /// Whether the client set the limit itself.
    pub limited: bool,
    /// What echo mode answers with.
    pub echo: &'a str,
    /// The tokens that it answers with, where they are not those of the text.
    pub echo_ids: Option<&'a [u32]>,
    /// How it may end.
    pub stops: &'a Stops,
    /// What steers it.
    pub bias: &'a Bias,
    /// What it is made of.
    pub form: OutputForm,
    /// Tokens of reasoning before the content, as a share of the output; `None`: no reasoning.
    pub reasoning: Option<f64>,
    /// Tokens that open a thought, where the client parses tokens and the prompt opens none.
    pub thought_start: &'a [u32],
    /// Most tokens of reasoning before the one that ends it.
    pub thinking_budget: Option<u32>,
    /// Records whether special tokens show their text.
    pub special_tokens: SpecialTokens,
    /// When the request arrived.
    pub arrived: SimTime,
    /// Names of the prompt in a dataset; empty without one.
    pub hashes: Vec<[u8; 32]>,
    /// How many tokens a free text has, when not chance decides it.
    pub length: Option<u32>,
}
