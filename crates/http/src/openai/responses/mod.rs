//! `/v1/responses`: OpenAI's Responses API over the chat templates
//! (`vllm/entrypoints/openai/responses/`).

pub(crate) mod convert;
mod custom;
mod llmd;
mod object;
pub(crate) mod store;
mod stream;

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::{Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;

use self::object::{Frame, Ids, status};
use self::store::{CancelOutcome, EventLog, StoreSlot};
use self::stream::ResponseStream;
use super::chat::{self, Refused};
use super::llmd as rules;
use super::prepare::{self, Shape};
use crate::app::{App, LoadGuard};
use crate::body::Posted;
use crate::error::Answer;
use crate::request_head::RequestHead;
use crate::stream::EventStream;
use crate::{error, fault, json, transfer};
use vllm_sim_observe::metrics::ToolMode;
use vllm_sim_service::{Job, Reply};
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::responses::ResponsesRequest;
use vllm_sim_wire::openai::responses_rules::{cannot_cancel, not_stored};
use vllm_sim_wire::openai::shared::{StructuredOutputs, ToolChoice};
use vllm_sim_wire::sampling::{SamplingParams, output_budget};
use vllm_sim_wire::schema::Wire;

/// Answers a request.
pub(crate) async fn create(State(app): State<Arc<App>>, Posted { head, value }: Posted) -> Answer {
    let threshold = transfer::hit_threshold(&app, &head.headers, &value);
    let value = if app.is_llmd() {
        let value = llmd::body(value)?;
        rules::check(&app, &head, &value, rules::Api::Responses)?;
        value
    } else {
        value
    };
    let request = ResponsesRequest::parse(&value, &app.defaults.bounds);
    let request = request.map_err(|fault| rules::unread(&app, fault))?;
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

/// A response that the engine makes.
struct Playing {
    frame: Arc<Frame>,
    reply: Reply,
}

async fn answer(
    app: &Arc<App>,
    head: &RequestHead,
    mut request: ResponsesRequest,
    threshold: Option<f64>,
) -> Result<Response<Body>, Fault> {
    fault::inject(app, head, request.model.as_deref())?;
    let guard = app.config.server.load_tracking.then(|| app.load_guard());
    prepare::target(app, request.model.as_deref())?;
    checks(app, &request)?;
    let previous = match &request.previous_response_id {
        Some(id) => Some(app.responses.previous(id).ok_or_else(|| not_stored(id))?),
        None => None,
    };
    // llm-d shows instructions and tells the model nothing of them.
    let hidden = request.instructions.take_if(|_| app.is_llmd());
    let messages = convert::messages(&request, previous.as_ref())?;
    request.instructions = request.instructions.or(hidden);
    let stored = app.config.api.responses_store && request.store.unwrap_or(false);
    let keep = stored.then(|| StoreSlot {
        store: app.responses.clone(),
        messages: messages.clone(),
    });
    request.store = Some(stored);
    let stream = request.stream.unwrap_or(false);
    let background = request.background.unwrap_or(false);
    let (frame, started) = start(app, head, request, &messages, threshold).await?;
    let reply = match started {
        Ok(reply) => reply,
        Err(_) if stream && !app.is_llmd() => return Ok(failed_stream(frame, guard)),
        Err(fault) => return Err(fault),
    };
    let playing = Playing { frame, reply };
    match keep {
        Some(keep) if background => Ok(in_background(app, head, playing, keep, guard)),
        keep if stream => {
            let render = ResponseStream::new(playing.frame, keep);
            Ok(prepare::silent_stream(
                app,
                head,
                playing.reply,
                render,
                guard,
            ))
        }
        keep => {
            let response = playing.ended().await;
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

/// Starts a response. The inner error is one that a stream finds with its first events sent.
async fn start(
    app: &Arc<App>,
    head: &RequestHead,
    request: ResponsesRequest,
    messages: &[Value],
    hit_threshold: Option<f64>,
) -> Result<(Arc<Frame>, Result<Reply, Fault>), Fault> {
    let arrived = app.service.now();
    let target = prepare::target(app, request.model.as_deref())?;
    prepare::admit(app, 1, 1)?;
    let asked = request.max_output_tokens;
    if !app.is_llmd() {
        request.validate_early(&app.limits)?;
    }
    let mut chat = convert::chat(&request, messages)?;
    let prompt = chat::prompt(app, &chat).await?;
    if app.is_llmd() {
        rules::context(app, [prompt.tokens.len()], asked)?;
        request.validate_early(&app.limits)?;
    } else {
        app.limits.responses_prompt_tokens(prompt.tokens.len())?;
    }
    let budget = output_budget(&app.limits, asked, prompt.tokens.len(), &app.defaults);
    let mut params = request.sampling_params(budget, &app.defaults)?;
    text_format(&request, &mut params)?;
    if app.is_llmd() {
        llmd::choose(&request, &mut chat);
    }
    let parser = app.limits.auto_tool_choice && app.limits.has_tool_parser;
    if chat.tool_choice == Some(ToolChoice::Auto) && !parser {
        // Nobody would find the calls in the text.
        chat.tool_choice = Some(ToolChoice::None);
    }
    let given = request.request_id.clone().filter(|id| !id.is_empty());
    let id: Arc<str> = match given {
        Some(given) => given.into(),
        None if app.is_llmd() => prepare::request_id("resp_", &head.headers, None),
        None => format!("resp_{}", prepare::uid()).into(),
    };
    let ids = if app.is_llmd() {
        Ids::llmd(&id)
    } else {
        Ids::new()
    };
    let shape = Shape {
        usage: false,
        continuous_usage: false,
        return_token_ids: false,
        tokens_as_ids: None,
    };
    let logprobs = request.wants_logprobs().then_some(request.top_logprobs);
    let shows_prompt = request.enable_response_messages;
    let priority = prepare::priority(&head.headers, request.priority);
    let cache_salt = request.cache_salt.as_deref().map(Into::into);
    let remote = request.kv_transfer_params.as_ref();
    transfer::streams(app, remote, request.stream.unwrap_or(false))?;
    let mut view = prepare::view(app, &shape, &id, &target);
    let transfer = transfer::terms(app, &mut view, remote, std::slice::from_ref(&prompt));
    let frame = Arc::new(Frame {
        view,
        temperature: params.temperature,
        top_p: params.top_p,
        max_tokens: params.max_tokens.unwrap_or(budget),
        logprobs: logprobs.map(|top| prepare::top(app, top)),
        ids,
        tool_parser: (parser && finds_calls(&chat)).then(|| app.metrics.clone()),
        prompt: shows_prompt.then(|| prompt.tokens.clone()),
        request,
    });
    let prompts = vec![prompt];
    let play = || -> Result<Reply, Refused> {
        prepare::late_checks(app, &head.headers, &params, &prompts).map_err(Refused::Late)?;
        let content = prepare::content(app, &chat, &params).map_err(Refused::Late)?;
        let job = Job {
            id,
            target,
            prompts: prompts.clone(),
            reasoning: prepare::reasoning(app, &chat),
            content,
            priority,
            cache_salt,
            transfer,
            hit_threshold,
            limited: asked.or(app.defaults.max_tokens).is_some(),
            ..prepare::job(&params, head, arrived)
        };
        Ok(app.service.generate(&job)?)
    };
    match play() {
        Ok(reply) => Ok((frame, Ok(reply))),
        Err(Refused::Late(fault)) => Ok((frame, Err(fault))),
        Err(Refused::Early(fault)) => Err(fault),
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

impl Playing {
    /// The response, once it is whole.
    async fn ended(self) -> Value {
        self.reply.ended().await;
        let choice = &self.reply.choices[0];
        let output = self.frame.output(choice, false);
        let called = output.iter().any(|item| item["type"] == "function_call");
        self.frame.count_parsed(ToolMode::NonStreaming, called);
        self.frame.object(status(choice), output, Some(&self.reply))
    }
}

/// Answers at once; the response is made while nobody waits.
fn in_background(
    app: &Arc<App>,
    head: &RequestHead,
    playing: Playing,
    keep: StoreSlot,
    guard: Option<LoadGuard>,
) -> Response<Body> {
    let frame = playing.frame.clone();
    let queued = frame.object("queued", Vec::new(), None);
    keep.finish(&queued);
    let store = app.responses.clone();
    if !frame.request.stream.unwrap_or(false) {
        let task = tokio::spawn(async move {
            let _guard = guard;
            let response = playing.ended().await;
            keep.finish(&response);
        });
        store.attach_task(&frame.view.id, task.abort_handle(), None);
        return shown(&queued);
    }
    let log = Arc::new(EventLog::default());
    let events = log.clone();
    let render = ResponseStream::new(playing.frame, Some(keep));
    let interval = app.config.api.stream_interval;
    let injector = fault::injector(app, head);
    let mut body = EventStream::new(playing.reply, render, interval, injector, None, None);
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
/// `/load` counts it for ever (vllm-http-api.md, 4.6).
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
