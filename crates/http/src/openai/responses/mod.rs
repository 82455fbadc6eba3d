//! `/v1/responses`: OpenAI's Responses API, implemented on chat templates.
//!
//! Source: `vllm/entrypoints/openai/responses/`.

pub(crate) mod chat_conversion;
mod custom;
pub(crate) mod ids;
mod object;
pub(crate) mod response_store;
mod stream;

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::Response;
use http_body_util::BodyExt;
use serde_json::Value;

use self::object::{ResponseDeliveryMode, ResponseObjectBuilder, responses_api_status};
use self::response_store::{
    ResponseCancelOutcome, ResponseEventLog, ResponseStore, ResponseStoreSlot,
};
use self::stream::ResponseStream;
use super::chat;
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::dialect::ApiEndpoint;
use crate::error::{self, HandlerResult, ok_json_response};
use crate::fault;
use crate::generation::{self, GenerationRequestBody};
use crate::openai::logprobs;
use crate::openai::response_settings::ResponseSettings;
use crate::stream::{EventStream, event_stream_response, stream_reply_without_keep_alive};
use crate::transfer::{self, RequestKvTransfer};
use vllm_sim_observe::metrics::ToolParserMode;
use vllm_sim_service::prompt::{Conversation, PromptLengthLimit, PromptSource};
use vllm_sim_service::{
    GenerationJob, GenerationRequest, LoraAdapter, PrefixCacheReadRules, RejectedRequest, Reply,
};
use vllm_sim_wire::body::read_body_within_bounds;
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::responses::ResponsesRequest;
use vllm_sim_wire::openai::responses_rules::{
    null_truncation_fault, response_not_cancellable_fault, response_not_stored_fault,
};
use vllm_sim_wire::openai::shared_request_fields::ChatToolChoice;

impl GenerationRequestBody for ResponsesRequest {
    const ENDPOINT: ApiEndpoint = ApiEndpoint::Responses;
    const TEXT_MEMBERS: &[&str] = &["input", "instructions", "tools"];

    fn read(body: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        read_body_within_bounds(body, bounds)
    }

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

pub(crate) async fn create_response(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let threshold = transfer::cache_hit_threshold(&app, &received.headers, &value);
    let body = Cow::Owned(value);
    let request: Box<ResponsesRequest> =
        generation::parse_generation_request_body(&app, &received, body)?;
    let lora = generation::resolve_request_model(&app, &received, &*request)?;
    answer_response(&app, &received, *request, lora, threshold).await
}

/// Handles `GET /v1/responses/{id}`: returns a stored response, or the events of a background
/// response.
pub(crate) async fn retrieve_response(
    State(app): AppState,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Response<Body> {
    let query = query.unwrap_or_default();
    let given = |key: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    let after = match given("starting_after").map(str::parse::<i64>) {
        Some(Err(_)) => {
            return error::fault_response(&invalid_starting_after(given("starting_after")));
        }
        Some(Ok(after)) => after.saturating_add(1),
        None => 0,
    };
    let Some(response) = ResponseStore::store_of_app(&app).stored_response(&id) else {
        return error::fault_response(&response_not_stored_fault(&id));
    };
    let stream = given("stream").unwrap_or_default().to_ascii_lowercase();
    if !matches!(stream.as_str(), "true" | "1" | "t" | "yes" | "y" | "on") {
        return ok_json_response(&response);
    }
    match ResponseStore::store_of_app(&app).response_event_log(&id) {
        Some(log) => {
            event_stream_response(log.stream_events_from(usize::try_from(after).unwrap_or(0)))
        }
        // Only background streams are recorded; vLLM notices only after it has sent the headers.
        None => broken_stream(String::new()),
    }
}

pub(crate) async fn cancel_response(
    State(app): AppState,
    Path(id): Path<String>,
) -> Response<Body> {
    match ResponseStore::store_of_app(&app).cancel_response(&id) {
        ResponseCancelOutcome::Cancelled(response) => ok_json_response(&response),
        ResponseCancelOutcome::Ended => error::fault_response(&response_not_cancellable_fault()),
        ResponseCancelOutcome::NotFound => error::fault_response(&response_not_stored_fault(&id)),
    }
}

fn invalid_starting_after(given: Option<&str>) -> Fault {
    let input = vllm_sim_python::python_repr_of_str(given.unwrap_or_default());
    let text = format!(
        "1 validation error:\n  {{'type': 'int_parsing', 'loc': 'query.starting_after', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': {input}}}"
    );
    Fault {
        param: Some("query.starting_after".to_owned()),
        ..Fault::new(400, ErrorType::BadRequestPhrase, text)
    }
}

async fn answer_response(
    app: &Arc<App>,
    received: &RawRequest,
    request: ResponsesRequest,
    lora: Option<Arc<LoraAdapter>>,
    threshold: Option<f64>,
) -> Result<Response<Body>, Fault> {
    let stream = request.stream.unwrap_or(false);
    let background = request.background.unwrap_or(false);
    let (generation, response) = prepare_response(app, received, request, threshold)?;
    let started = generation::start_generation(app, lora, generation).await;
    let late = app.dialect.properties().late_error_reporting;
    let (reply, job) =
        match started.map_err(|refused| generation::with_stream_error_reporting(refused, late)) {
            Ok(started) => started,
            Err(RejectedRequest { late: Some(job), .. }) if stream => {
                return Ok(failed_response_stream(app, response.object_builder(app, &job)));
            }
            Err(refused) => return Err(refused.error),
        };
    if response.request.truncation.is_none() {
        return match stream && !background {
            true => Ok(broken_stream(String::new())),
            false => Err(null_truncation_fault()),
        };
    }
    let frame = response.object_builder(app, &job);
    drop(job);
    match response.keep {
        Some(keep) if background => Ok(respond_in_background(app, received, frame, reply, keep)),
        keep if stream => {
            let render = ResponseStream::new(frame, keep);
            Ok(stream_reply_without_keep_alive(app, received, reply, render).await)
        }
        keep => {
            let response = finished_object(frame, reply).await?;
            if let Some(keep) = keep {
                keep.store_finished_response(&response);
            }
            let body = response.to_string();
            Ok(generation::json_response_with_load_header(app, &received.headers, body))
        }
    }
}

/// Runs the checks of a Responses request that precede the lookup of the previous response.
fn check_before_store_lookup(app: &App, request: &ResponsesRequest) -> Result<(), Fault> {
    let refuse = |text: &str, param: &str| {
        Err(Fault {
            param: Some(param.to_owned()),
            ..Fault::new(400, ErrorType::InvalidRequest, text)
        })
    };
    let stored = request.store.unwrap_or(false);
    if stored && !app.settings.answers.responses_store && request.background.unwrap_or(false) {
        let text = "This vLLM engine does not support `store=True` and therefore does not support the background mode. To enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server.";
        return refuse(text, "background");
    }
    let earlier = request.previous_input_messages.as_ref();
    let earlier = earlier.is_some_and(|messages| !messages.is_empty());
    let follows = request.previous_response_id.as_ref();
    if earlier && follows.is_some_and(|id| !id.is_empty()) {
        let text = "Only one of `previous_input_messages` and `previous_response_id` can be set.";
        return refuse(text, "previous_response_id");
    }
    Ok(())
}

/// The values of a Responses request that determine its response, apart from the generated tokens.
struct PreparedResponse {
    request: Arc<ResponsesRequest>,
    terms: RequestKvTransfer,
    keep: Option<ResponseStoreSlot>,
    parses: bool,
}

/// Converts a Responses request to a generation request, after looking up the previous response.
fn prepare_response(
    app: &App,
    received: &RawRequest,
    mut request: ResponsesRequest,
    hit_threshold: Option<f64>,
) -> Result<(GenerationRequest, PreparedResponse), Fault> {
    let id: Arc<str> = match request.request_id.as_deref() {
        Some(given) => given.into(),
        None => app.dialect.id_format().response_id(&received.headers),
    };
    let (messages, keep) = messages_and_slot(app, &mut request)?;
    let mut chat = chat_conversion::to_chat_request(&request, &messages)?;
    let (choice, parallel) = (chat.tool_choice.clone(), chat.parallel_tool_calls);
    app.dialect.set_turn_tool_choice(&request, &mut chat);
    let limits = &app.rules.limits;
    let parser = limits.auto_tool_choice && limits.has_tool_parser;
    if chat.tool_choice == Some(ChatToolChoice::Auto) && !parser {
        // Without a parser the calls would stay in the text.
        chat.tool_choice = Some(ChatToolChoice::None);
    }
    let (tools, parses_calls) =
        (chat::requested_tools(&chat), chat::parses_hermes_tool_calls(app, &chat));
    let reasoning = chat::reasoning_fraction(app, &chat);
    let parses = parser && finds_tool_calls(&chat);
    // The chat template sees the tool choice of the request.
    (chat.tool_choice, chat.parallel_tool_calls) = (choice, parallel);
    let terms =
        RequestKvTransfer::read_kv_transfer_params(app, &id, request.kv_transfer_params.as_ref());
    let generation = GenerationRequest {
        max_tokens: request.max_output_tokens,
        validation: request.validate_without_prompt(limits).into(),
        sampling: request.sampling_params(&app.rules.defaults).map(Some).into(),
        tools,
        parses_calls,
        reasoning,
        priority: generation::request_priority(&received.headers, request.priority),
        transfer: terms.transfer.clone(),
        kv_labels: generation::kv_block_labels(
            received,
            request.cache_salt.as_deref(),
            request.session_id.as_deref(),
            request.vllm_xargs.as_ref(),
        ),
        prefix_cache: PrefixCacheReadRules::with_hit_threshold(hit_threshold),
        prompts: PromptSource::Conversations(vec![Conversation {
            bound: PromptLengthLimit::RoomForOutput,
            ..chat::chat_conversation(app, &mut chat)
        }]),
        ..generation::new_generation_request(app, received, id, request.model.as_deref())
    };
    let asked = PreparedResponse { request: Arc::new(request), terms, keep, parses };
    Ok((generation, asked))
}

/// Returns the chat messages of a Responses request, and the reserved slot of the response store
/// for its response.
fn messages_and_slot(
    app: &App,
    request: &mut ResponsesRequest,
) -> Result<(Vec<Value>, Option<ResponseStoreSlot>), Fault> {
    check_before_store_lookup(app, request)?;
    let previous = match &request.previous_response_id {
        Some(id) => {
            let previous = ResponseStore::store_of_app(app).previous_response(id);
            Some(previous.ok_or_else(|| response_not_stored_fault(id))?)
        }
        None => None,
    };
    let unread = app.dialect.take_hidden_instructions(&mut request.instructions);
    let messages = chat_conversion::responses_chat_messages(request, previous.as_ref())?;
    request.instructions = request.instructions.take().or(unread);
    let stored = app.settings.answers.responses_store && request.store.unwrap_or(false);
    request.store = Some(stored);
    let keep = stored.then(|| ResponseStore::store_of_app(app).reserve_slot(messages.clone()));
    Ok((messages, keep))
}

impl PreparedResponse {
    fn object_builder(&self, app: &App, job: &GenerationJob) -> Arc<ResponseObjectBuilder> {
        let request = &self.request;
        let logprobs = request.wants_logprobs().then_some(request.top_logprobs);
        let shows_prompt = request.enable_response_messages;
        Arc::new(ResponseObjectBuilder {
            view: ResponseSettings {
                kv_transfer_params: self.terms.response_kv_transfer_params(app, &job.prompts),
                ..ResponseSettings::new(app, job)
            },
            temperature: job.params.temperature,
            top_p: job.params.top_p,
            max_tokens: job.params.max_tokens.unwrap_or_default(),
            logprobs: logprobs.map(|top| logprobs::logprob_count(app, top)),
            ids: app.dialect.id_format().output_item_ids(&job.request.id),
            tool_parser: self.parses.then(|| app.metrics.clone()),
            prompt: shows_prompt.then(|| job.prompts[0].tokens.clone()),
            request: request.clone(),
        })
    }
}

/// Returns whether a tool parser would find tool calls in the reply to a chat request.
fn finds_tool_calls(chat: &ChatRequest) -> bool {
    let offered = chat.tools.as_ref().is_some_and(|tools| !tools.is_empty());
    offered && chat.tool_choice != Some(ChatToolChoice::None)
}

/// Waits for the reply to end and returns the Responses API object.
///
/// # Errors
/// Same errors as [`generation::render_finished_reply`].
async fn finished_object(frame: Arc<ResponseObjectBuilder>, reply: Reply) -> Result<Value, Fault> {
    generation::render_finished_reply(reply, move |reply| {
        let choice = &reply.choices[0];
        let output = frame.output_items(choice, ResponseDeliveryMode::Whole);
        let called = output.iter().any(|item| item["type"] == "function_call");
        frame.count_tool_parser_run(ToolParserMode::NonStreaming, called);
        frame.response_object(responses_api_status(choice), output, Some(reply))
    })
    .await
}

/// Returns a background response with status `queued` immediately, and generates in a background
/// task.
fn respond_in_background(
    app: &Arc<App>,
    received: &RawRequest,
    frame: Arc<ResponseObjectBuilder>,
    reply: Reply,
    keep: ResponseStoreSlot,
) -> Response<Body> {
    let queued = frame.response_object("queued", Vec::new(), None);
    keep.store_finished_response(&queued);
    let store = ResponseStore::store_of_app(app).clone();
    if !frame.request.stream.unwrap_or(false) {
        let view = frame.clone();
        let task = tokio::spawn(async move {
            let response = finished_object(view.clone(), reply).await;
            let response =
                response.unwrap_or_else(|_| view.response_object("failed", Vec::new(), None));
            keep.store_finished_response(&response);
        });
        store.attach_background_task(&frame.view.id, task.abort_handle(), None);
        return ok_json_response(&queued);
    }
    let log = Arc::new(ResponseEventLog::default());
    let events = log.clone();
    let render = ResponseStream::new(frame.clone(), Some(keep));
    let interval = app.settings.answers.stream_interval;
    let injector = fault::stream_fault_injector(app, received);
    let mut body = EventStream::new(reply, render, interval, injector, None);
    let task = tokio::spawn(async move {
        while let Some(Ok(part)) = body.frame().await {
            if let Ok(data) = part.into_data() {
                events.append_response_events(&data);
            }
        }
        events.end_response_event_log();
    });
    store.attach_background_task(&frame.view.id, task.abort_handle(), Some(log.clone()));
    event_stream_response(log.stream_events_from(0))
}

/// Returns a Responses stream that breaks off after its first events, because the request failed.
///
/// No event can report a failed response, and vLLM never decrements `/load` then (measured on
/// 0.33).
fn failed_response_stream(app: &App, frame: Arc<ResponseObjectBuilder>) -> Response<Body> {
    std::mem::forget(app.count_request_in_load());
    let mut head = String::new();
    ResponseStream::new(frame, None).write_created_events(&mut head);
    broken_stream(head)
}

/// Returns a streamed response that breaks off, so that the client sees an incomplete chunked body.
fn broken_stream(head: String) -> Response<Body> {
    let parts = [Ok(Bytes::from(head)), Err("the response failed")];
    let parts = futures_util::stream::unfold(parts.into_iter(), |mut parts| async move {
        let part = parts.next()?;
        if part.is_err() {
            // Lets the first part reach the client before the connection closes.
            tokio::task::yield_now().await;
        }
        Some((part, parts))
    });
    event_stream_response(Body::from_stream(parts))
}
