//! Requests of `POST /tokenize` and `/detokenize`.
//!
//! Source: `vllm/entrypoints/serve/tokenize/protocol.py`.

use indexmap::IndexMap;
use serde_json::{Map, Value};

use crate::body;
use crate::fault::Fault;
use crate::limits::ServerLimits;
use crate::openai::request_message::RequestMessage;
use crate::openai::shared_request_fields::{self, ChatTool};
use crate::schema::{ANY_LENGTH, RequestField, Schema, int_between_schema, wire_model};

wire_model! {
    /// A request to tokenize a text.
    pub struct TokenizeTextRequest: Wrapped "TokenizeCompletionRequest" {
        /// Name of the served model or LoRA adapter; null or empty selects the base model.
        model: Option<String> = None,
        /// The text to tokenize.
        prompt: String,
        /// Whether the tokenizer adds special tokens to the text.
        add_special_tokens: bool = true,
        /// Whether to return the vocabulary entries of the tokens in addition to their ids.
        return_token_strs: Option<bool> = Some(false),
    }
}

wire_model! {
    /// A request to render a conversation by the chat template and tokenize it.
    pub struct TokenizeChatRequest: Wrapped "TokenizeChatRequest" before [shared_request_fields::check_generation_prompt] {
        /// Name of the served model or LoRA adapter; null or empty selects the base model.
        model: Option<String> = None,
        /// Messages of the conversation, oldest first.
        messages: Vec<RequestMessage>,
        /// Whether the chat template ends the prompt with the start of an assistant message.
        add_generation_prompt: bool = true,
        /// Whether to return the vocabulary entries of the tokens in addition to their ids.
        return_token_strs: Option<bool> = Some(false),
        /// Whether the model continues the last message instead of starting a new one.
        continue_final_message: bool = false,
        /// Whether the tokenizer adds special tokens to the templated prompt.
        add_special_tokens: bool = false,
        /// Jinja chat template that replaces the model's own.
        chat_template: Option<String> = None,
        /// Extra arguments passed to the chat template.
        chat_template_kwargs: Option<Map<String, Value>> = None,
        /// Arguments for decoding images, audio and video, by modality.
        media_io_kwargs: Option<IndexMap<String, Map<String, Value>>> = None,
        /// Arguments for the model's multimodal processor.
        mm_processor_kwargs: Option<Map<String, Value>> = None,
        /// Functions (tools) for the chat template to show.
        tools: Option<Vec<ChatTool>> = None,
    }
}

/// A tokenize request: a text or a conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenizeRequest {
    /// A text to tokenize (`prompt`).
    Text(TokenizeTextRequest),
    /// A conversation to tokenize (`messages`).
    Chat(Box<TokenizeChatRequest>),
}

impl TokenizeRequest {
    /// Validates and reads the request body.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse_tokenize_request(value: &Value) -> Result<Self, Fault> {
        static REQUEST_FORMS: &[Schema] =
            &[TokenizeTextRequest::SCHEMA, TokenizeChatRequest::SCHEMA];

        let checked = body::validate_body(&Schema::Union(REQUEST_FORMS), value)?;
        let chat = body::best_union_branch(REQUEST_FORMS, value).is_some_and(|(form, _)| form == 1);
        let read = if chat {
            TokenizeChatRequest::read(&checked).map(|chat| Self::Chat(Box::new(chat)))
        } else {
            TokenizeTextRequest::read(&checked).map(Self::Text)
        };
        read.ok_or_else(body::unreadable_value_fault)
    }

    /// Returns the model name in the request; `None` selects the base model.
    pub fn model_name(&self) -> Option<&str> {
        match self {
            Self::Text(request) => request.model.as_deref(),
            Self::Chat(request) => request.model.as_deref(),
        }
    }
}

impl TokenizeChatRequest {
    /// Rejects a chat template and arguments for media if clients are untrusted.
    ///
    /// # Errors
    /// The first 400 in vLLM's order.
    pub fn reject_untrusted_template(&self, limits: &ServerLimits) -> Result<(), Fault> {
        limits.reject_untrusted_template(
            self.chat_template.as_deref(),
            self.chat_template_kwargs.as_ref(),
        )?;
        limits.reject_untrusted_mm_kwargs(
            self.mm_processor_kwargs.as_ref().map_or(0, Map::len),
            self.media_io_kwargs.as_ref().map_or(0, IndexMap::len),
        )
    }
}

wire_model! {
    /// A request to convert token ids to text.
    pub struct DetokenizeRequest: Wrapped "DetokenizeRequest" {
        /// Name of the served model or LoRA adapter; null or empty selects the base model.
        model: Option<String> = None,
        /// Token ids to convert to text.
        tokens: Vec<i64> [Schema::List(&int_between_schema(0, i64::MAX as i128), ANY_LENGTH)],
    }
}
