//! Routes of SGLang that control GPU memory, weights and the speed of steps.
//!
//! Source: SGLang 0.5.23 `http_server.py`; `managers/scheduler_components/weight_updater.py`
//! (`release_memory_occupation`), `managers/scheduler.py` (`slow_down`).

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde_json::json;

use super::errors::SglangResult;
use super::{control, errors};
use crate::app::App;
use crate::error::{self, ok_json_response};
use vllm_sim_service::{EngineCommand, PrefixCacheResetScope};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sglang::server_control::{
    ReleaseMemoryRequest, ResumeMemoryRequest, SlowDownRequest, WeightVersionRequest,
};

/// Error message for `/release_memory_occupation` on a busy server, from the assertion that stops
/// SGLang's scheduler.
const BUSY: &str = "release_memory_occupation should be called only when server is idle.";

fn null_response() -> Response<Body> {
    error::json_response(StatusCode::OK, "null".to_owned())
}

/// Handles `POST /release_memory_occupation`: empties the KV cache if its memory is released.
pub(super) async fn release_gpu_memory(
    app: Arc<App>,
    request: ReleaseMemoryRequest,
) -> SglangResult {
    let tags = request.tags.unwrap_or_default();
    let releases_cache = tags.is_empty() || tags.iter().any(|tag| tag == "kv_cache");
    let mut stats = app.service.rank_engines().iter().map(|rank| rank.stats());
    if stats.any(|stats| stats.running + stats.waiting + stats.deferred > 0) {
        return Ok(errors::native_route_error_response(&Fault::bad_request(BUSY)));
    }
    if releases_cache {
        app.service.reset_prefix_cache(PrefixCacheResetScope::Forget);
    }
    Ok(null_response())
}

/// Handles `POST /resume_memory_occupation`, which has no further effect.
pub(super) async fn resume_gpu_memory(_: Arc<App>, _: ResumeMemoryRequest) -> SglangResult {
    Ok(null_response())
}

/// Handles `POST /slow_down`: sets a pause before each engine step.
pub(super) async fn slow_down_steps(app: Arc<App>, request: SlowDownRequest) -> SglangResult {
    let seconds = request.forward_sleep_time.filter(|seconds| *seconds > 0.0).unwrap_or(0.0);
    let pause = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    if !app.service.command_all_engines(&EngineCommand::StepPause(pause)) {
        let text = "slow_down is simulated only by the scheduler sglang (--scheduler)";
        return Ok(errors::native_route_error_response(&Fault::bad_request(text)));
    }
    Ok(null_response())
}

/// Handles `POST /update_weight_version`: sets the version of the weights that responses report.
pub(super) async fn update_weight_version(
    app: Arc<App>,
    request: WeightVersionRequest,
) -> SglangResult {
    if request.abort_all_requests {
        control::abort_all_requests(&app);
    }
    let new_version = request.new_version;
    app.weight_version.store(Arc::new(new_version.clone()));
    Ok(ok_json_response(&json!({
        "success": true,
        "message": format!("Weight version updated to {new_version}"),
        "new_version": new_version,
    })))
}
