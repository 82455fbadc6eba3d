//! `POST /v1/chat/completions`: OpenAI's chat API.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::Value;

use super::chat_stream::{ChatRenderer, SentChoiceParts};
use super::logprobs;
use super::response_settings::ResponseSettings;
use crate::app::App;
use crate::body::RawRequest;
use crate::dialect::ApiEndpoint;
use crate::error::{self, HandlerResult};
use crate::generation::{self, GenerationRequestBody};
use crate::media;
use crate::request_head::request_id;
use crate::stream;
use crate::transfer::{self, RequestKvTransfer};
use vllm_sim_service::generate::tools::{ToolChoice as Choice, ToolDefinition};
use vllm_sim_service::prompt::{Conversation, PromptSource, PromptTruncation, TruncationSide};
use vllm_sim_service::{
    GenerationJob, GenerationRequest, LoraAdapter, PrefixCacheReadRules, RejectedRequest, Reply,
    RequestSubmissionChecks, RequestedTools,
};
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::shared_request_fields::ChatToolChoice;

impl GenerationRequestBody for ChatRequest {
    const ENDPOINT: ApiEndpoint = ApiEndpoint::Chat;
    const TEXT_MEMBERS: &[&str] = &["messages", "tools", "documents"];

    fn read(body: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        Self::parse_chat_request(body, bounds)
    }

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

pub(crate) async fn create_chat_completion(
    State(app): State<Arc<App>>,
    mut received: RawRequest,
) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    answer_chat_request(&app, &received, &value).await
}

pub(crate) async fn answer_chat_request(
    app: &Arc<App>,
    received: &RawRequest,
    value: &Value,
) -> HandlerResult {
    let body = generation::move_guided_to_structured_outputs(app, value);
    let mut request: Box<ChatRequest> =
        generation::parse_generation_request_body(app, received, body)?;
    let lora = generation::resolve_request_model(app, received, &*request)?;
    let stream = request.stream.unwrap_or(false);
    let interval = generation::min_tokens_per_event(request.stream_interval);
    let headers = received.headers_unless_all_common();
    let id = request_id("chatcmpl-", headers, request.request_id.as_deref());
    let threshold = transfer::cache_hit_threshold(app, headers, value);
    let requests = std::slice::from_mut(&mut *request);
    let (chat, reply) =
        match start_chat_generation(app, received, requests, lora, id, threshold).await {
            Ok(started) => started,
            Err(RejectedRequest { error, late: Some(_) }) if stream => {
                return Ok(failed_chat_stream_response(&error));
            }
            Err(refused) => return Err(refused.error),
        };
    if stream {
        return Ok(stream::stream_reply(app, received, reply, chat, interval).await);
    }
    let body = generation::render_finished_reply(reply, move |reply| {
        chat.chat_completion_body_json(reply)
    })
    .await?;
    Ok(generation::json_response_with_load_header(app, headers, body))
}

/// Starts one or more chat requests that differ only in their messages, as one generation request.
pub(crate) async fn start_chat_generation(
    app: &Arc<App>,
    received: &RawRequest,
    requests: &mut [ChatRequest],
    lora: Option<Arc<LoraAdapter>>,
    id: Arc<str>,
    hit_threshold: Option<f64>,
) -> Result<(Box<ChatRenderer>, Reply), RejectedRequest<Fault>> {
    let request = &requests[0];
    let continued = continued_message(app, request);
    let terms =
        RequestKvTransfer::read_kv_transfer_params(app, &id, request.kv_transfer_params.as_ref());
    let image = match &app.controls.image_output {
        Some(images) => images
            .draw_image_delay(received.headers_unless_all_common(), app.service.settings().seed),
        None => Ok(None),
    };
    let has_image = matches!(image, Ok(Some(_)));
    let mut generation = GenerationRequest {
        n: request.n.unwrap_or(1),
        max_tokens: request.requested_output_limit().1,
        validation: request.validate_without_prompt(&app.rules.limits).into(),
        checks: match request.use_beam_search {
            true => RequestSubmissionChecks::AllButSamplingRanges,
            false => RequestSubmissionChecks::All,
        },
        sampling: request.sampling_params(&app.rules.defaults).map(Some).into(),
        tools: requested_tools(request),
        parses_calls: parses_hermes_tool_calls(app, request),
        reasoning: reasoning_fraction(app, request),
        priority: generation::request_priority(
            received.headers_unless_all_common(),
            request.priority,
        ),
        transfer: terms.transfer.clone(),
        kv_labels: generation::kv_block_labels(
            received,
            request.cache_salt.as_deref(),
            request.session_id.as_deref(),
            request.vllm_xargs.as_ref(),
        ),
        prefix_cache: PrefixCacheReadRules::with_hit_threshold(hit_threshold),
        tail: image.map(Option::unwrap_or_default).into(),
        ..generation::new_generation_request(app, received, id, request.model.as_deref())
    };
    let conversations = requests.iter_mut().map(|request| chat_conversation(app, request));
    generation.prompts = PromptSource::Conversations(conversations.collect());
    let (reply, job) = generation::start_generation(app, lora, generation).await?;
    let mut chat = chat_renderer(app, &requests[0], continued, &job, &reply);
    chat.view.kv_transfer_params = terms.response_kv_transfer_params(app, &job.prompts);
    chat.image = has_image;
    Ok((chat, reply))
}

pub(crate) fn chat_conversation(app: &App, request: &mut ChatRequest) -> Conversation {
    let token_ids = request.reused_prompt_token_ids(&app.rules.limits);
    let small = |id: i64| u32::try_from(id).unwrap_or(u32::MAX);
    let token_ids = token_ids.map(|ids| ids.map(|ids| ids.into_iter().map(small).collect()));
    let mut kwargs = request.chat_template_kwargs.clone().unwrap_or_default();
    if let Some(effort) = &request.reasoning_effort {
        kwargs.insert("reasoning_effort".into(), effort.clone().into());
    }
    Conversation {
        tools: template_tools(app, request),
        documents: request.documents.as_ref().and_then(|d| serde_json::to_value(d).ok()),
        chat_template: request.chat_template.clone(),
        chat_template_kwargs: kwargs,
        add_generation_prompt: request.add_generation_prompt,
        continue_final_message: request.continue_final_message,
        add_special_tokens: request.add_special_tokens,
        truncation: PromptTruncation {
            keep: request.truncate_prompt_tokens,
            side: TruncationSide::from_side_name(request.truncation_side.as_deref()),
            special: request.add_special_tokens && request.truncation_side.is_none(),
        },
        token_ids: token_ids.into(),
        messages: std::mem::take(&mut request.messages),
        ..Conversation::default()
    }
}

fn template_tools(app: &App, request: &ChatRequest) -> Option<Vec<Value>> {
    let hidden = app.settings.parsers.hides_unchosen_tools
        && request.tool_choice == Some(ChatToolChoice::None);
    let tools = request.tools.as_ref().filter(|tools| !tools.is_empty() && !hidden)?;
    Some(tools.iter().map(|tool| app.dialect.template_tool(tool)).collect())
}

/// Returns the requested number of log probabilities per prompt token; with `echo`, the default is
/// the number per output token.
fn prompt_logprob_count(request: &ChatRequest) -> Option<i128> {
    request.prompt_logprobs.or(request.echo.then_some(request.top_logprobs))
}

/// Returns the role of the reply, and the text with which the reply starts (`echo`). A reply that
/// continues the last message has that message's role and text.
fn continued_message(app: &App, request: &ChatRequest) -> (Arc<str>, Option<Arc<str>>) {
    let last = request.messages.last();
    let role = match last {
        Some(last) if !request.add_generation_prompt => last.role(),
        _ => &app.settings.model.response_role,
    };
    let continued = last.filter(|last| request.echo && last.role() == role);
    let text = continued.map(|last| last.content_text()).filter(|text| !text.is_empty());
    (role.into(), text.map(Into::into))
}

/// Returns the renderer of a reply to a chat request.
fn chat_renderer(
    app: &App,
    request: &ChatRequest,
    (role, echo): (Arc<str>, Option<Arc<str>>),
    job: &GenerationJob,
    reply: &Reply,
) -> Box<ChatRenderer> {
    let prompt = &job.prompts[0];
    let mut view = ResponseSettings::new(app, job);
    view.set_usage_reporting(request.include_usage_and_continuous_stats());
    view.return_token_ids = request.return_token_ids.unwrap_or(false);
    view.tokens_as_ids = request.return_tokens_as_token_ids.unwrap_or(view.tokens_as_ids);
    view.weights = request.return_weight_versions.then(|| app.weight_version.load_full());
    view.logprobs = request
        .logprobs
        .unwrap_or(false)
        .then(|| logprobs::logprob_count(app, request.top_logprobs));
    view.media = media::media_token_counts_json(&prompt.media);
    let show_prompt = view.return_token_ids || prompt_logprob_count(request).is_some();
    let parser = app.settings.parsers.reasoning.is_some();
    // The tool parser reads every reply, also if the request has no tools.
    let tool_parser = app.settings.parsers.auto_tool_choice && app.settings.parsers.tools.is_some();
    let tokenizer = app.service.generator.tokenizer();
    let text = request.return_prompt_text.unwrap_or(false);
    Box::new(ChatRenderer {
        role,
        echo,
        include_reasoning: request.include_reasoning,
        parsed: parser || tool_parser || job.offers_tools(),
        named: matches!(request.tool_choice, Some(ChatToolChoice::Named(_)))
            && !app.dialect.named_call_sets_finish_reason(),
        forced: matches!(
            request.tool_choice,
            Some(ChatToolChoice::Named(_) | ChatToolChoice::Required)
        ),
        call_ids: app.dialect.id_format().tool_call_ids("chatcmpl-tool-"),
        prompt_logprobs: prompt_logprob_count(request).map(|top| logprobs::logprob_count(app, top)),
        prompt_ids: show_prompt.then(|| prompt.tokens.as_slice().into()),
        prompt_text: text
            .then(|| tokenizer.decode(&prompt.tokens, SpecialTokenHandling::With).into()),
        ec_transfer_params: app
            .settings
            .is_encoder
            .then(|| media::encoder_transfer_params_json(&prompt.media))
            .flatten(),
        image: false,
        tool_parser: tool_parser.then(|| app.metrics.clone()),
        prompt_tokens: reply.prompt_token_count(),
        sent: vec![SentChoiceParts::default(); reply.choices.len()],
        chunk_head: String::new(),
        choices_at: 0,
        view,
    })
}

/// Returns whether vLLM's tool parser reads the reply's text, as it does if the request has tools
/// and forces none of them.
pub(crate) fn runs_tool_parser(app: &App, request: &ChatRequest) -> bool {
    app.settings.parsers.tools.is_some()
        && request.tools.as_ref().is_some_and(|t| !t.is_empty())
        && matches!(request.tool_choice, None | Some(ChatToolChoice::Auto))
}

/// Returns whether the server's tool parser reads the reply and is the one for Hermes models.
pub(crate) fn parses_hermes_tool_calls(app: &App, request: &ChatRequest) -> bool {
    runs_tool_parser(app, request) && app.settings.parsers.tools.as_deref() == Some("hermes")
}

pub(crate) fn requested_tools(request: &ChatRequest) -> Option<RequestedTools> {
    let tools = request.tools.as_ref().filter(|tools| !tools.is_empty())?;
    let choice = match &request.tool_choice {
        Some(ChatToolChoice::Auto) => Choice::Auto,
        Some(ChatToolChoice::Required) => Choice::Required,
        Some(ChatToolChoice::Named(name)) => Choice::Named(name.clone()),
        Some(ChatToolChoice::None) | None => return None,
    };
    let tools = tools.iter().map(|tool| ToolDefinition {
        name: tool.function.name.clone(),
        description: tool.function.description.clone(),
        parameters: tool.function.parameters.clone().map(Value::Object),
        strict: tool.function.strict,
    });
    Some(RequestedTools {
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

/// Returns the response of a chat stream that fails before its first token.
///
/// vLLM 0.33 reports a retryable 503 with another `type` there (measured).
pub(crate) fn failed_chat_stream_response(fault: &Fault) -> Response<Body> {
    let mut fault = fault.clone();
    if fault.status == 503 {
        fault.error_type = ErrorType::InternalServer;
    }
    stream::event_stream_response(Body::from(error::stream_error_events(&fault.to_json())))
}
