//! `GET /dashboard/history`: the last two minutes of the metrics that the dashboard draws.

use std::sync::Weak;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use crate::app::{App, AppState};
use crate::error::ok_json_response;
use vllm_sim_engine::driver::unix_now_secs;

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Number of metric samples taken after each request for the metric history, which cover ten
/// minutes.
const SAMPLES_PER_VIEW: u32 = 600;

/// Samples the metrics of a server once a second, for ten minutes after each request for the metric
/// history. The sampling ends when the server is dropped.
pub async fn sample_metrics_periodically(app: Weak<App>) {
    let Some(viewed) = app.upgrade().map(|app| app.records.metrics.history_request_notifier())
    else {
        return;
    };
    let mut ticks = interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        viewed.notified().await;
        for _ in 0..SAMPLES_PER_VIEW {
            ticks.tick().await;
            let Some(app) = app.upgrade() else { return };
            app.records.metrics.push_metrics_sample(unix_now_secs(), &app.controls.metrics_page());
        }
    }
}

/// Handles `GET /dashboard/history`: returns the current Unix time and the metric samples, oldest
/// first.
pub(crate) async fn get_metric_history(State(app): AppState) -> Response<Body> {
    app.records.metrics.history_request_notifier().notify_one();
    let samples = app.records.metrics.metrics_samples();
    ok_json_response(&json!({"now": unix_now_secs(), "samples": samples}))
}
