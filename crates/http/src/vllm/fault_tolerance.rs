//! `/fault_tolerance/*`: reports that all engines are healthy.
//!
//! Source: vLLM 0.33 `entrypoints/serve/fault_tolerance/api_router.py`,
//! `v1/engine/core_client.py`.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{http_exception, parse_raw_json};
use crate::app::AppState;
use crate::body::RawRequest;
use crate::error::{self, HandlerResult, ok_json_response};

pub(crate) async fn apply_fault_tolerance(received: RawRequest) -> HandlerResult {
    vllm_sim_wire::body::check_json_content_type(received.media_type())?;
    let value = parse_raw_json(&received.bytes, "Invalid JSON format")?;
    if !value.is_object() {
        return Err(http_exception("Request body must be a JSON object."));
    }
    match value.get("instruction") {
        Some(Value::String(instruction)) if instruction == "retry" => {}
        None | Some(Value::Null | Value::Bool(false)) => {
            return Err(http_exception("'instruction' is required."));
        }
        Some(Value::String(instruction)) if instruction.is_empty() => {
            return Err(http_exception("'instruction' is required."));
        }
        Some(other) => {
            let shown = vllm_sim_python::python_str(other);
            return Err(http_exception(format!("Invalid instruction: '{shown}'.")));
        }
    }
    if value.get("params").is_some_and(|params| !params.is_object()) {
        return Err(http_exception("'params' must be an object."));
    }
    let accepted = json!({
        "message": "Request accepted; poll /fault_tolerance/status for updates.",
        "request_id": uuid::Uuid::new_v4().to_string(),
    });
    Ok(error::json_response(StatusCode::ACCEPTED, accepted.to_string()))
}

pub(crate) async fn fault_tolerance_status(State(app): AppState) -> Response<Body> {
    let (first, count) = app.settings.parallel.local_ranks;
    let engines: Vec<Value> =
        (first..first + count).map(|rank| json!({"id": rank, "status": "healthy"})).collect();
    ok_json_response(&json!({"schema_version": 1, "total_engines": count, "engines": engines}))
}
