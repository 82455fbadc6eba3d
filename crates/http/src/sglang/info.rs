//! Routes of SGLang with information about server and model.

use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};

use super::errors;
use crate::app::{App, AppState};
use crate::error::ok_json_response;
use crate::{error, ops};
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_observe::kv_events::KvEventFormat;
use vllm_sim_wire::sglang::SGLANG_VERSION;

/// Longest wait of a health check for a token (`HEALTH_CHECK_TIMEOUT`).
const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause between two checks for a token in a health check.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Handles `GET /health` and `/health_generate`: 503 until the simulated start-up is complete, and
/// during shutdown.
///
/// SGLang generates a token for a health check. Engines that run no steps generate none, so the
/// check fails after its timeout, and `/ready` and `/ping` fail until another check succeeds.
/// Source: SGLang 0.5.23 `http_server.py`, `health_generate`.
pub(super) async fn get_health(State(app): AppState) -> Response<Body> {
    if !app.is_serving() {
        return ops::get_ready(State(app)).await;
    }
    let runs_steps = async {
        while app.service.control.runs_no_steps() {
            tokio::time::sleep(HEALTH_CHECK_INTERVAL).await;
        }
    };
    let checked = tokio::time::timeout(HEALTH_CHECK_TIMEOUT, runs_steps).await;
    app.sglang.failed_health_check.store(checked.is_err(), Ordering::Relaxed);
    get_ping(State(app)).await
}

/// Handles `GET /ping`: 503 until the simulated start-up is complete, during shutdown, and after a
/// failed health check.
pub(super) async fn get_ping(State(app): AppState) -> Response<Body> {
    if app.sglang.failed_health_check.load(Ordering::Relaxed) {
        return error::empty_response(StatusCode::SERVICE_UNAVAILABLE);
    }
    ops::get_ready(State(app)).await
}

/// Handles `GET /ready`: returns 503 also while generation is paused.
pub(super) async fn get_ready(State(app): AppState) -> Response<Body> {
    if app.service.control.is_paused() {
        return error::empty_response(StatusCode::SERVICE_UNAVAILABLE);
    }
    get_ping(State(app)).await
}

/// Handles `GET /v1/models`: lists the model and the loaded adapters.
pub(super) async fn list_models(State(app): AppState) -> Response<Body> {
    let name = app.service.models.displayed_model_name();
    let mut cards = vec![base_card(&app)];
    for adapter in app.service.models.loaded_lora_adapters().iter() {
        cards.push(json!({
            "id": *adapter.name,
            "object": "model",
            "created": unix_now_secs() as u64,
            "owned_by": "sglang",
            "root": adapter.path,
            "parent": **name,
            "max_model_len": null,
        }));
    }
    ok_json_response(&json!({"object": "list", "data": cards}))
}

fn base_card(app: &App) -> Value {
    let name = &**app.service.models.displayed_model_name();
    json!({
        "id": name,
        "object": "model",
        "created": unix_now_secs() as u64,
        "owned_by": "sglang",
        "root": name,
        "parent": null,
        "max_model_len": app.settings.model.max_model_len,
    })
}

/// Handles `GET /v1/models/{model}`: describes the base model; adapters are unknown to this route.
pub(super) async fn retrieve_model(
    State(app): AppState,
    Path(model): Path<String>,
) -> Response<Body> {
    if *model == **app.service.models.displayed_model_name() {
        return ok_json_response(&base_card(&app));
    }
    let message = format!("The model '{model}' does not exist");
    errors::json_error(
        404,
        &json!({"error": {
            "message": message,
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }}),
    )
}

/// Handles `GET /model_info` and `/get_model_info`: returns the name, paths and properties of the
/// served model.
pub(super) async fn get_model_info(State(app): AppState) -> Response<Body> {
    let (settings, config) = (&app.settings, app.settings.model.hf_config.as_deref());
    let of_config = |name: &str| config.and_then(|config| config.get(name)).cloned();
    ok_json_response(&json!({
        "model_path": settings.model.name,
        "served_model_name": **app.service.models.displayed_model_name(),
        "tokenizer_path": settings.shown_config.get("tokenizer"),
        "is_generation": super::pooling::has_generation_model(&app),
        "preferred_sampling_params": null,
        "weight_version": **app.weight_version.load(),
        "load_format": "auto",
        "reasoning_parser": settings.parsers.reasoning,
        "tool_call_parser": settings.parsers.tools,
        "disaggregation_mode": disaggregation_mode(&app),
        "has_image_understanding": config.is_some_and(|c| c.get("vision_config").is_some()),
        "has_audio_understanding": config.is_some_and(|c| c.get("audio_config").is_some()),
        "model_type": of_config("model_type"),
        "architectures": of_config("architectures"),
    }))
}

/// Returns the mode of a server of a prefill/decode pair, as `--disaggregation-mode` names it.
pub(super) fn disaggregation_mode(app: &App) -> &'static str {
    match &app.disaggregation {
        None => "null",
        Some(pair) if pair.is_prefill_server() => "prefill",
        Some(_) => "decode",
    }
}

/// Handles `GET /server_info` and `/get_server_info`: returns the settings that are simulated, and
/// the state of each rank.
pub(super) async fn get_server_info(State(app): AppState) -> Response<Body> {
    let settings = &app.settings;
    let config = &settings.shown_config;
    let shown = |name: &str| config.get(name).cloned().unwrap_or(Value::Null);
    let capacity = kv_cache_token_capacity(&app, 0);
    let ranks = 0..app.service.rank_engines().len();
    let states: Vec<Value> = ranks
        .map(|rank| {
            let capacity = kv_cache_token_capacity(&app, rank);
            let throughput = metrics_gauge_value(&app, "gen_throughput", rank);
            json!({
                "last_gen_throughput": throughput,
                "memory_usage": {"token_capacity": capacity},
                "max_total_num_tokens": capacity,
            })
        })
        .collect();
    let bootstrap_port = app.disaggregation.as_ref().map_or(8998, |pair| pair.bootstrap_port());
    let mut info = json!({
        "model_path": settings.model.name,
        "tokenizer_path": shown("tokenizer"),
        "served_model_name": **app.service.models.displayed_model_name(),
        "port": app.port,
        "context_length": settings.model.max_model_len,
        "tp_size": shown("tensor_parallel_size"),
        "pp_size": shown("pipeline_parallel_size"),
        "dp_size": shown("data_parallel_size"),
        "mem_fraction_static": shown("gpu_memory_utilization"),
        "max_running_requests": shown("max_num_seqs"),
        "page_size": settings.cache.block_size,
        "kv_cache_dtype": shown("kv_cache_dtype"),
        "disable_radix_cache": !settings.cache.finds_prefixes,
        "random_seed": shown("seed"),
        "enable_lora": settings.lora.enabled,
        "max_loras_per_batch": shown("max_loras"),
        "tool_call_parser": settings.parsers.tools,
        "reasoning_parser": settings.parsers.reasoning,
        "stream_interval": settings.answers.stream_interval,
        "enable_cache_report": settings.answers.prompt_tokens_details,
        "disaggregation_mode": disaggregation_mode(&app),
        "disaggregation_bootstrap_port": bootstrap_port,
        "status": "ready",
        "max_total_num_tokens": capacity,
        "max_req_input_len": settings.model.max_model_len.saturating_sub(1),
    });
    info["kv_events"] = kv_event_publisher(&app);
    info["internal_states"] = states.into();
    info["version"] = SGLANG_VERSION.into();
    info["frontend"] = "python".into();
    ok_json_response(&info)
}

/// Returns the JSON description of the KV event publisher; null without events in SGLang's format.
fn kv_event_publisher(app: &App) -> Value {
    let events = &app.settings.kv_events;
    if !events.enabled || events.encoding.format != KvEventFormat::Sglang {
        return Value::Null;
    }
    let (host, port) = host_and_port(&events.endpoint).unwrap_or_default();
    let mut publisher = json!({
        "publisher": "zmq",
        "endpoint_host": host,
        "endpoint_port_base": port,
        "topic": events.topic,
        "block_size": app.settings.cache.block_size,
        "dp_size": app.settings.parallel.data,
    });
    let replay = events.replay_endpoint.as_deref().and_then(host_and_port);
    if let Some((_, port)) = replay {
        publisher["replay_endpoint_port_base"] = port.into();
    }
    publisher
}

fn host_and_port(endpoint: &str) -> Option<(String, u16)> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    Some((host.to_owned(), port.parse().ok()?))
}

/// Returns the capacity of a data-parallel rank's KV cache, in tokens.
pub(super) fn kv_cache_token_capacity(app: &App, rank: usize) -> u64 {
    let stats = app.service.rank_engines().get(rank).map(|rank| rank.stats());
    let blocks = stats.map_or(0, |stats| stats.total_blocks);
    u64::from(blocks) * u64::from(app.settings.cache.block_size)
}

/// Returns the value of an SGLang gauge of a data-parallel rank, by the gauge's name.
pub(super) fn metrics_gauge_value(app: &App, name: &str, rank: usize) -> f64 {
    app.metrics.imitated().map_or(0.0, |metrics| metrics.gauge(name, rank))
}
