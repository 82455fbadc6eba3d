//! The table of all HTTP routes.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::routing::{any, delete, get, post};

use super::app::{
    ADAPTER_PATH, App, AppState, CHAT_PATH, METRICS_PATH, RESPONSE_CANCEL_PATH, RESPONSE_PATH,
    Route, RouteIndex,
};
use super::imitated::own_routes;
use super::openai::{batch_chat, chat, completion, models, responses};
use super::peers::SUMMARY_PATH;
use super::pooling::{embeddings, score};
use super::same_origin::TrustedPageOrigins;
use super::vllm::{
    derender, docs, engine_control, fault_tolerance, profile, render, sagemaker, weights,
};
use super::{
    admin, admin_requests, anthropic, audio, dashboard, error, invocations, ops, pooling,
    same_origin, tokenize, transfer, vllm,
};
use vllm_sim_config::{CliMode, Config, ModelTask};
use vllm_sim_service::generate::ReplyTextMode;
use vllm_sim_wire::VllmVersion;

/// Returns the HTTP routes of a configuration; disabled routes are absent and return 404.
fn route_table(config: &Config) -> Vec<Route> {
    if let Some(routes) = own_routes(config) {
        return add_simulator_routes(config, routes);
    }
    let mut routes = vec![
        ("/v1/models", "GET", get(models::list_models)),
        ("/tokenize", "POST", post(tokenize::tokenize)),
        ("/detokenize", "POST", post(tokenize::detokenize)),
        ("/health", "GET", get(ops::get_health)),
        ("/health/ready", "GET", get(ops::get_ready)),
        ("/ready", "GET", get(ops::get_ready)),
        ("/ping", "GET, POST", get(ops::get_health).post(ops::get_health)),
        ("/version", "GET", get(ops::get_version)),
        ("/load", "GET", get(ops::get_load)),
        (METRICS_PATH, "GET", any(ops::get_metrics)),
        ("/dashboard", "GET", get(dashboard::get_dashboard_page)),
        ("/dashboard/latencies", "GET", get(dashboard::get_latency_percentiles)),
        ("/kv_event_sources", "GET", get(vllm::info::list_kv_event_sources)),
        ("/invocations", "POST", post(invocations::post_invocations)),
        ("/v1/systemone", "POST", post(vllm::info::reject_structured_decision_request)),
        ("/v1/decisions", "POST", post(vllm::info::reject_structured_decision_request)),
    ];
    if config.api.scale_out.render_only {
        routes.extend(render_routes());
    } else {
        if has_generation_routes(config) {
            routes.extend(generation_routes());
            routes.extend(scale_out_routes(config));
        }
        routes.extend(pooling_routes(config));
        routes.extend(speech_routes(config));
    }
    if !config.server.routes.disable_fastapi_docs {
        routes.extend(documentation_routes());
    }
    if config.api.enable_tokenizer_info_endpoint {
        routes.push(("/tokenizer_info", "GET", get(vllm::info::tokenizer_info)));
    }
    if config.model.cli_mode == CliMode::Llmd {
        routes.push(("/query", "GET", get(transfer::query_bootstrap)));
    }
    routes.extend(operator_routes(config));
    routes
}

/// Adds the routes of vllm-sim itself to those of an imitated server.
fn add_simulator_routes(config: &Config, mut routes: Vec<Route>) -> Vec<Route> {
    routes.push(("/dashboard", "GET", get(dashboard::get_dashboard_page)));
    routes.push(("/dashboard/latencies", "GET", get(dashboard::get_latency_percentiles)));
    let mut guarded = dashboard_data_routes();
    if serves_admin_config(config) {
        guarded.extend(admin_routes());
    }
    routes.extend(guard_routes(config, guarded));
    routes
}

/// Returns the operator routes, which pages of other origins must not call.
///
/// They change the server or expose single requests.
fn operator_routes(config: &Config) -> Vec<Route> {
    let mut routes = dashboard_data_routes();
    if config.lora.runtime_updating {
        routes.extend([
            ("/v1/load_lora_adapter", "POST", post(vllm::lora::load_lora_adapter)),
            ("/v1/unload_lora_adapter", "POST", post(vllm::lora::unload_lora_adapter)),
            ("/adapters", "POST", post(sagemaker::register_lora_adapter)),
            (ADAPTER_PATH, "DELETE", delete(sagemaker::unregister_lora_adapter)),
        ]);
    }
    if config.api.profiler {
        routes.extend([
            ("/start_profile", "POST", post(profile::start_profile)),
            ("/stop_profile", "POST", post(profile::stop_profile)),
        ]);
    }
    if config.api.fault_tolerance {
        routes.extend([
            ("/fault_tolerance/apply", "POST", post(fault_tolerance::apply_fault_tolerance)),
            ("/fault_tolerance/status", "GET", get(fault_tolerance::fault_tolerance_status)),
        ]);
    }
    // llm-d always has the sleep routes.
    if config.server.routes.dev_mode || config.model.cli_mode == CliMode::Llmd {
        routes.extend(sleep_routes());
    }
    if serves_admin_config(config) {
        routes.extend(admin_routes());
    }
    if config.server.routes.dev_mode {
        routes.extend(development_routes());
        routes.extend(weights::weight_update_routes());
    } else if config.api.scale_out.tokens_only {
        routes.push((
            "/abort_requests",
            "POST",
            post(vllm::engine_control::abort_generate_requests),
        ));
    }
    if !config.api.scale_out.render_only && has_generation_routes(config) {
        let scale = post(vllm::info::scale_elastic_ep);
        routes.push(("/scale_elastic_ep", "POST", scale));
    }
    guard_routes(config, routes)
}

/// Makes routes reject requests from pages of other origins.
fn guard_routes(config: &Config, routes: Vec<Route>) -> Vec<Route> {
    let pages = Arc::new(TrustedPageOrigins::new(&config.server));
    let guarded = routes.into_iter().map(|(path, allow, handler)| {
        let guard = from_fn_with_state(pages.clone(), same_origin::reject_cross_origin_pages);
        (path, allow, handler.layer(guard))
    });
    guarded.collect()
}

fn has_generation_routes(config: &Config) -> bool {
    matches!(config.api.task, ModelTask::All | ModelTask::Generate | ModelTask::Realtime)
}

fn generation_routes() -> Vec<Route> {
    vec![
        (CHAT_PATH, "POST", post(chat::create_chat_completion)),
        ("/v1/completions", "POST", post(completion::create_completion)),
        ("/v1/chat/completions/batch", "POST", post(batch_chat::create_batch_chat)),
        ("/v1/messages", "POST", post(anthropic::create_anthropic_message)),
        ("/v1/messages/count_tokens", "POST", post(anthropic::count_message_tokens)),
        ("/v1/responses", "POST", post(responses::create_response)),
        (RESPONSE_PATH, "GET", get(responses::retrieve_response)),
        (RESPONSE_CANCEL_PATH, "POST", post(responses::cancel_response)),
        ("/generative_scoring", "POST", post(vllm::scoring::create_generative_scoring)),
        ("/is_scaling_elastic_ep", "POST", post(vllm::info::is_scaling)),
    ]
}

/// Returns the routes of disaggregated serving (render, derender, generate); if disabled, they
/// return an error.
fn scale_out_routes(config: &Config) -> Vec<Route> {
    let api = &config.api;
    let on = api.scale_out.enable_scale_out
        || api.scale_out.tokens_only
        || config.model.cli_mode == CliMode::Llmd;
    let mut routes = vec![
        ("/inference/v1/generate", "POST", post(vllm::generate::create_generation)),
        ("/inference/v1/abort_requests", "POST", post(engine_control::abort_generate_requests)),
    ];
    routes.extend(render_routes());
    if on {
        return routes;
    }
    let off = routes.into_iter();
    off.map(|(path, methods, _)| (path, methods, post(vllm::scale_out_disabled_response))).collect()
}

fn render_routes() -> Vec<Route> {
    vec![
        ("/v1/chat/completions/render", "POST", post(render::render_chat)),
        ("/v1/completions/render", "POST", post(render::render_completions)),
        ("/v1/messages/render", "POST", post(render::render_messages)),
        ("/v1/responses/render", "POST", post(render::render_responses)),
        ("/v1/chat/completions/derender", "POST", post(derender::derender_chat)),
        ("/v1/completions/derender", "POST", post(derender::derender_completion)),
    ]
}

fn pooling_routes(config: &Config) -> Vec<Route> {
    let task = config.api.task;
    let one = |tasks: &[ModelTask]| task == ModelTask::All || tasks.contains(&task);
    let mut routes = Vec::new();
    if one(&[ModelTask::Embed]) && config.content.mode != ReplyTextMode::Encoder {
        routes.push(("/v1/embeddings", "POST", post(embeddings::create_embeddings)));
        routes.push(("/v2/embed", "POST", post(pooling::cohere::create_cohere_embeddings)));
    }
    if one(&[ModelTask::Embed, ModelTask::Classify, ModelTask::Score, ModelTask::Reward]) {
        routes.push(("/pooling", "POST", post(embeddings::create_pooling)));
    }
    if one(&[ModelTask::Classify]) {
        routes.push(("/classify", "POST", post(pooling::classify::create_classification)));
    }
    let single = task == ModelTask::Classify && config.api.num_labels == 1;
    if one(&[ModelTask::Embed, ModelTask::Score]) || single {
        for path in ["/score", "/v1/score"] {
            routes.push((path, "POST", post(score::create_score)));
        }
        for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
            routes.push((path, "POST", post(score::create_rerank)));
        }
    }
    routes
}

fn speech_routes(config: &Config) -> Vec<Route> {
    if !config.api.speech.transcribes {
        return Vec::new();
    }
    vec![
        ("/v1/audio/transcriptions", "POST", post(audio::create_transcription)),
        ("/v1/audio/translations", "POST", post(audio::create_translation)),
    ]
}

fn documentation_routes() -> Vec<Route> {
    vec![
        ("/openapi.json", "GET, HEAD", get(docs::get_openapi)),
        ("/docs", "GET, HEAD", get(docs::get_api_docs_page)),
        ("/docs/oauth2-redirect", "GET, HEAD", get(docs::oauth2_redirect_page)),
        ("/redoc", "GET, HEAD", get(docs::get_api_docs_page)),
    ]
}

/// Returns the routes that serve the data of the dashboard.
fn dashboard_data_routes() -> Vec<Route> {
    vec![
        ("/dashboard/cache", "GET", get(dashboard::cache::get_kv_blocks)),
        ("/dashboard/drills", "GET", get(dashboard::chart_annotations::list_chart_annotations)),
        ("/dashboard/history", "GET", get(dashboard::history::get_metric_history)),
        ("/dashboard/replicas", "GET", get(dashboard::replicas::list_replicas)),
        ("/dashboard/requests", "GET", get(dashboard::requests::list_sequences)),
        ("/dashboard/scenarios", "GET", get(dashboard::scenarios::list_built_in_scenarios)),
        ("/dashboard/trace", "GET", get(dashboard::trace::download_request_trace)),
        (SUMMARY_PATH, "GET", get(dashboard::replicas::get_dashboard_summary)),
    ]
}

/// Returns whether the configuration makes the server serve `/admin/config`.
pub fn serves_admin_config(config: &Config) -> bool {
    let server = &config.server;
    config.model.cli_mode == CliMode::Llmd
        || server.routes.dev_mode
        || server.admin_key.is_some()
        || server.dashboard.control
}

fn admin_routes() -> Vec<Route> {
    let settings = get(admin::get_admin_config).post(admin::update_config);
    let scenario = get(admin::get_fault_scenario)
        .post(admin::run_fault_scenario)
        .delete(admin::end_fault_scenario);
    let replies = get(admin_requests::get_scripted_replies)
        .post(admin_requests::set_scripted_replies)
        .delete(admin_requests::remove_scripted_replies);
    vec![
        ("/admin/config", "GET, POST", settings),
        ("/admin/scenario", "GET, POST, DELETE", scenario),
        (
            "/admin/requests",
            "GET, DELETE",
            get(admin_requests::list_recorded_requests)
                .delete(admin_requests::clear_recorded_requests),
        ),
        ("/admin/usage", "GET", get(admin_requests::list_request_usage)),
        ("/admin/replies", "GET, POST, DELETE", replies),
        ("/fake_metrics", "POST", post(admin::set_fake_metrics)),
    ]
}

fn sleep_routes() -> Vec<Route> {
    vec![
        ("/sleep", "POST", post(engine_control::sleep_engines)),
        ("/wake_up", "POST", post(engine_control::wake_up_engines)),
        ("/is_sleeping", "GET", get(engine_control::is_sleeping)),
    ]
}

/// Returns the routes that vLLM serves only with `VLLM_SERVER_DEV_MODE=1`.
fn development_routes() -> Vec<Route> {
    let release = post(engine_control::release_kv_cache_memory);
    vec![
        ("/release_kv_cache_memory", "POST", release),
        ("/reset_prefix_cache", "POST", post(engine_control::reset_prefix_cache)),
        ("/reset_mm_cache", "POST", post(engine_control::reset_mm_cache)),
        ("/reset_encoder_cache", "POST", post(engine_control::reset_encoder_cache)),
        ("/server_info", "GET", get(vllm::info::server_info)),
        ("/collective_rpc", "POST", post(vllm::info::collective_rpc)),
        ("/pause", "POST", post(engine_control::pause_engines)),
        ("/resume", "POST", post(engine_control::resume_engines)),
        ("/is_paused", "GET", get(engine_control::is_paused)),
        ("/abort_requests", "POST", post(engine_control::abort_requests)),
        ("/get_world_size", "GET", get(vllm::info::get_world_size)),
        ("/debug/kv_cache", "GET", get(vllm::kv_cache::list_cached_blocks)),
    ]
}

/// Returns the index of the routes of a configuration, and their router.
pub fn build_routes(config: &Config) -> (RouteIndex, Router<Arc<App>>) {
    let mut table = route_table(config);
    let version = config.model.vllm_version;
    if version < VllmVersion::default() {
        let newer = docs::paths_newer_than(version);
        table.retain(|(path, ..)| !newer.contains(*path));
    }
    let index = RouteIndex::new(table.iter().map(|(path, methods, _)| (*path, *methods)));
    let mut router = Router::new();
    for (path, allow, handler) in table {
        // The metrics route accepts any method.
        let handler = if path == METRICS_PATH {
            handler
        } else {
            handler.fallback(move || async move { error::method_not_allowed_response(allow) })
        };
        router = router.route(path, handler);
    }
    // A WebSocket route is not in the index; other requests to it get a 404.
    if config.api.speech.realtime && !config.api.scale_out.render_only {
        router = router.route("/v1/realtime", any(audio::realtime::open_realtime_websocket));
    }
    (index, router.fallback(any(unknown_path)))
}

/// Returns the response to an unsupported HEAD request: 405 on a route, 404 elsewhere.
pub(super) fn head_not_supported_response(app: &App, path: &str) -> Response<Body> {
    match app.routes.allowed_methods(path) {
        Some(allow) => error::method_not_allowed_response(allow),
        None => error::not_found_response(),
    }
}

/// Handles HTTP requests to paths without a route, most of which get a 404.
///
/// Paths that start with the metrics path get the metrics, a superfluous trailing slash redirects,
/// and all others get a 404.
async fn unknown_path(State(app): AppState, request: Request) -> Response<Body> {
    let path = request.uri().path();
    // Source: vLLM 0.33 `entrypoints/serve/instrumentator/metrics.py`, the mount.
    if path.starts_with(METRICS_PATH) && app.routes.serves_path(METRICS_PATH) {
        return ops::get_metrics(State(app), request.method().clone(), request.uri().clone()).await;
    }
    let Some(route) =
        path.strip_suffix('/').filter(|path| app.routes.allowed_methods(path).is_some())
    else {
        return error::not_found_response();
    };
    let scheme = if app.settings.server.tls.is_some() { "https" } else { "http" };
    let host = request.headers().get(header::HOST).and_then(|h| h.to_str().ok());
    let host = host.or(request.uri().authority().map(|a| a.as_str())).unwrap_or("localhost");
    let query = request.uri().query().map_or(String::new(), |query| format!("?{query}"));
    let root = &app.settings.server.root_path;
    let location = format!("{scheme}://{host}{root}{route}{query}");
    let mut response = error::empty_response(StatusCode::TEMPORARY_REDIRECT);
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}
