//! Routes of SGLang that change the weights of the model, and its profiler. No weights exist, so every
//! update succeeds immediately.
//!
//! Source: SGLang 0.5.23 `http_server.py`; `managers/scheduler_components/weight_updater.py` and
//! `model_executor/model_runner_components/weight_updater.py` (messages);
//! `managers/tokenizer_manager.py` (`update_weights_from_disk`).

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};

use super::control;
use super::endpoint::{self, POST, struct_route};
use super::errors::{self, SglangResult};
use crate::app::{App, Route};
use crate::error::{self, ok_json_response};
use vllm_sim_python::python_repr_of_str;
use vllm_sim_service::PrefixCacheResetScope;
use vllm_sim_wire::fastapi::RouteFunction;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::schema::RequestField;
use vllm_sim_wire::sglang::server_control::Struct;
use vllm_sim_wire::sglang::weight_requests::{
    BeginWeightUpdateRequest, CheckWeightsRequest, DestroyWeightsUpdateGroupRequest,
    EndWeightUpdateRequest, InitWeightsUpdateGroupRequest, UpdateEffects,
    UpdateWeightsFromDiskRequest, UpdateWeightsFromDistributedRequest, UpdateWeightsFromIpcRequest,
    UpdateWeightsFromTensorRequest, WeightsByNameRequest,
};

/// Success text of a weight update from files or from tensors of another process.
const UPDATED: &str = "Succeeded to update model weights.";

/// Applies the effects of an update of the weights, and returns the response with this body.
fn respond(app: &App, request: &impl UpdateEffects, body: &Value) -> SglangResult {
    if request.aborts_requests() {
        control::abort_all_requests(app);
    }
    if request.flushes_cache() {
        app.service.reset_prefix_cache(PrefixCacheResetScope::Forget);
    }
    if let Some(version) = request.weight_version() {
        app.weight_version.store(Arc::new(version.to_owned()));
    }
    Ok(ok_json_response(body))
}

fn with_version(message: &str, request: &impl UpdateEffects) -> String {
    match request.weight_version() {
        Some(version) => format!("{message} Weight version updated to {version}."),
        None => message.to_owned(),
    }
}

/// Returns the routes whose success is one text, each with the type of its request.
pub(super) fn weight_update_routes() -> [Route; 7] {
    [
        update_route::<UpdateWeightsFromDistributedRequest>(
            &endpoint::UPDATE_WEIGHTS_FROM_DISTRIBUTED,
            "Succeeded to update parameter online.",
        ),
        update_route::<UpdateWeightsFromTensorRequest>(
            &endpoint::UPDATE_WEIGHTS_FROM_TENSOR,
            "Success",
        ),
        update_route::<UpdateWeightsFromIpcRequest>(&endpoint::UPDATE_WEIGHTS_FROM_IPC, UPDATED),
        update_route::<InitWeightsUpdateGroupRequest>(
            &endpoint::INIT_WEIGHTS_GROUP,
            "Succeeded to initialize custom process group.",
        ),
        update_route::<DestroyWeightsUpdateGroupRequest>(
            &endpoint::DESTROY_WEIGHTS_GROUP,
            "Succeeded to destroy custom process group.",
        ),
        update_route::<BeginWeightUpdateRequest>(&endpoint::BEGIN_WEIGHT_UPDATE, "Success"),
        update_route::<EndWeightUpdateRequest>(&endpoint::END_WEIGHT_UPDATE, "Success"),
    ]
}

fn update_route<T>(at: &'static RouteFunction, message: &'static str) -> Route
where
    Struct<T>: RequestField,
    T: UpdateEffects + Send + 'static,
{
    struct_route(POST, at, move |app: Arc<App>, request: T| {
        let body = json!({"success": true, "message": with_version(message, &request)});
        std::future::ready(respond(&app, &request, &body))
    })
}

/// Handles `POST /update_weights_from_disk`.
pub(super) async fn update_weights_from_disk(
    app: Arc<App>,
    request: UpdateWeightsFromDiskRequest,
) -> SglangResult {
    let ranks = app.service.rank_engines().len();
    // Several ranks answer one by one.
    let paused = if ranks == 1 { json!(0) } else { json!(vec![0; ranks]) };
    let message = with_version(&vec![UPDATED; ranks].join(" | "), &request);
    let body = json!({"success": true, "message": message, "num_paused_requests": paused});
    respond(&app, &request, &body)
}

/// Handles `POST /get_weights_by_name`: no parameter exists.
pub(super) async fn get_weights_by_name(_: Arc<App>, _: WeightsByNameRequest) -> SglangResult {
    let fault = Fault::bad_request("Get parameter by name failed");
    Ok(errors::native_route_error_response(&fault))
}

/// Handles `POST /weights_checker`: a copy of the weights always equals them.
///
/// Source: SGLang 0.5.23 `srt/utils/weight_checker.py`, `handle`.
pub(super) async fn check_weights(
    _: Arc<App>,
    request: Option<Struct<CheckWeightsRequest>>,
) -> SglangResult {
    let action = request.map_or_else(|| "checksum".to_owned(), |Struct(request)| request.action);
    let failure = match action.as_str() {
        "snapshot" | "compare" => None,
        "checksum" | "reset_tensors" => Some(format!("action {action} is not simulated")),
        _ => Some(format!("Unsupported action={}", python_repr_of_str(&action))),
    };
    let (status, success) = match failure {
        None => (StatusCode::OK, true),
        Some(_) => (StatusCode::BAD_REQUEST, false),
    };
    let message = failure.unwrap_or_else(|| "Success.".to_owned());
    Ok(error::json_response(status, json!({"success": success, "message": message}).to_string()))
}

/// Handles `POST /start_profile`: no profile is written.
pub(super) async fn start_profile() -> Response<Body> {
    Response::new(Body::from("Start profiling.\n"))
}

/// Handles `POST /stop_profile`: returns SGLang's text, but no profile exists.
pub(super) async fn stop_profile() -> Response<Body> {
    Response::new(Body::from("Stop profiling. This will take some time.\n"))
}

/// Handles `POST /freeze_gc`, which has no effect.
pub(super) async fn freeze_gc() -> Response<Body> {
    Response::new(Body::from("Garbage collection frozen.\n"))
}
