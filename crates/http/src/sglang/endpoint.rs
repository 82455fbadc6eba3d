//! Reads request bodies of SGLang's routes, with the errors that FastAPI lists for the function of
//! each route, and builds the routes whose handlers get the request of a JSON body.
//!
//! Source: SGLang 0.5.23 `http_server.py`: lines and names of the functions.

use std::sync::Arc;

use axum::extract::State;
use axum::handler::Handler;
use axum::http::{Method, Uri};
use axum::routing::{MethodFilter, on};
use serde_json::Value;

use super::errors::SglangResult;
use crate::app::{App, AppState, Route};
use crate::body::RawRequest;
use crate::query;
use vllm_sim_python::{OrjsonLoadsError, orjson_loads};
use vllm_sim_wire::body;
use vllm_sim_wire::fastapi::{self, BodyReadError, BodySchemaErrors, RouteFunction};
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::schema::RequestField;
use vllm_sim_wire::sglang::server_control::Struct;

/// File path of SGLang's server in its container image; error texts about a request body contain
/// this path.
const FILE: &str = "/sgl-workspace/sglang/python/sglang/srt/entrypoints/http_server.py";

const fn post(line: u32, function: &'static str, path: &'static str) -> RouteFunction {
    RouteFunction { file: FILE, line, function, method: "POST", path }
}

/// Declares a constant for each POST route: its name, the line and name of the Python function, and
/// the path.
macro_rules! post_routes {
    ($($name:ident: $line:literal, $function:literal, $path:literal;)*) => {
        $(pub(super) const $name: RouteFunction = post($line, $function, $path);)*
    };
}

post_routes! {
    GENERATE: 928, "generate_request", "/generate";
    ENCODE: 993, "encode_request", "/encode";
    CLASSIFY: 1006, "classify_request", "/classify";
    FLUSH_CACHE: 1025, "flush_cache", "/flush_cache";
    UPDATE_WEIGHTS_FROM_DISK: 1300, "update_weights_from_disk", "/update_weights_from_disk";
    INIT_WEIGHTS_GROUP: 1404, "init_weights_update_group", "/init_weights_update_group";
    DESTROY_WEIGHTS_GROUP: 1420, "destroy_weights_update_group", "/destroy_weights_update_group";
    UPDATE_WEIGHTS_FROM_TENSOR: 1436, "update_weights_from_tensor", "/update_weights_from_tensor";
    BEGIN_WEIGHT_UPDATE: 1458, "begin_weight_update", "/begin_weight_update";
    END_WEIGHT_UPDATE: 1473, "end_weight_update", "/end_weight_update";
    UPDATE_WEIGHTS_FROM_DISTRIBUTED:
        1488, "update_weights_from_distributed", "/update_weights_from_distributed";
    UPDATE_WEIGHTS_FROM_IPC: 1508, "update_weights_from_ipc", "/update_weights_from_ipc";
    UPDATE_WEIGHT_VERSION: 1527, "update_weight_version", "/update_weight_version";
    GET_WEIGHTS_BY_NAME: 1559, "get_weights_by_name", "/get_weights_by_name";
    RELEASE_MEMORY: 1575, "release_memory_occupation", "/release_memory_occupation";
    RESUME_MEMORY: 1587, "resume_memory_occupation", "/resume_memory_occupation";
    WEIGHTS_CHECKER: 1599, "check_weights", "/weights_checker";
    SLOW_DOWN: 1621, "slow_down", "/slow_down";
    LOAD_LORA: 1652, "load_lora_adapter", "/load_lora_adapter";
    UNLOAD_LORA: 1676, "unload_lora_adapter", "/unload_lora_adapter";
    OPEN_SESSION: 1687, "open_session", "/open_session";
    CLOSE_SESSION: 1701, "close_session", "/close_session";
    CONFIGURE_LOGGING: 1711, "configure_logging", "/configure_logging";
    ABORT: 1721, "abort_request", "/abort_request";
    PARSE_FUNCTION_CALL: 1734, "parse_function_call_request", "/parse_function_call";
    SEPARATE_REASONING: 1774, "separate_reasoning_request", "/separate_reasoning";
    PAUSE: 1831, "pause_generation", "/pause_generation";
    CONTINUE_GENERATION: 1844, "continue_generation", "/continue_generation";
    COMPLETIONS: 1860, "openai_v1_completions", "/v1/completions";
    CHAT_COMPLETIONS: 1870, "openai_v1_chat_completions", "/v1/chat/completions";
    EMBEDDINGS: 1882, "openai_v1_embeddings", "/v1/embeddings";
    V1_CLASSIFY: 1894, "openai_v1_classify", "/v1/classify";
    TOKENIZE: 1906, "openai_v1_tokenize", "/tokenize";
    DETOKENIZE: 1924, "openai_v1_detokenize", "/detokenize";
    TRANSCRIPTIONS: 1942, "openai_v1_audio_transcriptions", "/v1/audio/transcriptions";
    SCORE: 2050, "v1_score_request", "/v1/score";
    DECISIONS: 2058, "v1_decisions_request", "/v1/decisions";
    RESPONSES: 2066, "v1_responses_request", "/v1/responses";
    RERANK: 2101, "v1_rerank_request", "/v1/rerank";
    OLLAMA_CHAT: 2131, "ollama_chat", "/api/chat";
    OLLAMA_GENERATE: 2137, "ollama_generate", "/api/generate";
    OLLAMA_SHOW: 2151, "ollama_show", "/api/show";
    VERTEX_GENERATE: 2215, "vertex_generate", "/vertex_generate";
}

pub(super) const ATTACH_CACHE_STORAGE: RouteFunction = RouteFunction {
    method: "PUT",
    ..post(1123, "attach_hicache_storage_backend", "/hicache/storage-backend")
};
pub(super) const GET_LOADS: RouteFunction = RouteFunction {
    file: "/sgl-workspace/sglang/python/sglang/srt/entrypoints/v1_loads.py",
    line: 96,
    function: "get_loads",
    method: "GET",
    path: "/v1/loads",
};

/// Methods of a route: their names as in the `Allow` header, and their filter.
type Methods = (&'static str, MethodFilter);

pub(super) const POST: Methods = ("POST", MethodFilter::POST);
pub(super) const GET_OR_POST: Methods = ("GET, POST", MethodFilter::GET.or(MethodFilter::POST));
pub(super) const POST_OR_PUT: Methods = ("POST, PUT", MethodFilter::POST.or(MethodFilter::PUT));

/// Returns a route with these methods.
pub(super) fn route<H, T>((methods, filter): Methods, path: &'static str, handler: H) -> Route
where
    H: Handler<T, Arc<App>>,
    T: 'static,
{
    (path, methods, on(filter, handler))
}

/// Returns a route whose handler gets the request of the JSON body.
pub(super) fn json_route<T, H, F>(methods: Methods, at: &'static RouteFunction, handler: H) -> Route
where
    T: RequestField + Send + 'static,
    H: FnOnce(Arc<App>, T) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = SglangResult> + Send + 'static,
{
    route(methods, at.path, move |State(app): AppState, received: RawRequest| async move {
        let request = read_request(&app, &received, at)?;
        handler(app, request).await
    })
}

/// Returns a route whose handler gets the msgspec struct of the JSON body.
pub(super) fn struct_route<T, H, F>(
    methods: Methods,
    at: &'static RouteFunction,
    handler: H,
) -> Route
where
    Struct<T>: RequestField,
    T: Send + 'static,
    H: FnOnce(Arc<App>, T) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = SglangResult> + Send + 'static,
{
    json_route(methods, at, move |app, Struct(request): Struct<T>| handler(app, request))
}

/// Error text of SGLang's media-type check for a request body that is not `application/json`.
const NOT_JSON: &str = "{'loc': ['header', 'content-type'], 'msg': \"Unsupported Media Type: Only \
     'application/json' is allowed\", 'type': 'value_error'}";

/// Parses a request body as JSON, and returns its fields as the request type `T`.
///
/// # Errors
/// SGLang's 400 for a body that is not JSON or does not match its schema.
pub(super) fn read_request<T: RequestField>(
    app: &App,
    received: &RawRequest,
    endpoint: &RouteFunction,
) -> Result<T, Fault> {
    read_request_and_body(app, received, endpoint).map(|(read, _)| read)
}

/// Parses a request body as JSON, and returns its fields and the JSON value.
///
/// # Errors
/// SGLang's 400 for a body that is not JSON or does not match its schema.
pub(super) fn read_request_and_body<T: RequestField>(
    app: &App,
    received: &RawRequest,
    endpoint: &RouteFunction,
) -> Result<(T, Value), Fault> {
    let endpoint = &at_method(received, endpoint);
    let body = parse_body_or_fault(received, endpoint)?;
    let read = read_parsed_body(app, body.as_ref(), endpoint)?;
    Ok((read, body.unwrap_or_default()))
}

/// Reads the fields of a request body that has been parsed as JSON.
///
/// # Errors
/// SGLang's 400 for a body that does not match its schema.
pub(super) fn read_parsed_body<T: RequestField>(
    app: &App,
    body: Option<&Value>,
    endpoint: &RouteFunction,
) -> Result<T, Fault> {
    let read = fastapi::read_body(body, &app.rules.defaults.bounds);
    read.map_err(|refusal| refusal.to_sglang_fault(endpoint))
}

/// Reads the query parameters `names`; the last of several parameters with one name wins.
///
/// # Errors
/// SGLang's 400 for a parameter of another type.
pub(super) fn read_query<T: RequestField>(
    uri: &Uri,
    names: &[&str],
    endpoint: &RouteFunction,
) -> Result<T, Fault> {
    let given = names.iter().filter_map(|name| {
        let last = query::query_values(uri, name).pop()?;
        Some(((*name).to_owned(), Value::from(last)))
    });
    let given = Value::Object(given.collect());
    fastapi::read_query(&given).map_err(|refusal| refusal.to_sglang_fault(endpoint))
}

/// Returns a request body as JSON; `None` without a body. An unreadable body gets SGLang's error
/// 400.
///
/// # Errors
/// SGLang's 400 for a body that is not JSON.
pub(super) fn parse_body_or_fault(
    received: &RawRequest,
    endpoint: &RouteFunction,
) -> Result<Option<Value>, Fault> {
    parse_json_body(received, endpoint).map_err(|refusal| refusal.to_sglang_fault(endpoint))
}

/// Returns a request body as JSON; `None` without a body. A media type that the route refuses is an
/// error.
///
/// # Errors
/// The error of a body that is not JSON, or the fault of another media type.
pub(super) fn parse_json_body(
    received: &RawRequest,
    endpoint: &RouteFunction,
) -> Result<Option<Value>, BodyReadError> {
    let is_json = body::check_json_content_type(received.media_type()).is_ok();
    if !is_json && checks_media_type(endpoint) {
        return Err(BodyReadError::Fault(Fault::new(
            400,
            ErrorType::BadRequestPhrase,
            format!("1 validation error:\n  {NOT_JSON} [{NOT_JSON}]"),
        )));
    }
    if received.bytes.is_empty() {
        return Ok(None);
    }
    if !is_json {
        // The schema refuses a string, because it is not a mapping.
        return Ok(Some(Value::String(String::from_utf8_lossy(&received.bytes).into_owned())));
    }
    body::check_json_value_count(&received.bytes).map_err(BodyReadError::Fault)?;
    let parsed = orjson_loads(&received.bytes);
    parsed.map(Some).map_err(|OrjsonLoadsError { message, position }| {
        BodyReadError::Errors(BodySchemaErrors::errors_of_invalid_json(message, position))
    })
}

/// Returns whether a route refuses bodies of other types than JSON (`validate_json_request`).
fn checks_media_type(endpoint: &RouteFunction) -> bool {
    endpoint.path.starts_with("/v1/") || matches!(endpoint.path, "/tokenize" | "/detokenize")
}

/// Returns the route function of an endpoint with the HTTP method of the request, for error texts.
fn at_method(received: &RawRequest, endpoint: &RouteFunction) -> RouteFunction {
    let method = match received.method {
        Method::GET => "GET",
        Method::PUT => "PUT",
        _ => endpoint.method,
    };
    RouteFunction { method, ..*endpoint }
}
