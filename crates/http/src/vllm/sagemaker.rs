//! `/adapters`: the LoRA routes under SageMaker's names.
//!
//! Source: vLLM 0.33 `entrypoints/serve/lora/api_router.py` for the members of the body; success
//! texts are measured.

use axum::extract::{Path, State};
use serde_json::{Value, json};

use super::{bare_text_response, lora};
use crate::app::AppState;
use crate::body::RawRequest;
use crate::error::HandlerResult;

/// Handles `POST /adapters`: loads a LoRA adapter from `{"name", "src"}` and the options of vLLM's
/// route.
pub(crate) async fn register_lora_adapter(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let mut request = json!({});
    for (member, field) in [
        ("name", "lora_name"),
        ("src", "lora_path"),
        ("load_inplace", "load_inplace"),
        ("is_3d_lora_weight", "is_3d_lora_weight"),
    ] {
        if let Some(given) = value.get(member).filter(|given| !given.is_null()) {
            request[field] = given.clone();
        }
    }
    lora::add_lora_adapter(&app, &request)?;
    let name = request.get("lora_name").and_then(Value::as_str);
    let name = name.unwrap_or_default();
    Ok(bare_text_response(format!("Adapter {name} registered")))
}

pub(crate) async fn unregister_lora_adapter(
    State(app): AppState,
    Path(name): Path<String>,
) -> HandlerResult {
    lora::remove_lora_adapter(&app, &json!({"lora_name": name}))?;
    Ok(bare_text_response(format!("Adapter {name} unregistered")))
}
