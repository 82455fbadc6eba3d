//! The table of all HTTP routes.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, any, delete, get, post};

use super::app::App;
use super::openai::{batch, chat, completion, models, responses};
use super::peers::SUMMARY;
use super::pooling::{embeddings, score};
use super::route_index::{ADAPTER, CHAT, METRICS, RESPONSE, RESPONSE_CANCEL, RouteIndex};
use super::same_origin::TrustedPages;
use super::vllm::{control, derender, docs, profile, recovery, render, sagemaker, weights};
use super::{
    admin, admin_requests, anthropic, audio, dashboard, error, invocations, ops, pooling,
    same_origin, tokenize, transfer, vllm,
};
use vllm_sim_config::{CliMode, Config, Task};
use vllm_sim_service::generate::TextMode;

/// Path of a route, its methods as in the `Allow` header, and its handler.
type Route = (&'static str, &'static str, MethodRouter<Arc<App>>);

/// Returns the HTTP routes of a configuration; disabled routes are absent and return 404.
fn table(config: &Config) -> Vec<Route> {
    let mut routes = vec![
        ("/v1/models", "GET", get(models::list)),
        ("/tokenize", "POST", post(tokenize::tokenize)),
        ("/detokenize", "POST", post(tokenize::detokenize)),
        ("/health", "GET", get(ops::health)),
        ("/health/ready", "GET", get(ops::ready)),
        ("/ready", "GET", get(ops::ready)),
        ("/ping", "GET, POST", get(ops::health).post(ops::health)),
        ("/version", "GET", get(ops::version)),
        ("/load", "GET", get(ops::load)),
        (METRICS, "GET", any(ops::metrics)),
        ("/dashboard", "GET", get(dashboard::show)),
        ("/dashboard/latencies", "GET", get(dashboard::latencies)),
        (
            "/kv_event_sources",
            "GET",
            get(vllm::info::kv_event_sources),
        ),
        ("/invocations", "POST", post(invocations::invoke)),
        ("/v1/systemone", "POST", post(vllm::info::no_decisions)),
        ("/v1/decisions", "POST", post(vllm::info::no_decisions)),
    ];
    if config.api.scale_out.render_only {
        routes.extend(rendering());
    } else {
        if generates(config) {
            routes.extend(generation());
            routes.extend(scale_out(config));
        }
        routes.extend(pooling_routes(config));
        routes.extend(speech(config));
    }
    if !config.server.routes.disable_fastapi_docs {
        routes.extend(documentation());
    }
    if config.api.enable_tokenizer_info_endpoint {
        routes.push(("/tokenizer_info", "GET", get(vllm::info::tokenizer_info)));
    }
    if config.model.cli_mode == CliMode::Llmd {
        routes.push(("/query", "GET", get(transfer::query)));
    }
    routes.extend(operation(config));
    routes
}

/// Returns the operator routes, which pages of other origins must not call.
///
/// They change the server or expose single requests.
fn operation(config: &Config) -> Vec<Route> {
    let mut routes = dashboard_data();
    if config.lora.runtime_updating {
        routes.extend([
            ("/v1/load_lora_adapter", "POST", post(vllm::lora::load)),
            ("/v1/unload_lora_adapter", "POST", post(vllm::lora::unload)),
            ("/adapters", "POST", post(sagemaker::register)),
            (ADAPTER, "DELETE", delete(sagemaker::unregister)),
        ]);
    }
    if config.api.profiler {
        routes.extend([
            ("/start_profile", "POST", post(profile::start)),
            ("/stop_profile", "POST", post(profile::stop)),
        ]);
    }
    if config.api.fault_tolerance {
        routes.extend([
            ("/fault_tolerance/apply", "POST", post(recovery::apply)),
            ("/fault_tolerance/status", "GET", get(recovery::status)),
        ]);
    }
    // llm-d always has the sleep routes.
    if config.server.routes.dev_mode || config.model.cli_mode == CliMode::Llmd {
        routes.extend(sleeping());
    }
    if is_administered(config) {
        routes.extend(administration());
    }
    if config.server.routes.dev_mode {
        routes.extend(development());
        routes.extend(training());
    } else if config.api.scale_out.tokens_only {
        routes.push(("/abort_requests", "POST", post(vllm::control::abort_named)));
    }
    if !config.api.scale_out.render_only && generates(config) {
        let scale = post(vllm::info::scale_elastic_ep);
        routes.push(("/scale_elastic_ep", "POST", scale));
    }
    let pages = Arc::new(TrustedPages::new(&config.server));
    let guarded = routes.into_iter().map(|(path, allow, handler)| {
        let guard = from_fn_with_state(pages.clone(), same_origin::layer);
        (path, allow, handler.layer(guard))
    });
    guarded.collect()
}

fn generates(config: &Config) -> bool {
    matches!(config.api.task, Task::All | Task::Generate | Task::Realtime)
}

fn generation() -> Vec<Route> {
    vec![
        (CHAT, "POST", post(chat::create)),
        ("/v1/completions", "POST", post(completion::create)),
        ("/v1/chat/completions/batch", "POST", post(batch::create)),
        ("/v1/messages", "POST", post(anthropic::create)),
        (
            "/v1/messages/count_tokens",
            "POST",
            post(anthropic::count_tokens),
        ),
        ("/v1/responses", "POST", post(responses::create)),
        (RESPONSE, "GET", get(responses::retrieve)),
        (RESPONSE_CANCEL, "POST", post(responses::cancel)),
        ("/generative_scoring", "POST", post(vllm::scoring::create)),
        (
            "/is_scaling_elastic_ep",
            "POST",
            post(vllm::info::is_scaling),
        ),
    ]
}

/// Returns the routes of disaggregated serving (render, derender, generate); if disabled, they
/// return an error.
fn scale_out(config: &Config) -> Vec<Route> {
    let api = &config.api;
    let on = api.scale_out.enable_scale_out
        || api.scale_out.tokens_only
        || config.model.cli_mode == CliMode::Llmd;
    let mut routes = vec![
        (
            "/inference/v1/generate",
            "POST",
            post(vllm::generate::create),
        ),
        (
            "/inference/v1/abort_requests",
            "POST",
            post(control::abort_named),
        ),
    ];
    routes.extend(rendering());
    if on {
        return routes;
    }
    let off = routes.into_iter();
    off.map(|(path, methods, _)| (path, methods, post(vllm::scale_out_disabled)))
        .collect()
}

fn rendering() -> Vec<Route> {
    vec![
        ("/v1/chat/completions/render", "POST", post(render::chat)),
        ("/v1/completions/render", "POST", post(render::completions)),
        ("/v1/messages/render", "POST", post(render::messages)),
        ("/v1/responses/render", "POST", post(render::responses)),
        (
            "/v1/chat/completions/derender",
            "POST",
            post(derender::chat),
        ),
        (
            "/v1/completions/derender",
            "POST",
            post(derender::completions),
        ),
    ]
}

fn pooling_routes(config: &Config) -> Vec<Route> {
    let task = config.api.task;
    let one = |tasks: &[Task]| task == Task::All || tasks.contains(&task);
    let mut routes = Vec::new();
    if one(&[Task::Embed]) && config.content.mode != TextMode::Encoder {
        routes.push(("/v1/embeddings", "POST", post(embeddings::embeddings)));
        routes.push(("/v2/embed", "POST", post(pooling::cohere::create)));
    }
    if one(&[Task::Embed, Task::Classify, Task::Score, Task::Reward]) {
        routes.push(("/pooling", "POST", post(embeddings::pooling)));
    }
    if one(&[Task::Classify]) {
        routes.push(("/classify", "POST", post(pooling::classify::create)));
    }
    let single = task == Task::Classify && config.api.num_labels == 1;
    if one(&[Task::Embed, Task::Score]) || single {
        for path in ["/score", "/v1/score"] {
            routes.push((path, "POST", post(score::score)));
        }
        for path in ["/rerank", "/v1/rerank", "/v2/rerank"] {
            routes.push((path, "POST", post(score::rerank)));
        }
    }
    routes
}

fn speech(config: &Config) -> Vec<Route> {
    if !config.api.speech.transcribes {
        return Vec::new();
    }
    vec![
        (
            "/v1/audio/transcriptions",
            "POST",
            post(audio::transcriptions),
        ),
        ("/v1/audio/translations", "POST", post(audio::translations)),
    ]
}

fn documentation() -> Vec<Route> {
    vec![
        ("/openapi.json", "GET, HEAD", get(docs::openapi)),
        ("/docs", "GET, HEAD", get(docs::page)),
        ("/docs/oauth2-redirect", "GET, HEAD", get(docs::oauth2)),
        ("/redoc", "GET, HEAD", get(docs::page)),
    ]
}

/// Returns the routes that serve the data of the dashboard.
fn dashboard_data() -> Vec<Route> {
    vec![
        ("/dashboard/cache", "GET", get(dashboard::cache::show)),
        ("/dashboard/drills", "GET", get(dashboard::drills::list)),
        ("/dashboard/replicas", "GET", get(dashboard::replicas::show)),
        ("/dashboard/requests", "GET", get(dashboard::requests::list)),
        (SUMMARY, "GET", get(dashboard::replicas::summary)),
    ]
}

/// Returns whether the configuration makes the server serve `/admin/config`.
pub fn is_administered(config: &Config) -> bool {
    let server = &config.server;
    config.model.cli_mode == CliMode::Llmd
        || server.routes.dev_mode
        || server.admin_key.is_some()
        || server.dashboard.control
}

fn administration() -> Vec<Route> {
    let settings = get(admin::show).post(admin::change);
    let scenario = get(admin::scenario)
        .post(admin::run_scenario)
        .delete(admin::end_scenario);
    let replies = get(admin_requests::replies)
        .post(admin_requests::set_replies)
        .delete(admin_requests::end_replies);
    vec![
        ("/admin/config", "GET, POST", settings),
        ("/admin/scenario", "GET, POST, DELETE", scenario),
        (
            "/admin/requests",
            "GET, DELETE",
            get(admin_requests::list).delete(admin_requests::clear),
        ),
        ("/admin/replies", "GET, POST, DELETE", replies),
        ("/fake_metrics", "POST", post(admin::fake_metrics)),
    ]
}

fn sleeping() -> Vec<Route> {
    vec![
        ("/sleep", "POST", post(control::sleep)),
        ("/wake_up", "POST", post(control::wake_up)),
        ("/is_sleeping", "GET", get(control::is_sleeping)),
    ]
}

/// Returns the routes that vLLM serves only with `VLLM_SERVER_DEV_MODE=1`.
fn development() -> Vec<Route> {
    let release = post(control::release_kv_cache_memory);
    vec![
        ("/release_kv_cache_memory", "POST", release),
        (
            "/reset_prefix_cache",
            "POST",
            post(control::reset_prefix_cache),
        ),
        ("/reset_mm_cache", "POST", post(control::reset_media)),
        ("/reset_encoder_cache", "POST", post(control::reset_encoder)),
        ("/server_info", "GET", get(vllm::info::server_info)),
        ("/collective_rpc", "POST", post(vllm::info::collective_rpc)),
        ("/pause", "POST", post(control::pause)),
        ("/resume", "POST", post(control::resume)),
        ("/is_paused", "GET", get(control::is_paused)),
        ("/abort_requests", "POST", post(control::abort_requests)),
        ("/get_world_size", "GET", get(vllm::info::world_size)),
        ("/debug/kv_cache", "GET", get(vllm::kv_cache::show)),
    ]
}

fn training() -> Vec<Route> {
    vec![
        ("/init_weight_transfer_engine", "POST", post(weights::init)),
        (
            "/shutdown_weight_transfer_engine",
            "POST",
            post(weights::shutdown),
        ),
        ("/start_weight_update", "POST", post(weights::start)),
        (
            "/start_draft_weight_update",
            "POST",
            post(weights::start_draft),
        ),
        ("/update_weights", "POST", post(weights::update)),
        ("/finish_weight_update", "POST", post(weights::finish)),
        ("/update_weight_version", "POST", post(weights::set_version)),
        ("/weight_checker", "POST", post(weights::check)),
        ("/weight_info", "GET", get(weights::info)),
    ]
}

/// Returns the index of the routes of a configuration, and their router.
pub fn routes(config: &Config) -> (RouteIndex, Router<Arc<App>>) {
    let table = table(config);
    let index = RouteIndex::new(table.iter().map(|(path, methods, _)| (*path, *methods)));
    let mut router = Router::new();
    for (path, allow, handler) in table {
        // The metrics route accepts any method.
        let handler = if path == METRICS {
            handler
        } else {
            handler.fallback(move || async move { error::wrong_method(allow) })
        };
        router = router.route(path, handler);
    }
    // A WebSocket route is not in the index; other requests to it get a 404.
    if config.api.speech.realtime && !config.api.scale_out.render_only {
        router = router.route("/v1/realtime", any(audio::realtime::open));
    }
    (index, router.fallback(any(unknown)))
}

/// Returns the response to an unsupported HEAD request: 405 on a route, 404 elsewhere.
pub(super) fn no_head(app: &App, path: &str) -> Response<Body> {
    match app.routes.methods(path) {
        Some(allow) => error::wrong_method(allow),
        None => error::not_found(),
    }
}

/// Handles requests to paths without a route.
///
/// Paths that start with the metrics path get the metrics, a superfluous trailing slash redirects,
/// and all others get a 404.
async fn unknown(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let path = request.uri().path();
    // Source: vLLM 0.33 `entrypoints/serve/instrumentator/metrics.py`, the mount.
    if path.starts_with(METRICS) {
        return ops::metrics(State(app), request.method().clone(), request.uri().clone()).await;
    }
    let Some(route) = path
        .strip_suffix('/')
        .filter(|path| app.routes.methods(path).is_some())
    else {
        return error::not_found();
    };
    let scheme = if app.settings.server.has_tls {
        "https"
    } else {
        "http"
    };
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|h| h.to_str().ok());
    let host = host
        .or(request.uri().authority().map(|a| a.as_str()))
        .unwrap_or("localhost");
    let query = request
        .uri()
        .query()
        .map_or(String::new(), |query| format!("?{query}"));
    let root = &app.settings.server.root_path;
    let location = format!("{scheme}://{host}{root}{route}{query}");
    let mut response = error::empty(StatusCode::TEMPORARY_REDIRECT);
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}
