//! Pooling routes: vectors, classes and scores, which depend only on the input tokens.

pub(super) mod classify;
pub(super) mod cohere;
pub(super) mod embeddings;
pub(super) mod rows;
pub(super) mod score;
pub(super) mod vector;

use std::ops::Index;
use std::sync::Arc;

use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::app::App;
use super::{error, json, token_ids};
use crate::openai::chat;
use crate::request_head::request_id;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::prompt::{PromptSource, PromptTruncation, TruncationSide};
use vllm_sim_service::{InFlightGuard, RequestRules};
use vllm_sim_tokenizer::SpecialTokens;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::completion::{CompletionPrompt, CompletionPrompts};
use vllm_sim_wire::openai::message::RequestMessage;
use vllm_sim_wire::schema::RequestField;
use vllm_sim_wire::vllm::pooling::{PoolingInput, PoolingRequest};

/// Returns the model name for the response of a pooling route; llm-d ignores the requested name.
fn pooling_model_name(app: &App, requested: Option<&str>) -> Result<Arc<str>, Fault> {
    let models = &app.service.models;
    let unknown = || Fault::unknown_pooling_model(requested.unwrap_or_default());
    let found = models.resolve_model_name(requested).ok_or_else(unknown);
    Ok(match app.dialect.pooling_model(found)? {
        Some(target) => models.model_name_in_responses(&target),
        None => models.displayed_model_name().clone(),
    })
}

/// vLLM's error for pooling input that only a plugin can read.
const NO_IO_PLUGIN_MESSAGE: &str = "No IOProcessor plugin installed. Please refer to the documentation and to \
     the 'prithvi_geospatial_mae_io_processor' offline inference example for more details.";

/// Maximum number of inputs of one pooling request (vLLM has no limit); equal to the maximum number
/// of sequences of a generation request.
const MAX_POOLING_INPUTS: usize = 65_536;

/// Counts a pooling request as in flight, one sequence per input, until the guard is dropped.
fn count_in_flight(app: &App, inputs: usize) -> Result<InFlightGuard, Fault> {
    if inputs > MAX_POOLING_INPUTS {
        return Err(Fault::bad_request(format!(
            "The request has {inputs} inputs; at most {MAX_POOLING_INPUTS} are allowed. Send fewer inputs \
             per request."
        )));
    }
    let inputs = u32::try_from(inputs.max(1)).unwrap_or(u32::MAX);
    app.service.admit_sequences(inputs).map_err(|error| error::serve_error_fault(&error))
}

fn count_inputs(request: &PoolingRequest) -> usize {
    match &request.input {
        PoolingInput::Prompts(CompletionPrompts(prompts)) => prompts.len(),
        PoolingInput::ConcatenatedTexts(texts) => texts.text_count(),
        PoolingInput::Chats(chats) => chats.len(),
        PoolingInput::Chat(_) | PoolingInput::Data(_) | PoolingInput::Pair(..) => 1,
    }
}

/// Token ids of all inputs of a pooling request in one list, which saves memory for many short
/// inputs.
struct TokenizedInputs {
    tokens: Vec<u32>,
    ends: Vec<usize>,
}

impl TokenizedInputs {
    /// Creates an empty list for a known number of inputs; a growing list would briefly exist
    /// twice.
    fn with_capacity(inputs: usize) -> Self {
        Self { tokens: Vec::with_capacity(inputs), ends: Vec::with_capacity(inputs) }
    }

    fn push(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.ends.push(self.tokens.len());
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn iter(&self) -> impl Iterator<Item = &[u32]> {
        (0..self.len()).map(|index| &self[index])
    }
}

impl Index<usize> for TokenizedInputs {
    type Output = [u32];

    fn index(&self, index: usize) -> &[u32] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.tokens[start..self.ends[index]]
    }
}

/// Tokenizes the inputs of a pooling request; a conversation is one input.
async fn tokenize_inputs(
    app: &Arc<App>,
    request: &PoolingRequest,
    body: &Value,
) -> Result<TokenizedInputs, Fault> {
    let truncation = truncation(app, request)?;
    let mut inputs = TokenizedInputs::with_capacity(count_inputs(request));
    let special = SpecialTokens::from_bool(request.add_special_tokens.unwrap_or(true));
    match &request.input {
        PoolingInput::Prompts(CompletionPrompts(prompts)) => {
            for prompt in prompts {
                let input = encode_prompt(app, prompt, special).await?;
                inputs.push(&fit_to_context(app, &truncation, input)?);
            }
        }
        PoolingInput::ConcatenatedTexts(texts) => {
            for text in texts.iter() {
                let ids = encode_text(app, text, special).await;
                let input = InputTokens::from_text(ids, special);
                inputs.push(&fit_to_context(app, &truncation, input)?);
            }
        }
        PoolingInput::Chat(messages) => {
            inputs.push(&tokenize_chat(app, request, body, messages, &truncation).await?)
        }
        PoolingInput::Chats(chats) => {
            for messages in chats {
                inputs.push(&tokenize_chat(app, request, body, messages, &truncation).await?);
            }
        }
        PoolingInput::Data(_) | PoolingInput::Pair(..) => {
            return Err(Fault::bad_parameter(NO_IO_PLUGIN_MESSAGE, "task"));
        }
    }
    if inputs.len() == 0 {
        return Err(Fault::bad_request("You must pass at least one prompt"));
    }
    Ok(inputs)
}

struct InputTokens {
    ids: Vec<u32>,
    /// Special tokens that the tokenizer added to the input; `None` if the client sent token
    /// ids.
    special: Option<SpecialTokens>,
}

impl InputTokens {
    fn from_text(ids: Vec<u32>, special: SpecialTokens) -> Self {
        Self { ids, special: Some(special) }
    }
}

async fn encode_prompt(
    app: &App,
    prompt: &CompletionPrompt,
    special: SpecialTokens,
) -> Result<InputTokens, Fault> {
    Ok(match prompt {
        CompletionPrompt::Text(text) => {
            InputTokens::from_text(encode_text(app, text, special).await, special)
        }
        CompletionPrompt::Tokens(ids) => {
            InputTokens { ids: token_ids::check_prompt_ids(&app.rules.limits, ids)?, special: None }
        }
    })
}

pub(super) async fn encode_text(app: &App, text: &str, special: SpecialTokens) -> Vec<u32> {
    let tokenizer = app.service.generator.tokenizer().clone();
    let owned = text.to_owned();
    let encode = move || tokenizer.encode(&owned, special);
    vllm_sim_service::run_blocking_if_large(text.len(), encode).await
}

/// Tokenizes the conversation of a pooling request, without a generation prompt unless the request
/// asks for one.
async fn tokenize_chat(
    app: &Arc<App>,
    request: &PoolingRequest,
    body: &Value,
    messages: &[RequestMessage],
    truncation: &PromptTruncation,
) -> Result<Vec<u32>, Fault> {
    let truthy = |key: &str| body.get(key).and_then(Value::as_bool).unwrap_or(false);
    let chat = ChatRequest::read(&json!({
        "messages": [],
        "add_generation_prompt": truthy("add_generation_prompt"),
        "continue_final_message": truthy("continue_final_message"),
        "add_special_tokens": request.add_special_tokens.unwrap_or(false),
        "chat_template": request.chat_template,
        "chat_template_kwargs": request.chat_template_kwargs,
    }));
    let mut chat = chat.ok_or_else(|| Fault::bad_request("The request could not be read."))?;
    chat.messages = messages.to_vec();
    chat.validate_without_prompt(&app.rules.limits)?;
    let source = PromptSource::Conversations(vec![chat::chat_conversation(app, &mut chat)]);
    let mut prompts = app.service.create_prompts(&app.rules, source).await?;
    let tokens = prompts.pop().unwrap_or_default().tokens;
    let special = SpecialTokens::from_bool(request.add_special_tokens.unwrap_or(false));
    fit_to_context(app, truncation, InputTokens::from_text(tokens, special))
}

/// Truncates the tokens of a pooling input as requested and checks that they fit the context
/// length.
fn fit_to_context(
    app: &App,
    truncation: &PromptTruncation,
    InputTokens { ids, special }: InputTokens,
) -> Result<Vec<u32>, Fault> {
    let truncation =
        PromptTruncation { special: special == Some(SpecialTokens::With), ..*truncation };
    let RequestRules { limits, dialect, .. } = &app.rules;
    let ids = truncation.truncate_tokens(app.service.generator.tokenizer(), limits, ids);
    if ids.is_empty() {
        return Err(Fault::bad_request("The decoder prompt cannot be empty"));
    }
    match special {
        Some(_) => dialect.check_encoded_length(limits, ids.len())?,
        None => dialect.check_prompt_ids_length(limits, ids.len())?,
    }
    Ok(ids)
}

/// Returns the truncation that a pooling request asks for. A negative number is the context length,
/// because no output token needs room.
///
/// Source: vLLM 0.33 `renderers/params.py`, `TokenizeParams`.
///
/// # Errors
/// vLLM's 400 for a number above the context length.
fn truncation(app: &App, request: &PoolingRequest) -> Result<PromptTruncation, Fault> {
    let limits = &app.rules.limits;
    let asked = request.truncate_prompt_tokens;
    let asked = asked.map(|n| i64::try_from(n).unwrap_or(i64::MAX));
    limits.check_requested_lengths("max_tokens", None, asked)?;
    Ok(PromptTruncation {
        keep: asked.map(|n| if n < 0 { limits.max_model_len.into() } else { n }),
        side: TruncationSide::from_side_name(request.truncation_side.as_deref()),
        special: false,
    })
}

fn list_head_json(id: &str, model: &str) -> String {
    let mut head = String::from("{\"id\":");
    json::write_string(&mut head, id);
    head.push_str(",\"object\":\"list\",\"created\":");
    json::write_int(&mut head, unix_now_secs() as u64);
    head.push_str(",\"model\":");
    json::write_string(&mut head, model);
    head.push_str(",\"data\":[");
    head
}

fn list_tail_json(prompt_tokens: usize) -> String {
    format!("],\"usage\":{}}}", usage_json(prompt_tokens))
}

fn usage_json(prompt_tokens: usize) -> Value {
    json!({
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": null,
        "completion_tokens_details": null,
    })
}

fn pooling_request_id(prefix: &str, headers: &HeaderMap, body: Option<&str>) -> String {
    request_id(prefix, headers, body).to_string()
}
