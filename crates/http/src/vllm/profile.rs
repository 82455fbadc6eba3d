//! `/start_profile` and `/stop_profile`: record whether a profiling session is active, without
//! profiling.
//!
//! Source: vLLM 0.33 `entrypoints/serve/dev/profile/`, `v1/engine/async_llm.py`,
//! `config/profiler.py`.

use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};

use crate::app::AppState;
use crate::body::RawRequest;
use crate::error::{self, HandlerResult};
use vllm_sim_wire::body::validate_and_read_body;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::vllm::server_control::StartProfileRequest;

pub(crate) async fn start_profile(State(app): AppState, received: RawRequest) -> HandlerResult {
    let value = vllm_sim_wire::body::read_optional_body(received.media_type(), &received.bytes)?;
    let request = match value {
        Some(value) => validate_and_read_body::<StartProfileRequest>(&value)?,
        None => StartProfileRequest::default(),
    };
    // Only one session may be active. With several API servers, vLLM cannot detect a second one.
    let one_process = app.settings.parallel.api_servers <= 1;
    if one_process && app.profiling.load(Ordering::Relaxed) {
        let message = "A profiling session is already active. Call /stop_profile before \
                     starting another session.";
        return Err(Fault::new(409, ErrorType::ConflictPhrase, message));
    }
    request.validate_profile_request()?;
    app.profiling.store(true, Ordering::Relaxed);
    Ok(error::empty_response(StatusCode::OK))
}

pub(crate) async fn stop_profile(State(app): AppState) -> Response<Body> {
    app.profiling.store(false, Ordering::Relaxed);
    error::empty_response(StatusCode::OK)
}
