//! Routes of SGLang's hierarchical cache, on a server without one.
//!
//! Source: SGLang 0.5.23 `http_server.py`; `managers/scheduler.py`
//! (`attach_hicache_storage_wrapped`, `clear_hicache_storage_wrapped`, `_hicache_l3_layout`).

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use serde_json::json;

use super::errors::SglangResult;
use super::{control, endpoint, errors};
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error::ok_json_response;
use vllm_sim_wire::sglang::server_control::{AttachCacheStorageRequest, Struct};

/// Returns SGLang's refusal of a server without `--admin-api-key`; `None` with the key.
fn missing_admin_key_response(app: &App) -> Option<Response<Body>> {
    let error = "This endpoint requires admin API key, but this server was started without one \
         (admin-api-key). Restart with --admin-api-key to enable.";
    let is_missing = app.settings.server.admin_key.is_none();
    is_missing.then(|| errors::json_error(400, &json!({"error": error})))
}

/// Handles `GET /hicache/storage-backend`: no backend is attached.
pub(super) async fn get_cache_storage(State(app): AppState) -> Response<Body> {
    if let Some(refusal) = missing_admin_key_response(&app) {
        return refusal;
    }
    ok_json_response(&json!({
        "hicache_storage_backend": null,
        "hicache_storage_backend_extra_config": null,
        "hicache_storage_prefetch_policy": "timeout",
        "hicache_write_policy": "write_through",
    }))
}

/// Handles `PUT /hicache/storage-backend`, which a server without hierarchical cache refuses.
pub(super) async fn attach_cache_storage(
    State(app): AppState,
    received: RawRequest,
) -> SglangResult {
    let at = &endpoint::ATTACH_CACHE_STORAGE;
    endpoint::read_request::<Struct<AttachCacheStorageRequest>>(&app, &received, at)?;
    Ok(missing_admin_key_response(&app).unwrap_or_else(|| {
        let text =
            "Failed to attach HiCache storage backend.\nHierarchical cache is not enabled.\n";
        control::text_response(StatusCode::BAD_REQUEST, text)
    }))
}

/// Handles `DELETE /hicache/storage-backend`, which a server without hierarchical cache refuses.
pub(super) async fn detach_cache_storage(State(app): AppState) -> Response<Body> {
    missing_admin_key_response(&app).unwrap_or_else(|| {
        let text =
            "Failed to detach HiCache storage backend.\nHierarchical cache is not enabled.\n";
        control::text_response(StatusCode::BAD_REQUEST, text)
    })
}

/// Handles `POST /hicache/storage-backend/clear`: 400 without hierarchical cache, in the words of
/// success.
pub(super) async fn clear_cache_storage() -> Response<Body> {
    let text = "Hierarchical cache storage backend cleared.\n";
    control::text_response(StatusCode::BAD_REQUEST, text)
}

/// Handles `GET /get_hicache_l3_cache_layout`: there is no cache in storage.
pub(super) async fn get_cache_storage_layout(State(app): AppState) -> Response<Body> {
    ok_json_response(&json!({
        "enabled": false,
        "backend": null,
        "page_size": app.settings.cache.block_size,
        "hicache_object_layout": {"pools": []},
        "reason": "Hierarchical cache is disabled",
    }))
}
