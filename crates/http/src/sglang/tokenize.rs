//! `POST /tokenize` and `POST /detokenize` of an SGLang server.
//!
//! Source: SGLang 0.5.23 `openai/serving_tokenize.py`.

use std::sync::Arc;

use axum::extract::State;
use serde_json::{Value, json};

use super::endpoint;
use super::errors::SglangResult;
use super::request::conversation_token_ids;
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error::ok_json_response;
use vllm_sim_service::run_blocking_if_large;
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::sglang::chat::{SglangChatRequest, ToolCallRendering};
use vllm_sim_wire::sglang::tokenize::{SglangDetokenizeRequest, SglangTokenizeRequest};

pub(super) async fn tokenize(State(app): AppState, received: RawRequest) -> SglangResult {
    Ok(ok_json_response(&token_ids(&app, &received).await?))
}

async fn token_ids(app: &Arc<App>, received: &RawRequest) -> Result<Value, Fault> {
    let (request, body): (SglangTokenizeRequest, Value) =
        endpoint::read_request_and_body(app, received, &endpoint::TOKENIZE)?;
    app.service.check_tokenizer_available()?;
    let tokenizer = app.service.generator.tokenizer().clone();
    let (tokens, count) = match request.prompt {
        Some(Value::String(text)) => {
            let special = SpecialTokenHandling::from_bool(request.add_special_tokens);
            let encode = move || tokenizer.encode(&text, special);
            let ids = run_blocking_if_large(received.bytes.len(), encode).await;
            (json!(ids), json!(ids.len()))
        }
        Some(texts) => {
            let special = SpecialTokenHandling::from_bool(request.add_special_tokens);
            let encode = move || {
                let texts = texts.as_array().into_iter().flatten().filter_map(Value::as_str);
                texts.map(|text| tokenizer.encode(text, special)).collect::<Vec<_>>()
            };
            let lists = run_blocking_if_large(received.bytes.len(), encode).await;
            let counts: Vec<usize> = lists.iter().map(Vec::len).collect();
            (json!(lists), json!(counts))
        }
        None => {
            let ids = conversation_ids(app, &body).await?;
            (json!(ids), json!(ids.len()))
        }
    };
    let max = app.settings.model.max_model_len;
    Ok(json!({"tokens": tokens, "count": count, "max_model_len": max}))
}

/// Returns the token ids of a conversation, as those of a chat request.
async fn conversation_ids(app: &Arc<App>, body: &Value) -> Result<Vec<u32>, Fault> {
    let request =
        endpoint::read_parsed_body::<SglangChatRequest>(app, Some(body), &endpoint::TOKENIZE)?;
    request.validate_chat_request(&app.rules.limits, None)?;
    let bounds = &app.rules.defaults.bounds;
    let chat = request.read_conversation(ToolCallRendering::Parsed, bounds)?;
    conversation_token_ids(app, chat).await
}

pub(super) async fn detokenize(State(app): AppState, received: RawRequest) -> SglangResult {
    Ok(ok_json_response(&json!({"text": texts(&app, &received)?})))
}

fn texts(app: &App, received: &RawRequest) -> Result<Value, Fault> {
    let request: SglangDetokenizeRequest =
        endpoint::read_request(app, received, &endpoint::DETOKENIZE)?;
    app.service.check_tokenizer_available()?;
    let tokenizer = app.service.generator.tokenizer();
    let special = SpecialTokenHandling::from_bool(!request.skip_special_tokens);
    let decode = |ids: &Value| {
        let ids = ids.as_array().into_iter().flatten();
        // An id outside the vocabulary has no text.
        let ids = ids.map(to_token_id).collect::<Result<Vec<u32>, Fault>>()?;
        Ok(Value::from(tokenizer.decode(&ids, special)))
    };
    let lists = request.tokens.as_array().filter(|items| items.iter().any(Value::is_array));
    match lists {
        Some(lists) => lists.iter().map(decode).collect(),
        None => decode(&request.tokens),
    }
}

/// Returns a token id of a `/detokenize` request, or SGLang's error for an id beyond 32 bits.
fn to_token_id(id: &Value) -> Result<u32, Fault> {
    let number = id.as_i64().unwrap_or(i64::MAX);
    number.try_into().map_err(|_| {
        let size = if number < 0 { "small" } else { "large" };
        let text = format!(
            "Internal server error during detokenization: number too {size} to fit in target type"
        );
        Fault::new(500, ErrorType::InternalServer, text)
    })
}
