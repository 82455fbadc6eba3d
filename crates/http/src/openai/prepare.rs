//! Steps before and after generation that the chat and completion APIs share.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::Value;

pub(crate) use super::ids::{new_uid, request_id};
use super::logprobs::LogprobSource;
use super::response_shape::{DraftReport, ResponseShape};
use crate::app::App;
use crate::request_head::{RequestHead, names};
use crate::stream::{EventStream, StreamRenderer};
use crate::{error, fault};
use vllm_sim_config::PerRequestDraftStats;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::generate::tools::{ToolChoice as Choice, ToolDef};
use vllm_sim_service::{Reply, ReplyFacts, ToolRequest, run_blocking_if_large};
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::completion::CompletionRequest;
use vllm_sim_wire::openai::shared::ChatToolChoice;

/// Request fields on usage and token ids that chat and completion requests share.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UsageOptions {
    pub(crate) usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) return_token_ids: bool,
    pub(crate) tokens_as_ids: Option<bool>,
}

impl From<&ChatRequest> for UsageOptions {
    fn from(request: &ChatRequest) -> Self {
        let (usage, continuous_usage) = request.stream_usage_options();
        Self {
            usage,
            continuous_usage,
            return_token_ids: request.return_token_ids.unwrap_or(false),
            tokens_as_ids: request.return_tokens_as_token_ids,
        }
    }
}

impl From<&CompletionRequest> for UsageOptions {
    fn from(request: &CompletionRequest) -> Self {
        let (usage, continuous_usage) = request.stream_usage_options();
        Self {
            usage,
            continuous_usage,
            return_token_ids: request.return_token_ids.unwrap_or(false),
            tokens_as_ids: request.return_tokens_as_token_ids,
        }
    }
}

/// Returns the requested number of log probabilities per token; −1 means the whole vocabulary.
pub(crate) fn logprob_count(app: &App, asked: i128) -> u32 {
    let vocabulary = app.service.generator.tokenizer().vocab_size();
    u32::try_from(asked).unwrap_or(vocabulary).min(vocabulary.max(1))
}

/// Returns whether vLLM's tool parser reads the text of a chat: tools are offered and none is
/// forced.
pub(crate) fn runs_tool_parser(app: &App, request: &ChatRequest) -> bool {
    app.settings.parsers.tools.is_some()
        && request.tools.as_ref().is_some_and(|t| !t.is_empty())
        && matches!(request.tool_choice, None | Some(ChatToolChoice::Auto))
}

/// Returns whether the tool parser recognizes calls of a Hermes model.
pub(crate) fn recognizes_tool_calls(app: &App, request: &ChatRequest) -> bool {
    runs_tool_parser(app, request) && app.settings.parsers.tools.as_deref() == Some("hermes")
}

pub(crate) fn tool_request(request: &ChatRequest) -> Option<ToolRequest> {
    let tools = request.tools.as_ref().filter(|tools| !tools.is_empty())?;
    let choice = match &request.tool_choice {
        Some(ChatToolChoice::Auto) => Choice::Auto,
        Some(ChatToolChoice::Required) => Choice::Required,
        Some(ChatToolChoice::Named(name)) => Choice::Named(name.clone()),
        Some(ChatToolChoice::None) | None => return None,
    };
    let tools = tools.iter().map(|tool| ToolDef {
        name: tool.function.name.clone(),
        description: tool.function.description.clone(),
        parameters: tool.function.parameters.clone().map(Value::Object),
        strict: tool.function.strict,
    });
    Some(ToolRequest {
        tools: tools.collect(),
        choice,
        parallel: request.parallel_tool_calls.unwrap_or(true),
    })
}

/// Returns the fraction of output tokens that is reasoning, for a chat request; `None` without a
/// reasoning parser.
pub(crate) fn reasoning_fraction(app: &App, request: &ChatRequest) -> Option<f64> {
    app.settings.parsers.reasoning.as_ref()?;
    let off = request.reasoning_effort.as_deref() == Some("none")
        || request
            .chat_template_kwargs
            .as_ref()
            .and_then(|k| k.get("enable_thinking").or(k.get("thinking")))
            == Some(&Value::Bool(false));
    let ratio = app.settings.parsers.reasoning_ratio;
    let share = match request.reasoning_effort.as_deref() {
        Some("minimal") => ratio * 0.25,
        Some("low") => ratio * 0.5,
        Some("high") => (ratio * 1.5).min(0.95),
        Some("xhigh" | "max") => (ratio * 2.0).min(0.95),
        _ => ratio,
    };
    (!off && share > 0.0).then_some(share)
}

pub(crate) fn response_shape(app: &App, shape: &UsageOptions, facts: &ReplyFacts) -> ResponseShape {
    let params = &facts.params;
    let answers = &app.settings.answers;
    let include = shape.usage || answers.force_include_usage;
    let continuous = shape.continuous_usage || answers.force_include_usage;
    ResponseShape {
        id: facts.id.clone(),
        created: unix_now_secs() as u64,
        model: app.service.models.name_in_responses(&facts.target),
        version: app.version,
        fingerprint: app.settings.model.fingerprint.clone(),
        tokenizer: app.service.generator.tokenizer().clone(),
        include_usage: include,
        continuous_usage: include && continuous,
        prompt_details: answers.prompt_tokens_details || app.dialect.always_reports_cached_tokens(),
        reasoning_details: app.settings.parsers.reasoning.is_some(),
        logprobs: None,
        distribution: match app.dialect.has_positional_logprobs() {
            true => LogprobSource::ByPosition,
            false => LogprobSource::ByRank {
                seed: app.service.settings().seed,
                temperature: match params.top_k {
                    1 => 0.0,
                    _ => params.temperature,
                },
            },
        },
        tokens_as_ids: shape.tokens_as_ids.unwrap_or(answers.tokens_as_token_ids),
        return_token_ids: shape.return_token_ids,
        metrics: answers.per_request_metrics,
        drafts: draft_report_settings(app),
        kv_transfer_params: None,
        media: None,
        weights: None,
        prefill_reason: app.dialect.prefill_finish_reason(),
    }
}

fn draft_report_settings(app: &App) -> Option<DraftReport> {
    let detailed = match app.settings.answers.per_request_drafts {
        PerRequestDraftStats::None => return None,
        PerRequestDraftStats::Summary => false,
        PerRequestDraftStats::Detailed => true,
    };
    let tokens = app.settings.answers.draft_tokens?;
    Some(DraftReport { tokens, detailed })
}

/// Waits for the end of a reply and renders its JSON, on the blocking pool if the reply is long.
///
/// # Errors
/// vLLM's 500 if a choice ended with an error.
pub(crate) async fn render_when_finished<T: Send + 'static>(
    mut reply: Reply,
    render: impl FnOnce(&Reply) -> T + Send + 'static,
) -> Result<T, Fault> {
    reply.wait_until_ended().await;
    if reply.has_failed_choice() {
        return Err(error::engine_failure_fault());
    }
    reply.mark_delivered();
    Ok(run_blocking_if_large(reply.size, move || render(&reply)).await)
}

/// Returns a response that is no stream, with the load header if the client requested it.
pub(crate) fn json_response_with_load(
    app: &App,
    headers: &HeaderMap,
    body: String,
) -> Response<Body> {
    let mut response = error::json_response(StatusCode::OK, body);
    let format = headers.get(&names::LOAD_FORMAT).map(HeaderValue::as_bytes);
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

/// Returns the minimum number of tokens per stream event that a request asks for, clamped to 32
/// bits.
pub(crate) fn min_tokens_per_event(asked: Option<i128>) -> u32 {
    u32::try_from(asked.unwrap_or(1).max(1)).unwrap_or(u32::MAX)
}

/// Returns a streamed response with at least `interval` tokens per event.
pub(crate) async fn stream_reply<R: StreamRenderer + Unpin>(
    app: &App,
    head: &RequestHead,
    reply: Reply,
    render: R,
    interval: u32,
) -> Response<Body> {
    let interval = interval.max(app.settings.answers.stream_interval);
    let silence = app.settings.answers.sse_keep_alive_interval;
    let faults = fault::stream_fault_injector(app, head);
    start_stream(EventStream::new(reply, render, interval, faults, silence)).await
}

/// Returns a streamed response that sends no keep-alive comments.
pub(crate) async fn stream_reply_without_keep_alive<R: StreamRenderer + Unpin>(
    app: &App,
    head: &RequestHead,
    reply: Reply,
    render: R,
) -> Response<Body> {
    let interval = app.settings.answers.stream_interval;
    let faults = fault::stream_fault_injector(app, head);
    start_stream(EventStream::new(reply, render, interval, faults, None)).await
}

async fn start_stream<R: StreamRenderer + Unpin>(mut stream: EventStream<R>) -> Response<Body> {
    stream.wait_for_first_token().await;
    event_stream_response(Body::new(stream))
}

pub(crate) fn event_stream_response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Returns the response of a stream that fails before its first token: status 200, then an error
/// event.
pub(crate) fn failed_stream_response(fault: &Fault) -> Response<Body> {
    event_stream_response(Body::from(error::error_events(&fault.to_spaced_json())))
}

/// Returns the response of a chat stream that fails before its first token.
///
/// vLLM 0.33 reports a retryable 503 with another `type` there (measured).
pub(crate) fn failed_chat_stream_response(fault: &Fault) -> Response<Body> {
    let mut fault = fault.clone();
    if fault.status == 503 {
        fault.error_type = ErrorType::InternalServer;
    }
    event_stream_response(Body::from(error::error_events(&fault.to_json())))
}
