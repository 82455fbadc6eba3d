//! `POST /open_session` and `POST /close_session` of an SGLang server.
//!
//! Source: SGLang 0.5.23 `http_server.py`, `managers/tokenizer_control_mixin.py`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use serde_json::Value;

use super::{endpoint, errors};
use crate::app::App;
use crate::body::RawRequest;
use crate::error;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sglang::server_control::{CloseSessionRequest, OpenSessionRequest, Struct};

/// Error message for a session that cannot be opened.
const NOT_OPENED: &str =
    "Failed to open the session. Check if a session with the same id is still open.";

/// Error message for a streaming session, which SGLang opens only with a flag.
const STREAMING_DISABLED: &str = "Streaming sessions are disabled. Please relaunch with \
     --enable-streaming-session.";

/// Handles `POST /open_session`: returns the id of the session.
pub(super) async fn open_session(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let read = endpoint::read_request(&app, &received, &endpoint::OPEN_SESSION);
    let Struct(request): Struct<OpenSessionRequest> = match read {
        Ok(request) => request,
        Err(fault) => return errors::openai_error(&fault),
    };
    if request.streaming == Some(true) {
        return errors::native_route_error_response(&Fault::bad_request(STREAMING_DISABLED));
    }
    let now = app.service.now();
    match app.sglang.sessions.open_session(request.session_id, request.timeout, now) {
        Some(id) => error::json_response(StatusCode::OK, Value::from(id).to_string()),
        None => errors::native_route_error_response(&Fault::bad_request(NOT_OPENED)),
    }
}

/// Handles `POST /close_session`: closes a session; an unknown id is not an error.
pub(super) async fn close_session(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let read = endpoint::read_request(&app, &received, &endpoint::CLOSE_SESSION);
    match read {
        Ok(Struct(CloseSessionRequest { session_id })) => {
            app.sglang.sessions.close_session(&session_id);
            error::empty_response(StatusCode::OK)
        }
        Err(fault) => errors::openai_error(&fault),
    }
}
