//! `POST /open_session` and `POST /close_session` of an SGLang server.
//!
//! Source: SGLang 0.5.23 `http_server.py`, `managers/tokenizer_control_mixin.py`.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::Value;

use super::errors::{self, SglangResult};
use crate::app::App;
use crate::error::{self, ok_json_response};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sglang::server_control::{CloseSessionRequest, OpenSessionRequest};

/// Error message for a session that cannot be opened.
const NOT_OPENED: &str =
    "Failed to open the session. Check if a session with the same id is still open.";

/// Error message for a streaming session, which SGLang opens only with a flag.
const STREAMING_DISABLED: &str = "Streaming sessions are disabled. Please relaunch with \
     --enable-streaming-session.";

/// Handles `POST /open_session`: returns the id of the session.
pub(super) async fn open_session(app: Arc<App>, request: OpenSessionRequest) -> SglangResult {
    if request.streaming == Some(true) {
        return Ok(errors::native_route_error_response(&Fault::bad_request(STREAMING_DISABLED)));
    }
    let now = app.service.now();
    Ok(match app.sglang.sessions.open_session(request.session_id, request.timeout, now) {
        Some(id) => ok_json_response(&Value::from(id)),
        None => errors::native_route_error_response(&Fault::bad_request(NOT_OPENED)),
    })
}

/// Handles `POST /close_session`: closes a session; an unknown id is not an error.
pub(super) async fn close_session(app: Arc<App>, request: CloseSessionRequest) -> SglangResult {
    app.sglang.sessions.close_session(&request.session_id);
    Ok(error::empty_response(StatusCode::OK))
}
