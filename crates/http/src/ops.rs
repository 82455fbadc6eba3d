//! Routes for health, readiness, version, load and metrics.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Method, Response, StatusCode, Uri, header};
use serde_json::json;

use super::app::{App, AppState};
use super::error::{self, ok_json_response};

/// Handles `GET /health` and `GET|POST /ping`: returns an empty 200, or 503 during shutdown.
pub(super) async fn get_health(State(app): AppState) -> Response<Body> {
    error::empty_response(if app.is_shutting_down() {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        health_status(&app)
    })
}

/// Returns the HTTP status of health checks: 200 unless a setting overrides it.
fn health_status(app: &App) -> StatusCode {
    match app.service.faults.settings().health {
        0 => StatusCode::OK,
        status => error::to_status_code(status),
    }
}

/// Handles `GET /health/ready` and `GET /ready`: returns 503 until the simulated start-up is
/// complete, and with `--preview readiness` while an engine makes no progress.
pub(super) async fn get_ready(State(app): AppState) -> Response<Body> {
    let ready = app.is_startup_complete() && !app.is_shutting_down() && !app.has_stalled_engine();
    error::empty_response(if ready { health_status(&app) } else { StatusCode::SERVICE_UNAVAILABLE })
}

/// Handles `GET /version`: returns the imitated vLLM release.
pub(super) async fn get_version(State(app): AppState) -> Response<Body> {
    ok_json_response(&json!({"version": app.settings.model.vllm_version.as_str()}))
}

/// Handles `GET /load`: returns the number of requests in flight, or 0 without load tracking.
pub(super) async fn get_load(State(app): AppState) -> Response<Body> {
    ok_json_response(&json!({"server_load": app.load.in_progress_request_count()}))
}

/// Handles `GET /metrics`: returns the Prometheus metrics, also for other methods and for longer
/// paths that start with `/metrics`.
pub(super) async fn get_metrics(State(app): AppState, method: Method, uri: Uri) -> Response<Body> {
    let mut response = Response::new(Body::from(app.controls.metrics_page()));
    // Upstream another handler serves these, with the older content type.
    let routed = method == Method::GET && uri.path() == "/metrics";
    let kind = HeaderValue::from_static(if routed {
        "text/plain; version=1.0.0; charset=utf-8"
    } else {
        "text/plain; version=0.0.4; charset=utf-8"
    });
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
