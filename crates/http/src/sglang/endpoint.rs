//! Reads request bodies of SGLang's routes, with the errors that FastAPI lists for the function of
//! each route.
//!
//! Source: SGLang 0.5.23 `http_server.py`: lines and names of the functions.

use serde_json::Value;

use crate::app::App;
use crate::body::RawRequest;
use vllm_sim_wire::fastapi::{self, BodyErrors, BodyRefusal, Endpoint};
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::schema::RequestField;

/// Path of SGLang's server in its container image, which errors of a body name.
const FILE: &str = "/sgl-workspace/sglang/python/sglang/srt/entrypoints/http_server.py";

const fn post(line: u32, function: &'static str, path: &'static str) -> Endpoint {
    Endpoint { file: FILE, line, function, method: "POST", path }
}

pub(super) const GENERATE: Endpoint = post(928, "generate_request", "/generate");
pub(super) const ENCODE: Endpoint = post(993, "encode_request", "/encode");
pub(super) const CLASSIFY: Endpoint = post(1006, "classify_request", "/classify");
pub(super) const UPDATE_WEIGHT_VERSION: Endpoint =
    post(1527, "update_weight_version", "/update_weight_version");
pub(super) const RELEASE_MEMORY: Endpoint =
    post(1575, "release_memory_occupation", "/release_memory_occupation");
pub(super) const RESUME_MEMORY: Endpoint =
    post(1587, "resume_memory_occupation", "/resume_memory_occupation");
pub(super) const SLOW_DOWN: Endpoint = post(1621, "slow_down", "/slow_down");
pub(super) const LOAD_LORA: Endpoint = post(1652, "load_lora_adapter", "/load_lora_adapter");
pub(super) const UNLOAD_LORA: Endpoint = post(1676, "unload_lora_adapter", "/unload_lora_adapter");
pub(super) const OPEN_SESSION: Endpoint = post(1687, "open_session", "/open_session");
pub(super) const CLOSE_SESSION: Endpoint = post(1701, "close_session", "/close_session");
pub(super) const ABORT: Endpoint = post(1721, "abort_request", "/abort_request");
pub(super) const PAUSE: Endpoint = post(1831, "pause_generation", "/pause_generation");
pub(super) const CONTINUE: Endpoint = post(1844, "continue_generation", "/continue_generation");
pub(super) const COMPLETIONS: Endpoint = post(1860, "openai_v1_completions", "/v1/completions");
pub(super) const CHAT: Endpoint = post(1870, "openai_v1_chat_completions", "/v1/chat/completions");
pub(super) const EMBEDDINGS: Endpoint = post(1882, "openai_v1_embeddings", "/v1/embeddings");
pub(super) const V1_CLASSIFY: Endpoint = post(1894, "openai_v1_classify", "/v1/classify");
pub(super) const TOKENIZE: Endpoint = post(1906, "openai_v1_tokenize", "/tokenize");
pub(super) const DETOKENIZE: Endpoint = post(1924, "openai_v1_detokenize", "/detokenize");
pub(super) const SCORE: Endpoint = post(2050, "v1_score_request", "/v1/score");
pub(super) const RESPONSES: Endpoint = post(2066, "v1_responses_request", "/v1/responses");
pub(super) const RERANK: Endpoint = post(2101, "v1_rerank_request", "/v1/rerank");
pub(super) const OLLAMA_CHAT: Endpoint = post(2131, "ollama_chat", "/api/chat");
pub(super) const OLLAMA_GENERATE: Endpoint = post(2137, "ollama_generate", "/api/generate");
pub(super) const OLLAMA_SHOW: Endpoint = post(2151, "ollama_show", "/api/show");

/// Text of the error that a body of another media type gets from the check that precedes a route.
const NOT_JSON: &str = "{'loc': ['header', 'content-type'], 'msg': \"Unsupported Media Type: Only \
     'application/json' is allowed\", 'type': 'value_error'}";

/// Parses the body of a request as JSON and reads its fields.
///
/// # Errors
/// SGLang's 400 for a body that is not JSON or does not match its schema.
pub(super) fn read<T: RequestField>(
    app: &App,
    received: &RawRequest,
    endpoint: &Endpoint,
) -> Result<T, Fault> {
    let body = parse(received, endpoint)?;
    read_value(app, &body, endpoint)
}

/// Reads the fields of a request body that has been parsed as JSON.
///
/// # Errors
/// SGLang's 400 for a body that does not match its schema.
pub(super) fn read_value<T: RequestField>(
    app: &App,
    body: &Value,
    endpoint: &Endpoint,
) -> Result<T, Fault> {
    fastapi::read_body(body, &app.rules.defaults.bounds).map_err(|refusal| match refusal {
        BodyRefusal::Errors(errors) => errors.to_fault(endpoint),
        BodyRefusal::Fault(fault) => fault,
    })
}

/// Parses the body of a request as JSON; an empty body is null.
///
/// # Errors
/// SGLang's 400 for a body that is not JSON.
pub(super) fn parse(received: &RawRequest, endpoint: &Endpoint) -> Result<Value, Fault> {
    parse_json(received).map_err(|refusal| match refusal {
        BodyRefusal::Errors(errors) => errors.to_fault(endpoint),
        BodyRefusal::Fault(fault) => fault,
    })
}

/// Parses the body of a request as JSON, with errors that name no route; an empty body is null.
///
/// # Errors
/// The error of a body that is not JSON, or the fault of another media type.
pub(super) fn parse_json(received: &RawRequest) -> Result<Value, BodyRefusal> {
    received.parse_fastapi_json().map_err(|fault| {
        let position = fault.param.as_deref().and_then(|param| param.strip_prefix("body."));
        if let Some(position) = position.and_then(|position| position.parse().ok()) {
            let ended = position >= received.bytes.len();
            let message = if ended { "unexpected end of data" } else { "unexpected character" };
            return BodyRefusal::Errors(BodyErrors::not_json(message, position));
        }
        let is_media_type = fault.message.contains("Unsupported Media Type");
        BodyRefusal::Fault(match is_media_type {
            true => Fault::new(
                400,
                ErrorType::BadRequestPhrase,
                format!("1 validation error:\n  {NOT_JSON} [{NOT_JSON}]"),
            ),
            false => fault,
        })
    })
}
