//! Common steps of requests that generate tokens: parsing the body, resolving the model, and
//! converting errors, in the order of the imitated server (vLLM or llm-d).

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde_json::{Map, Value};

use crate::app::App;
use crate::body::RawRequest;
use crate::dialect::{ApiEndpoint, StreamErrorReporting};
use crate::request_head::names;
use crate::{error, fault};
use vllm_sim_service::{
    GenerationJob, GenerationRequest, KvBlockSaltAndSession, LoraAdapter, RejectedRequest, Reply,
    RequestError, run_blocking_if_large,
};
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::sampling_fields::ExtraSamplingArgs;

/// A request body of an API that generates tokens.
pub(crate) trait GenerationRequestBody: Sized {
    /// The API endpoint to which the body is sent.
    const ENDPOINT: ApiEndpoint;

    /// Members of the body whose texts the tokenizer reads.
    const TEXT_MEMBERS: &'static [&'static str];

    /// Validates a request body against its JSON schema, and parses it.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    fn read(body: &Value, bounds: &RequestBounds) -> Result<Self, Fault>;

    fn model(&self) -> Option<&str>;

    /// Runs the checks of a request body that precede the model lookup.
    ///
    /// # Errors
    /// 400 with vLLM's message of the check that fails.
    fn check_before_model_lookup(&self) -> Result<(), Fault> {
        Ok(())
    }
}

/// Parses a request body in the order of the imitated server: llm-d checks injected failures and the
/// model before the schema.
///
/// # Errors
/// An error of the body, an injected failure, or an unknown model.
pub(crate) fn parse_generation_request_body<R: GenerationRequestBody>(
    app: &App,
    received: &RawRequest,
    body: Cow<'_, Value>,
) -> Result<Box<R>, Fault> {
    let dialect = app.dialect;
    let body = dialect.schema_body(R::ENDPOINT, body)?;
    if dialect.checks_model_before_schema(R::ENDPOINT) {
        resolve_model(app, received, body.get("model").and_then(Value::as_str), Ok(()))?;
        dialect.check_body(R::ENDPOINT, &body)?;
    }
    // Boxed, because this large value moves with everything that is held while a request waits.
    let request = R::read(&body, &app.rules.defaults.bounds).map(Box::new);
    request.map_err(|fault| dialect.unreadable_body_fault(fault))
}

/// Returns the LoRA adapter of a parsed request; `Ok(None)` for the base model.
///
/// With llm-d's rules this repeats the lookup of [`parse_generation_request_body`], which chose the
/// order of errors. The injected failure of a request is fixed, so both have the same result.
///
/// # Errors
/// An injected failure, [`GenerationRequestBody::check_before_model_lookup`], an unknown model, a
/// prompt that the tokenizer cannot read.
pub(crate) fn resolve_request_model<R: GenerationRequestBody>(
    app: &App,
    received: &RawRequest,
    request: &R,
) -> Result<Option<Arc<LoraAdapter>>, Fault> {
    let first = request.check_before_model_lookup();
    let lora = resolve_model(app, received, request.model(), first)?;
    received.check_prompt_encodable(R::TEXT_MEMBERS)?;
    Ok(lora)
}

/// Returns a rejected request with the moment of its error as the imitated server reports errors: in
/// a stream, or all by HTTP status.
pub(crate) fn with_stream_error_reporting(
    refused: RejectedRequest<Fault>,
    reporting: StreamErrorReporting,
) -> RejectedRequest<Fault> {
    match reporting {
        StreamErrorReporting::InStream => refused,
        StreamErrorReporting::AsStatus => refused.error.into(),
    }
}

/// Resolves the model of a request; `first` is the result of the checks that precede the lookup.
///
/// # Errors
/// An injected failure, `first`, an unknown model.
pub(crate) fn resolve_model(
    app: &App,
    received: &RawRequest,
    model: Option<&str>,
    first: Result<(), Fault>,
) -> Result<Option<Arc<LoraAdapter>>, Fault> {
    fault::fail_if_error_injected(app, received, model)?;
    first?;
    resolve_model_without_faults(app, model)
}

/// Converts the body of a render request to the form that the JSON schema of the endpoint `api`
/// accepts, and checks its content.
///
/// # Errors
/// The errors of the body that do not depend on its model.
pub(crate) fn convert_and_check_render_body(
    app: &App,
    api: ApiEndpoint,
    body: Value,
) -> Result<Value, Fault> {
    let dialect = app.dialect;
    let body = dialect.schema_body(api, Cow::Owned(body))?;
    dialect.check_body_content(api, &body)?;
    Ok(body.into_owned())
}

/// Returns a generation request with the fields that come from HTTP headers, for the name of a
/// model in the body.
pub(crate) fn new_generation_request(
    app: &App,
    received: &RawRequest,
    id: Arc<str>,
    model: Option<&str>,
) -> GenerationRequest {
    GenerationRequest {
        model_alias: app.service.models.model_alias(model),
        rank: app.dialect.effective_rank(
            &app.rules.limits,
            requested_rank(received.headers_unless_all_common()),
        ),
        trace: app
            .service
            .settings()
            .traced
            .then(|| trace_context(received.headers_unless_all_common()))
            .flatten(),
        headers: app.service.replies.headers_read_by_reply_rules(|name| {
            let value = received.headers.get(name);
            value.and_then(|value| value.to_str().ok())
        }),
        context: received.context.clone(),
        ..generation_request_without_headers(app, id)
    }
}

/// Returns a generation request with one choice and no fields from HTTP headers.
pub(crate) fn generation_request_without_headers(app: &App, id: Arc<str>) -> GenerationRequest {
    GenerationRequest { id, arrived: app.service.now(), n: 1, ..GenerationRequest::default() }
}

/// Admits a generation request and starts its generation.
pub(crate) fn start_generation(
    app: &App,
    lora: Option<Arc<LoraAdapter>>,
    request: GenerationRequest,
) -> impl Future<Output = Result<(Reply, Box<GenerationJob>), RejectedRequest<Fault>>> {
    // Boxed before there is a future, which would store this large argument twice and move with it.
    let request = Box::new(request);
    async move {
        let load = app.count_request_in_load();
        let generated = app.service.generate_reply(&app.rules, lora, request);
        // Boxed, because the futures around it are moved several times.
        let (mut reply, job) = Box::pin(generated).await.map_err(|refused| RejectedRequest {
            error: request_error_fault(app, refused.error),
            late: refused.late,
        })?;
        reply.load = load;
        Ok((reply, job))
    }
}

pub(crate) fn request_error_fault(app: &App, refusal: RequestError) -> Fault {
    match refusal {
        RequestError::UnknownModel(name) => {
            let served = app.service.models.served_model_names();
            app.dialect.unknown_model_fault(&name, served)
        }
        RequestError::Invalid(fault) => fault,
        RequestError::Serve(error) => error::submission_error_fault(&error),
    }
}

/// Returns the LoRA adapter with the name `model`; `Ok(None)` if it is a name of the base model.
///
/// # Errors
/// vLLM's 404, or llm-d's.
pub(crate) fn resolve_model_without_faults(
    app: &App,
    model: Option<&str>,
) -> Result<Option<Arc<LoraAdapter>>, Fault> {
    let found = app.service.resolve_model(&app.rules, model);
    found.map_err(|refusal| request_error_fault(app, refusal))
}

/// Returns the labels of the KV blocks of an OpenAI request, from the members of its body and its
/// headers.
pub(crate) fn kv_block_labels(
    received: &RawRequest,
    cache_salt: Option<&str>,
    session: Option<&str>,
    xargs: Option<&ExtraSamplingArgs>,
) -> KvBlockSaltAndSession {
    KvBlockSaltAndSession {
        salt: cache_salt.map(Into::into),
        session_id: request_session_id(received, session, xargs),
    }
}

/// Returns the session id of a request: from `body`, else the header `X-Session-ID`, else
/// `session_id` of `vllm_xargs`. An empty id counts as none.
///
/// Source: vLLM 0.33 `vllm/entrypoints/generate/base/serving.py`, `_get_session_id`.
fn request_session_id(
    received: &RawRequest,
    body: Option<&str>,
    xargs: Option<&ExtraSamplingArgs>,
) -> Option<Arc<str>> {
    let named = |name: &&str| !name.is_empty();
    let header = || {
        let value = received.headers_unless_all_common().get(&names::SESSION_ID_HEADER)?.as_bytes();
        // Python's server reads headers as Latin-1.
        let name: String = value.iter().copied().map(char::from).collect();
        (!name.is_empty()).then(|| name.into())
    };
    let xarg = || Some(xargs?.0.get("session_id")?.as_str().filter(named)?.into());
    body.filter(named).map(Into::into).or_else(header).or_else(xarg)
}

/// Returns the data-parallel rank named in a request's headers; a value that is not an integer is
/// ignored.
fn requested_rank(headers: &HeaderMap) -> Option<i64> {
    headers.get(&names::DATA_PARALLEL_RANK_HEADER)?.to_str().ok()?.trim().parse().ok()
}

/// Returns the priority of a request: from a header if its value is an integer, else from the body.
pub(crate) fn request_priority(headers: &HeaderMap, body: i64) -> i64 {
    let header = headers.get(&names::PRIORITY_HEADER).and_then(|v| v.to_str().ok());
    header.and_then(|v| v.trim().parse().ok()).unwrap_or(body)
}

/// Returns the W3C trace context of a request, `traceparent` and `tracestate`.
fn trace_context(headers: &HeaderMap) -> Option<(Box<str>, Option<Box<str>>)> {
    let text = |name: &HeaderName| headers.get(name)?.to_str().ok().map(Into::into);
    Some((text(&names::TRACEPARENT)?, text(&names::TRACESTATE)))
}

/// Returns the minimum number of tokens per stream event that a request asks for, clamped to 32
/// bits.
pub(crate) fn min_tokens_per_event(asked: Option<i128>) -> u32 {
    u32::try_from(asked.unwrap_or(1).max(1)).unwrap_or(u32::MAX)
}

/// Waits for the end of a reply and renders its JSON, on tokio's blocking threads if the reply is
/// long.
///
/// # Errors
/// vLLM's 500 if a choice ended with an error.
pub(crate) async fn render_finished_reply<T: Send + 'static>(
    mut reply: Reply,
    render: impl FnOnce(&Reply) -> T + Send + 'static,
) -> Result<T, Fault> {
    reply.wait_until_choices_ended().await;
    if reply.has_failed_choice() {
        return Err(error::engine_failure_fault());
    }
    reply.mark_reply_delivered();
    Ok(run_blocking_if_large(reply.size, move || render(&reply)).await)
}

/// Returns a response that is not a stream, with the load header if the client requested it.
pub(crate) fn json_response_with_load_header(
    app: &App,
    headers: &HeaderMap,
    body: String,
) -> Response<Body> {
    let mut response = error::json_response(StatusCode::OK, body);
    let format = headers.get(&names::LOAD_FORMAT_HEADER).map(HeaderValue::as_bytes);
    let text = match format {
        Some(f) if f.eq_ignore_ascii_case(b"text") => {
            Some(load_header_value(app, LoadHeaderFormat::Text))
        }
        Some(f) if f.eq_ignore_ascii_case(b"json") => {
            Some(load_header_value(app, LoadHeaderFormat::Json))
        }
        _ => None,
    };
    if let Some(value) = text.and_then(|text| HeaderValue::from_str(&text).ok()) {
        response.headers_mut().insert("endpoint-load-metrics", value);
    }
    response
}

enum LoadHeaderFormat {
    Text,
    Json,
}

fn load_header_value(app: &App, format: LoadHeaderFormat) -> String {
    let stats = app.service.rank_engines()[0].stats();
    let waiting = stats.waiting as f64;
    let usage = if stats.total_blocks == 0 {
        0.0
    } else {
        f64::from(stats.used_blocks) / f64::from(stats.total_blocks)
    };
    match format {
        LoadHeaderFormat::Json => format!(
            "JSON {{\"named_metrics\": {{\"num_requests_waiting\": {waiting:?}, \"kv_cache_usage_perc\": {usage:?}}}}}"
        ),
        LoadHeaderFormat::Text => format!(
            "TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={usage:?}"
        ),
    }
}

/// Deprecated `guided_*` fields and their names within `structured_outputs`.
const GUIDED_FIELDS: [(&str, &str); 6] = [
    ("guided_json", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("guided_json_object", "json_object"),
    ("guided_whitespace_pattern", "whitespace_pattern"),
];

/// Returns a request body with its `guided_*` fields moved to `structured_outputs`.
///
/// A body that already has `structured_outputs` is unchanged.
pub(crate) fn move_guided_to_structured_outputs<'b>(app: &App, value: &'b Value) -> Cow<'b, Value> {
    if app.settings.answers.legacy_guided {
        with_structured_outputs(value)
    } else {
        Cow::Borrowed(value)
    }
}

fn with_structured_outputs(value: &Value) -> Cow<'_, Value> {
    let given = |key: &str| value.get(key).filter(|given| !given.is_null());
    let pairs = GUIDED_FIELDS.iter().filter_map(|(old, new)| {
        let value = given(old).filter(|v| **v != Value::Bool(false))?;
        Some(((*new).to_owned(), value.clone()))
    });
    let outputs: Map<String, Value> = pairs.collect();
    if outputs.is_empty() || given("structured_outputs").is_some() {
        return Cow::Borrowed(value);
    }
    let mut body = value.clone();
    body["structured_outputs"] = outputs.into();
    Cow::Owned(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn guided_fields_become_structured_outputs() {
        let old = json!({"guided_choice": ["a", "b"], "guided_json_object": false});
        let new = with_structured_outputs(&old);
        assert_eq!(new["structured_outputs"], json!({"choice": ["a", "b"]}));
        let both = json!({"guided_choice": ["a"], "structured_outputs": {"regex": "b"}});
        assert_eq!(*with_structured_outputs(&both), both);
        let none = json!({"guided_regex": null});
        assert_eq!(*with_structured_outputs(&none), none);
    }
}
