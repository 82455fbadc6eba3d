//! Pooling routes: vectors, classes and scores, which depend only on the input tokens.

pub(super) mod binary;
pub(super) mod classify;
pub(super) mod cohere;
pub(super) mod embeddings;
pub(super) mod rows;
pub(super) mod score;
mod tokenize;
pub(super) mod vector;

pub(super) use tokenize::encode_text;

use std::ops::Index;
use std::sync::Arc;

use axum::http::HeaderMap;
use serde_json::{Value, json};

use self::tokenize::TokenizeParams;
use super::app::App;
use super::{error, json};
use crate::request_head::request_id;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::InFlightSequencesGuard;
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::completion::CompletionPrompts;
use vllm_sim_wire::vllm::pooling::{PoolingInput, PoolingRequest};

/// Returns the model name for the response of a pooling route; llm-d ignores the requested name.
fn pooling_model_name(app: &App, requested: Option<&str>) -> Result<Arc<str>, Fault> {
    let models = &app.service.models;
    let name = requested.unwrap_or_default();
    let found = models.resolve_model_name(name);
    let found = found.map_err(|_| Fault::unknown_pooling_model_fault(name));
    let lora = app.dialect.pooling_model(found)?;
    Ok(models.model_name_in_responses(lora.as_deref()).clone())
}

/// vLLM's error for pooling input that only a plugin can read.
const NO_IO_PLUGIN_MESSAGE: &str = "No IOProcessor plugin installed. Please refer to the documentation and to \
     the 'prithvi_geospatial_mae_io_processor' offline inference example for more details.";

/// Maximum number of inputs of one pooling request (vLLM has no limit); equal to the maximum number
/// of sequences of a generation request.
const MAX_POOLING_INPUTS: usize = 65_536;

/// Counts a pooling request as in flight, one sequence per input, until the guard is dropped.
fn count_in_flight(app: &App, inputs: usize) -> Result<InFlightSequencesGuard, Fault> {
    if inputs > MAX_POOLING_INPUTS {
        return Err(Fault::bad_request(format!(
            "The request has {inputs} inputs; at most {MAX_POOLING_INPUTS} are allowed. Send fewer inputs \
             per request."
        )));
    }
    let inputs = u32::try_from(inputs.max(1)).unwrap_or(u32::MAX);
    app.service.admit_sequences(inputs).map_err(|error| error::submission_error_fault(&error))
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
    /// Creates an empty token list with capacity for a known number of inputs; a list that grows
    /// would briefly need its memory twice.
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
    let count = count_inputs(request);
    let params = TokenizeParams::from_pooling_request(app, request, count)?;
    let mut inputs = TokenizedInputs::with_capacity(count);
    let special = SpecialTokenHandling::from_bool(request.add_special_tokens.unwrap_or(true));
    match &request.input {
        PoolingInput::Prompts(CompletionPrompts(prompts)) => {
            for prompt in prompts {
                inputs.push(&params.encode_prompt(app, prompt, special).await?);
            }
        }
        PoolingInput::ConcatenatedTexts(texts) => {
            for text in texts.iter() {
                inputs.push(&params.encode_text(app, text, special).await?);
            }
        }
        PoolingInput::Chat(messages) => {
            inputs.push(&params.encode_chat(app, request, body, messages).await?)
        }
        PoolingInput::Chats(chats) => {
            for messages in chats {
                inputs.push(&params.encode_chat(app, request, body, messages).await?);
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

fn list_head_json(id: &str, model: &str) -> String {
    let mut head = String::from("{\"id\":");
    json::write_json_string(&mut head, id);
    json::write_member(&mut head, ",\"object\":\"list\",\"created\":", unix_now_secs() as u64);
    json::write_member(&mut head, ",\"model\":", model);
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
