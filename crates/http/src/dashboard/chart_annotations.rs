//! `GET /dashboard/drills`: recent scenario phases and changed settings, with their times.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response};
use serde_json::json;

use crate::admin;
use crate::app::AppState;
use crate::error::ok_json_response;
use vllm_sim_engine::driver::unix_now_secs;

/// Returns the newest fault scenario phases and changed settings, oldest first, and the current
/// time.
///
/// Values of settings need the same permission as `/admin/config`.
pub(crate) async fn list_chart_annotations(
    State(app): AppState,
    headers: HeaderMap,
) -> Response<Body> {
    let values = admin::setting_value_visibility(&app, &headers);
    let events = app.admin_state.drills.chart_annotations_json(values);
    ok_json_response(&json!({"now": unix_now_secs(), "events": events}))
}
