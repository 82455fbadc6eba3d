//! `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`: load and unload LoRA adapters.

use std::path::Path;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use serde_json::Value;

use super::bare_text;
use crate::app::App;
use crate::body::RawRequest;
use crate::dialect::OperatorRouteStyle;
use crate::error;
use crate::error::HandlerResult;
use vllm_sim_service::LoadMode;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::vllm::lora::{self, LoadLoraRequest, UnloadLoraRequest};

pub(crate) async fn load(State(app): State<Arc<App>>, received: RawRequest) -> HandlerResult {
    if app.dialect.operations() == OperatorRouteStyle::Lenient {
        let value = lenient(&received, "load")?;
        let text = |key| value.get(key).and_then(Value::as_str).unwrap_or_default();
        // llm-d accepts a name that is already loaded.
        let _ = app.service.models.load(
            text("lora_name"),
            text("lora_path"),
            None,
            LoadMode::InPlace,
        );
        return Ok(error::empty(StatusCode::OK));
    }
    let value = received.json()?;
    let name = add(&app, &value)?;
    Ok(bare_text(format!(
        "Success: LoRA adapter '{name}' added successfully."
    )))
}

/// Loads the LoRA adapter that a request body names, and returns the adapter's name.
pub(super) fn add(app: &App, value: &Value) -> Result<String, Fault> {
    let request = LoadLoraRequest::parse(value)?;
    check(app, &request)?;
    let (name, path) = (&request.lora_name, &request.lora_path);
    let mode = match request.load_inplace {
        true => LoadMode::InPlace,
        false => LoadMode::New,
    };
    app.service
        .models
        .load(name, path, None, mode)
        .map_err(|error| Fault::new(400, ErrorType::InvalidUserInput, error.to_string()))?;
    Ok(request.lora_name)
}

/// Unloads the LoRA adapter that a request body names, and returns the adapter's name.
pub(super) fn remove(app: &App, value: &Value) -> Result<String, Fault> {
    let request = UnloadLoraRequest::parse(value)?;
    request.validate()?;
    let name = request.lora_name;
    if !app.service.models.unload(&name) {
        return Err(lora::not_loaded(&name));
    }
    Ok(name)
}

pub(crate) async fn unload(State(app): State<Arc<App>>, received: RawRequest) -> HandlerResult {
    if app.dialect.operations() == OperatorRouteStyle::Lenient {
        let value = lenient(&received, "unload")?;
        let name = value.get("lora_name").and_then(Value::as_str);
        app.service.models.unload(name.unwrap_or_default());
        return Ok(error::empty(StatusCode::OK));
    }
    let value = received.json()?;
    let name = remove(&app, &value)?;
    Ok(bare_text(format!(
        "Success: LoRA adapter '{name}' removed successfully."
    )))
}

/// Runs vLLM's checks before loading a LoRA adapter, in vLLM's order.
fn check(app: &App, request: &LoadLoraRequest) -> Result<(), Fault> {
    request.validate()?;
    let (name, path) = (&request.lora_name, &request.lora_path);
    let models = &app.service.models;
    if models.served().iter().any(|served| **served == **name) {
        return Err(lora::served_as_base(name));
    }
    if !request.load_inplace && models.adapters().iter().any(|a| *a.name == **name) {
        return Err(lora::already_loaded(name));
    }
    if app.settings.takes_any_adapter {
        return Ok(());
    }
    if !app.settings.lora.enabled {
        let message = "Call to add_lora method failed: LoRA is not enabled. Use --enable-lora to enable LoRA.";
        return Err(Fault::new(500, ErrorType::InternalServer, message));
    }
    if !Path::new(path).join("adapter_config.json").is_file() {
        return Err(lora::not_found(name, path));
    }
    match app.settings.lora.too_high(path) {
        None => Ok(()),
        Some(text) => {
            let text = format!("Call to add_lora method failed: {text}");
            Err(Fault::new(500, ErrorType::InternalServer, text))
        }
    }
}

/// Parses the body of a LoRA request regardless of its media type, as llm-d does.
fn lenient(received: &RawRequest, what: &str) -> Result<Value, Fault> {
    serde_json::from_slice(&received.bytes).map_err(|error| {
        Fault::bad_request(format!(
            "failed to read and parse {what} lora request body, {error}"
        ))
    })
}
