//! `GET /dashboard/history`: the last two minutes of the metrics that the dashboard draws.

use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use crate::app::App;
use crate::vllm::ok_json;
use vllm_sim_engine::driver::unix_now_secs;

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Samples the metrics of a server once a second, until it is dropped.
pub async fn sample_metrics_periodically(app: Weak<App>) {
    let mut ticks = interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(app) = app.upgrade() else { return };
        app.metric_history.push_sample(unix_now_secs(), &app.controls.metrics_page());
    }
}

/// Returns the current Unix time and the kept samples, oldest first.
pub(crate) async fn get_history(State(app): State<Arc<App>>) -> Response<Body> {
    let samples = app.metric_history.samples();
    ok_json(&json!({"now": unix_now_secs(), "samples": samples}))
}
