//! `GET /dashboard/history`: the last two minutes of the metrics that the dashboard draws.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use crate::app::App;
use crate::vllm::ok_json;
use vllm_sim_engine::driver::unix_now_secs;

const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Number of samples that the server keeps: two minutes.
const MAX_SAMPLES: usize = 120;

/// Names of the metrics in a sample: those of the cards, without histograms, which are large.
const KEPT_METRICS: [&str; 7] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:request_success_total",
    "http_requests_total",
];

/// Samples of the dashboard's metrics, each with its Unix time and lines of `/metrics`.
#[derive(Default)]
pub(crate) struct MetricHistory(Mutex<VecDeque<(f64, String)>>);

/// Samples the metrics of a server once a second, until it is dropped.
pub async fn sample_metrics_periodically(app: Weak<App>) {
    let mut ticks = interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(app) = app.upgrade() else { return };
        let now = unix_now_secs();
        let page = app.controls.metrics_page();
        let kept = page.lines().filter(|line| {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            KEPT_METRICS.contains(&name)
        });
        let sample: String = kept.flat_map(|line| [line, "\n"]).collect();
        let mut samples = app.metric_history.0.lock();
        if samples.len() == MAX_SAMPLES {
            samples.pop_front();
        }
        samples.push_back((now, sample));
    }
}

/// Returns the current Unix time and the kept samples, oldest first.
pub(crate) async fn get_history(State(app): State<Arc<App>>) -> Response<Body> {
    let samples = app.metric_history.0.lock().clone();
    ok_json(&json!({"now": unix_now_secs(), "samples": samples}))
}
