//! Routes with information about the server, and routes that only a real deployment could
//! implement.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, Uri};
use serde_json::{Map, Value, json};

use super::{http_exception, parse_raw_json};
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error::{HandlerResult, ok_json_response};
use crate::query;
use vllm_sim_wire::VllmVersion;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::vllm::server_control::{ServerInfoQuery, WorldSizeQuery};

/// Handles `GET /kv_event_sources`: lists the KV event publisher of each data-parallel rank.
pub(crate) async fn list_kv_event_sources(State(app): AppState) -> Response<Body> {
    let events = &app.settings.kv_events;
    let mut sources = Map::new();
    let (first, count) = app.settings.parallel.local_ranks;
    for rank in (first..first + count).filter(|_| events.enabled) {
        let (endpoint, replay_endpoint) = events.kv_event_endpoints_of_rank(rank);
        let topic = match events.encoding.format.is_llmd_format() {
            true => expand_topic(&app, &events.topic, rank),
            false => events.topic.clone(),
        };
        let source = json!({
            "enable_kv_cache_events": true,
            "publisher": "zmq",
            "endpoint": endpoint,
            "replay_endpoint": replay_endpoint,
            "buffer_steps": events.buffer_steps,
            "hwm": events.hwm,
            "max_queue_size": events.max_queue_size,
            "topic": topic,
        });
        sources.insert(rank.to_string(), source);
    }
    ok_json_response(&Value::Object(sources))
}

fn expand_topic(app: &App, topic: &str, rank: u32) -> String {
    let pod = &app.settings.server.pod;
    topic
        .replace("{pod_ip}", pod.ip.as_deref().unwrap_or("localhost"))
        .replace("{pod_name}", pod.name.as_deref().unwrap_or_default())
        .replace("{port}", &app.port.to_string())
        .replace("{rank}", &rank.to_string())
        .replace("{model}", app.service.models.displayed_model_name())
}

pub(crate) async fn get_world_size(State(app): AppState, uri: Uri) -> HandlerResult {
    let query: WorldSizeQuery = query::read_query(&uri)?;
    let size = match query.include_dp {
        true => world_size_with_dp(&app),
        false => app.settings.parallel.world_size().into(),
    };
    Ok(ok_json_response(&json!({"world_size": size})))
}

/// Returns the number of workers of all data-parallel engines.
fn world_size_with_dp(app: &App) -> u64 {
    let parallel = &app.settings.parallel;
    u64::from(parallel.world_size()) * u64::from(parallel.data)
}

pub(crate) async fn tokenizer_info(State(app): AppState) -> Response<Body> {
    ok_json_response(&app.service.generator.tokenizer().tokenizer_info())
}

pub(crate) async fn server_info(State(app): AppState, uri: Uri) -> HandlerResult {
    let query: ServerInfoQuery = query::read_query(&uri)?;
    let config = &app.settings.shown_config;
    let config = if query.config_format == "json" {
        Value::Object(config.clone())
    } else {
        let pairs: Vec<String> = config
            .iter()
            .map(|(key, value)| format!("{key}={}", vllm_sim_python::python_repr(value)))
            .collect();
        pairs.join(", ").into()
    };
    let secret = |name: &str| name.contains("KEY") || name.contains("TOKEN");
    let env: Map<String, Value> = std::env::vars()
        .filter(|(name, _)| name.starts_with("VLLM_") && !secret(name))
        .map(|(name, value)| (name, value.into()))
        .collect();
    let system = json!({
        "os": std::env::consts::OS,
        "cpu_architecture": std::env::consts::ARCH,
        "python_version": null,
        "torch_version": null,
        "cuda_runtime_version": null,
        "gpu_models": null,
        "vllm_version": app.settings.model.vllm_version.as_str(),
        "simulator": concat!("vllm-sim ", env!("CARGO_PKG_VERSION")),
    });
    Ok(ok_json_response(&json!({
        "vllm_config": config,
        "vllm_env": env,
        "system_env": system,
    })))
}

/// Handles `POST /collective_rpc`: returns null for every worker.
pub(crate) async fn collective_rpc(State(app): AppState, received: RawRequest) -> HandlerResult {
    let value = parse_raw_json(&received.bytes, "JSON decode error: {}")?;
    if value.get("method").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err(http_exception("Missing 'method' in request body"));
    }
    let results = vec![Value::Null; usize::try_from(world_size_with_dp(&app)).unwrap_or(1)];
    Ok(ok_json_response(&json!({"results": results})))
}

/// Handles `POST /scale_elastic_ep`: reports a change of the data-parallel size, but changes
/// nothing.
pub(crate) async fn scale_elastic_ep(received: RawRequest) -> HandlerResult {
    let value = parse_raw_json(&received.bytes, "Invalid JSON format")?;
    let size = value.get("new_data_parallel_size");
    let Some(size) = size.filter(|size| !size.is_null()) else {
        return Err(http_exception("new_data_parallel_size is required"));
    };
    let positive = |value: &Value| value.as_u64().is_some_and(|n| n > 0);
    if !positive(size) {
        return Err(http_exception("new_data_parallel_size must be a positive integer"));
    }
    if !value.get("drain_timeout").is_none_or(positive) {
        return Err(http_exception("drain_timeout must be a positive integer"));
    }
    let message = format!("Scaled to {size} data parallel engines");
    Ok(ok_json_response(&json!({"message": message})))
}

pub(crate) async fn is_scaling(State(app): AppState) -> Response<Body> {
    ok_json_response(&match app.rules.limits.version < VllmVersion::V033 {
        true => json!({"is_scaling_elastic_ep": false}),
        false => json!({
            "is_scaling_elastic_ep": false,
            "phase": "idle",
            "epoch": null,
            "error": null,
            "requested_data_parallel_size": null,
        }),
    })
}

/// Handles `POST /v1/systemone` and `POST /v1/decisions`, which no simulated model supports.
pub(crate) async fn reject_structured_decision_request(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    received.parse_dialect_json(&app)?;
    let message = "The model does not support the structured decision API";
    Err(Fault::new(501, ErrorType::NotImplemented, message))
}
