//! `GET /v1/models`: the list of served models and LoRA adapters.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};

use crate::app::AppState;
use crate::request_head::new_random_hex_id;
use crate::{error, json};
use vllm_sim_engine::driver::unix_now_secs;

/// Handles `GET /v1/models`: lists one card per served model name, then one per LoRA adapter in
/// load order.
pub(crate) async fn list_models(State(app): AppState) -> Response<Body> {
    let models = &app.service.models;
    let root = app.settings.model.name.as_str();
    let created = unix_now_secs() as u64;
    let mut out = String::from("{\"object\":\"list\",\"data\":[");
    for (index, name) in models.served_model_names().iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        let max = Some(app.settings.model.max_model_len);
        write_model_card(&mut out, &ModelCard { id: name, root, parent: None, max, created });
    }
    let adapter_context =
        app.dialect.properties().lists_adapter_context.then_some(app.settings.model.max_model_len);
    for adapter in models.loaded_lora_adapters().iter() {
        out.push(',');
        let parent = adapter.base.as_deref().unwrap_or(models.displayed_model_name());
        let root = if adapter.path.is_empty() { &adapter.name } else { adapter.path.as_str() };
        write_model_card(
            &mut out,
            &ModelCard {
                id: &adapter.name,
                root,
                parent: Some(parent),
                max: adapter_context,
                created,
            },
        );
    }
    out.push_str("]}");
    error::json_response(StatusCode::OK, out)
}

struct ModelCard<'a> {
    id: &'a str,
    root: &'a str,
    parent: Option<&'a str>,
    max: Option<u32>,
    created: u64,
}

fn write_model_card(out: &mut String, card: &ModelCard<'_>) {
    json::write_member(out, "{\"id\":", card.id);
    json::write_member(out, ",\"object\":\"model\",\"created\":", card.created);
    json::write_member(out, ",\"owned_by\":\"vllm\",\"root\":", card.root);
    json::write_member(out, ",\"parent\":", card.parent);
    out.push_str(",\"max_model_len\":");
    match card.max {
        Some(max) => json::write_json_int(out, max),
        None => out.push_str("null"),
    }
    out.push_str(",\"permission\":[{\"id\":\"modelperm-");
    out.push_str(&new_random_hex_id());
    json::write_member(out, "\",\"object\":\"model_permission\",\"created\":", card.created);
    out.push_str(",\"allow_create_engine\":false,\"allow_sampling\":true,\"allow_logprobs\":true,\"allow_search_indices\":false,\"allow_view\":true,\"allow_fine_tuning\":false,\"organization\":\"*\",\"group\":null,\"is_blocking\":false}]}");
}
