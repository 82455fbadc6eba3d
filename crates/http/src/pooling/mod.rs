//! Pooling routes: vectors, classes and scores, which depend only on the input tokens.

pub(super) mod classify;
pub(super) mod cohere;
pub(super) mod embeddings;
mod rows;
pub(super) mod score;
mod vector;

use std::ops::Index;
use std::sync::Arc;

use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::app::App;
use super::openai::{chat, prepare};
use super::{error, json, token_ids};
use vllm_sim_engine::driver::unix_now;
use vllm_sim_service::prompt::{CutSide, PromptSource, Truncation};
use vllm_sim_service::{InFlightGuard, RequestRules};
use vllm_sim_tokenizer::SpecialTokens;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::completion::{Prompt, Prompts};
use vllm_sim_wire::openai::message::Message;
use vllm_sim_wire::schema::RequestField;
use vllm_sim_wire::vllm::pooling::{PoolingInput, PoolingRequest};

/// Returns the model name for the response of a pooling route; llm-d ignores the requested name.
fn model(app: &App, requested: Option<&str>) -> Result<Arc<str>, Fault> {
    let models = &app.service.models;
    let unknown = || Fault::unknown_pooling_model(requested.unwrap_or_default());
    let found = models.resolve(requested).ok_or_else(unknown);
    Ok(match app.dialect.pooling_model(found)? {
        Some(target) => models.shown(&target),
        None => models.displayed().clone(),
    })
}

/// vLLM's error for pooling input that only a plugin can read.
const NO_PLUGIN: &str = "No IOProcessor plugin installed. Please refer to the documentation and to \
     the 'prithvi_geospatial_mae_io_processor' offline inference example for more details.";

/// Maximum number of inputs of one pooling request (vLLM has no limit); equal to the maximum number
/// of sequences of a generation request.
const MAX_INPUTS: usize = 65_536;

/// Counts a pooling request as in flight, one sequence per input, until the guard is dropped.
fn enter(app: &App, inputs: usize) -> Result<InFlightGuard, Fault> {
    if inputs > MAX_INPUTS {
        return Err(Fault::bad_request(format!(
            "The request has {inputs} inputs; at most {MAX_INPUTS} are allowed. Send fewer inputs \
             per request."
        )));
    }
    let inputs = u32::try_from(inputs.max(1)).unwrap_or(u32::MAX);
    app.service
        .enter(inputs)
        .map_err(|error| error::fault(&error))
}

fn count(request: &PoolingRequest) -> usize {
    match &request.input {
        PoolingInput::Prompts(Prompts(prompts)) => prompts.len(),
        PoolingInput::ConcatenatedTexts(texts) => texts.count(),
        PoolingInput::Chats(chats) => chats.len(),
        PoolingInput::Chat(_) | PoolingInput::Data(_) | PoolingInput::Pair(..) => 1,
    }
}

/// Token ids of all inputs of a pooling request in one list, which saves memory for many short
/// inputs.
struct Inputs {
    tokens: Vec<u32>,
    ends: Vec<usize>,
}

impl Inputs {
    /// Creates an empty list for a known number of inputs; a growing list would briefly exist
    /// twice.
    fn with_capacity(inputs: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(inputs),
            ends: Vec::with_capacity(inputs),
        }
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

impl Index<usize> for Inputs {
    type Output = [u32];

    fn index(&self, index: usize) -> &[u32] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.tokens[start..self.ends[index]]
    }
}

/// Tokenizes the inputs of a pooling request; a conversation is one input.
async fn tokens(app: &Arc<App>, request: &PoolingRequest, body: &Value) -> Result<Inputs, Fault> {
    truncation(app, request)?;
    let mut inputs = Inputs::with_capacity(count(request));
    let special = SpecialTokens::when(request.add_special_tokens.unwrap_or(true));
    match &request.input {
        PoolingInput::Prompts(Prompts(prompts)) => {
            for prompt in prompts {
                let input = encoded(app, prompt, special).await?;
                inputs.push(&fitted(app, request, input)?);
            }
        }
        PoolingInput::ConcatenatedTexts(texts) => {
            for text in texts.iter() {
                let ids = encoded_text(app, text, special).await;
                let input = InputTokens::of_text(ids, special);
                inputs.push(&fitted(app, request, input)?);
            }
        }
        PoolingInput::Chat(messages) => inputs.push(&chat(app, request, body, messages).await?),
        PoolingInput::Chats(chats) => {
            for messages in chats {
                inputs.push(&chat(app, request, body, messages).await?);
            }
        }
        PoolingInput::Data(_) | PoolingInput::Pair(..) => {
            return Err(Fault::parameter(NO_PLUGIN, "task"));
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
    fn of_text(ids: Vec<u32>, special: SpecialTokens) -> Self {
        Self {
            ids,
            special: Some(special),
        }
    }
}

async fn encoded(app: &App, prompt: &Prompt, special: SpecialTokens) -> Result<InputTokens, Fault> {
    Ok(match prompt {
        Prompt::Text(text) => InputTokens::of_text(encoded_text(app, text, special).await, special),
        Prompt::Tokens(ids) => InputTokens {
            ids: token_ids::of_prompt(&app.rules.limits, ids)?,
            special: None,
        },
    })
}

async fn encoded_text(app: &App, text: &str, special: SpecialTokens) -> Vec<u32> {
    let tokenizer = app.service.generator.tokenizer().clone();
    let owned = text.to_owned();
    let encode = move || tokenizer.encode(&owned, special);
    vllm_sim_service::run_blocking_if_large(text.len(), encode).await
}

/// Tokenizes the conversation of a pooling request, without a generation prompt unless the request
/// asks for one.
async fn chat(
    app: &Arc<App>,
    request: &PoolingRequest,
    body: &Value,
    messages: &[Message],
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
    chat.validate_early(&app.rules.limits)?;
    let source = PromptSource::Conversations(vec![chat::conversation(app, &mut chat)]);
    let mut prompts = app.service.prompts(&app.rules, source).await?;
    let tokens = prompts.pop().unwrap_or_default().tokens;
    let special = SpecialTokens::when(request.add_special_tokens.unwrap_or(false));
    fitted(app, request, InputTokens::of_text(tokens, special))
}

/// Truncates the tokens of a pooling input as requested and checks that they fit the context
/// length.
fn fitted(
    app: &App,
    request: &PoolingRequest,
    InputTokens { ids, special }: InputTokens,
) -> Result<Vec<u32>, Fault> {
    let cut = Truncation {
        special: special == Some(SpecialTokens::With),
        ..truncation(app, request)?
    };
    let RequestRules {
        limits, dialect, ..
    } = &app.rules;
    let ids = cut.apply(app.service.generator.tokenizer(), limits, ids);
    if ids.is_empty() {
        return Err(Fault::bad_request("The decoder prompt cannot be empty"));
    }
    match special {
        Some(_) => dialect.check_encoded(limits, ids.len())?,
        None => dialect.check_tokens(limits, ids.len())?,
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
fn truncation(app: &App, request: &PoolingRequest) -> Result<Truncation, Fault> {
    let limits = &app.rules.limits;
    let asked = request.truncate_prompt_tokens;
    let asked = asked.map(|n| i64::try_from(n).unwrap_or(i64::MAX));
    limits.asked("max_tokens", None, asked)?;
    Ok(Truncation {
        keep: asked.map(|n| {
            if n < 0 {
                limits.max_model_len.into()
            } else {
                n
            }
        }),
        side: CutSide::of(request.truncation_side.as_deref()),
        special: false,
    })
}

fn list_head(id: &str, model: &str) -> String {
    let mut head = String::from("{\"id\":");
    json::string(&mut head, id);
    head.push_str(",\"object\":\"list\",\"created\":");
    json::int(&mut head, unix_now() as u64);
    head.push_str(",\"model\":");
    json::string(&mut head, model);
    head.push_str(",\"data\":[");
    head
}

fn list_tail(prompt_tokens: usize) -> String {
    format!("],\"usage\":{}}}", usage(prompt_tokens))
}

fn usage(prompt_tokens: usize) -> Value {
    json!({
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": null,
        "completion_tokens_details": null,
    })
}

fn id(prefix: &str, headers: &HeaderMap, body: Option<&str>) -> String {
    prepare::request_id(prefix, headers, body).to_string()
}
