//! What chat and completions do alike around the engine's work.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Map, Value};

pub(crate) use super::ids::{call_ids, numbered, request_id, uid};
use super::response_shape::ResponseShape;
use crate::app::{App, LoadGuard, unix_now};
use crate::media;
use crate::request_head::RequestHead;
use crate::stream::{EventStream, Render};
use crate::{error, fault};
use vllm_sim_config::CliMode;
use vllm_sim_engine::SimTime;
use vllm_sim_schema_sampler::{Constraint, compile};
use vllm_sim_service::generate::request::{Bias, Prompt, Stops, Target};
use vllm_sim_service::generate::tools::{ToolChoice as Choice, ToolDef, validate_llmd_whitelist};
use vllm_sim_service::{Content, Job, Reply, ServeError, Transfer};
use vllm_sim_tokenizer::{ContentFormat, TemplateError};
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::completion::CompletionRequest;
use vllm_sim_wire::openai::conversation::{ContentFormat as WireFormat, conversation};
use vllm_sim_wire::openai::message::Message;
use vllm_sim_wire::openai::shared::{StructuredOutputs, ToolChoice};
use vllm_sim_wire::sampling::SamplingParams;

/// Text above which encoding leaves the async threads, in bytes.
const LONG: usize = 16 * 1024;
/// From so many sequences on a job takes long to write.
const MANY: usize = 256;

/// Fields of both requests that decide the shape of the answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) usage: bool,
    pub(crate) continuous_usage: bool,
    pub(crate) return_token_ids: bool,
    pub(crate) tokens_as_ids: Option<bool>,
}

impl From<&ChatRequest> for Shape {
    fn from(request: &ChatRequest) -> Self {
        let (usage, continuous_usage) = request.wants_usage();
        Self {
            usage,
            continuous_usage,
            return_token_ids: request.return_token_ids.unwrap_or(false),
            tokens_as_ids: request.return_tokens_as_token_ids,
        }
    }
}

impl From<&CompletionRequest> for Shape {
    fn from(request: &CompletionRequest) -> Self {
        let (usage, continuous_usage) = request.wants_usage();
        Self {
            usage,
            continuous_usage,
            return_token_ids: request.return_token_ids.unwrap_or(false),
            tokens_as_ids: request.return_tokens_as_token_ids,
        }
    }
}

/// The data-parallel rank a header asks for; not an integer: ignored.
pub(crate) fn rank(headers: &HeaderMap) -> Option<i64> {
    headers
        .get("x-data-parallel-rank")?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// The priority: a header that is an integer wins over the body.
pub(crate) fn priority(headers: &HeaderMap, body: i64) -> i64 {
    let header = headers.get("x-vllm-priority").and_then(|v| v.to_str().ok());
    header.and_then(|v| v.trim().parse().ok()).unwrap_or(body)
}

/// Who answers to a name.
///
/// # Errors
/// vLLM's 404.
pub(crate) fn target(app: &App, model: Option<&str>) -> Result<Target, Fault> {
    // llm-d asks for a name, and says no other.
    let named = !app.is_llmd() || model.is_some_and(|model| !model.is_empty());
    let found = app.service.models.resolve(model).filter(|_| named);
    found.ok_or_else(|| {
        let models = &app.service.models;
        if app.is_llmd() {
            let model = model.unwrap_or_default();
            let words = format!("The model `{model}` does not exist.");
            return Fault::new(404, ErrorType::NotFound, words);
        }
        Fault::unknown_model(model.unwrap_or_default(), models.served())
    })
}

/// Runs `work` on `size` bytes of text, away from the async threads when it takes long.
pub(crate) async fn off_thread<T: Send + 'static>(
    size: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if size < LONG {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

/// Lets the service play a job; one of very many sequences is written away from the async threads,
/// which would answer nobody else meanwhile.
///
/// # Errors
/// What the service says.
pub(crate) async fn generate(app: &App, job: Job) -> Result<Reply, ServeError> {
    let sequences = (job.n as usize).saturating_mul(job.prompts.len());
    if sequences < MANY {
        return app.service.generate(&job);
    }
    let service = app.service.clone();
    off_thread(LONG, move || service.generate(&job)).await
}

/// A template that refuses, in vLLM's words.
pub(crate) fn template_fault(error: TemplateError) -> Fault {
    Fault {
        param: error.parameter().map(str::to_owned),
        ..Fault::bad_request(error.to_string())
    }
}

/// Whether text can be turned into tokens and back.
///
/// # Errors
/// vLLM's 400 on a server without a tokenizer (`--skip-tokenizer-init`).
pub(crate) fn has_tokenizer(app: &App) -> Result<(), Fault> {
    if app.config.model.tokenizer.skip_init {
        let text = "Tokenizer not available when `skip_tokenizer_init=True`";
        return Err(Fault::bad_request(text));
    }
    Ok(())
}

/// The form of content that the server was told to give to templates.
pub(crate) fn content_format(app: &App) -> Option<ContentFormat> {
    app.config.model.chat_template_content_format
}

/// A conversation as the template sees it. Source: vLLM 0.33 `renderers/hf.py`.
///
/// # Errors
/// vLLM's 400 for parts that the model does not take, and for no message at all.
pub(crate) fn messages(
    app: &App,
    messages: &[Message],
    template: Option<&str>,
    has_tools: bool,
) -> Result<(Vec<Value>, media::ConversationMedia), Fault> {
    let tokenizer = app.service.generator.tokenizer();
    let with_media = media::find(app, messages)?;
    let messages = match &with_media {
        Some((messages, _)) => messages.as_slice(),
        None => messages,
    };
    let detected = || tokenizer.content_format(template, has_tools);
    let format = match content_format(app).unwrap_or_else(detected) {
        ContentFormat::String => WireFormat::String,
        ContentFormat::Openai => WireFormat::OpenAi,
    };
    let shown: Vec<Value> = if app.config.model.cli_mode == CliMode::Llmd {
        // llm-d takes pictures and sound whatever the model.
        messages.iter().map(|m| m.raw().clone()).collect()
    } else {
        conversation(messages, format, &app.limits.served_name)?
    };
    if shown.is_empty() {
        return Err(Fault::bad_request(
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
        ));
    }
    let found = with_media.map(|(_, found)| found);
    Ok((shown, found.unwrap_or_default()))
}

/// Keeps as many tokens of a prompt as the request allows: −1 leaves one for the answer.
pub(crate) fn truncate(
    app: &App,
    mut tokens: Vec<u32>,
    keep: Option<i64>,
    side: Option<&str>,
) -> Vec<u32> {
    let Some(keep) = keep else { return tokens };
    let most = app.config.model.max_model_len as usize;
    let keep = usize::try_from(keep).unwrap_or(most.saturating_sub(1));
    if tokens.len() > keep {
        // The tokenizer's own side is the left one unless the request says otherwise.
        if side == Some("right") {
            tokens.truncate(keep);
        } else {
            tokens.drain(..tokens.len() - keep);
        }
    }
    tokens
}

/// Most log probabilities per position: −1 is the whole vocabulary.
pub(crate) fn top(app: &App, asked: i128) -> u32 {
    let vocabulary = app.service.generator.tokenizer().vocab_size();
    u32::try_from(asked)
        .unwrap_or(vocabulary)
        .min(vocabulary.max(1))
}

/// W3C trace context of a request.
pub(crate) fn trace(headers: &HeaderMap) -> Option<(Box<str>, Option<Box<str>>)> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(Into::into);
    Some((text("traceparent")?, text("tracestate")))
}

/// A job with what the sampler is asked to do.
pub(crate) fn job(params: &SamplingParams, head: &RequestHead, arrived: SimTime) -> Job {
    let small = |n: i128| u32::try_from(n.max(0)).unwrap_or(u32::MAX);
    let ids = |ids: &[i128]| {
        ids.iter()
            .filter_map(|id| u32::try_from(*id).ok())
            .collect()
    };
    let logits = params.logit_bias.iter().flat_map(|bias| &bias.0);
    Job {
        id: "".into(),
        target: Target::Base,
        prompts: Vec::new(),
        n: small(params.n).max(1),
        max_tokens: params.max_tokens.map(small),
        limited: params.max_tokens.is_some(),
        seed: params.seed.map(|seed| seed as i64),
        greedy: params.temperature < 1e-5,
        stops: Stops {
            strings: params
                .stop
                .as_ref()
                .map(|stop| stop.0.clone())
                .unwrap_or_default(),
            include: params.include_stop_str_in_output,
            ids: params
                .stop_token_ids
                .as_deref()
                .map(ids)
                .unwrap_or_default(),
            ignore_eos: params.ignore_eos,
            min_tokens: small(params.min_tokens),
        },
        bias: Bias {
            logits: logits
                .filter_map(|(id, bias)| Some((u32::try_from(*id).ok()?, *bias)))
                .collect(),
            allowed: params.allowed_token_ids.as_deref().map(ids),
            bad_words: params.bad_words.clone().unwrap_or_default(),
        },
        content: Content::Text,
        reasoning: None,
        skip_special_tokens: params.skip_special_tokens,
        priority: 0,
        rank: rank(&head.headers),
        transfer: Transfer::Local,
        cache_salt: None,
        hit_threshold: None,
        skip_cache_read: params.prompt_logprobs.is_some()
            || params.skip_reading_prefix_cache.unwrap_or(false),
        tail: std::time::Duration::ZERO,
        trace: trace(&head.headers),
        sampling: (params.temperature, params.top_p),
        arrived,
        settings: head.faults.as_ref().map(|faults| faults.settings.clone()),
    }
}

/// Whether `n` choices of each of `prompts` prompts would be admitted.
///
/// # Errors
/// The refusal of a full or closing server.
pub(crate) fn admit(app: &App, n: i128, prompts: usize) -> Result<(), Fault> {
    let n = n
        .saturating_mul(prompts as i128)
        .clamp(1, i128::from(u32::MAX)) as u32;
    app.service.admits(n).map_err(|e| error::fault(&e))
}

/// Whether a prompt leaves the context as vLLM wants it; a text is cut by the tokenizer at one
/// token too many, so that is all its length says.
///
/// # Errors
/// 400 for a prompt that fills more than the context.
pub(crate) fn fits(app: &App, tokens: &[u32], text: bool) -> Result<(), Fault> {
    if app.is_llmd() {
        // Looked at with what is asked for (`llmd::context`), and not at all where nothing is.
        return Ok(());
    }
    let most = app.config.model.max_model_len as usize;
    let shown = if text {
        tokens.len().min(most + 1)
    } else {
        tokens.len()
    };
    app.limits.prompt_tokens(shown)
}

/// What vLLM's engine checks, after the headers of a stream are out.
///
/// # Errors
/// Its refusal.
pub(crate) fn late_checks(
    app: &App,
    headers: &HeaderMap,
    params: &SamplingParams,
    prompts: &[Prompt],
) -> Result<(), Fault> {
    bad_words(app, params)?;
    params.verify_engine(&app.limits)?;
    for prompt in prompts {
        app.limits.prompt_ids(
            &prompt
                .tokens
                .iter()
                .map(|id| i64::from(*id))
                .collect::<Vec<_>>(),
        )?;
        params.verify_prompt(prompt.tokens.len())?;
    }
    app.limits.data_parallel_rank(rank(headers).map(i128::from))
}

/// A word counts once as it stands, and once more where a blank before it makes another token of
/// it. Source: vLLM 0.33 `sampling_params.py`, `update_from_tokenizer`.
///
/// # Errors
/// 400 for more than `--max-num-bad-words`.
fn bad_words(app: &App, params: &SamplingParams) -> Result<(), Fault> {
    let words = params.bad_words.as_deref().unwrap_or_default();
    let most = app.config.api.limits.bad_words as usize;
    let tokenizer = app.service.generator.tokenizer();
    let mut count = 0;
    for word in words {
        let word = word.trim_start();
        let plain = tokenizer.encode(word, false);
        let spaced = tokenizer.encode(&format!(" {word}"), false);
        count += 1;
        if plain.len() == spaced.len() && plain.first() != spaced.first() {
            count += 1;
        }
        if count > most {
            let text = format!(
                "Too many bad words after tokenization: {}. The max number is {most}.",
                most + 1
            );
            let shown = vllm_sim_python::repr(&Value::from(words.to_vec()));
            return Err(Fault::value(text, "bad_words", shown));
        }
    }
    Ok(())
}

/// Whether vLLM's tool parser looks at the text of a chat: tools are offered and none is forced.
pub(crate) fn parses_tools(app: &App, request: &ChatRequest) -> bool {
    app.config.api.tool_call_parser.is_some()
        && request.tools.as_ref().is_some_and(|t| !t.is_empty())
        && matches!(request.tool_choice, None | Some(ToolChoice::Auto))
}

/// Whether that parser finds the calls of a Hermes model.
fn reads_calls(app: &App, request: &ChatRequest) -> bool {
    parses_tools(app, request) && app.config.api.tool_call_parser.as_deref() == Some("hermes")
}

/// What a chat's choices are made of.
///
/// # Errors
/// A constraint or a tool that cannot be satisfied.
pub(crate) fn content(
    app: &App,
    request: &ChatRequest,
    params: &SamplingParams,
) -> Result<Content, Fault> {
    match constraint(params)? {
        Some(Content::Constrained(compiled)) if reads_calls(app, request) => {
            return Ok(Content::Parsed(compiled));
        }
        Some(content) => return Ok(content),
        None => {}
    }
    let Some(tools) = request.tools.as_ref().filter(|tools| !tools.is_empty()) else {
        return Ok(Content::Text);
    };
    let choice = match &request.tool_choice {
        Some(ToolChoice::Auto) => Choice::Auto,
        Some(ToolChoice::Required) => Choice::Required,
        Some(ToolChoice::Named(name)) => Choice::Named(name.clone()),
        Some(ToolChoice::None) | None => return Ok(Content::Text),
    };
    let defs: Vec<ToolDef> = tools
        .iter()
        .map(|tool| ToolDef {
            name: tool.function.name.clone(),
            description: tool.function.description.clone(),
            parameters: tool.function.parameters.clone().map(Value::Object),
            strict: tool.function.strict,
        })
        .collect();
    let content = &app.config.content;
    if content.tools.strict_whitelist && !content.skip_tool_validation {
        for tool in &defs {
            let parameters = tool.parameters.clone().unwrap_or_default();
            validate_llmd_whitelist(&parameters)
                .map_err(|e| Fault::bad_request(format!("Tool validation failed: {e}")))?;
        }
    }
    let parallel = request.parallel_tool_calls.unwrap_or(true);
    Ok(Content::Tools {
        tools: defs.into(),
        choice,
        parallel,
    })
}

/// A tool as vLLM hands it to the template: every field of the class that was set.
pub(crate) fn tool_json(tool: &vllm_sim_wire::openai::shared::Tool) -> Value {
    let function = &tool.function;
    let mut map = Map::new();
    map.insert("name".into(), function.name.clone().into());
    map.insert("description".into(), function.description.clone().into());
    map.insert(
        "parameters".into(),
        function
            .parameters
            .clone()
            .map_or(Value::Null, Value::Object),
    );
    if let Some(strict) = function.strict {
        map.insert("strict".into(), strict.into());
    }
    serde_json::json!({"type": "function", "function": map})
}

/// Text under the constraint of a request, if it has one.
///
/// # Errors
/// A constraint that cannot be satisfied.
pub(crate) fn constraint(params: &SamplingParams) -> Result<Option<Content>, Fault> {
    let Some(constraint) = params.structured_outputs.as_ref().and_then(structured) else {
        return Ok(None);
    };
    match compile(&constraint) {
        Ok(compiled) => Ok(Some(Content::Constrained(Arc::new(compiled)))),
        Err(error) => Err(Fault::bad_request(error.to_string())),
    }
}

/// The constraint of `structured_outputs`; exactly one kind is given.
fn structured(outputs: &StructuredOutputs) -> Option<Constraint> {
    if let Some(schema) = &outputs.json {
        // A schema may come as text.
        let parsed = schema
            .as_str()
            .and_then(|text| serde_json::from_str(text).ok());
        return Some(Constraint::Json(parsed.unwrap_or_else(|| schema.clone())));
    }
    if let Some(regex) = &outputs.regex {
        return Some(Constraint::Regex(regex.clone()));
    }
    if let Some(choice) = &outputs.choice {
        return Some(Constraint::Choice(choice.clone()));
    }
    if let Some(grammar) = &outputs.grammar {
        return Some(Constraint::Grammar(grammar.clone()));
    }
    if let Some(tag) = &outputs.structural_tag {
        let tag = serde_json::from_str(tag).unwrap_or_else(|_| Value::String(tag.clone()));
        return Some(Constraint::StructuralTag(tag));
    }
    outputs
        .json_object
        .unwrap_or(false)
        .then_some(Constraint::JsonObject)
}

/// The share of reasoning in a chat's answers, when a reasoning parser is set.
pub(crate) fn reasoning(app: &App, request: &ChatRequest) -> Option<f64> {
    app.config.api.reasoning_parser.as_ref()?;
    let off = request.reasoning_effort.as_deref() == Some("none")
        || request
            .chat_template_kwargs
            .as_ref()
            .and_then(|k| k.get("enable_thinking").or(k.get("thinking")))
            == Some(&Value::Bool(false));
    let ratio = app.config.api.reasoning_ratio;
    let share = match request.reasoning_effort.as_deref() {
        Some("minimal") => ratio * 0.25,
        Some("low") => ratio * 0.5,
        Some("high") => (ratio * 1.5).min(0.95),
        Some("xhigh" | "max") => (ratio * 2.0).min(0.95),
        _ => ratio,
    };
    (!off && share > 0.0).then_some(share)
}

/// What the shape of both answers depends on.
pub(crate) fn view(app: &App, shape: &Shape, id: &Arc<str>, target: &Target) -> ResponseShape {
    let api = &app.config.api;
    let include = shape.usage || api.force_include_usage;
    let continuous = shape.continuous_usage || api.force_include_usage;
    ResponseShape {
        id: id.clone(),
        created: unix_now() as u64,
        model: app.service.models.shown(target),
        version: app.version,
        fingerprint: app.fingerprint.clone(),
        tokenizer: app.service.generator.tokenizer().clone(),
        include_usage: include,
        continuous_usage: include && continuous,
        prompt_details: api.enable_prompt_tokens_details || app.is_llmd(),
        reasoning_details: api.reasoning_parser.is_some(),
        logprobs: None,
        tokens_as_ids: shape
            .tokens_as_ids
            .unwrap_or(api.return_tokens_as_token_ids),
        return_token_ids: shape.return_token_ids,
        metrics: api.per_request_metrics,
        kv_transfer_params: None,
        media: None,
        weights: None,
        llmd: app.is_llmd(),
    }
}

/// A unary answer with the load header, when one was asked for.
pub(crate) fn unary(app: &App, headers: &HeaderMap, body: String) -> Response<Body> {
    let mut response = error::json(StatusCode::OK, body);
    let format = headers
        .get("endpoint-load-metrics-format")
        .map(HeaderValue::as_bytes);
    let text = match format {
        Some(f) if f.eq_ignore_ascii_case(b"text") => Some(load_header(app, false)),
        Some(f) if f.eq_ignore_ascii_case(b"json") => Some(load_header(app, true)),
        _ => None,
    };
    if let Some(value) = text.and_then(|text| HeaderValue::from_str(&text).ok()) {
        response
            .headers_mut()
            .insert("endpoint-load-metrics", value);
    }
    response
}

fn load_header(app: &App, json: bool) -> String {
    let stats = app.service.ranks()[0].stats();
    let waiting = stats.waiting as f64;
    let usage = if stats.total_blocks == 0 {
        0.0
    } else {
        f64::from(stats.used_blocks) / f64::from(stats.total_blocks)
    };
    if json {
        format!(
            "JSON {{\"named_metrics\": {{\"num_requests_waiting\": {waiting:?}, \"kv_cache_usage_perc\": {usage:?}}}}}"
        )
    } else {
        format!(
            "TEXT named_metrics.num_requests_waiting={waiting:?}, named_metrics.kv_cache_usage_perc={usage:?}"
        )
    }
}

/// A streamed answer.
pub(crate) fn stream<R: Render + Unpin>(
    app: &App,
    head: &RequestHead,
    reply: Reply,
    render: R,
    interval: u32,
    guard: Option<LoadGuard>,
) -> Response<Body> {
    let interval = interval.max(app.config.api.stream_interval);
    let silence = app.config.server.sse_keep_alive_interval;
    let guard = guard.map(|guard| Box::new(guard) as Box<dyn std::any::Any + Send>);
    events(Body::new(EventStream::new(
        reply,
        render,
        interval,
        fault::injector(app, head),
        silence,
        guard,
    )))
}

/// A streamed answer that says nothing while nothing happens.
pub(crate) fn silent_stream<R: Render + Unpin>(
    app: &App,
    head: &RequestHead,
    reply: Reply,
    render: R,
    guard: Option<LoadGuard>,
) -> Response<Body> {
    let interval = app.config.api.stream_interval;
    let guard = guard.map(|guard| Box::new(guard) as Box<dyn std::any::Any + Send>);
    events(Body::new(EventStream::new(
        reply,
        render,
        interval,
        fault::injector(app, head),
        None,
        guard,
    )))
}

/// A body of server-sent events.
pub(crate) fn events(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// A stream that fails before its first token: the status is out already, the error is an event.
pub(crate) fn failed_stream(fault: &Fault, chat: bool) -> Response<Body> {
    // A retryable refusal names another type in a chat stream (vllm-http-api.md, 4.6).
    let json = if chat && fault.status == 503 {
        Fault {
            error_type: ErrorType::InternalServer,
            ..fault.clone()
        }
        .to_json()
    } else if chat {
        fault.to_json()
    } else {
        fault.to_spaced_json()
    };
    events(Body::from(format!("data: {json}\n\ndata: [DONE]\n\n")))
}
