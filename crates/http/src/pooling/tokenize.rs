//! Tokens of the inputs of pooling requests: truncation, padding and checks of their length.
//!
//! Source: vLLM 0.33 `renderers/params.py`, `TokenizeParams`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::app::App;
use crate::body::RawRequest;
use crate::openai::chat;
use crate::token_ids;
use vllm_sim_service::prompt::{PromptSource, PromptTruncation, TruncationSide};
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::body::unreadable_value_fault;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::completion::CompletionPrompt;
use vllm_sim_wire::openai::request_message::RequestMessage;
use vllm_sim_wire::schema::RequestField;
use vllm_sim_wire::vllm::pooling::PoolingRequest;

/// Maximum number of tokens of the padded inputs of one pooling request: 8,192 inputs of 2,048
/// tokens.
const MAX_PADDED_TOKENS: usize = 16 << 20;

/// Members of a pooling request whose texts the tokenizer reads, unless the request has pairs of
/// texts.
pub(super) const POOLING_INPUT_FIELDS: &[&str] = &["input", "messages"];

/// Truncation and padding of the inputs of a pooling request.
#[derive(Clone, Copy)]
pub(crate) struct TokenizeParams {
    pub(crate) truncation: PromptTruncation,
    /// Whether the inputs of a pooling request are padded to the context length.
    pads: bool,
}

impl TokenizeParams {
    /// Returns the truncation and padding that a request with `input_count` texts asks for.
    ///
    /// A negative number of tokens is the context length, because no output token needs room.
    /// Without a side, the tokenizer cuts the end of a text and keeps its special tokens.
    ///
    /// Source: vLLM 0.33 `renderers/params.py`; `get_tokenizer` for the side of pooling models.
    ///
    /// # Errors
    /// vLLM's 400 for a number above the context length; 400 for more than 16,777,216 tokens with
    /// the padding.
    pub(crate) fn from_pooling_request(
        app: &App,
        request: &PoolingRequest,
        input_count: usize,
    ) -> Result<Self, Fault> {
        let limits = &app.rules.limits;
        let pads = request.padding.as_deref() == Some("max_length");
        let asked = request.truncate_prompt_tokens;
        let asked = asked.map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        limits.check_output_and_truncation_limits("max_tokens", None, asked)?;
        if pads {
            check_padded_token_count(input_count, limits.max_model_len as usize)?;
        }
        let side = match request.truncation_side.as_deref() {
            Some("left") => TruncationSide::Left,
            _ => TruncationSide::Right,
        };
        Ok(Self {
            truncation: PromptTruncation {
                keep: asked.map(|n| if n < 0 { limits.max_model_len.into() } else { n }),
                side,
                special: request.truncation_side.is_none(),
            },
            pads,
        })
    }

    /// Tokenizes a text of a pooling request, and truncates or pads the tokens as the request asks.
    ///
    /// # Errors
    /// vLLM's 400 for a text that is empty or too long.
    pub(crate) async fn encode_text(
        &self,
        app: &App,
        text: &str,
        special: SpecialTokenHandling,
    ) -> Result<Vec<u32>, Fault> {
        if self.truncation.keep.is_none() {
            let longest = app.service.generator.tokenizer().max_token_chars();
            app.rules.dialect.check_text_length(&app.rules.limits, text, longest)?;
        }
        let ids = encode_text(app, text, special).await;
        self.truncate_and_pad_tokens(app, ids, special)
    }

    /// Truncates and pads the tokens of a text, and checks that they fit the context length.
    ///
    /// # Errors
    /// vLLM's 400 for a text that is empty or too long.
    pub(crate) fn truncate_and_pad_tokens(
        &self,
        app: &App,
        ids: Vec<u32>,
        special: SpecialTokenHandling,
    ) -> Result<Vec<u32>, Fault> {
        let ids = self.truncate(app, ids, special);
        let ids = self.pad(app, ids)?;
        app.rules.dialect.check_encoded_length(&app.rules.limits, ids.len())?;
        require_tokens(ids)
    }

    pub(super) async fn encode_prompt(
        &self,
        app: &App,
        prompt: &CompletionPrompt,
        special: SpecialTokenHandling,
    ) -> Result<Vec<u32>, Fault> {
        match prompt {
            CompletionPrompt::Text(text) => self.encode_text(app, text, special).await,
            CompletionPrompt::Tokens(ids) => {
                let ids = token_ids::check_prompt_token_ids(&app.rules.limits, ids)?;
                let ids = self.pad(app, self.truncate(app, ids, SpecialTokenHandling::Without))?;
                app.rules.dialect.check_prompt_ids_length(&app.rules.limits, ids.len())?;
                require_tokens(ids)
            }
        }
    }

    /// Tokenizes the conversation of a pooling request, without a generation prompt unless the
    /// request asks for one.
    pub(super) async fn encode_chat(
        &self,
        app: &Arc<App>,
        request: &PoolingRequest,
        body: &Value,
        messages: &[RequestMessage],
    ) -> Result<Vec<u32>, Fault> {
        let truthy = |key: &str| body.get(key).and_then(Value::as_bool).unwrap_or(false);
        let special = request.add_special_tokens.unwrap_or(false);
        let chat = ChatRequest::read(&json!({
            "messages": [],
            "add_generation_prompt": truthy("add_generation_prompt"),
            "continue_final_message": truthy("continue_final_message"),
            "add_special_tokens": special,
            "chat_template": request.chat_template,
            "chat_template_kwargs": request.chat_template_kwargs,
        }));
        let mut chat = chat.ok_or_else(unreadable_value_fault)?;
        chat.messages = messages.to_vec();
        chat.validate_without_prompt(&app.rules.limits)?;
        let mut conversation = chat::chat_conversation(app, &mut chat);
        conversation.truncation =
            PromptTruncation { special: special && self.truncation.special, ..self.truncation };
        let source = PromptSource::Conversations(vec![conversation]);
        let mut prompts = app.service.create_prompts(&app.rules, source).await?;
        require_tokens(self.pad(app, prompts.pop().unwrap_or_default().tokens)?)
    }

    fn truncate(&self, app: &App, ids: Vec<u32>, special: SpecialTokenHandling) -> Vec<u32> {
        let keeps_special = special == SpecialTokenHandling::With && self.truncation.special;
        let truncation = PromptTruncation { special: keeps_special, ..self.truncation };
        truncation.truncate_tokens(app.service.generator.tokenizer(), &app.rules.limits, ids)
    }

    fn pad(&self, app: &App, mut ids: Vec<u32>) -> Result<Vec<u32>, Fault> {
        let length = app.rules.limits.max_model_len as usize;
        if !self.pads || ids.len() >= length {
            return Ok(ids);
        }
        let pad = app.service.generator.tokenizer().pad_token_id().ok_or_else(|| {
            Fault::bad_parameter("padding needs a tokenizer with a pad_token", "padding")
        })?;
        ids.resize(length, pad);
        Ok(ids)
    }
}

/// Rejects padding of a pooling request to more than 16,777,216 tokens.
///
/// # Errors
/// 400 that names both counts.
fn check_padded_token_count(inputs: usize, length: usize) -> Result<(), Fault> {
    if inputs.saturating_mul(length) <= MAX_PADDED_TOKENS {
        return Ok(());
    }
    let message = format!(
        "padding=\"max_length\" would make {inputs} inputs of {length} tokens; at most \
         {MAX_PADDED_TOKENS} tokens are allowed. Send fewer inputs or no padding."
    );
    Err(Fault::bad_parameter(message, "padding"))
}

pub(crate) async fn encode_text(app: &App, text: &str, special: SpecialTokenHandling) -> Vec<u32> {
    let tokenizer = app.service.generator.tokenizer().clone();
    let owned = text.to_owned();
    let encode = move || tokenizer.encode(&owned, special);
    vllm_sim_service::run_blocking_if_large(text.len(), encode).await
}

fn require_tokens(ids: Vec<u32>) -> Result<Vec<u32>, Fault> {
    match ids.is_empty() {
        true => Err(Fault::bad_request("The decoder prompt cannot be empty")),
        false => Ok(ids),
    }
}

/// Runs those checks of vLLM that precede the reading of a pooling request's inputs: arguments of
/// the multimodal processor, the model's name, the truncation. `members` are the members of the
/// body whose texts the tokenizer reads.
///
/// Source: vLLM 0.33 `entrypoints/pooling/base/serving.py`, `_init_ctx`, `_validate_request`.
///
/// # Errors
/// The first 400 or 404 in vLLM's order.
pub(super) fn check_pooling_request(
    app: &App,
    received: &RawRequest,
    request: &PoolingRequest,
    members: &[&str],
) -> Result<Arc<str>, Fault> {
    let limits = &app.rules.limits;
    request.check_mm_kwargs(limits)?;
    let model = super::pooling_model_name(app, request.model.as_deref())?;
    let most = i128::from(limits.max_model_len);
    if request.truncate_prompt_tokens.is_some_and(|asked| asked > most) {
        return Err(Fault::bad_request(
            "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller \
             truncation size.",
        ));
    }
    received.check_prompt_encodable(members)?;
    Ok(model)
}
