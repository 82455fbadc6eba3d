//! `POST /v1/chat/completions` of an SGLang server.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;

use super::chat_render::{ChatFormat, ChatStream};
use super::disaggregation::BootstrapTarget;
use super::meta::MetaSettings;
use super::request::{self, Generation, LogprobOptions, first_of, rid_of};
use super::usage::{EndCounter, UsageSettings};
use super::{endpoint, errors};
use crate::app::App;
use crate::body::RawRequest;
use crate::generation::{self, RejectedGeneration};
use crate::openai::response_shape::ResponseShape;
use crate::openai::{chat, logprobs};
use crate::request_head::RequestHead;
use crate::stream;
use vllm_sim_service::Reply;
use vllm_sim_service::prompt::PromptSource;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sglang::chat::{SglangChatRequest, ToolCallForm};
use vllm_sim_wire::sglang::sampling::SglangSampling;

pub(super) async fn create_chat(
    State(app): State<Arc<App>>,
    received: RawRequest,
) -> Response<Body> {
    errors::openai_response(answer(&app, &received).await)
}

async fn answer(app: &Arc<App>, received: &RawRequest) -> Result<Response<Body>, Fault> {
    let head = &received.head;
    let body = endpoint::parse(received, &endpoint::CHAT)?;
    // SGLang's first validator expects an object.
    if body.as_ref().is_some_and(|body| !body.is_object()) {
        return Err(errors::unhandled_exception());
    }
    let request: SglangChatRequest = endpoint::read_value(app, body.as_ref(), &endpoint::CHAT)?;
    request.validate(&app.rules.limits, request::given_context_length(app))?;
    let calls = reply_calls(app);
    let started = match start_chat(app, head, &request, calls).await {
        Ok(started) => started,
        Err(refused) if request.stream => {
            let fault = request::pair_failure(refused)?;
            return Ok(errors::failed_openai_stream(&fault));
        }
        Err(refused) => return Err(refused.into()),
    };
    let StartedChat { reply, format, counter } = started;
    if request.stream {
        let interval = generation::min_tokens_per_event(None);
        let render = ChatStream::new(format, counter, &reply);
        return Ok(stream::stream_reply(app, head, reply, render, interval).await);
    }
    let body = generation::render_when_finished(reply, move |reply| {
        counter.count(reply);
        format.body_json(reply)
    });
    Ok(generation::json_response_with_load(app, &head.headers, body.await?.to_string()))
}

/// Returns the form of tool calls in a reply: text if the server has no tool parser.
pub(super) fn reply_calls(app: &App) -> ToolCallForm {
    match app.settings.parsers.tools {
        Some(_) => ToolCallForm::Parsed,
        None => ToolCallForm::Text,
    }
}

/// A started generation of a conversation with the format of its response.
pub(super) struct StartedChat {
    pub(super) reply: Reply,
    pub(super) format: ChatFormat,
    pub(super) counter: EndCounter,
}

/// Starts the generation of a chat request, or of a request of another API that became one.
///
/// # Errors
/// SGLang's error for a value that is wrong, or a full queue.
pub(super) async fn start_chat(
    app: &Arc<App>,
    head: &RequestHead,
    request: &SglangChatRequest,
    calls: ToolCallForm,
) -> Result<StartedChat, RejectedGeneration> {
    let mut chat = request.conversation(calls, &app.rules.defaults.bounds)?;
    let vocabulary = app.service.generator.tokenizer().vocab_size();
    let sampling = SglangSampling::parse(&request.sampling_params(calls)?, vocabulary)?;
    let rank = request.routed_dp_rank.or(request.data_parallel_rank);
    let rank = request::data_parallel_rank(app, &head.headers, rank)?;
    let top = request.top_logprobs.unwrap_or(0).max(0);
    let logprobs = LogprobOptions {
        top: request.logprobs.then(|| logprobs::logprob_count(app, top.into())),
        start: None,
    };
    let model = Some(request.model.as_str());
    let resolved = request::resolve_model(app, head, model, request.lora_path.as_ref())?;
    let structured = sampling.is_structured();
    let id = rid_of(request.single_rid()?);
    let hides_output = sampling.max_new_tokens() == Some(0);
    let generation = Generation {
        id: id.clone(),
        tools: chat::tool_request(&chat),
        parses_calls: chat::recognizes_tool_calls(app, &chat),
        reasoning: chat::reasoning_fraction(app, &chat),
        prompts: PromptSource::Conversations(vec![chat::chat_conversation(app, &mut chat)]),
        sampling,
        logprobs,
        rank,
        priority: request.priority,
        cache_salt: request::cache_salt(request.cache_salt.as_ref().map(first_of)),
        echo: false,
    };
    let bootstrap = [&request.bootstrap_host, &request.bootstrap_port, &request.bootstrap_room];
    let bootstrap = bootstrap.map(Option::as_ref);
    let prefill_rank = request.disagg_prefill_dp_rank;
    let target = BootstrapTarget::read(bootstrap, prefill_rank, &head.headers, 0)?;
    let started = request::start(app, head, resolved, generation, &target).await;
    let (reply, facts) = started.map_err(|refused| text_only_fault(refused, request))?;
    let shows_prompt = request.return_prompt_token_ids || request.return_token_ids;
    let shape = ResponseShape::new(app, &facts);
    let mut meta = MetaSettings::new(app, &facts, shape, logprobs, rank);
    if shows_prompt {
        meta.keep_prompts(&facts);
    }
    meta.texts = true;
    let mut format = ChatFormat::new(
        request,
        id,
        meta,
        UsageSettings::new(app, request.stream_options.as_ref()),
    );
    format.hides_output = hides_output;
    format.parses_calls = calls == ToolCallForm::Parsed && chat.tools.is_some();
    let counter = EndCounter {
        metrics: app.metrics.clone(),
        streaming: request.stream,
        structured,
        session: None,
    };
    Ok(StartedChat { reply, format, counter })
}

/// Returns SGLang's error for a media part in a request to a model that reads only text.
fn text_only_fault(refused: RejectedGeneration, request: &SglangChatRequest) -> RejectedGeneration {
    match refused {
        RejectedGeneration::Early(fault)
            if fault.message.ends_with("is not a multimodal model") =>
        {
            let kind = request.media_part().unwrap_or("unknown");
            RejectedGeneration::Early(Fault::bad_request(format!(
                "Model only supports text input; received unsupported content type '{kind}'."
            )))
        }
        refused => refused,
    }
}
