//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::Value;

use super::chat_render::{ChatStream, ChatView};
use super::{legacy, llmd, prepare};
use crate::app::{App, LoadGuard};
use crate::body::Posted;
use crate::error::Answer;
use crate::request_head::RequestHead;
use crate::{error, fault, media, transfer};
use vllm_sim_service::generate::request::Prompt;
use vllm_sim_service::{Content, Job, Reply, ServeError};
use vllm_sim_tokenizer::ChatInput;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::shared::ToolChoice;
use vllm_sim_wire::sampling::output_budget;

/// Answers a chat.
pub(crate) async fn create(State(app): State<Arc<App>>, Posted { head, value }: Posted) -> Answer {
    answer(&app, &head, &value).await
}

/// Answers a chat whose body is read.
pub(crate) async fn answer(
    app: &Arc<App>,
    head: &RequestHead,
    value: &Value,
) -> Result<Response<Body>, Fault> {
    llmd::check(app, head, value, llmd::Api::Chat)?;
    let body = llmd::body(app, legacy::body(app, value));
    let request = ChatRequest::parse(&body, &app.defaults.bounds)
        .map_err(|fault| llmd::unread(app, fault))?;
    let stream = request.stream.unwrap_or(false);
    let interval = request.stream_interval.unwrap_or(1).max(1) as u32;
    let id = prepare::request_id("chatcmpl-", &head.headers, request.request_id.as_deref());
    let threshold = transfer::hit_threshold(app, &head.headers, value);
    let requests = std::slice::from_ref(&request);
    let playing = match start(app, head, requests, id, threshold).await {
        Ok(playing) => playing,
        Err(Refused::Late(fault)) if stream => return Ok(prepare::failed_stream(&fault, true)),
        Err(Refused::Early(fault) | Refused::Late(fault)) => return Err(fault),
    };
    let Playing { chat, reply, guard } = playing;
    if stream {
        let render = ChatStream::new(chat, reply.choices.len(), reply.prompt_tokens());
        return Ok(prepare::stream(app, head, reply, render, interval, guard));
    }
    reply.ended().await;
    let body = chat.unary(&reply);
    Ok(prepare::unary(app, &head.headers, body))
}

/// A chat that the engine plays.
pub(crate) struct Playing {
    /// The shape of its answer.
    pub(crate) chat: ChatView,
    pub(crate) reply: Reply,
    /// Counts it in `/load`.
    pub(crate) guard: Option<LoadGuard>,
}

/// Why a chat is not played.
pub(crate) enum Refused {
    /// Found before a stream's headers go out.
    Early(Fault),
    /// Found after: a stream has to say it in its body.
    Late(Fault),
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Self::Early(fault)
    }
}

impl From<ServeError> for Refused {
    fn from(error: ServeError) -> Self {
        let fault = error::fault(&error);
        if error.is_late() {
            Self::Late(fault)
        } else {
            Self::Early(fault)
        }
    }
}

/// Checks conversations that differ in their messages alone (at least one) and starts them as one
/// job.
pub(crate) async fn start(
    app: &Arc<App>,
    head: &RequestHead,
    requests: &[ChatRequest],
    id: Arc<str>,
    hit_threshold: Option<f64>,
) -> Result<Playing, Refused> {
    let arrived = app.service.now();
    let request = &requests[0];
    fault::inject(app, head, request.model.as_deref())?;
    let guard = app.config.server.load_tracking.then(|| app.load_guard());
    let target = prepare::target(app, request.model.as_deref())?;
    let remote = request.kv_transfer_params.as_ref();
    transfer::streams(app, remote, request.stream.unwrap_or(false))?;
    prepare::admit(app, request.n.unwrap_or(1), requests.len())?;
    let (_, asked) = request.asked_tokens();
    if !app.is_llmd() {
        request.validate_early(&app.limits)?;
    }
    let mut prompts = Vec::with_capacity(requests.len());
    for request in requests {
        prompts.push(prompt(app, request).await?);
    }
    if app.is_llmd() {
        llmd::context(app, prompts.iter().map(|p| p.tokens.len()), asked)?;
        request.validate_early(&app.limits)?;
    }
    let longest = prompts.iter().map(|p| p.tokens.len()).max().unwrap_or(0);
    let budget = output_budget(&app.limits, asked, longest, &app.defaults);
    let params = request.sampling_params(budget, &app.defaults)?;
    prepare::late_checks(app, &head.headers, &params, &prompts).map_err(Refused::Late)?;
    let content = prepare::content(app, request, &params).map_err(Refused::Late)?;
    let mut chat = view(app, request, &id, &target, &prompts[0], &content);
    let transfer = transfer::terms(app, &mut chat.view, remote, &prompts);
    let picture = app
        .controls
        .image_output
        .draw(&head.headers, app.service.settings().seed)?;
    chat.picture = picture.is_some();
    let job = Job {
        id,
        target,
        prompts,
        reasoning: prepare::reasoning(app, request),
        content,
        priority: prepare::priority(&head.headers, request.priority),
        cache_salt: request.cache_salt.as_deref().map(Into::into),
        transfer,
        hit_threshold,
        tail: picture.unwrap_or_default(),
        limited: asked.or(app.defaults.max_tokens).is_some(),
        ..prepare::job(&params, head, arrived)
    };
    let reply = prepare::generate(app, job).await?;
    Ok(Playing { chat, reply, guard })
}

/// The tokens of a conversation, through the model's template.
pub(crate) async fn prompt(app: &Arc<App>, request: &ChatRequest) -> Result<Prompt, Fault> {
    if let Some(ids) = request.reused_prompt_token_ids(&app.limits)? {
        let tokens = ids
            .into_iter()
            .map(|id| u32::try_from(id).unwrap_or(u32::MAX))
            .collect();
        return Ok(Prompt {
            tokens,
            echo: last_text(request).into(),
            media: Vec::new(),
            text_hash: text_hash(app, request),
            heard: None,
        });
    }
    prepare::has_tokenizer(app)?;
    let tokenizer = app.service.generator.tokenizer().clone();
    let (template, has_tools) = (
        request
            .chat_template
            .as_ref()
            .or(app.chat_template.as_ref())
            .map(String::as_str),
        request.tools.is_some(),
    );
    let (messages, mut found) = prepare::messages(app, &request.messages, template, has_tools)?;
    let marked = std::mem::take(&mut found.marked);
    let tools = tools_shown(app, request);
    let size: usize = request.messages.iter().map(|m| m.text().len()).sum();
    let documents = request
        .documents
        .as_ref()
        .and_then(|d| serde_json::to_value(d).ok());
    let mut kwargs = app.config.model.chat_template_kwargs.clone();
    kwargs.extend(request.chat_template_kwargs.clone().unwrap_or_default());
    if let Some(effort) = &request.reasoning_effort {
        kwargs.insert("reasoning_effort".into(), effort.clone().into());
    }
    let template = request
        .chat_template
        .clone()
        .or_else(|| app.chat_template.clone());
    let (generate, proceed) = (
        request.add_generation_prompt,
        request.continue_final_message,
    );
    let special = request.add_special_tokens;
    // llm-d counts the tokens of whatever comes.
    let cut = request.truncate_prompt_tokens.is_some() || app.is_llmd();
    let longest = tokenizer.max_token_chars();
    let format = prepare::content_format(app);
    let limits = app.limits.clone();
    let encode = move || {
        let text = tokenizer.render_chat(&ChatInput {
            messages: &messages,
            tools: tools.as_deref(),
            documents: documents.as_ref(),
            add_generation_prompt: generate,
            continue_final_message: proceed,
            chat_template: template.as_deref(),
            kwargs: Some(&kwargs),
            content_format: format,
        });
        let text = text.map_err(prepare::template_fault)?;
        if !cut {
            limits.prompt_characters(text.chars().count(), longest)?;
        }
        if marked.is_empty() {
            return Ok::<_, Fault>((tokenizer.encode(&text, special), Vec::new()));
        }
        Ok(tokenizer.encode_media(&text, special, &marked))
    };
    let (tokens, mut media) = prepare::off_thread(size, encode).await?;
    let whole = tokens.len();
    let side = request.truncation_side.as_deref();
    let tokens = prepare::truncate(app, tokens, request.truncate_prompt_tokens, side);
    media::cut(&mut media, whole - tokens.len(), tokens.len(), side);
    prepare::fits(app, &tokens, true)?;
    if !found.spread.is_empty() {
        media = found.spread_over(tokens.len());
    }
    Ok(Prompt {
        tokens,
        echo: last_text(request).into(),
        media,
        text_hash: text_hash(app, request),
        heard: None,
    })
}

/// The conversation's name in a dataset that hashes texts.
fn text_hash(app: &App, request: &ChatRequest) -> Option<[u8; 32]> {
    let messages = request.messages.iter().map(|m| (m.role(), m.text()));
    app.service.generator.text_hash(messages)
}

/// What echo mode answers: the text of the last message.
fn last_text(request: &ChatRequest) -> String {
    request
        .messages
        .last()
        .map(|m| m.text())
        .unwrap_or_default()
}

/// Tools as the template sees them.
fn tools_shown(app: &App, request: &ChatRequest) -> Option<Vec<Value>> {
    let hidden = app.config.api.exclude_tools_when_tool_choice_none
        && request.tool_choice == Some(ToolChoice::None);
    let tools = request
        .tools
        .as_ref()
        .filter(|tools| !tools.is_empty() && !hidden)?;
    Some(tools.iter().map(prepare::tool_json).collect())
}

/// Log probabilities of the prompt: those asked for, or those an echo brings along.
fn prompt_logprobs(request: &ChatRequest) -> Option<i128> {
    request
        .prompt_logprobs
        .or(request.echo.then_some(request.top_logprobs))
}

/// What the shape of the answer depends on.
pub(crate) fn view(
    app: &App,
    request: &ChatRequest,
    id: &Arc<str>,
    target: &vllm_sim_service::generate::request::Target,
    prompt: &Prompt,
    content: &Content,
) -> ChatView {
    let mut view = prepare::view(app, &request.into(), id, target);
    view.weights = request
        .return_weight_versions
        .then(|| app.weight_version.load_full());
    view.logprobs = request
        .logprobs
        .unwrap_or(false)
        .then(|| prepare::top(app, request.top_logprobs));
    view.media = media::counts(&prompt.media);
    let show_prompt = view.return_token_ids || prompt_logprobs(request).is_some();
    let parser = app.config.api.reasoning_parser.is_some();
    let uses_tools = matches!(content, Content::Tools { .. });
    let tool_parser = app.config.api.tool_call_parser.is_some()
        && request.tools.as_ref().is_some_and(|t| !t.is_empty())
        && request.tool_choice != Some(ToolChoice::None);
    let tokenizer = app.service.generator.tokenizer();
    let text = request.return_prompt_text.unwrap_or(false);
    let last_role = request.messages.last().map(|m| m.role().to_owned());
    let role = match last_role {
        Some(role) if !request.add_generation_prompt => role,
        _ => app.config.model.response_role.clone(),
    };
    let last = request.messages.last();
    let echo = last
        .filter(|m| request.echo && m.role() == role)
        .map(|m| m.text())
        .filter(|text| !text.is_empty());
    ChatView {
        role: role.into(),
        echo: echo.map(Into::into),
        include_reasoning: request.include_reasoning,
        parsed: parser || uses_tools || tool_parser,
        named: matches!(request.tool_choice, Some(ToolChoice::Named(_))),
        forced: matches!(
            request.tool_choice,
            Some(ToolChoice::Named(_) | ToolChoice::Required)
        ),
        call_ids: if app.is_llmd() {
            prepare::numbered("chatcmpl-tool-")
        } else {
            prepare::call_ids()
        },
        prompt_logprobs: prompt_logprobs(request).map(|top| prepare::top(app, top)),
        prompt_ids: show_prompt.then(|| prompt.tokens.as_slice().into()),
        prompt_text: text.then(|| tokenizer.decode(&prompt.tokens, false).into()),
        ec_transfer_params: media::encoded(app, &prompt.media),
        picture: false,
        tool_parser: tool_parser.then(|| app.metrics.clone()),
        view,
    }
}
