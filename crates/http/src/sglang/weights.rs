//! Routes of SGLang that change the weights of the model, and its profiler. No weights exist, so every
//! update succeeds immediately.
//!
//! Source: SGLang 0.5.23 `http_server.py`; `managers/scheduler_components/weight_updater.py` and
//! `model_executor/model_runner_components/weight_updater.py` (messages);
//! `managers/tokenizer_manager.py` (`update_weights_from_disk`).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{endpoint, errors};
use crate::app::App;
use crate::body::RawRequest;
use crate::error;
use vllm_sim_service::PrefixCacheResetScope;
use vllm_sim_wire::fastapi::RouteFunction;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::schema::RequestField;
use vllm_sim_wire::sglang::server_control::Struct;
use vllm_sim_wire::sglang::weight_requests::{
    BeginWeightUpdateRequest, DestroyWeightsUpdateGroupRequest, EndWeightUpdateRequest,
    InitWeightsUpdateGroupRequest, UpdateEffects, UpdateWeightsFromDiskRequest,
    UpdateWeightsFromDistributedRequest, UpdateWeightsFromIpcRequest,
    UpdateWeightsFromTensorRequest, WeightsByNameRequest,
};

/// Success text of a weight update from files or from tensors of another process.
const UPDATED: &str = "Succeeded to update model weights.";

/// Handles a weight update: reads the request, applies its effects, and returns SGLang's result.
fn update<T>(app: &App, received: &RawRequest, at: &RouteFunction, message: &str) -> Response<Body>
where
    Struct<T>: RequestField,
    T: UpdateEffects,
{
    respond::<T>(
        app,
        received,
        at,
        |request| json!({"success": true, "message": with_version(message, request)}),
    )
}

fn respond<T>(
    app: &App,
    received: &RawRequest,
    at: &RouteFunction,
    body: impl FnOnce(&T) -> Value,
) -> Response<Body>
where
    Struct<T>: RequestField,
    T: UpdateEffects,
{
    let Struct(request): Struct<T> = match endpoint::read_request(app, received, at) {
        Ok(request) => request,
        Err(fault) => return errors::openai_error(&fault),
    };
    if request.aborts_requests() {
        app.service.abort_requests(None);
    }
    if request.flushes_cache() {
        app.service.reset_prefix_cache(PrefixCacheResetScope::Forget);
    }
    if let Some(version) = request.weight_version() {
        app.weight_version.store(Arc::new(version.to_owned()));
    }
    error::json_response(StatusCode::OK, body(&request).to_string())
}

fn with_version(message: &str, request: &impl UpdateEffects) -> String {
    match request.weight_version() {
        Some(version) => format!("{message} Weight version updated to {version}."),
        None => message.to_owned(),
    }
}

/// Handles `POST /update_weights_from_disk`: simulates a weight update from files.
pub(super) async fn update_weights_from_disk(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let ranks = app.service.rank_engines().len();
    respond::<UpdateWeightsFromDiskRequest>(
        &app,
        &received,
        &endpoint::UPDATE_WEIGHTS_FROM_DISK,
        |request| {
            // Several ranks answer one by one.
            let paused = if ranks == 1 { json!(0) } else { json!(vec![0; ranks]) };
            let message = with_version(&vec![UPDATED; ranks].join(" | "), request);
            json!({"success": true, "message": message, "num_paused_requests": paused})
        },
    )
}

/// Handles `POST /update_weights_from_distributed`: simulates the receipt of weights from another
/// process.
pub(super) async fn update_weights_from_distributed(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let message = "Succeeded to update parameter online.";
    let at = &endpoint::UPDATE_WEIGHTS_FROM_DISTRIBUTED;
    update::<UpdateWeightsFromDistributedRequest>(&app, &received, at, message)
}

/// Handles `POST /update_weights_from_tensor`: simulates a weight update from serialized tensors.
pub(super) async fn update_weights_from_tensor(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    update::<UpdateWeightsFromTensorRequest>(
        &app,
        &received,
        &endpoint::UPDATE_WEIGHTS_FROM_TENSOR,
        "Success",
    )
}

/// Handles `POST /update_weights_from_ipc`: simulates a weight update from shared GPU memory.
pub(super) async fn update_weights_from_ipc(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    update::<UpdateWeightsFromIpcRequest>(
        &app,
        &received,
        &endpoint::UPDATE_WEIGHTS_FROM_IPC,
        UPDATED,
    )
}

/// Handles `POST /init_weights_update_group`: simulates joining the process group that sends
/// weights.
pub(super) async fn init_weights_update_group(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let message = "Succeeded to initialize custom process group.";
    update::<InitWeightsUpdateGroupRequest>(&app, &received, &endpoint::INIT_WEIGHTS_GROUP, message)
}

/// Handles `POST /destroy_weights_update_group`: simulates leaving the process group that sends
/// weights.
pub(super) async fn destroy_weights_update_group(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let message = "Succeeded to destroy custom process group.";
    update::<DestroyWeightsUpdateGroupRequest>(
        &app,
        &received,
        &endpoint::DESTROY_WEIGHTS_GROUP,
        message,
    )
}

/// Handles `POST /begin_weight_update`: simulates making quantized weights loadable.
pub(super) async fn begin_weight_update(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    update::<BeginWeightUpdateRequest>(&app, &received, &endpoint::BEGIN_WEIGHT_UPDATE, "Success")
}

/// Handles `POST /end_weight_update`: simulates the quantization of loaded weights.
pub(super) async fn end_weight_update(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    update::<EndWeightUpdateRequest>(&app, &received, &endpoint::END_WEIGHT_UPDATE, "Success")
}

/// Handles `POST /get_weights_by_name`: returns the error for an unknown parameter, because no
/// weights exist.
pub(super) async fn get_weights_by_name(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let read = endpoint::read_request::<Struct<WeightsByNameRequest>>(
        &app,
        &received,
        &endpoint::GET_WEIGHTS_BY_NAME,
    );
    match read {
        Ok(_) => {
            errors::native_route_error_response(&Fault::bad_request("Get parameter by name failed"))
        }
        Err(fault) => errors::openai_error(&fault),
    }
}

/// Handles `POST /start_profile`: returns SGLang's text, but writes no profile.
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
