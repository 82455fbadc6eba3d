//! Maps errors to HTTP responses.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::Value;

use vllm_sim_service::JobSubmissionError;
use vllm_sim_wire::fault::{ErrorType, Fault};

/// Result of an HTTP handler; a [`Fault`] becomes an error response in OpenAI's format.
pub(super) type HandlerResult = Result<Response<Body>, Fault>;

pub(super) fn fault_response(fault: &Fault) -> Response<Body> {
    add_retry_after(fault, json_response(to_status_code(fault.status), fault.to_json()))
}

pub(super) fn add_retry_after(fault: &Fault, mut response: Response<Body>) -> Response<Body> {
    if let Some(seconds) = fault.retry_after_seconds {
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

pub(super) fn json_response(status: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns the response with status 200 and a JSON body.
pub(super) fn ok_json_response(body: &Value) -> Response<Body> {
    json_response(StatusCode::OK, body.to_string())
}

pub(super) fn empty_response(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// Returns FastAPI's response with status 405 for a path whose route has other HTTP methods.
pub(super) fn method_not_allowed_response(allow: &'static str) -> Response<Body> {
    let body = "{\"detail\":\"Method Not Allowed\"}".to_owned();
    let mut response = json_response(StatusCode::METHOD_NOT_ALLOWED, body);
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allow));
    response
}

/// Returns FastAPI's response with status 404 for an unknown path.
pub(super) fn not_found_response() -> Response<Body> {
    json_response(StatusCode::NOT_FOUND, "{\"detail\":\"Not Found\"}".to_owned())
}

/// Converts the number of an error's HTTP status; an invalid number, which only a bug can cause,
/// becomes 500.
pub(super) fn to_status_code(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// Returns the error of a request that failed in the engine.
///
/// **Source:** vLLM 0.33 `vllm/entrypoints/openai/engine/serving.py`, `_raise_if_error`.
pub(super) fn engine_failure_fault() -> Fault {
    Fault::new(500, ErrorType::InternalServer, "Internal server error")
}

/// Returns the last events of a stream that fails after its headers were sent; `json` is the error.
pub(super) fn stream_error_events(json: &str) -> String {
    format!("data: {json}\n\ndata: [DONE]\n\n")
}

/// Returns the HTTP error of a request that the service rejected.
pub(super) fn submission_error_fault(error: &JobSubmissionError) -> Fault {
    let message = error.to_string();
    match error {
        JobSubmissionError::QueueFull => Fault::new(429, ErrorType::RateLimit, message),
        JobSubmissionError::TooManyRequests
        | JobSubmissionError::TooManyTokens
        | JobSubmissionError::MessageMemoryFull(_) => {
            Fault::new(503, ErrorType::ServiceUnavailablePhrase, message)
        }
        JobSubmissionError::Draining | JobSubmissionError::Abandoned => {
            Fault::new(503, ErrorType::ServiceUnavailablePhrase, message)
        }
        JobSubmissionError::Paused => Fault::new(503, ErrorType::ServiceUnavailable, message),
        JobSubmissionError::Rank { .. }
        | JobSubmissionError::Constraint(_)
        | JobSubmissionError::Tools(_)
        | JobSubmissionError::TooManySequences { .. }
        | JobSubmissionError::PromptsTooLarge { .. }
        | JobSubmissionError::ReplyTooLarge { .. }
        | JobSubmissionError::TooLarge { .. } => Fault::bad_request(message),
    }
}
