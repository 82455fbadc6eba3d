//! Routes that pause, resume and reset the engines, or abort requests.

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode, Uri};
use serde_json::{Value, json};

use super::{http_exception, parse_raw_json};
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error::{HandlerResult, ok_json_response};
use crate::{error, query};
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_observe::metrics::{AdminOperation, SleepState};
use vllm_sim_service::{PauseMode, PrefixCacheResetScope, SleepTag};
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::vllm::server_control::{PauseQuery, ResetPrefixCacheQuery, SleepQuery};

pub(crate) async fn sleep_engines(State(app): AppState, uri: Uri) -> HandlerResult {
    let query: SleepQuery = query::read_query(&uri)?;
    let level = u8::try_from(query.level).unwrap_or(1);
    if app.settings.has_lenient_sleep {
        if has_llmd_sleep(&app) {
            app.service.start_llmd_sleep();
            set_sleep_metrics(&app, SleepState::WeightsOffloaded);
        }
    } else {
        let (app, halt) = (app.clone(), parse_pause_mode(&query.mode));
        run_to_completion(async move {
            record_admin_operation_time(
                &app,
                AdminOperation::SleepMode("sleep"),
                app.service.sleep(level, halt),
            )
            .await;
            let state = match level {
                0 => SleepState::Paused,
                1 => SleepState::WeightsOffloaded,
                _ => SleepState::DiscardAll,
            };
            set_sleep_metrics(&app, state);
        })
        .await;
    }
    let done = json!({"status": "sleeping", "level": level});
    Ok(app.dialect.properties().operator_route_style.operation_success_response(&done))
}

pub(crate) async fn wake_up_engines(State(app): AppState, uri: Uri) -> HandlerResult {
    let tags = query::query_values(&uri, "tags");
    let mut assets = Vec::new();
    for tag in &tags {
        match tag.as_str() {
            "weights" => assets.push(SleepTag::Weights),
            "kv_cache" => assets.push(SleepTag::KvCache),
            "scheduling" => assets.push(SleepTag::Scheduling),
            // llm-d has only the tag `kv_cache` and ignores others.
            _ if app.settings.has_lenient_sleep => {}
            other => {
                return Err(http_exception(format!(
                    "Unknown wake-up tag '{other}'; known are weights, kv_cache, scheduling"
                )));
            }
        }
    }
    if app.settings.has_lenient_sleep {
        if has_llmd_sleep(&app) {
            let cache = assets.is_empty() || assets.contains(&SleepTag::KvCache);
            app.service.end_llmd_sleep(cache && app.settings.cache.finds_prefixes);
            set_sleep_metrics(&app, SleepState::Awake);
        }
        let done = json!({"status": "awake", "tags": tags_or_null(&tags)});
        return Ok(app.dialect.properties().operator_route_style.operation_success_response(&done));
    }
    let awake = record_admin_operation_time(&app, AdminOperation::SleepMode("wake"), async {
        app.service.wake_up(&assets)
    })
    .await;
    set_sleep_metrics(&app, SleepState::Awake);
    let status = if awake { "awake" } else { "sleeping" };
    Ok(ok_json_response(&json!({"status": status, "tags": tags_or_null(&tags)})))
}

pub(crate) async fn is_sleeping(State(app): AppState) -> Response<Body> {
    let control = &app.service.control;
    ok_json_response(&json!({"is_sleeping": control.is_asleep() || control.is_paused()}))
}

pub(crate) async fn release_kv_cache_memory(State(app): AppState) -> HandlerResult {
    if !app.service.control.is_paused() {
        let message = "KV cache memory can only be released while generation is paused.";
        return Err(Fault::new(500, ErrorType::InternalServer, message));
    }
    let reset = async { app.service.reset_prefix_cache(PrefixCacheResetScope::Preempt) };
    record_admin_operation_time(&app, AdminOperation::SleepMode("release_kv_cache_memory"), reset)
        .await;
    Ok(ok_json_response(&json!({"status": "kv_cache_released"})))
}

pub(crate) async fn pause_engines(State(app): AppState, uri: Uri) -> HandlerResult {
    let query: PauseQuery = query::read_query(&uri)?;
    let halt = parse_pause_mode(&query.mode);
    if query.clear_cache {
        app.service.media_cache.clear_media_cache();
    }
    run_to_completion(async move {
        match query.clear_cache {
            true => app.service.pause_and_clear_caches(halt).await,
            false => {
                app.service.pause_generation(halt).await;
            }
        }
    })
    .await;
    Ok(ok_json_response(&json!({"status": "paused"})))
}

/// Handles `POST /resume`: resumes paused engines; succeeds even if none is paused.
pub(crate) async fn resume_engines(State(app): AppState) -> Response<Body> {
    app.service.resume_generation();
    ok_json_response(&json!({"status": "resumed"}))
}

pub(crate) async fn is_paused(State(app): AppState) -> Response<Body> {
    ok_json_response(&json!({"is_paused": app.service.control.is_paused()}))
}

pub(crate) async fn reset_prefix_cache(State(app): AppState, uri: Uri) -> HandlerResult {
    let query: ResetPrefixCacheQuery = query::read_query(&uri)?;
    if query.reset_external {
        app.service.reset_host_cache();
    }
    let reset = match query.reset_running_requests {
        true => PrefixCacheResetScope::Preempt,
        false => PrefixCacheResetScope::WhenIdle,
    };
    Ok(ok_json_response(&json!({"success": app.service.reset_prefix_cache(reset)})))
}

/// Handles `POST /reset_mm_cache`: clears the cache of processed media items.
pub(crate) async fn reset_mm_cache(State(app): AppState) -> Response<Body> {
    app.service.media_cache.clear_media_cache();
    error::empty_response(StatusCode::OK)
}

/// Handles `POST /reset_encoder_cache`: clears the cache of media encoder outputs.
pub(crate) async fn reset_encoder_cache(State(app): AppState) -> Response<Body> {
    app.service.reset_encoder_cache();
    error::empty_response(StatusCode::OK)
}

/// Handles `POST /abort_requests` in development mode: aborts the named requests, or all if none is
/// named.
pub(crate) async fn abort_requests(State(app): AppState, received: RawRequest) -> HandlerResult {
    let bytes = &received.bytes;
    let value =
        if bytes.is_empty() { Value::Null } else { parse_raw_json(bytes, "Invalid JSON format")? };
    let ids = parse_request_ids(value.get("request_ids"))?;
    let aborted = app.service.abort_requests(Some(ids.as_slice()).filter(|i| !i.is_empty()));
    Ok(ok_json_response(&json!({"status": "aborted", "aborted": aborted})))
}

/// Handles `POST /inference/v1/abort_requests`: aborts the named requests; returns an empty 200
/// even if none is found.
pub(crate) async fn abort_generate_requests(
    State(app): AppState,
    received: RawRequest,
) -> HandlerResult {
    let bytes = &received.bytes;
    let value = parse_raw_json(bytes, "JSON decode error: {}")?;
    let named = value.get("request_ids");
    if named.is_none() {
        return Err(http_exception("Missing 'request_ids' in request body"));
    }
    app.service.abort_requests(Some(&parse_request_ids(named)?));
    Ok(error::empty_response(StatusCode::OK))
}

fn parse_request_ids(value: Option<&Value>) -> Result<Vec<String>, Fault> {
    let message = "'request_ids' must be a list of strings";
    match value {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(ids)) => ids
            .iter()
            .map(|id| id.as_str().map(str::to_owned).ok_or_else(|| http_exception(message)))
            .collect(),
        Some(_) => Err(http_exception(message)),
    }
}

fn parse_pause_mode(mode: &str) -> PauseMode {
    match mode {
        "wait" => PauseMode::Wait,
        "keep" => PauseMode::Keep,
        _ => PauseMode::Abort,
    }
}

/// Returns whether the sleep routes of llm-d have an effect: sleep mode and development mode are
/// enabled.
fn has_llmd_sleep(app: &App) -> bool {
    app.settings.server.routes.enable_sleep_mode && app.settings.server.routes.dev_mode
}

fn tags_or_null(tags: &[String]) -> Value {
    if tags.is_empty() { Value::Null } else { tags.into() }
}

fn set_sleep_metrics(app: &App, state: SleepState) {
    for rank in 0..app.service.rank_engines().len() {
        app.metrics.engine_metrics(rank).set_sleep_state(state);
    }
}

/// Runs the future `work` to its end even if the client disconnects, as vLLM's engine does.
async fn run_to_completion<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work).await {
        Ok(done) => done,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // A task is cancelled only when the process ends.
            Err(_) => std::future::pending().await,
        },
    }
}

pub(super) async fn record_admin_operation_time<T>(
    app: &App,
    operation: AdminOperation,
    work: impl Future<Output = T>,
) -> T {
    app.metrics.operation_started(operation);
    let started = unix_now_secs();
    let done = work.await;
    app.metrics.operation_ended(operation, (unix_now_secs() - started).max(0.0));
    done
}
