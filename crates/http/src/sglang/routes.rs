//! The routes of an SGLang server.

use std::sync::Arc;

use axum::handler::Handler;
use axum::routing::{MethodFilter, any, get, on, post};

use super::{
    cache_storage, chat, completion, control, decisions, generate, info, loads, memory, messages,
    ollama, parse, pooling, responses, score, sessions, systemone, tokenize, transcription,
    weights,
};
use crate::app::{App, CHAT_PATH, METRICS_PATH, RESPONSE_CANCEL_PATH, RESPONSE_PATH, Route};
use crate::ops;
use vllm_sim_config::Config;

/// Returns the routes of SGLang that are served; all others return 404, as unknown routes do.
pub(crate) fn sglang_routes(config: &Config) -> Vec<Route> {
    let mut routes = vec![
        post_or_put("/generate", generate::generate),
        (CHAT_PATH, "POST", post(chat::create_chat)),
        ("/v1/completions", "POST", post(completion::create_completion)),
        ("/invocations", "POST", post(chat::create_chat)),
        ("/v1/models", "GET", get(info::list_models)),
        ("/v1/models/{*model}", "GET", get(info::retrieve_model)),
        ("/model_info", "GET", get(info::get_model_info)),
        ("/get_model_info", "GET", get(info::get_model_info)),
        ("/server_info", "GET", get(info::get_server_info)),
        ("/get_server_info", "GET", get(info::get_server_info)),
        ("/v1/loads", "GET", get(loads::get_loads)),
        ("/health", "GET", get(info::get_health)),
        ("/health_generate", "GET", get(info::get_health)),
        ("/ready", "GET", get(info::get_ready)),
        ("/ping", "GET", get(info::get_ping)),
        get_or_post("/flush_cache", control::flush_cache),
        ("/abort_request", "POST", post(control::abort_request)),
        ("/pause_generation", "POST", post(control::pause_generation)),
        ("/continue_generation", "POST", post(control::continue_generation)),
        get_or_post("/open_session", sessions::open_session),
        get_or_post("/close_session", sessions::close_session),
        get_or_post("/release_memory_occupation", memory::release_gpu_memory),
        get_or_post("/resume_memory_occupation", memory::resume_gpu_memory),
        get_or_post("/slow_down", memory::slow_down_steps),
        get_or_post("/weights_checker", weights::check_weights),
        get_or_post("/get_weights_by_name", weights::get_weights_by_name),
        ("/update_weights_from_disk", "POST", post(weights::update_weights_from_disk)),
        ("/update_weight_version", "POST", post(memory::update_weight_version)),
        ("/vertex_generate", "POST", post(generate::vertex_generate)),
        ("/separate_reasoning", "POST", post(parse::separate_reasoning)),
        ("/parse_function_call", "POST", post(parse::parse_function_call)),
        get_or_post("/start_profile", weights::start_profile),
        get_or_post("/stop_profile", weights::stop_profile),
        get_or_post("/freeze_gc", weights::freeze_gc),
        ("/v1/embeddings", "POST", post(pooling::create_embeddings)),
        post_or_put("/encode", pooling::encode_inputs),
        post_or_put("/classify", pooling::classify_inputs),
        ("/v1/classify", "POST", post(pooling::create_classification)),
        post_or_put("/v1/rerank", pooling::rerank),
        ("/v1/score", "POST", post(score::create_score)),
        ("/v1/decisions", "POST", post(decisions::create_decisions)),
        ("/v1/responses", "POST", post(responses::create_response)),
        (RESPONSE_PATH, "GET", get(responses::stored_response_not_found)),
        (RESPONSE_CANCEL_PATH, "POST", post(responses::stored_response_not_found)),
        ("/v1/messages", "POST", post(messages::create_anthropic_message)),
        ("/v1/messages/count_tokens", "POST", post(messages::count_message_tokens)),
        ("/", "GET, HEAD", get(ollama::get_root).head(ollama::get_root)),
        ("/api/chat", "POST", post(ollama::create_ollama_chat)),
        ("/api/generate", "POST", post(ollama::create_ollama_generation)),
        ("/api/tags", "GET", get(ollama::list_ollama_models)),
        ("/api/show", "POST", post(ollama::show_ollama_model)),
        get_or_post("/configure_logging", control::configure_logging),
        ("/v1/audio/transcriptions", "POST", post(transcription::create_transcription)),
        ("/v1/systemone", "POST", post(systemone::create_systemone_decisions)),
        ("/load_lora_adapter", "POST", post(control::load_lora_adapter)),
        ("/unload_lora_adapter", "POST", post(control::unload_lora_adapter)),
    ];
    routes.extend(weights::weight_update_routes());
    routes.extend(cache_storage_routes());
    for path in ["/tokenize", "/v1/tokenize"] {
        routes.push((path, "POST", post(tokenize::tokenize)));
    }
    for path in ["/detokenize", "/v1/detokenize"] {
        routes.push((path, "POST", post(tokenize::detokenize)));
    }
    // `--enable-metrics` is the opposite of `--disable-log-stats`.
    if !config.metrics.disable_log_stats {
        routes.push((METRICS_PATH, "GET", any(ops::get_metrics)));
    }
    routes
}

/// Returns the routes of the hierarchical cache.
fn cache_storage_routes() -> [Route; 3] {
    [
        (
            "/hicache/storage-backend",
            "DELETE, GET, PUT",
            get(cache_storage::get_cache_storage)
                .put(cache_storage::attach_cache_storage)
                .delete(cache_storage::detach_cache_storage),
        ),
        ("/hicache/storage-backend/clear", "POST", post(cache_storage::clear_cache_storage)),
        ("/get_hicache_l3_cache_layout", "GET", get(cache_storage::get_cache_storage_layout)),
    ]
}

/// Returns a route that accepts GET and POST.
fn get_or_post<H, T>(path: &'static str, handler: H) -> Route
where
    H: Handler<T, Arc<App>>,
    T: 'static,
{
    (path, "GET, POST", on(MethodFilter::GET.or(MethodFilter::POST), handler))
}

/// Returns a route that accepts POST and PUT.
fn post_or_put<H, T>(path: &'static str, handler: H) -> Route
where
    H: Handler<T, Arc<App>>,
    T: 'static,
{
    (path, "POST, PUT", on(MethodFilter::POST.or(MethodFilter::PUT), handler))
}
