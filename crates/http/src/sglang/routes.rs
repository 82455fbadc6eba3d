//! The routes of an SGLang server.

use axum::routing::{any, get, post, put};

use super::{
    chat, completion, control, decisions, generate, info, loads, memory, messages, ollama, parse,
    pooling, responses, score, sessions, tokenize, weights,
};
use crate::app::{CHAT_PATH, METRICS_PATH, RESPONSE_CANCEL_PATH, RESPONSE_PATH, Route};
use crate::ops;
use vllm_sim_config::Config;

/// Returns the routes of SGLang that are served; all others return 404, as unknown routes do.
pub(crate) fn sglang_routes(config: &Config) -> Vec<Route> {
    let mut routes = vec![
        ("/generate", "POST, PUT", put(generate::generate).post(generate::generate)),
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
        ("/ping", "GET", get(info::get_health)),
        ("/flush_cache", "GET, POST", get(control::flush_cache).post(control::flush_cache)),
        ("/abort_request", "POST", post(control::abort_request)),
        ("/pause_generation", "POST", post(control::pause_generation)),
        ("/continue_generation", "POST", post(control::continue_generation)),
        ("/open_session", "GET, POST", get(sessions::open_session).post(sessions::open_session)),
        ("/close_session", "GET, POST", get(sessions::close_session).post(sessions::close_session)),
        (
            "/release_memory_occupation",
            "GET, POST",
            get(memory::release_gpu_memory).post(memory::release_gpu_memory),
        ),
        (
            "/resume_memory_occupation",
            "GET, POST",
            get(memory::resume_gpu_memory).post(memory::resume_gpu_memory),
        ),
        ("/slow_down", "GET, POST", get(memory::slow_down_steps).post(memory::slow_down_steps)),
        ("/update_weight_version", "POST", post(memory::update_weight_version)),
        ("/vertex_generate", "POST", post(generate::vertex_generate)),
        ("/separate_reasoning", "POST", post(parse::separate_reasoning)),
        ("/parse_function_call", "POST", post(parse::parse_function_call)),
        ("/start_profile", "GET, POST", get(weights::start_profile).post(weights::start_profile)),
        ("/stop_profile", "GET, POST", get(weights::stop_profile).post(weights::stop_profile)),
        ("/freeze_gc", "GET, POST", get(weights::freeze_gc).post(weights::freeze_gc)),
        ("/v1/embeddings", "POST", post(pooling::create_embeddings)),
        ("/encode", "POST, PUT", put(pooling::encode_inputs).post(pooling::encode_inputs)),
        ("/classify", "POST, PUT", put(pooling::classify_inputs).post(pooling::classify_inputs)),
        ("/v1/classify", "POST", post(pooling::create_classification)),
        ("/v1/rerank", "POST, PUT", put(pooling::rerank).post(pooling::rerank)),
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
        ("/load_lora_adapter", "POST", post(control::load_lora_adapter)),
        ("/unload_lora_adapter", "POST", post(control::unload_lora_adapter)),
    ];
    routes.extend(weight_routes());
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

/// Returns the routes that change the weights of the model.
fn weight_routes() -> [Route; 9] {
    [
        ("/update_weights_from_disk", "POST", post(weights::update_weights_from_disk)),
        (
            "/update_weights_from_distributed",
            "POST",
            post(weights::update_weights_from_distributed),
        ),
        ("/update_weights_from_tensor", "POST", post(weights::update_weights_from_tensor)),
        ("/update_weights_from_ipc", "POST", post(weights::update_weights_from_ipc)),
        ("/init_weights_update_group", "POST", post(weights::init_weights_update_group)),
        ("/destroy_weights_update_group", "POST", post(weights::destroy_weights_update_group)),
        ("/begin_weight_update", "POST", post(weights::begin_weight_update)),
        ("/end_weight_update", "POST", post(weights::end_weight_update)),
        (
            "/get_weights_by_name",
            "GET, POST",
            get(weights::get_weights_by_name).post(weights::get_weights_by_name),
        ),
    ]
}
