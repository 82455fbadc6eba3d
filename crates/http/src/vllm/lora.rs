//! `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`: load and unload LoRA adapters.

use std::path::Path;

use axum::extract::State;
use axum::http::StatusCode;
use serde_json::Value;

use super::bare_text_response;
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::dialect::OperatorRouteStyle;
use crate::error::{self, HandlerResult};
use vllm_sim_service::LoraAdapterLoadMode;
use vllm_sim_wire::body::validate_and_read_body;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::vllm::lora::{self, LoadLoraRequest, UnloadLoraRequest};

pub(crate) async fn load_lora_adapter(State(app): AppState, received: RawRequest) -> HandlerResult {
    if app.dialect.properties().operator_route_style == OperatorRouteStyle::Lenient {
        let value = parse_lenient_body(&received, "load")?;
        let text = |key| value.get(key).and_then(Value::as_str).unwrap_or_default();
        // llm-d accepts a name that is already loaded.
        let _ = app.service.load_lora_adapter(
            text("lora_name"),
            text("lora_path"),
            LoraAdapterLoadMode::InPlace,
        );
        return Ok(error::empty_response(StatusCode::OK));
    }
    let value = received.parse_fastapi_json()?;
    let name = add_lora_adapter(&app, &value)?;
    Ok(bare_text_response(format!("Success: LoRA adapter '{name}' added successfully.")))
}

/// Loads the LoRA adapter that a request body names, and returns the adapter's name.
pub(super) fn add_lora_adapter(app: &App, value: &Value) -> Result<String, Fault> {
    let request = validate_and_read_body::<LoadLoraRequest>(value)?;
    check_load(app, &request)?;
    let (name, path) = (&request.lora_name, &request.lora_path);
    let mode = match request.load_inplace {
        true => LoraAdapterLoadMode::InPlace,
        false => LoraAdapterLoadMode::New,
    };
    app.service
        .load_lora_adapter(name, path, mode)
        .map_err(|error| lora::invalid_adapter_request(error.to_string()))?;
    Ok(request.lora_name)
}

/// Unloads the LoRA adapter that a request body names, and returns the adapter's name.
pub(super) fn remove_lora_adapter(app: &App, value: &Value) -> Result<String, Fault> {
    let request = validate_and_read_body::<UnloadLoraRequest>(value)?;
    request.validate_unload_lora_request()?;
    let name = request.lora_name;
    if !app.service.models.unload_lora_adapter(&name) {
        let text = format!("The lora adapter '{name}' cannot be found.");
        return Err(Fault::new(404, ErrorType::NotFound, text));
    }
    Ok(name)
}

pub(crate) async fn unload_lora_adapter(
    State(app): AppState,
    received: RawRequest,
) -> HandlerResult {
    if app.dialect.properties().operator_route_style == OperatorRouteStyle::Lenient {
        let value = parse_lenient_body(&received, "unload")?;
        let name = value.get("lora_name").and_then(Value::as_str);
        app.service.models.unload_lora_adapter(name.unwrap_or_default());
        return Ok(error::empty_response(StatusCode::OK));
    }
    let value = received.parse_fastapi_json()?;
    let name = remove_lora_adapter(&app, &value)?;
    Ok(bare_text_response(format!("Success: LoRA adapter '{name}' removed successfully.")))
}

/// Runs vLLM's checks before loading a LoRA adapter, in vLLM's order.
fn check_load(app: &App, request: &LoadLoraRequest) -> Result<(), Fault> {
    request.validate_load_lora_request()?;
    let (name, path) = (&request.lora_name, &request.lora_path);
    let models = &app.service.models;
    if models.served_model_names().iter().any(|served| **served == **name) {
        let text = format!("The lora adapter '{name}' conflicts with a served base model.");
        return Err(lora::invalid_adapter_request(text));
    }
    if !request.load_inplace && models.loaded_lora_adapters().iter().any(|a| *a.name == **name) {
        return Err(lora::invalid_adapter_request(format!(
            "The lora adapter '{name}' has already been loaded. If you want to load the adapter in \
             place, set 'load_inplace' to True."
        )));
    }
    if app.settings.takes_any_adapter {
        return Ok(());
    }
    if !app.settings.lora.enabled {
        let message = "Call to add_lora method failed: LoRA is not enabled. Use --enable-lora to enable LoRA.";
        return Err(Fault::new(500, ErrorType::InternalServer, message));
    }
    if !Path::new(path).join("adapter_config.json").is_file() {
        let text = format!("Loading lora {name} failed: No adapter found for {path}");
        return Err(Fault::new(404, ErrorType::NotFound, text));
    }
    match app.settings.lora.lora_rank_limit_error(path) {
        None => Ok(()),
        Some(text) => {
            let text = format!("Call to add_lora method failed: {text}");
            Err(Fault::new(500, ErrorType::InternalServer, text))
        }
    }
}

/// Parses the body of a LoRA request regardless of its media type, as llm-d does.
fn parse_lenient_body(received: &RawRequest, what: &str) -> Result<Value, Fault> {
    serde_json::from_slice(&received.bytes).map_err(|error| {
        Fault::bad_request(format!("failed to read and parse {what} lora request body, {error}"))
    })
}
