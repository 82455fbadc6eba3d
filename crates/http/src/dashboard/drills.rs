//! `GET /dashboard/drills`: what was done on purpose, and when.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response};
use serde_json::json;

use crate::admin;
use crate::app::App;
use crate::vllm::ok;
use vllm_sim_engine::driver::unix_now;

/// The newest phases of scenarios and changes of settings, the oldest first, and the time now. Values of
/// settings are for whoever may read them at `/admin/config`.
pub(crate) async fn list(State(app): State<Arc<App>>, headers: HeaderMap) -> Response<Body> {
    let values = admin::setting_values(&app, &headers);
    let events = app.admin_state.drills.to_json(values);
    ok(&json!({"now": unix_now(), "events": events}))
}
