//! `GET /dashboard/replicas`: the state of this server and of other replicas.
//!
//! Servers of the same process are read directly, those of `--dashboard-peers` over HTTP.

use std::sync::{Arc, Weak};

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response};
use serde_json::{Map, Value, json};

use crate::admin;
use crate::annotations::{SettingValueVisibility, settings_json};
use crate::app::{App, AppState};
use crate::error::ok_json_response;

pub(super) fn has_other_replicas(app: &App) -> bool {
    !app.peers.has_no_peers() || app.fleet.get().is_some_and(|fleet| fleet.len() > 1)
}

/// Handles `GET /dashboard/summary`: returns the state of this server.
pub(crate) async fn get_dashboard_summary(
    State(app): AppState,
    headers: HeaderMap,
) -> Response<Body> {
    ok_json_response(&replica_state_json(&app, admin::setting_value_visibility(&app, &headers)))
}

/// Handles `GET /dashboard/replicas`: returns the states of this server, of the other servers of
/// this process, and of `--dashboard-peers`, in this order.
pub(crate) async fn list_replicas(State(app): AppState, headers: HeaderMap) -> Response<Body> {
    let values = admin::setting_value_visibility(&app, &headers);
    let own = |app: &Arc<App>| {
        let root = &app.settings.server.root_path;
        json!({"name": replica_name(app), "url": null, "port": app.port, "root_path": root,
            "error": null, "state": replica_state_json(app, values)})
    };
    let mut replicas = vec![own(&app)];
    let fleet = app.fleet.get().into_iter().flatten();
    let others = fleet.filter_map(Weak::upgrade);
    let others = others.filter(|other| !Arc::ptr_eq(other, &app));
    replicas.extend(others.map(|other| own(&other)));
    replicas.extend(app.peers.peer_dashboard_rows(|| app.service.now()).await);
    ok_json_response(&json!({"replicas": replicas}))
}

fn replica_name(app: &App) -> String {
    match &app.settings.server.pod.name {
        Some(pod) => format!("{pod}:{}", app.port),
        None => format!("port {}", app.port),
    }
}

/// Returns the state of a server for the dashboard; gauges have the engines' real values, even if
/// the server has fake metrics.
fn replica_state_json(app: &Arc<App>, values: SettingValueVisibility) -> Value {
    let (mut running, mut waiting, mut usage, mut generated) = (0, 0, 0.0_f64, 0);
    for (index, engine) in app.service.rank_engines().iter().enumerate() {
        let stats = engine.stats();
        running += stats.running;
        waiting += stats.waiting + stats.deferred;
        let share = f64::from(stats.used_blocks) / f64::from(stats.total_blocks.max(1));
        usage = usage.max(share);
        let metrics = app.metrics.engine_metrics(index);
        generated +=
            metrics.series_values("vllm:generation_tokens_total").first().map_or(0, |n| *n as u64);
    }
    let latencies = app.metrics.recent_latencies();
    let latencies = latencies.map(|recent| json!(recent)).unwrap_or_default();
    json!({
        "model": **app.service.models.displayed_model_name(),
        "ready": app.is_serving(),
        "ranks": app.service.rank_engines().len(),
        "running": running,
        "waiting": waiting,
        "kv_cache_usage": usage,
        "generation_tokens": generated,
        "ttft": latencies["ttft"],
        "itl": latencies["itl"],
        "scenario": app.admin_state.running_scenario_phase_json(),
        "in_force": settings_json(&active_faults_and_settings(app), values),
    })
}

/// Returns the server's active injected faults and its settings that were changed since its start.
fn active_faults_and_settings(app: &App) -> Map<String, Value> {
    let faults = app.service.faults.settings();
    let mut all = Map::new();
    let mut note = |name: &str, value: Value, is_on: bool| {
        if is_on {
            all.insert(name.to_owned(), value);
        }
    };
    let rates = &faults.rates;
    let (rate, streams) = (rates.rate, rates.stream_rate);
    note("failure-injection-rate", rate.into(), rate > 0);
    note("stream-fault-rate", streams.into(), streams > 0.0);
    note("health-status", faults.health.into(), faults.health != 200);
    let factor = app.settings.latency_factor;
    note("latency-factor", factor.into(), factor != 1.0);
    all.extend(app.admin_state.overridden_settings(&app.controls));
    all
}
