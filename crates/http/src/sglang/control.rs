//! Routes of SGLang that control a server: caches, aborts, pauses and adapters.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Response, StatusCode, Uri};
use serde_json::{Map, Value, json};

use super::errors::SglangResult;
use super::{endpoint, errors};
use crate::app::{App, AppState};
use crate::error::{self, ok_json_response};
use vllm_sim_service::{LoraAdapterLoadMode, PauseMode, PrefixCacheResetScope};
use vllm_sim_wire::fastapi::RouteFunction;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sglang::server_control::{
    AbortRequest, ConfigureLoggingRequest, ContinueRequest, FlushCacheQuery, LoadAdapterRequest,
    PauseRequest, UnloadAdapterRequest,
};

/// Pause between two checks for running requests while a flush of the cache waits.
const FLUSH_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Handles `GET|POST /flush_cache`: empties the prefix cache unless requests run or wait.
///
/// With a timeout, it waits until they have ended. Source: SGLang 0.5.23
/// `managers/scheduler_components/flush_wrapper.py`, `managers/scheduler.py` (`is_fully_idle`).
pub(super) async fn flush_cache(State(app): AppState, method: Method, uri: Uri) -> SglangResult {
    let at = match method {
        Method::GET => RouteFunction { method: "GET", ..endpoint::FLUSH_CACHE },
        _ => endpoint::FLUSH_CACHE,
    };
    let FlushCacheQuery { timeout } = endpoint::read_query(&uri, &["timeout"], &at)?;
    let timeout = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX);
    let becomes_idle = async {
        while is_busy(&app) {
            tokio::time::sleep(FLUSH_POLL_INTERVAL).await;
        }
    };
    if is_busy(&app) && !timeout.is_zero() {
        let waited = tokio::time::timeout(timeout, becomes_idle).await;
        if waited.is_err() {
            return Ok(text_response(StatusCode::BAD_REQUEST, "Timed out waiting for idle state."));
        }
    }
    let flushed = !is_busy(&app) && app.service.reset_prefix_cache(PrefixCacheResetScope::WhenIdle);
    Ok(match flushed {
        true => text_response(
            StatusCode::OK,
            "Cache flushed.\nPlease check backend logs for more details. (When there are running \
             or waiting requests, the operation will not be performed.)\n",
        ),
        false => text_response(StatusCode::BAD_REQUEST, "Flush cache failed.\n"),
    })
}

/// Returns whether requests run or wait; requests that a pause holds back do not count.
fn is_busy(app: &App) -> bool {
    let counts_waiting = !app.service.control.is_paused();
    app.service.rank_engines().iter().any(|rank| {
        let stats = rank.stats();
        stats.running > 0 || counts_waiting && stats.waiting + stats.deferred > 0
    })
}

/// Returns a response that is a plain text without media type.
pub(super) fn text_response(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
}

/// Handles `POST /abort_request`: aborts a request, or all; an unknown id is no error.
///
/// The tokenizer manager knows a request by its exact id, the scheduler by the beginning of the id.
/// Source: SGLang 0.5.23 `tokenizer_manager.py` and `scheduler.py`, both `abort_request`.
pub(super) async fn abort_request(app: Arc<App>, request: AbortRequest) -> SglangResult {
    match request.rid {
        _ if request.abort_all => abort_all_requests(&app),
        Some(id) if !id.is_empty() && app.service.has_request(&id) => {
            app.service.abort_requests_with_prefix(&id);
            count_abort_command(&app);
        }
        _ => {}
    }
    Ok(error::empty_response(StatusCode::OK))
}

/// Aborts all requests, and counts the command in the metrics.
pub(super) fn abort_all_requests(app: &App) {
    app.service.abort_requests(None);
    count_abort_command(app);
}

fn count_abort_command(app: &App) {
    if let Some(metrics) = app.metrics.imitated() {
        metrics.on_abort_command();
    }
}

/// Handles `POST /pause_generation`: by default aborts running requests; later requests wait.
pub(super) async fn pause_generation(app: Arc<App>, request: PauseRequest) -> SglangResult {
    if request.mode == "abort" {
        abort_all_requests(&app);
    }
    app.service.pause_generation(PauseMode::Keep).await;
    if request.mode == "retract" {
        app.service.reset_prefix_cache(PrefixCacheResetScope::Preempt);
    }
    Ok(ok_json_response(&json!({"message": "Generation paused successfully.", "status": "ok"})))
}

/// Handles `POST /continue_generation`: resumes paused generation.
pub(super) async fn continue_generation(app: Arc<App>, _: ContinueRequest) -> SglangResult {
    app.service.resume_generation();
    Ok(ok_json_response(&json!({"message": "Generation continued successfully.", "status": "ok"})))
}

/// Handles `POST /configure_logging`, which has no effect here.
pub(super) async fn configure_logging(
    _: Arc<App>,
    request: ConfigureLoggingRequest,
) -> SglangResult {
    const LEVELS: [&str; 8] =
        ["CRITICAL", "FATAL", "ERROR", "WARN", "WARNING", "INFO", "DEBUG", "NOTSET"];
    let is_level = |level: &str| LEVELS.contains(&&*level.to_uppercase());
    let is_known = request.log_level.as_deref().is_none_or(is_level)
        && request.log_requests_level.is_none_or(|level| (0..=3).contains(&level))
        && request.log_requests_format.as_deref().is_none_or(|f| matches!(f, "text" | "json"));
    match is_known {
        true => Ok(error::empty_response(StatusCode::OK)),
        false => Err(errors::unhandled_exception_fault().into()),
    }
}

/// Handles `POST /load_lora_adapter`: loads a LoRA adapter from a folder.
pub(super) async fn load_lora_adapter(app: Arc<App>, request: LoadAdapterRequest) -> SglangResult {
    let (name, path) = (&request.lora_name, &request.lora_path);
    let models = &app.service.models;
    if let Some(refusal) = lora_refusal(&app)? {
        return Ok(refusal);
    }
    let loaded = models.loaded_lora_adapters().iter().any(|adapter| *adapter.name == **name);
    let failure = if loaded {
        Some(format!("Failed to load LoRA adapter {name} because it is already loaded"))
    } else if !Path::new(path).join("adapter_config.json").is_file() {
        Some(format!("Can't find 'adapter_config.json' at '{path}'"))
    } else {
        app.settings.lora.lora_rank_limit_error(path)
    };
    let result = match failure {
        Some(message) => Err(message),
        None => models
            .load_lora_adapter(name, path, None, LoraAdapterLoadMode::New)
            .map(drop)
            .map_err(|error| error.to_string()),
    };
    Ok(adapter_result(&app, result))
}

/// Handles `POST /unload_lora_adapter`: unloads a LoRA adapter by name.
pub(super) async fn unload_lora_adapter(
    app: Arc<App>,
    request: UnloadAdapterRequest,
) -> SglangResult {
    if let Some(refusal) = lora_refusal(&app)? {
        return Ok(refusal);
    }
    let name = &request.lora_name;
    if app.service.models.unload_lora_adapter(name) {
        return Ok(adapter_result(&app, Ok(())));
    }
    let loaded = app.service.models.loaded_lora_adapters();
    let names: Vec<String> = loaded.iter().map(|adapter| format!("'{}'", adapter.name)).collect();
    let names = names.join(", ");
    let message =
        format!("LoRA with name {name} does not exist. Loaded LoRAs: dict_keys([{names}])");
    Ok(adapter_error(message, Value::Null))
}

/// Returns the response of a server that loads and unloads no LoRA adapters; several data-parallel
/// ranks fail an assertion.
fn lora_refusal(app: &App) -> Result<Option<Response<Body>>, Fault> {
    if !app.settings.lora.enabled {
        let message = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA.";
        return Ok(Some(adapter_error(message.to_owned(), Value::Null)));
    }
    match app.rules.limits.data_parallel_ranks {
        0 | 1 => Ok(None),
        _ => Err(errors::unhandled_exception_fault()),
    }
}

/// Returns the response to the loading or unloading of a LoRA adapter, with all loaded adapters and
/// their paths.
fn adapter_result(app: &App, result: Result<(), String>) -> Response<Body> {
    let adapters = app.service.models.loaded_lora_adapters();
    let adapters =
        adapters.iter().map(|adapter| (adapter.name.to_string(), adapter.path.clone().into()));
    let loaded = Value::Object(adapters.collect::<Map<_, _>>());
    match result {
        Ok(()) => ok_json_response(&adapter_update(Value::Null, loaded)),
        Err(message) => adapter_error(message, loaded),
    }
}

fn adapter_error(message: String, loaded: Value) -> Response<Body> {
    errors::json_error(400, &adapter_update(message.into(), loaded))
}

/// Returns the JSON of SGLang's `LoRAUpdateOutput`.
fn adapter_update(message: Value, loaded: Value) -> Value {
    json!({
        "rid": null,
        "http_worker_ipc": null,
        "success": message.is_null(),
        "error_message": message,
        "loaded_adapters": loaded,
    })
}
