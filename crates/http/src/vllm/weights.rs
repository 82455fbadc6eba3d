//! Routes of weight transfer and weight update for training loops: accepted and counted, without
//! effect.
//!
//! Source: vLLM `entrypoints/rl/online/api_router.py`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Value, json};

use super::engine_control::record_admin_operation_time;
use super::{http_exception, ok_json_response, parse_raw_json};
use crate::app::App;
use crate::body::RawRequest;
use crate::error::HandlerResult;
use vllm_sim_observe::metrics::AdminOperation;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::vllm::server_control::WeightVersionRequest;

pub(crate) async fn init_weight_transfer(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> HandlerResult {
    let message = "Weight transfer initialized";
    run_weight_operation(app, received, "init", Some("init_info"), message).await
}

pub(crate) async fn shutdown_weight_transfer(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> HandlerResult {
    let message = "Weight transfer shut down";
    run_weight_operation(app, received, "shutdown", None, message).await
}

pub(crate) async fn start_weight_update(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> HandlerResult {
    let message = "Weight update started";
    run_weight_operation(app, received, "start", None, message).await
}

pub(crate) async fn start_draft_weight_update(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> HandlerResult {
    let message = "Draft weight update started";
    run_weight_operation(app, received, "start_draft", None, message).await
}

pub(crate) async fn update_weights(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> HandlerResult {
    let message = "Weights updated";
    run_weight_operation(app, received, "update", Some("update_info"), message).await
}

pub(crate) async fn finish_weight_update(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> HandlerResult {
    let message = "Weight update finished";
    run_weight_operation(app, received, "finish", None, message).await
}

pub(crate) async fn get_weight_version(State(app): State<Arc<App>>) -> Response<Body> {
    ok_json_response(&json!({"weight_version": &**app.weight_version.load()}))
}

pub(crate) async fn set_weight_version(
    State(app): State<Arc<App>>,
    mut received: RawRequest,
) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let request = WeightVersionRequest::parse_weight_version_request(&value)?;
    if request.abort_all_requests {
        app.service.abort_requests(None);
    }
    app.weight_version.store(Arc::new(request.new_version.clone()));
    Ok(ok_json_response(&json!({"success": true, "new_version": request.new_version})))
}

/// Handles `POST /weight_checker`: always succeeds, as there are no weights to compare.
pub(crate) async fn check_weights(
    State(app): State<Arc<App>>,
    mut received: RawRequest,
) -> HandlerResult {
    received.parse_dialect_json(&app)?;
    Ok(ok_json_response(&json!({"success": true})))
}

async fn run_weight_operation(
    app: Arc<App>,
    received: RawRequest,
    operation: &'static str,
    required: Option<&str>,
    message: &str,
) -> HandlerResult {
    let bytes = &received.bytes;
    let value = if bytes.is_empty() && required.is_none() {
        Value::Null
    } else {
        parse_raw_json(bytes, "Invalid JSON format")?
    };
    if let Some(key) = required.filter(|key| value.get(*key).is_none_or(Value::is_null)) {
        return Err(http_exception(format!("Missing '{key}' in request body")));
    }
    record_admin_operation_time(&app, AdminOperation::WeightTransfer(operation), async {}).await;
    Ok::<_, Fault>(ok_json_response(&json!({"message": message})))
}
