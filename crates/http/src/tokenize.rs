//! `POST /tokenize` and `POST /detokenize`: convert text to token ids and back.

use std::borrow::Cow;

use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use super::app::AppState;
use super::dialect::ApiEndpoint;
use super::generation;
use super::json;
use crate::body::RawRequest;
use crate::error::{self, HandlerResult, ok_json_response};
use vllm_sim_service::prompt::{Conversation, PromptLengthLimit};
use vllm_sim_service::run_blocking_if_large;
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::body::validate_and_read_body;
use vllm_sim_wire::openai::shared_request_fields::ChatTool;
use vllm_sim_wire::vllm::tokenize::{DetokenizeRequest, TokenizeChatRequest, TokenizeRequest};

pub(super) async fn tokenize(State(app): AppState, mut received: RawRequest) -> HandlerResult {
    let (app, value) = (&app, &received.parse_dialect_json(&app)?);
    let body = Cow::Borrowed(value);
    let body = app.dialect.schema_body(ApiEndpoint::Tokenize, body)?;
    let request = TokenizeRequest::parse_tokenize_request(&body)
        .map_err(|fault| app.dialect.unreadable_body_fault(fault))?;
    app.dialect
        .pooling_model(generation::resolve_model_without_faults(app, request.model_name()))?;
    app.service.check_tokenizer_available()?;
    let tokenizer = app.service.generator.tokenizer().clone();
    let (tokens, strings) = match request {
        TokenizeRequest::Text(request) => {
            received.check_prompt_encodable(&["prompt"])?;
            let strings = request.return_token_strs;
            let tokenizer = tokenizer.clone();
            let encode = move || {
                tokenizer.encode(
                    &request.prompt,
                    SpecialTokenHandling::from_bool(request.add_special_tokens),
                )
            };
            (run_blocking_if_large(json_text_bytes(value), encode).await, strings)
        }
        TokenizeRequest::Chat(request) => {
            request.reject_untrusted_template(&app.rules.limits)?;
            received.check_prompt_encodable(&["messages", "tools"])?;
            let strings = request.return_token_strs;
            let mut conversation = tokenize_conversation(*request);
            let tokens = app.service.tokenize_conversation(&app.rules, &mut conversation);
            (tokens.await?.0, strings)
        }
    };
    let mut out = String::from("{\"count\":");
    json::write_json_int(&mut out, tokens.len());
    json::write_member(&mut out, ",\"max_model_len\":", app.settings.model.max_model_len);
    out.push_str(",\"tokens\":");
    json::write_json_int_array(&mut out, tokens.iter().copied());
    out.push_str(",\"token_strs\":");
    if strings.unwrap_or(false) {
        out.push('[');
        for (index, id) in tokens.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            json::write_json_string(&mut out, &tokenizer.vocabulary_entry(*id).unwrap_or_default());
        }
        out.push(']');
    } else {
        out.push_str("null");
    }
    out.push('}');
    Ok(error::json_response(StatusCode::OK, out))
}

pub(super) async fn detokenize(State(app): AppState, mut received: RawRequest) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let request = validate_and_read_body::<DetokenizeRequest>(&value)?;
    generation::resolve_model_without_faults(&app, request.model.as_deref())?;
    app.service.check_tokenizer_available()?;
    // An id outside the vocabulary has no text.
    let ids = request.tokens.iter();
    let ids: Vec<u32> = ids.map(|id| u32::try_from(*id).unwrap_or(u32::MAX)).collect();
    let text = app.service.generator.tokenizer().decode(&ids, SpecialTokenHandling::With);
    Ok(ok_json_response(&json!({"prompt": text})))
}

/// Returns the conversation of a `/tokenize` request, without a length limit.
fn tokenize_conversation(request: TokenizeChatRequest) -> Conversation {
    let tools = request.tools.as_ref().filter(|tools| !tools.is_empty());
    Conversation {
        tools: tools.map(|tools| tools.iter().map(ChatTool::to_template_json).collect()),
        chat_template: request.chat_template,
        chat_template_kwargs: request.chat_template_kwargs.unwrap_or_default(),
        add_generation_prompt: request.add_generation_prompt,
        continue_final_message: request.continue_final_message,
        add_special_tokens: request.add_special_tokens,
        bound: PromptLengthLimit::None,
        messages: request.messages,
        ..Conversation::default()
    }
}

/// Returns the approximate size of the text in a JSON value, in bytes.
fn json_text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(json_text_bytes).sum(),
        Value::Object(map) => map.values().map(json_text_bytes).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}
