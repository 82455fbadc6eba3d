//! Routes of SGLang that control a server: caches, aborts, pauses and adapters.

use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Response, StatusCode, Uri};
use serde_json::{Map, Value, json};

use super::{endpoint, errors};
use crate::app::App;
use crate::body::RawRequest;
use crate::error;
use vllm_sim_service::{LoraAdapterLoadMode, PauseMode, PrefixCacheResetScope};
use vllm_sim_wire::fastapi::RouteFunction;
use vllm_sim_wire::sglang::server_control::{
    AbortRequest, ContinueRequest, FlushCacheQuery, LoadAdapterRequest, PauseRequest, Struct,
    UnloadAdapterRequest,
};

/// Handles `GET|POST /flush_cache`: empties the prefix cache unless requests run or wait.
pub(super) async fn flush_cache(
    State(app): State<Arc<App>>,
    method: Method,
    uri: Uri,
) -> Response<Body> {
    let at = match method {
        Method::GET => RouteFunction { method: "GET", ..endpoint::FLUSH_CACHE },
        _ => endpoint::FLUSH_CACHE,
    };
    if let Err(fault) = endpoint::read_query::<FlushCacheQuery>(&uri, &["timeout"], &at) {
        return errors::openai_error(&fault);
    }
    let stats = app.service.rank_engines().iter().map(|rank| rank.stats());
    let is_busy =
        stats.map(|stats| stats.running + stats.waiting + stats.deferred).sum::<usize>() > 0;
    let flushed = !is_busy && app.service.reset_prefix_cache(PrefixCacheResetScope::WhenIdle);
    let (status, text) = match flushed {
        true => (
            StatusCode::OK,
            "Cache flushed.\nPlease check backend logs for more details. (When there are running \
             or waiting requests, the operation will not be performed.)\n",
        ),
        false => (StatusCode::BAD_REQUEST, "Flush cache failed.\n"),
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response
}

/// Handles `POST /abort_request`: aborts one request, or all; an unknown id is not an error.
pub(super) async fn abort_request(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let Struct(request): Struct<AbortRequest> =
        match endpoint::read_request(&app, &received, &endpoint::ABORT) {
            Ok(request) => request,
            Err(fault) => return errors::openai_error(&fault),
        };
    let id = request.rid.filter(|id| !id.is_empty());
    match (request.abort_all, id) {
        (true, _) => {
            app.service.abort_requests(None);
        }
        (false, Some(id)) => {
            app.service.abort_requests(Some(&[id]));
        }
        (false, None) => {}
    }
    error::empty_response(StatusCode::OK)
}

/// Handles `POST /pause_generation`: by default aborts running requests; later requests wait.
pub(super) async fn pause_generation(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let Struct(request): Struct<PauseRequest> =
        match endpoint::read_request(&app, &received, &endpoint::PAUSE) {
            Ok(request) => request,
            Err(fault) => return errors::openai_error(&fault),
        };
    if request.mode == "abort" {
        app.service.abort_requests(None);
    }
    app.service.pause_generation(PauseMode::Keep).await;
    if request.mode == "retract" {
        app.service.reset_prefix_cache(PrefixCacheResetScope::Preempt);
    }
    json_ok(&json!({"message": "Generation paused successfully.", "status": "ok"}))
}

/// Handles `POST /continue_generation`: resumes paused generation.
pub(super) async fn continue_generation(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let read = endpoint::read_request::<Struct<ContinueRequest>>(
        &app,
        &received,
        &endpoint::CONTINUE_GENERATION,
    );
    if let Err(fault) = read {
        return errors::openai_error(&fault);
    }
    app.service.resume_generation();
    json_ok(&json!({"message": "Generation continued successfully.", "status": "ok"}))
}

/// Handles `POST /load_lora_adapter`: loads a LoRA adapter from a folder.
pub(super) async fn load_lora_adapter(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let Struct(request): Struct<LoadAdapterRequest> =
        match endpoint::read_request(&app, &received, &endpoint::LOAD_LORA) {
            Ok(request) => request,
            Err(fault) => return errors::openai_error(&fault),
        };
    let (name, path) = (&request.lora_name, &request.lora_path);
    let models = &app.service.models;
    if !app.settings.lora.enabled {
        return adapter_error(LORA_DISABLED.to_owned(), Value::Null);
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
    adapter_result(&app, result)
}

/// Handles `POST /unload_lora_adapter`: unloads a LoRA adapter by name.
pub(super) async fn unload_lora_adapter(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    let Struct(request): Struct<UnloadAdapterRequest> =
        match endpoint::read_request(&app, &received, &endpoint::UNLOAD_LORA) {
            Ok(request) => request,
            Err(fault) => return errors::openai_error(&fault),
        };
    if !app.settings.lora.enabled {
        return adapter_error(LORA_DISABLED.to_owned(), Value::Null);
    }
    let name = &request.lora_name;
    if app.service.models.unload_lora_adapter(name) {
        return adapter_result(&app, Ok(()));
    }
    let loaded = app.service.models.loaded_lora_adapters();
    let names: Vec<String> = loaded.iter().map(|adapter| format!("'{}'", adapter.name)).collect();
    let names = names.join(", ");
    let message =
        format!("LoRA with name {name} does not exist. Loaded LoRAs: dict_keys([{names}])");
    adapter_error(message, Value::Null)
}

const LORA_DISABLED: &str = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA.";

/// Returns the response to the loading or unloading of a LoRA adapter, with all loaded adapters and
/// their paths.
fn adapter_result(app: &App, result: Result<(), String>) -> Response<Body> {
    let adapters = app.service.models.loaded_lora_adapters();
    let adapters =
        adapters.iter().map(|adapter| (adapter.name.to_string(), adapter.path.clone().into()));
    let loaded = Value::Object(adapters.collect::<Map<_, _>>());
    match result {
        Ok(()) => json_ok(&adapter_update(Value::Null, loaded)),
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

fn json_ok(value: &Value) -> Response<Body> {
    error::json_response(StatusCode::OK, value.to_string())
}
