//! `/v1/responses`: OpenAI's Responses API over the chat templates
//! (`vllm/entrypoints/openai/responses/`).

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

use self::object::{Frame, status};
use self::store::{CancelOutcome, EventLog, StoreSlot};
use self::stream::ResponseStream;
use super::chat;
use super::prepare::{self, Shape};
use crate::app::{App, LoadGuard};
use crate::body::Posted;
use crate::error::Answer;
use crate::generation::{self, Refused, Started};
use crate::policy::Api;
use crate::request_head::RequestHead;
use crate::stream::EventStream;
use crate::{error, fault, json, transfer};
use vllm_sim_observe::metrics::ToolMode;
use vllm_sim_service::generate::request::{Prompt, Target};
use vllm_sim_service::{GenerationRequest, Prepared, Protocol, Refusal, Reply, Transfer};
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::responses::ResponsesRequest;
use vllm_sim_wire::openai::responses_rules::{cannot_cancel, not_stored};
use vllm_sim_wire::openai::shared::{StructuredOutputs, ToolChoice};
use vllm_sim_wire::sampling::SamplingParams;
use vllm_sim_wire::schema::Wire;

/// Answers a request.
pub(crate) async fn create(State(app): State<Arc<App>>, Posted { head, value }: Posted) -> Answer {
    let threshold = transfer::hit_threshold(&app, &head.headers, &value);
    let body = generation::arrive(&app, &head, Api::Responses, Cow::Owned(value))?;
    let request = ResponsesRequest::parse(&body, &app.policy.generation.defaults.bounds)
        .map_err(|fault| app.policy.first_reader.unread(fault))?;
    answer(&app, &head, request, threshold).await
}

/// Shows a stored response, or the events of a background one.
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
    let Some(response) = app.responses.get(&id) else {
        return error::response(&not_stored(&id));
    };
    let stream = given("stream").unwrap_or_default().to_ascii_lowercase();
    if !matches!(stream.as_str(), "true" | "1" | "t" | "yes" | "y" | "on") {
        return shown(&response);
    }
    match app.responses.log(&id) {
        Some(log) => prepare::events(log.body(usize::try_from(after).unwrap_or(0))),
        // Only background streams are recorded; vLLM finds out with the headers sent.
        None => broken(String::new()),
    }
}

/// Cancels a background response.
pub(crate) async fn cancel(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response<Body> {
    match app.responses.cancel(&id) {
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
    threshold: Option<f64>,
) -> Result<Response<Body>, Fault> {
    let stream = request.stream.unwrap_or(false);
    let background = request.background.unwrap_or(false);
    let started = start(app, head, request, threshold).await;
    let started = match started.map_err(|refused| refused.reported(app.policy.late_refusals)) {
        Ok(started) => started,
        Err(Refused::Late { view, guard, .. }) if stream => {
            return Ok(failed_stream(view.frame, guard));
        }
        Err(refused) => return Err(refused.into()),
    };
    let Started { view, reply, guard } = started;
    let ResponseView { frame, keep } = view;
    let started = Started {
        view: frame,
        reply,
        guard,
    };
    match keep {
        Some(keep) if background => Ok(in_background(app, head, started, keep)),
        keep if stream => {
            let Started { view, reply, guard } = started;
            let render = ResponseStream::new(view, keep);
            Ok(prepare::silent_stream(app, head, reply, render, guard))
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

/// What is refused before the store is looked into.
fn checks(app: &App, request: &ResponsesRequest) -> Result<(), Fault> {
    let refuse = |text: &str, param: &str| {
        Err(Fault {
            param: Some(param.to_owned()),
            ..Fault::new(400, ErrorType::InvalidRequest, text)
        })
    };
    let stored = request.store.unwrap_or(false);
    if stored && !app.config.api.responses_store && request.background.unwrap_or(false) {
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

/// Starts a response.
async fn start(
    app: &Arc<App>,
    head: &RequestHead,
    request: ResponsesRequest,
    hit_threshold: Option<f64>,
) -> Result<Started<ResponseView>, Refused<ResponseView>> {
    let given = request.request_id.as_deref().filter(|id| !id.is_empty());
    let id: Arc<str> = match given {
        Some(given) => given.into(),
        None => app.policy.ids.response(&head.headers),
    };
    let model = request.model.clone();
    let mut generation = GenerationRequest {
        model: model.as_deref(),
        max_tokens: request.max_output_tokens,
        priority: generation::priority(&head.headers, request.priority),
        cache_salt: request.cache_salt.as_deref().map(Into::into),
        hit_threshold,
        ..generation::request(app, head, id)
    };
    let mut protocol = Responses {
        app,
        request: Arc::new(request),
        chat: None,
        keep: None,
        parses: false,
    };
    generation::serve(app, head, &mut generation, &mut protocol).await
}

/// What the road asks of a Responses request.
struct Responses<'r> {
    app: &'r Arc<App>,
    request: Arc<ResponsesRequest>,
    /// The chat that answers it, once what came before is looked up.
    chat: Option<ChatRequest>,
    /// Where the response is stored.
    keep: Option<StoreSlot>,
    /// Whether the tool parser looks at the answer.
    parses: bool,
}

/// What the shape of a response depends on.
struct ResponseView {
    frame: Arc<Frame>,
    keep: Option<StoreSlot>,
}

impl Responses<'_> {
    /// The conversation so far.
    fn messages(&mut self) -> Result<Vec<Value>, Fault> {
        let app = self.app;
        let request = Arc::make_mut(&mut self.request);
        checks(app, request)?;
        let previous = match &request.previous_response_id {
            Some(id) => Some(app.responses.previous(id).ok_or_else(|| not_stored(id))?),
            None => None,
        };
        let unread = app.policy.take_unread(&mut request.instructions);
        let messages = convert::messages(request, previous.as_ref())?;
        request.instructions = request.instructions.take().or(unread);
        let stored = app.config.api.responses_store && request.store.unwrap_or(false);
        request.store = Some(stored);
        self.keep = stored.then(|| StoreSlot {
            store: app.responses.clone(),
            messages: messages.clone(),
        });
        Ok(messages)
    }
}

impl Protocol for Responses<'_> {
    type View = ResponseView;

    fn look_up(&mut self, generation: &mut GenerationRequest<'_>) -> Result<(), Fault> {
        let messages = self.messages()?;
        let (app, request) = (self.app, &self.request);
        let mut chat = convert::chat(request, &messages)?;
        let (choice, parallel) = (chat.tool_choice.clone(), chat.parallel_tool_calls);
        app.policy.choose_tools(request, &mut chat);
        let limits = &app.policy.generation.limits;
        let parser = limits.auto_tool_choice && limits.has_tool_parser;
        if chat.tool_choice == Some(ToolChoice::Auto) && !parser {
            // Nobody would find the calls in the text.
            chat.tool_choice = Some(ToolChoice::None);
        }
        generation.tools = prepare::tools(&chat);
        generation.parses_calls = prepare::reads_calls(app, &chat);
        generation.reasoning = prepare::reasoning(app, &chat);
        self.parses = parser && finds_calls(&chat);
        // The template sees the request's own choice.
        (chat.tool_choice, chat.parallel_tool_calls) = (choice, parallel);
        self.chat = Some(chat);
        Ok(())
    }

    fn validate(&self) -> Result<(), Fault> {
        let limits = &self.app.policy.generation.limits;
        self.request.validate_early(limits)
    }

    async fn prompts(&mut self, _: &Target) -> Result<Vec<Prompt>, Refusal> {
        let mut prompts = Vec::with_capacity(1);
        if let Some(chat) = &self.chat {
            let prompt = chat::prompt(self.app, chat).await?;
            self.app.policy.generation.response_fits(&prompt.tokens)?;
            prompts.push(prompt);
        }
        Ok(prompts)
    }

    fn sampling_params(&mut self, budget: i128) -> Result<Box<SamplingParams>, Fault> {
        let policy = &self.app.policy;
        let defaults = &policy.generation.defaults;
        let mut params = self.request.sampling_params(budget, defaults)?;
        text_format(&self.request, &mut params)?;
        let remote = self.request.kv_transfer_params.as_ref();
        policy.prefill(remote, self.request.stream.unwrap_or(false))?;
        Ok(Box::new(params))
    }

    fn view(&mut self, ready: &Prepared) -> (ResponseView, Transfer) {
        let (app, request) = (self.app, &self.request);
        let shape = Shape {
            usage: false,
            continuous_usage: false,
            return_token_ids: false,
            tokens_as_ids: None,
        };
        let mut view = prepare::view(app, &shape, ready);
        let remote = request.kv_transfer_params.as_ref();
        let transfer = transfer::terms(app, &mut view, remote, &ready.prompts);
        let logprobs = request.wants_logprobs().then_some(request.top_logprobs);
        let shows_prompt = request.enable_response_messages;
        let frame = Frame {
            view,
            temperature: ready.params.temperature,
            top_p: ready.params.top_p,
            max_tokens: ready.params.max_tokens.unwrap_or(ready.budget),
            logprobs: logprobs.map(|top| prepare::top(app, top)),
            ids: app.policy.ids.items(&ready.id),
            tool_parser: self.parses.then(|| app.metrics.clone()),
            prompt: shows_prompt.then(|| ready.prompts[0].tokens.clone()),
            request: request.clone(),
        };
        let view = ResponseView {
            frame: Arc::new(frame),
            keep: self.keep.take(),
        };
        (view, transfer)
    }
}

/// Whether the tool parser looks at what answers this.
fn finds_calls(chat: &ChatRequest) -> bool {
    let offered = chat.tools.as_ref().is_some_and(|tools| !tools.is_empty());
    offered && chat.tool_choice != Some(ToolChoice::None)
}

/// `text.format` is a constraint too.
fn text_format(request: &ResponsesRequest, params: &mut SamplingParams) -> Result<(), Fault> {
    let format = request.text.as_ref().and_then(|text| text.get("format"));
    let Some(format) = format.filter(|format| !format.is_null()) else {
        return Ok(());
    };
    if request.structured_outputs.is_some() {
        let text = "Cannot specify both structured_outputs and text.format";
        return Err(Fault::bad_request(text));
    }
    let constraint = match format.get("type").and_then(Value::as_str) {
        Some("json_schema") => serde_json::json!({"json": format["schema"]}),
        Some("json_object") => serde_json::json!({"json_object": true}),
        _ => return Ok(()),
    };
    params.structured_outputs = StructuredOutputs::read(&constraint);
    Ok(())
}

/// The response, once it is whole.
///
/// # Errors
/// As [`prepare::whole`].
async fn ended(frame: Arc<Frame>, reply: Reply) -> Result<Value, Fault> {
    prepare::whole(reply, move |reply| {
        let choice = &reply.choices[0];
        let output = frame.output(choice, false);
        let called = output.iter().any(|item| item["type"] == "function_call");
        frame.count_parsed(ToolMode::NonStreaming, called);
        frame.object(status(choice), output, Some(reply))
    })
    .await
}

/// Answers at once; the response is made while nobody waits.
fn in_background(
    app: &Arc<App>,
    head: &RequestHead,
    started: Started<Arc<Frame>>,
    keep: StoreSlot,
) -> Response<Body> {
    let frame = started.view.clone();
    let queued = frame.object("queued", Vec::new(), None);
    keep.finish(&queued);
    let store = app.responses.clone();
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
    let interval = app.config.api.stream_interval;
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

/// No event can say that a response failed: the stream breaks off after its first events, and
/// `/load` counts it for ever (measured on vLLM 0.33).
fn failed_stream(frame: Arc<Frame>, guard: Option<LoadGuard>) -> Response<Body> {
    std::mem::forget(guard);
    let mut head = String::new();
    ResponseStream::new(frame, None).head(&mut head);
    broken(head)
}

/// A stream that ends without an end: the connection is closed inside the chunked body.
fn broken(head: String) -> Response<Body> {
    let parts = [Ok(Bytes::from(head)), Err("the response failed")];
    let parts = futures_util::stream::unfold(parts.into_iter(), |mut parts| async move {
        let part = parts.next()?;
        if part.is_err() {
            // What was said is on its way before the connection goes.
            tokio::task::yield_now().await;
        }
        Some((part, parts))
    });
    prepare::events(Body::from_stream(parts))
}
