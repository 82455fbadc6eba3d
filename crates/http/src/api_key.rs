//! API keys: what needs one, and how a client gives it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::bearer::is_bearer;
use super::error;
use super::layers::LayerSettings;

/// The beginnings of the paths that need a key. Source: vLLM 0.33 `entrypoints/serve/middleware.py`,
/// `AuthenticationMiddleware`.
const GUARDED: [&str; 4] = ["/v1", "/v2", "/inference", "/cohere"];

/// The service of gRPC that needs a key, and its call that needs none, as `/health` does not.
const GUARDED_SERVICE: &str = "/vllm.grpc.engine.VllmEngine/";
const HEALTH_CHECK: &str = "/vllm.grpc.engine.VllmEngine/HealthCheck";

/// Returns the keys of which a client needs one; `None` when it needs none.
pub(super) fn keys(settings: &LayerSettings) -> Option<Arc<Vec<String>>> {
    let keys = &settings.api_keys;
    (!keys.is_empty()).then(|| Arc::new(keys.clone()))
}

/// Refuses an HTTP request that lacks the key it needs.
pub(super) async fn layer(
    State(keys): State<Arc<Vec<String>>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let guarded = GUARDED.iter().any(|prefix| path.starts_with(prefix));
    if guarded && request.method() != Method::OPTIONS && !has_key(&keys, request.headers()) {
        let body = "{\"error\":\"Unauthorized\"}".to_owned();
        return error::json(StatusCode::UNAUTHORIZED, body);
    }
    next.run(request).await
}

/// Refuses a gRPC call that lacks the key it needs: `UNAUTHENTICATED`.
pub(super) async fn grpc_layer(
    State(keys): State<Arc<Vec<String>>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let guarded = path.starts_with(GUARDED_SERVICE) && path != HEALTH_CHECK;
    if !guarded || has_key(&keys, request.headers()) {
        return next.run(request).await;
    }
    let mut response = error::empty(StatusCode::OK);
    for (name, value) in [
        ("content-type", "application/grpc"),
        ("grpc-status", "16"),
        ("grpc-message", "Unauthorized"),
    ] {
        let headers = response.headers_mut();
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn has_key(keys: &[String], headers: &HeaderMap) -> bool {
    let given = headers.get(header::AUTHORIZATION);
    is_bearer(given.map(HeaderValue::as_bytes), keys)
}
