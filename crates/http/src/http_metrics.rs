//! `http_*` on `/metrics`: requests, their sizes and how long they took.

use std::sync::Arc;

use axum::body::HttpBody as _;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;

use super::app::App;
use super::route_index;
use vllm_sim_engine::driver::unix_now;
use vllm_sim_service::RequestContext;

/// Counts a request once it is answered, unless its path is left out.
pub(super) async fn layer(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let metrics = app.metrics.http();
    let path = route_index::template(request.uri().path());
    let Some(handler) = metrics.handler(path) else {
        return next.run(request).await;
    };
    let method = request.method().clone();
    // `content-length`, as the body has not been touched.
    let size = request.body().size_hint().exact().unwrap_or(0);
    let context = request.extensions().get::<RequestContext>();
    let started = context.map_or_else(unix_now, |context| context.started);
    let response = next.run(request).await;
    // A WebSocket is none of FastAPI's requests.
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (method, status) = (method.as_str(), response.status().as_u16());
        let body = response.body().size_hint().exact().unwrap_or(0);
        let seconds = unix_now() - started;
        metrics.observe(handler, method, status, size, body, seconds);
    }
    response
}
