//! `POST /invocations`: SageMaker's single route for chat and completions.
//!
//! Source: `vllm/entrypoints/serve/sagemaker/api_router.py`.

use axum::extract::State;

use super::app::AppState;
use super::openai::{chat, completion};
use crate::body::RawRequest;
use crate::error::HandlerResult;
use vllm_sim_python::{self as python, JsonLoadsError};
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::chat::ChatRequest;

/// Handles `POST /invocations`: a body that is not a valid chat request is treated as a completion
/// request.
pub(super) async fn post_invocations(State(app): AppState, received: RawRequest) -> HandlerResult {
    // This route checks the media type before the JSON.
    vllm_sim_wire::body::read_json_body(received.media_type(), b"{}")?;
    vllm_sim_wire::body::check_json_value_count(&received.bytes)?;
    let value = python::loads(&received.bytes)
        .map_err(|error| json_decode_fault(error, &received.bytes))?;
    match ChatRequest::parse_chat_request(&value, &app.rules.defaults.bounds) {
        Err(fault) if fault.error_type == ErrorType::BadRequestPhrase => {
            completion::answer_completion_request(&app, &received, &value).await
        }
        _ => chat::answer_chat_request(&app, &received, &value).await,
    }
}

fn json_decode_fault(error: JsonLoadsError, bytes: &[u8]) -> Fault {
    match error {
        JsonLoadsError::Decode { .. } => {
            let text = format!("JSON decode error: {}", error.error_message_with_position(bytes));
            Fault::new(400, ErrorType::BadRequestPhrase, text)
        }
        JsonLoadsError::Unreadable => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decode_error_has_pythons_position() {
        let body = b"{\n \"a\": x}";
        let error = python::loads(body).expect_err("it is not JSON");
        let fault = json_decode_fault(error, body);
        let text = "JSON decode error: Expecting value: line 2 column 7 (char 8)";
        assert_eq!(fault.message, text);
    }
}
