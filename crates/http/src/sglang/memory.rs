//! Routes of SGLang that control GPU memory, weights and the speed of steps.
//!
//! Source: SGLang 0.5.23 `http_server.py`; `managers/scheduler_components/weight_updater.py`
//! (`release_memory_occupation`), `managers/scheduler.py` (`slow_down`).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use serde_json::json;

use super::{control, endpoint, errors};
use crate::app::App;
use crate::body::RawRequest;
use crate::error;
use vllm_sim_service::{EngineCommand, PrefixCacheResetScope};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sglang::server_control::{
    ReleaseMemoryRequest, ResumeMemoryRequest, SlowDownRequest, Struct, WeightVersionRequest,
};

/// Error message for `/release_memory_occupation` on a busy server, from the assertion that stops
/// SGLang's scheduler.
const BUSY: &str = "release_memory_occupation should be called only when server is idle.";

fn null_response() -> Response<Body> {
    error::json_response(StatusCode::OK, "null".to_owned())
}

/// Handles `POST /release_memory_occupation`: empties the KV cache if its memory is released.
pub(super) async fn release_gpu_memory(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let read = endpoint::read_request(&app, &received, &endpoint::RELEASE_MEMORY);
    let Struct(ReleaseMemoryRequest { tags }) = match read {
        Ok(request) => request,
        Err(fault) => return errors::openai_error(&fault),
    };
    let tags = tags.unwrap_or_default();
    let releases_cache = tags.is_empty() || tags.iter().any(|tag| tag == "kv_cache");
    let mut stats = app.service.rank_engines().iter().map(|rank| rank.stats());
    if stats.any(|stats| stats.running + stats.waiting + stats.deferred > 0) {
        return errors::native_route_error_response(&Fault::bad_request(BUSY));
    }
    if releases_cache {
        app.service.reset_prefix_cache(PrefixCacheResetScope::Forget);
    }
    null_response()
}

/// Handles `POST /resume_memory_occupation`, which has no further effect.
pub(super) async fn resume_gpu_memory(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let read = endpoint::read_request::<Struct<ResumeMemoryRequest>>(
        &app,
        &received,
        &endpoint::RESUME_MEMORY,
    );
    match read {
        Ok(_) => null_response(),
        Err(fault) => errors::openai_error(&fault),
    }
}

/// Handles `POST /slow_down`: sets a pause before each engine step.
pub(super) async fn slow_down_steps(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let read = endpoint::read_request(&app, &received, &endpoint::SLOW_DOWN);
    let Struct(SlowDownRequest { forward_sleep_time }) = match read {
        Ok(request) => request,
        Err(fault) => return errors::openai_error(&fault),
    };
    let seconds = forward_sleep_time.filter(|seconds| *seconds > 0.0).unwrap_or(0.0);
    let pause = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    if !app.service.command_all_engines(&EngineCommand::StepPause(pause)) {
        let text = "slow_down is simulated only by the scheduler sglang (--scheduler)";
        return errors::native_route_error_response(&Fault::bad_request(text));
    }
    null_response()
}

/// Handles `POST /update_weight_version`: sets the version of the weights that responses report.
pub(super) async fn update_weight_version(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let read = endpoint::read_request(&app, &received, &endpoint::UPDATE_WEIGHT_VERSION);
    let Struct(WeightVersionRequest { new_version, abort_all_requests }) = match read {
        Ok(request) => request,
        Err(fault) => return errors::openai_error(&fault),
    };
    if abort_all_requests {
        control::abort_all_requests(&app);
    }
    app.weight_version.store(Arc::new(new_version.clone()));
    let body = json!({
        "success": true,
        "message": format!("Weight version updated to {new_version}"),
        "new_version": new_version,
    });
    error::json_response(StatusCode::OK, body.to_string())
}
