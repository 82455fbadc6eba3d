//! `GET /v1/models`: the list of served models and LoRA adapters.

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Value, json};

use crate::app::AppState;
use crate::error::ok_json_response;
use crate::request_head::new_random_hex_id;
use vllm_sim_engine::driver::unix_now_secs;

/// Handles `GET /v1/models`: lists one card per served model name, then one per LoRA adapter in
/// load order.
pub(crate) async fn list_models(State(app): AppState) -> Response<Body> {
    let models = &app.service.models;
    let root = app.settings.model.name.as_str();
    let created = unix_now_secs() as u64;
    let max = Some(app.settings.model.max_model_len);
    let names = models.served_model_names().iter();
    let mut cards: Vec<Value> =
        names.map(|name| model_card(name, root, None, max, created)).collect();
    let adapter_max = max.filter(|_| app.dialect.properties().lists_adapter_context);
    for adapter in models.loaded_lora_adapters().iter() {
        let parent = adapter.base.as_deref().unwrap_or(models.displayed_model_name());
        let root = if adapter.path.is_empty() { &adapter.name } else { adapter.path.as_str() };
        cards.push(model_card(&adapter.name, root, Some(parent), adapter_max, created));
    }
    ok_json_response(&json!({"object": "list", "data": cards}))
}

fn model_card(
    id: &str,
    root: &str,
    parent: Option<&str>,
    max_model_len: Option<u32>,
    created: u64,
) -> Value {
    json!({
        "id": id,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [{
            "id": format!("modelperm-{}", new_random_hex_id()),
            "object": "model_permission",
            "created": created,
            "allow_create_engine": false,
            "allow_sampling": true,
            "allow_logprobs": true,
            "allow_search_indices": false,
            "allow_view": true,
            "allow_fine_tuning": false,
            "organization": "*",
            "group": null,
            "is_blocking": false,
        }],
    })
}
