//! Routes of weight transfer and weight update for training loops: accepted and counted, without
//! effect.
//!
//! Source: vLLM `entrypoints/rl/online/api_router.py`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::engine_control::record_admin_operation_time;
use super::{http_exception, parse_raw_json};
use crate::app::{App, AppState, Route};
use crate::body::RawRequest;
use crate::error::{HandlerResult, ok_json_response};
use vllm_sim_observe::metrics::AdminOperation;
use vllm_sim_wire::body::validate_and_read_body;
use vllm_sim_wire::vllm::server_control::WeightVersionRequest;

pub(crate) fn weight_update_routes() -> Vec<Route> {
    vec![
        operation_route(
            "/init_weight_transfer_engine",
            "init",
            Some("init_info"),
            "Weight transfer initialized",
        ),
        operation_route(
            "/shutdown_weight_transfer_engine",
            "shutdown",
            None,
            "Weight transfer shut down",
        ),
        operation_route("/start_weight_update", "start", None, "Weight update started"),
        operation_route(
            "/start_draft_weight_update",
            "start_draft",
            None,
            "Draft weight update started",
        ),
        operation_route("/update_weights", "update", Some("update_info"), "Weights updated"),
        operation_route("/finish_weight_update", "finish", None, "Weight update finished"),
        ("/update_weight_version", "POST", post(set_weight_version)),
        ("/weight_checker", "POST", post(check_weights)),
        ("/weight_info", "GET", get(get_weight_version)),
    ]
}

/// Creates the route of an operation; `required` is the member that its body must have.
fn operation_route(
    path: &'static str,
    operation: &'static str,
    required: Option<&'static str>,
    message: &'static str,
) -> Route {
    let handler = move |State(app): AppState, received: RawRequest| {
        run_weight_operation(app, received, operation, required, message)
    };
    (path, "POST", post(handler))
}

async fn get_weight_version(State(app): AppState) -> Response<Body> {
    ok_json_response(&json!({"weight_version": &**app.weight_version.load()}))
}

async fn set_weight_version(State(app): AppState, mut received: RawRequest) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let request = validate_and_read_body::<WeightVersionRequest>(&value)?;
    if request.abort_all_requests {
        app.service.abort_requests(None);
    }
    app.weight_version.store(Arc::new(request.new_version.clone()));
    Ok(ok_json_response(&json!({"success": true, "new_version": request.new_version})))
}

/// Handles `POST /weight_checker`: always succeeds, as there are no weights to compare.
async fn check_weights(State(app): AppState, mut received: RawRequest) -> HandlerResult {
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
    Ok(ok_json_response(&json!({"message": message})))
}
