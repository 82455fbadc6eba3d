//! `/v1/responses`: OpenAI's Responses API, implemented on chat templates.
//!
//! Source: `vllm/entrypoints/openai/responses/`.

pub(crate) mod convert;
mod custom;
pub(crate) mod ids;
mod object;
pub(crate) mod store;
mod stream;

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::{Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;

use self::object::{Delivery, ResponseObjectBuilder, status};
use self::store::{CancelOutcome, EventLog, ResponseStore, StoreSlot};
use self::stream::ResponseStream;
use super::chat;
use super::prepare::{self, UsageOptions};
use super::response_shape::ResponseShape;
use crate::app::{App, LoadGuard};
use crate::body::JsonRequest;
use crate::dialect::Endpoint;
use crate::error::HandlerResult;
use crate::generation::{self, GenerationBody, ParsedBody, RejectedRequest, Started};
use crate::request_head::RequestHead;
use crate::stream::EventStream;
use crate::transfer::{self, TransferTerms};
use crate::{error, fault, json};
use vllm_sim_observe::metrics::ToolMode;
use vllm_sim_service::prompt::{Conversation, PromptBound, PromptSource};
use vllm_sim_service::{GenerationRequest, Reply, ReplyFacts, Resolved};
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::responses::ResponsesRequest;
use vllm_sim_wire::openai::responses_rules::{cannot_cancel, not_stored};
use vllm_sim_wire::openai::shared::ToolChoice;

impl GenerationBody for ResponsesRequest {
    const API: Endpoint = Endpoint::Responses;

    fn read(body: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        Self::parse(body, bounds)
    }

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }
}

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    JsonRequest { head, value }: JsonRequest,
) -> HandlerResult {
    let threshold = transfer::hit_threshold(&app, &head.headers, &value);
    let read = ParsedBody::<ResponsesRequest>::new(&app, &head, Cow::Owned(value))?;
    let (request, resolved) = read.resolve(&app, &head)?;
    answer(&app, &head, *request, resolved, threshold).await
}

/// Handles `GET /v1/responses/{id}`: returns a stored response, or the events of a background
/// response.
pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Response<Body> {
    let query = query.unwrap_or_default();
    let given = |key: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    };
    let after = match given("starting_after").map(str::parse::<i64>) {
        Some(Err(_)) => return error::response(&not_a_number(given("starting_after"))),
        Some(Ok(after)) => after.saturating_add(1),
        None => 0,
    };
    let Some(response) = ResponseStore::of(&app).get(&id) else {
        return error::response(&not_stored(&id));
    };
    let stream = given("stream").unwrap_or_default().to_ascii_lowercase();
    if !matches!(stream.as_str(), "true" | "1" | "t" | "yes" | "y" | "on") {
        return shown(&response);
    }
    match ResponseStore::of(&app).log(&id) {
        Some(log) => prepare::events(log.body(usize::try_from(after).unwrap_or(0))),
        // Only background streams are recorded; vLLM notices only after it has sent the headers.
        None => broken(String::new()),
    }
}

pub(crate) async fn cancel(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response<Body> {
    match ResponseStore::of(&app).cancel(&id) {
        CancelOutcome::Cancelled(response) => shown(&response),
        CancelOutcome::Ended => error::response(&cannot_cancel()),
        CancelOutcome::NotFound => error::response(&not_stored(&id)),
    }
}

fn shown(response: &Value) -> Response<Body> {
    let mut out = String::new();
    json::value(&mut out, response);
    error::json(StatusCode::OK, out)
}

fn not_a_number(given: Option<&str>) -> Fault {
    let input = vllm_sim_python::repr_str(given.unwrap_or_default());
    let text = format!(
        "1 validation error:\n  {{'type': 'int_parsing', 'loc': 'query.starting_after', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': {input}}}"
    );
    Fault {
        param: Some("query.starting_after".to_owned()),
        ..Fault::new(400, ErrorType::BadRequestPhrase, text)
    }
}

async fn answer(
    app: &Arc<App>,
    head: &RequestHead,
    request: ResponsesRequest,
    resolved: Resolved,
    threshold: Option<f64>,
) -> Result<Response<Body>, Fault> {
    let stream = request.stream.unwrap_or(false);
    let background = request.background.unwrap_or(false);
    let (generation, response) = prepared(app, head, request, threshold)?;
    let started = generation::start(app, resolved, generation).await;
    let started =
        match started.map_err(|refused| refused.reported(app.dialect.late_error_reporting())) {
            Ok((generated, guard)) => Started {
                view: response.frame(app, &generated.facts),
                reply: generated.reply,
                guard,
            },
            Err(RejectedRequest::Late { facts, guard, .. }) if stream => {
                return Ok(failed_stream(response.frame(app, &facts), guard));
            }
            Err(refused) => return Err(refused.into()),
        };
    let keep = response.keep;
    match keep {
        Some(keep) if background => Ok(in_background(app, head, started, keep)),
        keep if stream => {
            let Started { view, reply, guard } = started;
            let render = ResponseStream::new(view, keep);
            Ok(prepare::stream_without_keep_alive(
                app, head, reply, render, guard,
            ))
        }
        keep => {
            let Started {
                view,
                reply,
                guard: _guard,
            } = started;
            let response = ended(view, reply).await?;
            if let Some(keep) = keep {
                keep.finish(&response);
            }
            let mut out = String::new();
            json::value(&mut out, &response);
            Ok(prepare::unary(app, &head.headers, out))
        }
    }
}

/// Runs the checks of a Responses request that precede the lookup of the previous response.
fn checks(app: &App, request: &ResponsesRequest) -> Result<(), Fault> {
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
    terms: TransferTerms,
    keep: Option<StoreSlot>,
    parses: bool,
}

/// Converts a Responses request to a generation request, after looking up the previous response.
fn prepared(
    app: &App,
    head: &RequestHead,
    mut request: ResponsesRequest,
    hit_threshold: Option<f64>,
) -> Result<(GenerationRequest, PreparedResponse), Fault> {
    let given = request.request_id.as_deref().filter(|id| !id.is_empty());
    let id: Arc<str> = match given {
        Some(given) => given.into(),
        None => app.dialect.ids().response(&head.headers),
    };
    let (messages, keep) = messages(app, &mut request)?;
    let mut chat = convert::chat(&request, &messages)?;
    let (choice, parallel) = (chat.tool_choice.clone(), chat.parallel_tool_calls);
    app.dialect.set_turn_tool_choice(&request, &mut chat);
    let limits = &app.rules.limits;
    let parser = limits.auto_tool_choice && limits.has_tool_parser;
    if chat.tool_choice == Some(ToolChoice::Auto) && !parser {
        // Without a parser the calls would stay in the text.
        chat.tool_choice = Some(ToolChoice::None);
    }
    let (tools, parses_calls) = (prepare::tools(&chat), prepare::reads_calls(app, &chat));
    let reasoning = prepare::reasoning(app, &chat);
    let parses = parser && finds_calls(&chat);
    // The chat template sees the tool choice of the request.
    (chat.tool_choice, chat.parallel_tool_calls) = (choice, parallel);
    let terms = TransferTerms::of(app, &id, request.kv_transfer_params.as_ref());
    let generation = GenerationRequest {
        max_tokens: request.max_output_tokens,
        validation: request.validate_early(limits).into(),
        sampling: request.sampling(&app.rules.defaults).into(),
        tools,
        parses_calls,
        reasoning,
        priority: generation::priority(&head.headers, request.priority),
        transfer: terms.transfer.clone(),
        cache_salt: request.cache_salt.as_deref().map(Into::into),
        hit_threshold,
        prompts: PromptSource::Conversations(vec![Conversation {
            bound: PromptBound::RoomForOutput,
            ..chat::conversation(app, &mut chat)
        }]),
        ..generation::request(app, head, id)
    };
    let asked = PreparedResponse {
        request: Arc::new(request),
        terms,
        keep,
        parses,
    };
    Ok((generation, asked))
}

/// Returns the chat messages of a Responses request, and the slot in which to store its response.
fn messages(
    app: &App,
    request: &mut ResponsesRequest,
) -> Result<(Vec<Value>, Option<StoreSlot>), Fault> {
    checks(app, request)?;
    let previous = match &request.previous_response_id {
        Some(id) => {
            let previous = ResponseStore::of(app).previous_response(id);
            Some(previous.ok_or_else(|| not_stored(id))?)
        }
        None => None,
    };
    let unread = app
        .dialect
        .take_hidden_instructions(&mut request.instructions);
    let messages = convert::messages(request, previous.as_ref())?;
    request.instructions = request.instructions.take().or(unread);
    let stored = app.settings.answers.responses_store && request.store.unwrap_or(false);
    request.store = Some(stored);
    let keep = stored.then(|| ResponseStore::of(app).slot(messages.clone()));
    Ok((messages, keep))
}

impl PreparedResponse {
    fn frame(&self, app: &App, facts: &ReplyFacts) -> Arc<ResponseObjectBuilder> {
        let request = &self.request;
        let shape = UsageOptions {
            usage: false,
            continuous_usage: false,
            return_token_ids: false,
            tokens_as_ids: None,
        };
        let logprobs = request.wants_logprobs().then_some(request.top_logprobs);
        let shows_prompt = request.enable_response_messages;
        Arc::new(ResponseObjectBuilder {
            view: ResponseShape {
                kv_transfer_params: self.terms.offer(app, &facts.prompts),
                ..prepare::response_shape(app, &shape, facts)
            },
            temperature: facts.params.temperature,
            top_p: facts.params.top_p,
            max_tokens: facts.params.max_tokens.unwrap_or(facts.budget),
            logprobs: logprobs.map(|top| prepare::logprob_count(app, top)),
            ids: app.dialect.ids().items(&facts.id),
            tool_parser: self.parses.then(|| app.metrics.clone()),
            prompt: shows_prompt.then(|| facts.prompts[0].tokens.clone()),
            request: request.clone(),
        })
    }
}

/// Returns whether a tool parser would find tool calls in the reply to a chat request.
fn finds_calls(chat: &ChatRequest) -> bool {
    let offered = chat.tools.as_ref().is_some_and(|tools| !tools.is_empty());
    offered && chat.tool_choice != Some(ToolChoice::None)
}

/// Waits for the reply to end and returns the Responses API object.
///
/// # Errors
/// Same errors as [`prepare::render_finished`].
async fn ended(frame: Arc<ResponseObjectBuilder>, reply: Reply) -> Result<Value, Fault> {
    prepare::render_finished(reply, move |reply| {
        let choice = &reply.choices[0];
        let output = frame.output(choice, Delivery::Whole);
        let called = output.iter().any(|item| item["type"] == "function_call");
        frame.count_parsed(ToolMode::NonStreaming, called);
        frame.object(status(choice), output, Some(reply))
    })
    .await
}

/// Returns a background response with status `queued` immediately, and generates in a background
/// task.
fn in_background(
    app: &Arc<App>,
    head: &RequestHead,
    started: Started<Arc<ResponseObjectBuilder>>,
    keep: StoreSlot,
) -> Response<Body> {
    let frame = started.view.clone();
    let queued = frame.object("queued", Vec::new(), None);
    keep.finish(&queued);
    let store = ResponseStore::of(app).clone();
    if !frame.request.stream.unwrap_or(false) {
        let task = tokio::spawn(async move {
            let Started {
                view,
                reply,
                guard: _guard,
            } = started;
            let response = ended(view.clone(), reply).await;
            let response = response.unwrap_or_else(|_| view.object("failed", Vec::new(), None));
            keep.finish(&response);
        });
        store.attach_task(&frame.view.id, task.abort_handle(), None);
        return shown(&queued);
    }
    let Started { view, reply, guard } = started;
    let log = Arc::new(EventLog::default());
    let events = log.clone();
    let render = ResponseStream::new(view, Some(keep));
    let interval = app.settings.answers.stream_interval;
    let injector = fault::injector(app, head);
    let mut body = EventStream::new(reply, render, interval, injector, None, None);
    let task = tokio::spawn(async move {
        let _guard = guard;
        while let Some(Ok(part)) = body.frame().await {
            if let Ok(data) = part.into_data() {
                events.add(&data);
            }
        }
        events.end();
    });
    store.attach_task(&frame.view.id, task.abort_handle(), Some(log.clone()));
    prepare::events(log.body(0))
}

/// Returns a Responses stream that breaks off after its first events, because the request failed.
///
/// No event can report a failed response, and vLLM never decrements `/load` then (measured on
/// 0.33).
fn failed_stream(frame: Arc<ResponseObjectBuilder>, guard: Option<LoadGuard>) -> Response<Body> {
    std::mem::forget(guard);
    let mut head = String::new();
    ResponseStream::new(frame, None).head(&mut head);
    broken(head)
}

/// Returns a streamed response that breaks off, so that the client sees an incomplete chunked body.
fn broken(head: String) -> Response<Body> {
    let parts = [Ok(Bytes::from(head)), Err("the response failed")];
    let parts = futures_util::stream::unfold(parts.into_iter(), |mut parts| async move {
        let part = parts.next()?;
        if part.is_err() {
            // Lets the first part reach the client before the connection closes.
            tokio::task::yield_now().await;
        }
        Some((part, parts))
    });
    prepare::events(Body::from_stream(parts))
}
