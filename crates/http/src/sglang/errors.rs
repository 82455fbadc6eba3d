//! Error responses of SGLang.
//!
//! Source: SGLang 0.5.23 `http_server.py` (`validation_exception_handler`,
//! `_create_error_response`), `openai/serving_base.py` (`create_error_response`).

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};

use crate::error;
use crate::stream;
use vllm_sim_service::JobSubmissionError;
pub(super) use vllm_sim_wire::sglang::unhandled_exception_fault;

use vllm_sim_wire::fault::{ErrorType, Fault};

/// Error message for a request that exceeds the queue limit `--max-queued-requests`.
///
/// Source: SGLang 0.5.23 `srt/managers/scheduler.py`, `_abort_on_queued_limit`.
const QUEUE_FULL: &str = "The request queue is full.";

/// Returns the plain-text response with status 500 for an exception in a handler; `None` for other
/// errors.
///
/// Source: Starlette `middleware/errors.py`, `ServerErrorMiddleware`.
fn unhandled_response(fault: &Fault) -> Option<Response<Body>> {
    let is_unhandled = fault.status == 500 && fault.error_type == ErrorType::Detail;
    is_unhandled.then(|| {
        let mut response = Response::new(Body::from(fault.message.clone()));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        let kind = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    })
}

/// Returns the error response of an OpenAI route.
pub(super) fn openai_error(fault: &Fault) -> Response<Body> {
    if let Some(response) = unhandled_response(fault) {
        return response;
    }
    let fault = with_sglang_words(fault);
    error::add_retry_after(&fault, json_error(fault.status, &openai_body(&fault)))
}

/// Error of an SGLang route, which becomes the error response of an OpenAI route.
pub(super) struct OpenAiRouteError(Fault);

/// Result of a handler of SGLang.
pub(super) type SglangResult = Result<Response<Body>, OpenAiRouteError>;

impl<E: Into<Fault>> From<E> for OpenAiRouteError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for OpenAiRouteError {
    fn into_response(self) -> Response<Body> {
        openai_error(&self.0)
    }
}

/// Returns the error response of a native route; for an invalid value, the response contains only
/// the error text.
pub(super) fn native_route_error_response(fault: &Fault) -> Response<Body> {
    match (fault.status, fault.error_type) {
        (400, ErrorType::BadRequest | ErrorType::BadRequestName) => {
            json_error(400, &json!({"error": {"message": fault.message}}))
        }
        (_, ErrorType::Bare) => json_error(fault.status, &json!({"error": fault.message})),
        _ => openai_error(fault),
    }
}

/// Returns the response of a native stream request with an invalid value: status 200 and an error
/// event.
pub(super) fn invalid_native_stream_response(fault: &Fault) -> Response<Body> {
    let error = json!({"error": {
        "message": fault.message,
        "type": "invalid_request_error",
        "code": fault.status,
        "retryable": false,
    }});
    stream::event_stream_response(Body::from(error::stream_error_events(&error.to_string())))
}

/// Returns the JSON of an error of the OpenAI routes.
fn openai_body(fault: &Fault) -> Value {
    let kind = match fault.error_type {
        // Errors of the scheduler are HTTP exceptions there, which have the status as type.
        ErrorType::ServiceUnavailable | ErrorType::ServiceUnavailablePhrase => "503",
        ErrorType::Bare => ErrorType::BadRequestName.as_str(),
        ErrorType::InternalServerPhrase => "500",
        ErrorType::InternalServer if fault.message == error::engine_failure_fault().message => {
            "500"
        }
        other => other.as_str(),
    };
    json!({
        "object": "error",
        "message": fault.message,
        "type": kind,
        "param": null,
        "code": fault.status,
    })
}

/// Replaces this simulator's error for a full request queue by SGLang's.
fn with_sglang_words(fault: &Fault) -> Fault {
    if fault.status == 429 && fault.message == JobSubmissionError::QueueFull.to_string() {
        return Fault::new(503, ErrorType::ServiceUnavailable, QUEUE_FULL);
    }
    fault.clone()
}

/// Returns the last events of a stream whose engine fails after the first token.
pub(super) fn engine_failure_events() -> String {
    let body = json!({"error": openai_body(&error::engine_failure_fault())});
    error::stream_error_events(&body.to_string())
}

/// Returns the stream response of an OpenAI route whose prefill/decode negotiation failed.
///
/// Source: SGLang 0.5.23 `openai/serving_chat.py`, `create_streaming_error_response`.
pub(super) fn failed_openai_stream(fault: &Fault) -> Response<Body> {
    let mut body = openai_body(fault);
    body["type"] = "INTERNAL_SERVER_ERROR".into();
    let error = json!({"error": body}).to_string();
    stream::event_stream_response(Body::from(error::stream_error_events(&error)))
}

/// Returns the stream response of `/generate` for a failed prefill/decode negotiation.
///
/// Source: SGLang 0.5.23 `srt/managers/schedule_batch.py`, `FINISH_ABORT`.
pub(super) fn failed_native_stream(fault: &Fault, rid: &str, prompt: usize) -> Response<Body> {
    let event = json!({
        "text": "",
        "output_ids": [],
        "meta_info": {
            "id": rid,
            "finish_reason": {
                "type": "abort",
                "message": fault.message,
                "status_code": fault.status,
                "err_type": null,
            },
            "prompt_tokens": prompt,
            "completion_tokens": 0,
            "cached_tokens": 0,
        },
    });
    stream::event_stream_response(Body::from(error::stream_error_events(&event.to_string())))
}

pub(super) fn json_error(status: u16, body: &Value) -> Response<Body> {
    error::json_response(error::to_status_code(status), body.to_string())
}
