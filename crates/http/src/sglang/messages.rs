//! `POST /v1/messages` and `POST /v1/messages/count_tokens` of an SGLang server.
//!
//! Source: SGLang 0.5.23 `anthropic/serving.py`; `http_server.py`
//! (`_anthropic_validation_message`, `_anthropic_error_response`).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Value, json};

use super::chat::{StartedChatGeneration, reply_tool_call_rendering, start_chat};
use super::endpoint;
use super::messages_render::{
    SglangMessageStream, message_json, write_error_and_stop, write_message_start,
};
use super::request::{conversation_token_ids, explicit_context_length};
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error::{self, ok_json_response};
use crate::generation;
use crate::stream;
use vllm_sim_wire::fastapi::{self, BodyReadError};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::schema::RequestField;
use vllm_sim_wire::sglang::chat::{SglangChatRequest, ToolCallRendering};
use vllm_sim_wire::sglang::messages::{SglangCountRequest, SglangMessagesRequest};

/// Value of `type` in the error for an invalid `/v1/messages` request.
const INVALID_REQUEST: &str = "invalid_request_error";

/// Error message for a conversation without messages, whose tokens cannot be counted.
pub(super) const EMPTY_CONVERSATION_ERROR: &str =
    "Cannot apply chat template to an empty conversation. Provide at least one message.";

/// Handles `POST /v1/messages`: generates an Anthropic message.
pub(super) async fn create_anthropic_message(
    State(app): AppState,
    received: RawRequest,
) -> Response<Body> {
    match answer(&app, &received).await {
        Ok(response) => response,
        Err(Refusal { fault, kind }) => error_response(&fault, kind),
    }
}

/// Error of `/v1/messages` with its Anthropic error type; `None` uses the type of the chat route's
/// error.
struct Refusal {
    fault: Fault,
    kind: Option<&'static str>,
}

impl Refusal {
    fn invalid(fault: Fault) -> Self {
        Self { fault, kind: Some(INVALID_REQUEST) }
    }
}

async fn answer(app: &Arc<App>, received: &RawRequest) -> Result<Response<Body>, Refusal> {
    let request: SglangMessagesRequest = read(app, received).map_err(Refusal::invalid)?;
    let chat = chat_request(app, &request).map_err(Refusal::invalid)?;
    let context_length = explicit_context_length(app);
    chat.validate_chat_request(&app.rules.limits, context_length).map_err(Refusal::invalid)?;
    let started = match start_chat(app, received, &chat, reply_tool_call_rendering(app)).await {
        Ok(started) => started,
        Err(refused) if chat.stream => return Ok(failed_stream(&refused.error, &chat.model)),
        Err(refused) => {
            let fault = refused.error;
            let is_checked_first = fault.message.starts_with("Model only supports text input");
            return Err(Refusal { kind: is_checked_first.then_some(INVALID_REQUEST), fault });
        }
    };
    let StartedChatGeneration { reply, format, counter } = started;
    if chat.stream {
        let render = SglangMessageStream::new(format, counter, &reply);
        let response = stream::stream_reply_without_keep_alive(app, received, reply, render);
        return Ok(response.await);
    }
    let body = generation::render_finished_reply(reply, move |reply| {
        counter.count_ended_reply(reply);
        message_json(&format, reply)
    });
    let body = body.await.map_err(|fault| Refusal { fault, kind: None })?;
    Ok(ok_json_response(&body))
}

/// Handles `POST /v1/messages/count_tokens`: returns the number of prompt tokens of a conversation.
pub(super) async fn count_message_tokens(
    State(app): AppState,
    received: RawRequest,
) -> Response<Body> {
    let count = async {
        let request: SglangCountRequest = read(&app, &received)?;
        if request.messages.is_empty() {
            return Err(Fault::bad_request(EMPTY_CONVERSATION_ERROR));
        }
        let chat = chat_request(&app, &request.into())?;
        let bounds = &app.rules.defaults.bounds;
        let chat = chat.read_conversation(ToolCallRendering::Parsed, bounds)?;
        conversation_token_ids(&app, chat).await
    };
    match count.await {
        Ok(tokens) => ok_json_response(&json!({"input_tokens": tokens.len()})),
        Err(fault) => error_response(&fault, Some(INVALID_REQUEST)),
    }
}

/// Reads the body of a `/v1/messages` request; its errors become SGLang's short text.
fn read<T: RequestField>(app: &App, received: &RawRequest) -> Result<T, Fault> {
    let bounds = &app.rules.defaults.bounds;
    let body = endpoint::parse_json_body(received, &endpoint::CHAT_COMPLETIONS);
    let read = body.and_then(|body| fastapi::read_body(body.as_ref(), bounds));
    read.map_err(|refusal| match refusal {
        BodyReadError::Errors(errors) => Fault::bad_request(errors.anthropic_error_text()),
        BodyReadError::Fault(fault) if fault.message.contains("Unsupported Media Type") => {
            Fault::bad_request(
                "header.content-type: Unsupported Media Type: Only 'application/json' is allowed",
            )
        }
        BodyReadError::Fault(fault) => fault,
    })
}

/// Converts a `/v1/messages` request to a chat request with the same prompt.
fn chat_request(app: &App, request: &SglangMessagesRequest) -> Result<SglangChatRequest, Fault> {
    let body = request.to_chat_body(app.settings.parsers.reasoning.as_deref())?;
    endpoint::read_parsed_body(app, Some(&body), &endpoint::CHAT_COMPLETIONS)
}

/// Returns the JSON of an Anthropic error object with its type and message.
fn error_json(fault: &Fault, kind: Option<&str>) -> Value {
    let (kind, message) = match fault.status {
        503 => ("overloaded_error", "Internal server error"),
        500.. => ("api_error", "Internal server error"),
        429 => ("rate_limit_error", fault.message.as_str()),
        404 => ("not_found_error", fault.message.as_str()),
        _ => (kind.unwrap_or(fault.error_type.as_str()), fault.message.as_str()),
    };
    json!({"type": "error", "error": {"type": kind, "message": message}})
}

fn error_response(fault: &Fault, kind: Option<&str>) -> Response<Body> {
    let status = error::to_status_code(fault.status);
    let response = error::json_response(status, error_json(fault, kind).to_string());
    error::add_retry_after(fault, response)
}

/// Returns the response of a `/v1/messages` stream that fails before its first token.
fn failed_stream(fault: &Fault, model: &str) -> Response<Body> {
    let mut events = String::new();
    write_message_start(&mut events, model, 0);
    write_error_and_stop(&mut events, &error_json(fault, Some(INVALID_REQUEST)));
    stream::event_stream_response(Body::from(events))
}
