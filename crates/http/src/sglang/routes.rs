//! The routes of an SGLang server.

use axum::routing::{any, get, post};

use super::endpoint::{GET_OR_POST, POST, POST_OR_PUT, json_route, route, struct_route};
use super::{
    cache_storage, chat, completion, control, decisions, endpoint, generate, info, loads, memory,
    messages, ollama, parse, pooling, responses, score, sessions, systemone, tokenize,
    transcription, weights,
};
use crate::app::{CHAT_PATH, METRICS_PATH, RESPONSE_CANCEL_PATH, RESPONSE_PATH, Route};
use crate::ops;
use vllm_sim_config::Config;

/// Returns the routes of SGLang that are served; all others return 404, as unknown routes do.
pub(crate) fn sglang_routes(config: &Config) -> Vec<Route> {
    let mut routes = vec![
        route(POST_OR_PUT, "/generate", generate::generate),
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
        route(GET_OR_POST, "/flush_cache", control::flush_cache),
        struct_route(POST, &endpoint::ABORT, control::abort_request),
        struct_route(POST, &endpoint::PAUSE, control::pause_generation),
        struct_route(POST, &endpoint::CONTINUE_GENERATION, control::continue_generation),
        struct_route(GET_OR_POST, &endpoint::OPEN_SESSION, sessions::open_session),
        struct_route(GET_OR_POST, &endpoint::CLOSE_SESSION, sessions::close_session),
        struct_route(GET_OR_POST, &endpoint::RELEASE_MEMORY, memory::release_gpu_memory),
        struct_route(GET_OR_POST, &endpoint::RESUME_MEMORY, memory::resume_gpu_memory),
        struct_route(GET_OR_POST, &endpoint::SLOW_DOWN, memory::slow_down_steps),
        json_route(GET_OR_POST, &endpoint::WEIGHTS_CHECKER, weights::check_weights),
        struct_route(GET_OR_POST, &endpoint::GET_WEIGHTS_BY_NAME, weights::get_weights_by_name),
        struct_route(POST, &endpoint::UPDATE_WEIGHTS_FROM_DISK, weights::update_weights_from_disk),
        struct_route(POST, &endpoint::UPDATE_WEIGHT_VERSION, memory::update_weight_version),
        ("/vertex_generate", "POST", post(generate::vertex_generate)),
        struct_route(POST, &endpoint::SEPARATE_REASONING, parse::separate_reasoning),
        struct_route(POST, &endpoint::PARSE_FUNCTION_CALL, parse::parse_function_call),
        route(GET_OR_POST, "/start_profile", weights::start_profile),
        route(GET_OR_POST, "/stop_profile", weights::stop_profile),
        route(GET_OR_POST, "/freeze_gc", weights::freeze_gc),
        json_route(POST, &endpoint::EMBEDDINGS, pooling::create_embeddings),
        route(POST_OR_PUT, "/encode", pooling::encode_inputs),
        route(POST_OR_PUT, "/classify", pooling::classify_inputs),
        json_route(POST, &endpoint::V1_CLASSIFY, pooling::create_classification),
        json_route(POST_OR_PUT, &endpoint::RERANK, pooling::rerank),
        json_route(POST, &endpoint::SCORE, score::create_score),
        json_route(POST, &endpoint::DECISIONS, decisions::create_decisions),
        ("/v1/responses", "POST", post(responses::create_response)),
        (RESPONSE_PATH, "GET", get(responses::stored_response_not_found)),
        (RESPONSE_CANCEL_PATH, "POST", post(responses::stored_response_not_found)),
        ("/v1/messages", "POST", post(messages::create_anthropic_message)),
        ("/v1/messages/count_tokens", "POST", post(messages::count_message_tokens)),
        ("/", "GET, HEAD", get(ollama::get_root).head(ollama::get_root)),
        ("/api/chat", "POST", post(ollama::create_ollama_chat)),
        ("/api/generate", "POST", post(ollama::create_ollama_generation)),
        ("/api/tags", "GET", get(ollama::list_ollama_models)),
        json_route(POST, &endpoint::OLLAMA_SHOW, ollama::show_ollama_model),
        struct_route(GET_OR_POST, &endpoint::CONFIGURE_LOGGING, control::configure_logging),
        ("/v1/audio/transcriptions", "POST", post(transcription::create_transcription)),
        ("/v1/systemone", "POST", post(systemone::create_systemone_decisions)),
        struct_route(POST, &endpoint::LOAD_LORA, control::load_lora_adapter),
        struct_route(POST, &endpoint::UNLOAD_LORA, control::unload_lora_adapter),
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
