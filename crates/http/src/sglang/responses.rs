//! `POST /v1/responses` of an SGLang server, without stored responses.
//!
//! Source: SGLang 0.5.23 `openai/serving_responses.py`; `http_server.py`
//! (`v1_responses_request`, `validation_exception_handler`).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use serde_json::json;

use super::chat::{StartedChatGeneration, reply_tool_call_rendering, start_chat};
use super::messages::EMPTY_CONVERSATION_ERROR;
use super::responses_render::{ResponseStream, SglangResponsesFormat};
use super::{endpoint, errors};
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error;
use crate::generation;
use crate::stream;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::sglang::chat::{SglangChatRequest, ToolCallRendering};
use vllm_sim_wire::sglang::errors::construct_python_object;
use vllm_sim_wire::sglang::responses::{STORE_DISABLED_MESSAGE, SglangResponsesRequest};

/// Handles `POST /v1/responses`: generates a Responses API response.
pub(super) async fn create_response(State(app): AppState, received: RawRequest) -> Response<Body> {
    answer(&app, &received).await.unwrap_or_else(|fault| error_response(&fault))
}

async fn answer(app: &Arc<App>, received: &RawRequest) -> Result<Response<Body>, Fault> {
    let request: SglangResponsesRequest =
        endpoint::read_request(app, received, &endpoint::RESPONSES)?;
    request.validate_responses_request(|model| knows_model(app, model))?;
    let body = request.to_chat_body()?;
    let bounds = &app.rules.defaults.bounds;
    let chat: SglangChatRequest = construct_python_object(&body, "ChatCompletionRequest", bounds)?;
    // Forced calls are read from the text even without a tool parser.
    let calls = match request.forces_tool_calls() {
        true => ToolCallRendering::Parsed,
        false => reply_tool_call_rendering(app),
    };
    if chat.messages.is_empty() {
        return Err(Fault::bad_request(format!("{EMPTY_CONVERSATION_ERROR} None")));
    }
    let started = start_chat(app, received, &chat, calls).await;
    let StartedChatGeneration { reply, format, counter } =
        started.map_err(|refused| refused.error)?;
    let format = SglangResponsesFormat::new(request, format);
    if chat.stream {
        let render = ResponseStream::new(format, counter);
        let response = stream::stream_reply_without_keep_alive(app, received, reply, render);
        return Ok(response.await);
    }
    let body = generation::render_finished_reply(reply, move |reply| {
        counter.count_ended_reply(reply);
        format.responses_api_body_json(reply)
    });
    Ok(error::json_response(StatusCode::OK, body.await?.to_string()))
}

/// Returns whether a model name is that of the base model, of a loaded LoRA adapter, or has the
/// form `model:adapter`.
fn knows_model(app: &App, name: &str) -> bool {
    let served = &**app.service.models.displayed_model_name();
    let base = name.strip_prefix(served).is_some_and(|rest| rest.starts_with(':'));
    let adapters = app.service.models.loaded_lora_adapters();
    name == served || base || adapters.iter().any(|adapter| *adapter.name == *name)
}

/// Handles `GET /v1/responses/{id}` and `POST /v1/responses/{id}/cancel`: returns an error, because
/// no response is stored.
pub(super) async fn stored_response_not_found() -> Response<Body> {
    error_response(&Fault {
        param: Some("response_id".to_owned()),
        ..Fault::bad_request(STORE_DISABLED_MESSAGE)
    })
}

/// Returns the response for an error of `/v1/responses`, in SGLang's format.
fn error_response(fault: &Fault) -> Response<Body> {
    let kind = match fault.error_type {
        ErrorType::BadRequestPhrase => "Bad Request",
        _ => "invalid_request_error",
    };
    let body = json!({"error": {
        "message": fault.message,
        "type": kind,
        "param": fault.param,
        "code": fault.status,
    }});
    error::add_retry_after(fault, errors::json_error(fault.status, &body))
}
