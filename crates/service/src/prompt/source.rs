use serde_json::{Map, Value};

use super::Truncation;
use crate::deferred::Deferred;
use crate::generate::request::Prompt;
use vllm_sim_tokenizer::MediaFeature;
use vllm_sim_wire::openai::message::Message;

/// The source of a request's prompts.
#[derive(Debug)]
pub enum PromptSource {
    /// Prompts that are made.
    Ready(Vec<Prompt>),
    /// Texts and lists of token ids.
    Inputs(PromptInputs),
    /// Conversations, each for the chat template.
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

    /// Returns whether there is no prompt.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Texts and lists of token ids, and how they are encoded and cut.
#[derive(Debug, Default)]
pub struct PromptInputs {
    /// Inputs, each a prompt.
    pub inputs: Vec<PromptInput>,
    /// Whether texts get the tokenizer's special tokens.
    pub add_special_tokens: bool,
    /// Cut of every prompt.
    pub truncation: Truncation,
}

/// One prompt that is no conversation.
#[derive(Debug)]
pub enum PromptInput {
    /// A text.
    Text(String),
    /// Token ids; those beyond any vocabulary are refused later, by the engine's checks.
    Tokens {
        /// The ids.
        ids: Vec<i64>,
        /// The text that an echo says, where it is not the list of the ids.
        text: Option<Box<str>>,
        /// Media among the tokens.
        media: Vec<MediaFeature>,
    },
}

/// A conversation, and how it becomes a prompt.
#[derive(Debug, Default)]
pub struct Conversation {
    /// Messages.
    pub messages: Vec<Message>,
    /// Tools as the template sees them.
    pub tools: Option<Vec<Value>>,
    /// Documents as the template sees them.
    pub documents: Option<Value>,
    /// Template of the request's own.
    pub chat_template: Option<String>,
    /// Arguments for the template.
    pub chat_template_kwargs: Map<String, Value>,
    /// Whether the prompt ends where an answer begins.
    pub add_generation_prompt: bool,
    /// Whether the last message is continued.
    pub continue_final_message: bool,
    /// Whether the text gets the tokenizer's special tokens.
    pub add_special_tokens: bool,
    /// Cut of the prompt.
    pub truncation: Truncation,
    /// Bound on the length of the prompt.
    pub bound: PromptBound,
    /// Tokens that another server made of the same conversation.
    pub token_ids: Deferred<Option<Vec<u32>>>,
}

/// The bound on the length of a conversation's prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PromptBound {
    /// The context.
    #[default]
    Context,
    /// The context less room for an answer (Responses).
    RoomForAnswer,
    /// None: the tokens are shown, nobody answers them.
    None,
}
