//! `GET /v1/loads`: the load of each data-parallel rank.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/v1_loads.py`, `srt/managers/load_snapshot.py`.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, Uri, header};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::macros::format_description;

use super::endpoint;
use super::errors::SglangResult;
use super::info::{disaggregation_mode, kv_cache_token_capacity, metrics_gauge_value};
use crate::app::{App, AppState};
use crate::error::ok_json_response;
use crate::query;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sglang::SGLANG_VERSION;
use vllm_sim_wire::sglang::server_control::LoadsQuery;

/// Names of the response sections of `GET /v1/loads`, which the parameter `include` selects.
const SECTIONS: [&str; 7] = ["core", "memory", "spec", "lora", "disagg", "queues", "all"];

pub(super) async fn get_loads(State(app): AppState, uri: Uri) -> SglangResult {
    let last = |name: &str| query::query_values(&uri, name).pop();
    let include = last("include").filter(|text| !text.is_empty());
    let include: Option<Vec<String>> =
        include.map(|text| text.split(',').map(|name| name.trim().to_owned()).collect());
    check_sections(include.as_deref())?;
    let LoadsQuery { dp_rank: rank } =
        endpoint::read_query(&uri, &["dp_rank"], &endpoint::GET_LOADS)?;
    let ranks = 0..app.service.rank_engines().len();
    let asked = ranks.filter(|index| rank.is_none_or(|rank| i64::try_from(*index) == Ok(rank)));
    let loads: Vec<Value> = asked.map(|rank| load(&app, rank, include.as_deref())).collect();
    if last("format").as_deref() == Some("prometheus") {
        return Ok(prometheus_text(&loads));
    }
    let parallel = &app.settings.parallel;
    Ok(ok_json_response(&json!({
        "timestamp": iso_time(unix_now_secs()),
        "version": SGLANG_VERSION,
        "accelerator": null,
        "num_accelerators": parallel.world_size(),
        "loads": loads,
    })))
}

fn check_sections(include: Option<&[String]>) -> Result<(), Fault> {
    let Some(names) = include.filter(|names| !names.iter().any(|name| name == "all")) else {
        return Ok(());
    };
    let unknown = names.iter().find(|name| !SECTIONS.contains(&name.as_str()));
    match unknown {
        None => Ok(()),
        Some(name) => Err(Fault::bad_request(format!(
            "Invalid include sections: {{'{name}'}}. Valid options: ['all', 'core', 'disagg', \
             'lora', 'memory', 'queues', 'spec']"
        ))),
    }
}

/// Returns the JSON of one rank's load for `/v1/loads`, with the sections in `include`; `None`
/// selects all sections.
fn load(app: &App, rank: usize, include: Option<&[String]>) -> Value {
    let stats = app.service.rank_engines()[rank].stats();
    let page = u64::from(app.settings.cache.block_size);
    let capacity = kv_cache_token_capacity(app, rank);
    let used = u64::from(stats.used_blocks) * page;
    let usage = if capacity > 0 { used as f64 / capacity as f64 } else { 0.0 };
    let waiting = stats.waiting + stats.deferred;
    let rounded = |value: f64, digits: i32| {
        let factor = 10f64.powi(digits);
        (value * factor).round() / factor
    };
    let max_running = app.settings.shown_config.get("max_num_seqs").cloned();
    let mut load = json!({
        "timestamp": unix_now_secs(),
        "dp_rank": rank,
        "num_running_reqs": stats.running,
        "num_waiting_reqs": waiting,
        "num_waiting_uncached_tokens": 0,
        "num_used_tokens": used,
        "num_total_tokens": used,
        "num_active_tokens": used,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": capacity,
        "max_running_requests": max_running,
        "token_usage": rounded(usage, 4),
        "gen_throughput": rounded(metrics_gauge_value(app, "gen_throughput", rank), 2),
        "cache_hit_rate": rounded(metrics_gauge_value(app, "cache_hit_rate", rank), 4),
        "utilization": 0.0,
        "total_prefill_uncached_tokens": stats.cache_queries.saturating_sub(stats.cache_hits),
        "total_prefill_busy_us": 0,
        "decode_moments": null,
    });
    let shows = |name: &str| {
        include.is_none_or(|names| names.iter().any(|given| given == name || given == "all"))
    };
    if shows("memory") {
        load["memory"] = json!({
            "weight_gb": 0.0, "kv_cache_gb": 0.0, "graph_gb": 0.0, "token_capacity": capacity,
        });
    }
    if shows("disagg") {
        load["disaggregation"] = disaggregation(app);
    }
    if shows("queues") {
        load["queues"] = json!({
            "waiting": waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0,
        });
    }
    load
}

fn disaggregation(app: &App) -> Value {
    json!({
        "mode": disaggregation_mode(app),
        "prefill_bootstrap_queue_reqs": 0,
        "prefill_inflight_queue_reqs": 0,
        "decode_prealloc_queue_reqs": 0,
        "decode_transfer_queue_reqs": 0,
        "decode_retracted_queue_reqs": 0,
        "kv_transfer_speed_gb_s": 0.0,
        "kv_transfer_latency_ms": 0.0,
    })
}

/// Returns the response of `/v1/loads` in the text format of Prometheus, one gauge per number.
fn prometheus_text(loads: &[Value]) -> Response<Body> {
    let mut gauges: Map<String, Value> = Map::new();
    let mut add = |name: String, rank: &Value, value: &Value| {
        if value.is_number() {
            let line = format!("{name}{{dp_rank=\"{rank}\"}} {value}");
            let lines = gauges.entry(name).or_insert_with(|| Value::Array(Vec::new()));
            if let Some(lines) = lines.as_array_mut() {
                lines.push(line.into());
            }
        }
    };
    for load in loads {
        let rank = &load["dp_rank"];
        for (key, value) in load.as_object().into_iter().flatten() {
            match value {
                _ if key == "dp_rank" => {}
                Value::Object(section) => {
                    let prefix = if key == "disaggregation" { "disagg" } else { key.as_str() };
                    for (name, value) in section {
                        add(format!("sglang_{prefix}_{name}"), rank, value);
                    }
                }
                value => add(format!("sglang_{key}"), rank, value),
            }
        }
    }
    let mut text = String::new();
    for (name, lines) in &gauges {
        text.push_str(&format!("# TYPE {name} gauge\n"));
        for line in lines.as_array().into_iter().flatten().filter_map(Value::as_str) {
            text.push_str(line);
            text.push('\n');
        }
    }
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Returns a Unix time as Python's `isoformat` of a UTC time.
pub(super) fn iso_time(unix_seconds: f64) -> String {
    let format = format_description!(
        "[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]+00:00"
    );
    let time = OffsetDateTime::UNIX_EPOCH + Duration::from_secs_f64(unix_seconds);
    time.format(&format).expect("the format has only parts of a time")
}

#[cfg(test)]
mod tests {
    use super::iso_time;

    #[test]
    fn times_have_the_form_of_python() {
        assert_eq!(iso_time(951_782_400.5), "2000-02-29T00:00:00.500000+00:00");
        assert_eq!(iso_time(1_798_761_599.0), "2026-12-31T23:59:59.000000+00:00");
    }
}
