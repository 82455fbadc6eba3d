//! `POST /v1/chat/completions`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::Value;

use super::chat_render::{ChatStream, ChatView};
use super::{legacy, prepare, prompt_schema};
use crate::app::App;
use crate::body::Received;
use crate::error::Answer;
use crate::generation::{self, Refused, Started};
use crate::policy::Api;
use crate::request_head::RequestHead;
use crate::{body, error, media, transfer};
use vllm_sim_service::generate::request::{Prompt, Target};
use vllm_sim_service::{
    Content, GenerationRequest, Prepared, Protocol, Refusal, Transfer, off_thread, takes_long,
};
use vllm_sim_tokenizer::{ChatInput, ChatMessages};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::chat::ChatRequest;
use vllm_sim_wire::openai::message::Message;
use vllm_sim_wire::openai::shared::ToolChoice;
use vllm_sim_wire::sampling::SamplingParams;

/// Answers a chat.
pub(crate) async fn create(State(app): State<Arc<App>>, received: Received) -> Response<Body> {
    let answer = respond(&app, &received).await;
    answer.unwrap_or_else(|fault| error::response(&fault))
}

/// Answers a chat that did not pass the router.
pub(crate) async fn post(app: &Arc<App>, head: RequestHead, body: Body) -> Response<Body> {
    let answer = match body::read(app, body).await {
        Ok(bytes) => respond(app, &Received { head, bytes }).await,
        Err(fault) => Err(fault),
    };
    answer.unwrap_or_else(|fault| error::response(&fault))
}

async fn respond(app: &Arc<App>, received: &Received) -> Answer {
    let bounds = &app.policy.generation.defaults.bounds;
    let (head, text) = (&received.head, received.text(app));
    let read_plain = |text: &[u8]| ChatRequest::read_plain(text, bounds);
    // A body of usual members says nothing beside the request.
    let plain = generation::arrive_straight(app, head, Api::Chat, text, read_plain)?;
    let (request, value) = match plain {
        Some(request) => (request, Value::Null),
        None => {
            let value = received.posted(app)?;
            (read(app, head, &value)?, value)
        }
    };
    answer(app, head, &value, &request).await
}

/// Reads a body by its schema.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read(
    app: &App,
    head: &RequestHead,
    value: &Value,
) -> Result<Box<ChatRequest>, Fault> {
    let body = generation::arrive(app, head, Api::Chat, legacy::body(app, value))?;
    // Boxed: what is held while a request waits is moved with it, and this is large.
    ChatRequest::parse(&body, &app.policy.generation.defaults.bounds)
        .map(Box::new)
        .map_err(|fault| app.policy.first_reader.unread(fault))
}

/// Answers a chat; `value`: its body.
pub(crate) async fn answer(
    app: &Arc<App>,
    head: &RequestHead,
    value: &Value,
    request: &ChatRequest,
) -> Result<Response<Body>, Fault> {
    let stream = request.stream.unwrap_or(false);
    let interval = request.stream_interval.unwrap_or(1).max(1) as u32;
    let id = prepare::request_id(
        "chatcmpl-",
        head.special_headers(),
        request.request_id.as_deref(),
    );
    let threshold = transfer::hit_threshold(app, head.special_headers(), value);
    let requests = std::slice::from_ref(request);
    let started = match start(app, head, requests, id, threshold).await {
        Ok(started) => started,
        Err(Refused::Late { fault, .. }) if stream => {
            return Ok(prepare::failed_stream(&fault, true));
        }
        Err(refused) => return Err(refused.into()),
    };
    let Started { view, reply, guard } = started;
    if stream {
        let render = ChatStream::new(view, reply.choices.len(), reply.prompt_tokens());
        return Ok(prepare::stream(app, head, reply, render, interval, guard));
    }
    let body = prepare::whole(reply, move |reply| view.unary(reply)).await?;
    Ok(prepare::unary(app, head.special_headers(), body))
}

/// Starts conversations that differ in their messages alone (at least one) as one request.
pub(crate) async fn start(
    app: &Arc<App>,
    head: &RequestHead,
    requests: &[ChatRequest],
    id: Arc<str>,
    hit_threshold: Option<f64>,
) -> Result<Started<Box<ChatView>>, Refused<Box<ChatView>>> {
    let request = &requests[0];
    let mut generation = GenerationRequest {
        model: request.model.as_deref(),
        n: request.n.unwrap_or(1),
        prompts: requests.len(),
        max_tokens: request.asked_tokens().1,
        tools: prepare::tools(request),
        parses_calls: prepare::reads_calls(app, request),
        reasoning: prepare::reasoning(app, request),
        priority: generation::priority(head.special_headers(), request.priority),
        cache_salt: request.cache_salt.as_deref().map(Into::into),
        hit_threshold,
        ..generation::request(app, head, id)
    };
    let mut protocol = Chats {
        app,
        head,
        requests,
    };
    generation::serve(app, head, &mut generation, &mut protocol).await
}

/// What the road asks of chats.
struct Chats<'r> {
    app: &'r Arc<App>,
    head: &'r RequestHead,
    requests: &'r [ChatRequest],
}

impl Protocol for Chats<'_> {
    type View = Box<ChatView>;

    fn check_first(&self) -> Result<(), Fault> {
        let request = &self.requests[0];
        let remote = request.kv_transfer_params.as_ref();
        let policy = &self.app.policy;
        policy.prefill(remote, request.stream.unwrap_or(false))
    }

    fn validate(&self) -> Result<(), Fault> {
        self.requests[0].validate_early(&self.app.policy.generation.limits)
    }

    async fn prompts(&mut self, _: &Target) -> Result<Vec<Prompt>, Refusal> {
        let mut prompts = Vec::with_capacity(self.requests.len());
        for request in self.requests {
            prompts.push(prompt(self.app, request).await?);
        }
        Ok(prompts)
    }

    fn sampling_params(&mut self, budget: i128) -> Result<Box<SamplingParams>, Fault> {
        self.requests[0].sampling_params(budget, &self.app.policy.generation.defaults)
    }

    fn view(&mut self, ready: &Prepared) -> (Box<ChatView>, Transfer) {
        let request = &self.requests[0];
        let mut view = view(self.app, request, ready);
        let remote = request.kv_transfer_params.as_ref();
        let transfer = transfer::terms(self.app, &mut view.view, remote, &ready.prompts);
        (view, transfer)
    }

    fn complete(&self, view: &mut Box<ChatView>, content: &Content) -> Result<Duration, Fault> {
        view.parsed |= matches!(content, Content::Tools { .. });
        let seed = self.app.service.settings().seed;
        let image = self
            .app
            .controls
            .image_output
            .draw(self.head.special_headers(), seed)?;
        view.image = image.is_some();
        Ok(image.unwrap_or_default())
    }
}

/// The tokens of a conversation, through the model's template.
pub(crate) async fn prompt(app: &Arc<App>, request: &ChatRequest) -> Result<Prompt, Fault> {
    if let Some(ids) = request.reused_prompt_token_ids(&app.policy.generation.limits)? {
        let tokens = ids
            .into_iter()
            .map(|id| u32::try_from(id).unwrap_or(u32::MAX))
            .collect();
        return Ok(Prompt {
            tokens,
            echo: echo(app, request),
            text_hash: text_hash(app, request),
            schema: schema(app, request),
            ..Prompt::default()
        });
    }
    prepare::has_tokenizer(app)?;
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
    let size: usize = request.messages.iter().map(Message::text_len).sum();
    let documents = request
        .documents
        .as_ref()
        .and_then(|d| serde_json::to_value(d).ok());
    let mut kwargs = app.config.model.chat_template_kwargs.clone();
    kwargs.extend(request.chat_template_kwargs.iter().flatten().map(owned));
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
    let cut = request.truncate_prompt_tokens.is_some();
    let format = prepare::content_format(app);
    let encode = move |app: &App| {
        let tokenizer = app.service.generator.tokenizer();
        let text = tokenizer.render_chat(&ChatInput {
            messages: ChatMessages::Read(&prepare::chat_messages(&messages)),
            tools: tools.as_deref(),
            documents: documents.as_ref(),
            add_generation_prompt: generate,
            continue_final_message: proceed,
            chat_template: template.as_deref(),
            kwargs: Some(&kwargs),
            content_format: format,
        });
        let text = text.map_err(prepare::template_fault)?;
        app.policy
            .text_fits(&text, tokenizer.max_token_chars(), cut)?;
        if marked.is_empty() {
            return Ok::<_, Fault>((tokenizer.encode(&text, special), Vec::new()));
        }
        Ok(tokenizer.encode_media(&text, special, &marked))
    };
    let (tokens, mut media) = match takes_long(size) {
        false => encode(app)?,
        true => {
            let app = app.clone();
            off_thread(size, move || encode(&app)).await?
        }
    };
    let whole = tokens.len();
    let side = request.truncation_side.as_deref();
    let cut = prepare::Truncation {
        keep: request.truncate_prompt_tokens,
        side,
        special,
    };
    let tokens = cut.apply(app, tokens);
    media::cut(&mut media, whole - tokens.len(), tokens.len(), side);
    app.policy.generation.fits(&tokens, true)?;
    if !found.spread.is_empty() {
        media = found.spread_over(tokens.len());
    }
    Ok(Prompt {
        tokens,
        echo: echo(app, request),
        media,
        text_hash: text_hash(app, request),
        schema: schema(app, request),
        ..Prompt::default()
    })
}

fn owned((key, value): (&String, &Value)) -> (String, Value) {
    (key.clone(), value.clone())
}

/// The conversation's name in a dataset that hashes texts.
fn text_hash(app: &App, request: &ChatRequest) -> Option<[u8; 32]> {
    let messages = request.messages.iter().map(|m| (m.role(), m.text()));
    app.service.generator.text_hash(messages)
}

/// The schema that the conversation describes its answer by, where free text is made up here.
fn schema(app: &App, request: &ChatRequest) -> Option<Arc<Value>> {
    if !(app.policy.reads_prompt_schemas && app.service.generator.makes_up_text()) {
        return None;
    }
    prompt_schema::find(request.messages.iter().flat_map(Message::texts)).map(Arc::new)
}

/// What echo mode answers: the last message.
fn echo(app: &App, request: &ChatRequest) -> Box<str> {
    let last = request.messages.last();
    let said = last.map(|message| app.policy.echo(message));
    said.unwrap_or_default().into()
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
fn view(app: &App, request: &ChatRequest, ready: &Prepared) -> Box<ChatView> {
    let prompt = &ready.prompts[0];
    let mut view = prepare::view(app, &request.into(), ready);
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
    // It reads every reply, also those to requests without tools.
    let tool_parser =
        app.config.api.enable_auto_tool_choice && app.config.api.tool_call_parser.is_some();
    let tokenizer = app.service.generator.tokenizer();
    let text = request.return_prompt_text.unwrap_or(false);
    let last = request.messages.last();
    let role = match last {
        Some(last) if !request.add_generation_prompt => last.role(),
        _ => &app.config.model.response_role,
    };
    let echo = last
        .filter(|m| request.echo && m.role() == role)
        .map(|m| m.text())
        .filter(|text| !text.is_empty());
    Box::new(ChatView {
        role: role.into(),
        echo: echo.map(Into::into),
        include_reasoning: request.include_reasoning,
        parsed: parser || tool_parser,
        named: matches!(request.tool_choice, Some(ToolChoice::Named(_)))
            && !app.policy.named_calls_end,
        forced: matches!(
            request.tool_choice,
            Some(ToolChoice::Named(_) | ToolChoice::Required)
        ),
        call_ids: app.policy.ids.calls("chatcmpl-tool-"),
        prompt_logprobs: prompt_logprobs(request).map(|top| prepare::top(app, top)),
        prompt_ids: show_prompt.then(|| prompt.tokens.as_slice().into()),
        prompt_text: text.then(|| tokenizer.decode(&prompt.tokens, false).into()),
        ec_transfer_params: media::encoded(app, &prompt.media),
        image: false,
        tool_parser: tool_parser.then(|| app.metrics.clone()),
        view,
    })
}
