use serde_json::{Map, Value};

use super::Truncation;
use crate::deferred::Deferred;
use crate::generate::request::Prompt;
use vllm_sim_tokenizer::MediaFeature;
use vllm_sim_wire::openai::message::Message;

/// The source of a request's prompts.
#[derive(Debug)]
pub enum PromptSource {
    /// Finished prompts.
    Ready(Vec<Prompt>),
    /// Texts and lists of token ids.
    Inputs(PromptInputs),
    /// Conversations for the chat template.
    Conversations(Vec<Conversation>),
}

impl Default for PromptSource {
    fn default() -> Self {
        Self::Ready(Vec::new())
    }
}

impl PromptSource {
    /// Returns the number of prompts.
    pub fn len(&self) -> usize {
        match self {
            Self::Ready(prompts) => prompts.len(),
            Self::Inputs(inputs) => inputs.inputs.len(),
            Self::Conversations(conversations) => conversations.len(),
        }
    }

    /// Returns whether there are no prompts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Texts and lists of token ids, with their encoding and truncation.
#[derive(Debug, Default)]
pub struct PromptInputs {
    /// Inputs, one per prompt.
    pub inputs: Vec<PromptInput>,
    /// Whether the tokenizer adds its special tokens to texts.
    pub add_special_tokens: bool,
    /// Truncation of every prompt.
    pub truncation: Truncation,
}

/// A text or a list of token ids, used as one prompt.
#[derive(Debug)]
pub enum PromptInput {
    /// A text.
    Text(String),
    /// Token ids. The checks before submission reject ids outside the vocabulary.
    Tokens {
        /// Token ids.
        ids: Vec<i64>,
        /// Text in echo mode; `None` uses the comma-separated ids.
        text: Option<Box<str>>,
        /// Media among the tokens.
        media: Vec<MediaFeature>,
    },
}

/// A conversation, and the options for converting it to a prompt.
#[derive(Debug, Default)]
pub struct Conversation {
    /// Messages.
    pub messages: Vec<Message>,
    /// Tools, as passed to the template.
    pub tools: Option<Vec<Value>>,
    /// Documents, as passed to the template.
    pub documents: Option<Value>,
    /// Template of this request.
    pub chat_template: Option<String>,
    /// Template arguments.
    pub chat_template_kwargs: Map<String, Value>,
    /// Whether the prompt ends with the start of an assistant message.
    pub add_generation_prompt: bool,
    /// Whether the last message is continued.
    pub continue_final_message: bool,
    /// Whether the tokenizer adds its special tokens.
    pub add_special_tokens: bool,
    /// Truncation of the prompt.
    pub truncation: Truncation,
    /// Maximum length of the prompt.
    pub bound: PromptBound,
    /// Tokens of the same conversation from another server, used instead of tokenizing.
    pub token_ids: Deferred<Option<Vec<u32>>>,
}

/// Selects the maximum length of a conversation's prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptBound {
    /// Context length.
    #[default]
    Context,
    /// Context length, with room for at least one output token (Responses).
    RoomForOutput,
    /// No limit, because the tokens are only shown.
    None,
}
