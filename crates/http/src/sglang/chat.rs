//! `POST /v1/chat/completions` of an SGLang server.

use std::sync::Arc;

use axum::extract::State;
use serde_json::Value;

use super::chat_render::{ChatStream, SglangChatFormat};
use super::disaggregation::PrefillBootstrapTarget;
use super::errors::SglangResult;
use super::meta::LogprobOptions;
use super::request::{
    self, SglangGenerationRequest, StartedSglangGeneration, first_element_or_self,
    given_or_new_request_id,
};
use super::usage::{EndedRequestCounter, UsageSettings};
use super::{endpoint, errors};
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::generation;
use crate::openai::{chat, logprobs};
use crate::stream;
use vllm_sim_service::prompt::PromptSource;
use vllm_sim_service::{RejectedRequest, Reply};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sglang::chat::{SglangChatRequest, ToolCallRendering};
use vllm_sim_wire::sglang::sampling::SglangSamplingParams;

pub(super) async fn create_chat(State(app): AppState, received: RawRequest) -> SglangResult {
    let body = endpoint::parse_body_or_fault(&received, &endpoint::CHAT_COMPLETIONS)?;
    // SGLang's first validator expects an object.
    if body.as_ref().is_some_and(|body| !body.is_object()) {
        return Err(errors::unhandled_exception_fault().into());
    }
    let request: SglangChatRequest =
        endpoint::read_parsed_body(&app, body.as_ref(), &endpoint::CHAT_COMPLETIONS)?;
    request.validate_chat_request(&app.rules.limits, request::explicit_context_length(&app))?;
    let calls = reply_tool_call_rendering(&app);
    let started = match start_chat(&app, &received, &request, calls).await {
        Ok(started) => started,
        Err(refused) if request.stream => {
            let fault = request::kv_negotiation_fault_or_other(refused)?;
            return Ok(errors::failed_openai_stream(&fault));
        }
        Err(refused) => return Err(refused.error.into()),
    };
    let StartedChatGeneration { reply, format, counter } = started;
    if request.stream {
        let interval = generation::min_tokens_per_event(None);
        let render = ChatStream::new(format, counter, &reply);
        return Ok(stream::stream_reply(&app, &received, reply, render, interval).await);
    }
    let body = generation::render_finished_reply(reply, move |reply| {
        counter.count_ended_reply(reply);
        format.chat_completion_body_json(reply)
    });
    Ok(generation::json_response_with_load_header(&app, &received.headers, body.await?.to_string()))
}

/// Returns how a reply renders tool calls: as text if the server has no tool parser, else parsed.
pub(super) fn reply_tool_call_rendering(app: &App) -> ToolCallRendering {
    match app.settings.parsers.tools {
        Some(_) => ToolCallRendering::Parsed,
        None => ToolCallRendering::Text,
    }
}

/// A started generation of a conversation, with the format of its response.
pub(super) struct StartedChatGeneration {
    pub(super) reply: Reply,
    pub(super) format: SglangChatFormat,
    pub(super) counter: EndedRequestCounter,
}

/// Starts the generation of a chat request, or of a request to another API after its conversion to
/// a chat request.
///
/// # Errors
/// SGLang's error for a value that is wrong, or a full queue.
pub(super) async fn start_chat(
    app: &Arc<App>,
    received: &RawRequest,
    request: &SglangChatRequest,
    calls: ToolCallRendering,
) -> Result<StartedChatGeneration, RejectedRequest<Fault>> {
    if request.n == 1 && request.cache_salt.as_ref().is_some_and(Value::is_array) {
        let text = "cache_salt should be a string for a single request.";
        return Err(Fault::bad_request(text).into());
    }
    let mut chat = request.read_conversation(calls, &app.rules.defaults.bounds)?;
    let vocabulary = app.service.generator.tokenizer().vocab_size();
    let sampling =
        SglangSamplingParams::parse_sampling_params(&request.sampling_params(calls)?, vocabulary)?;
    let rank = request.routed_dp_rank.or(request.data_parallel_rank);
    let rank = request::data_parallel_rank(app, &received.headers, rank)?;
    let top = request.top_logprobs.unwrap_or(0).max(0);
    let logprobs = LogprobOptions {
        top: request.logprobs.then(|| logprobs::logprob_count(app, top.into())),
        start: None,
    };
    let model = Some(request.model.as_str());
    let lora = request::resolve_model(app, received, model, request.lora_path.as_ref())?;
    let id = given_or_new_request_id(app, request.single_request_id()?)?;
    let hides_output = sampling.max_new_tokens() == Some(0);
    let members = [&request.bootstrap_host, &request.bootstrap_port, &request.bootstrap_room];
    let prefill_rank = request.disagg_prefill_dp_rank;
    let target =
        PrefillBootstrapTarget::from_request_body(members, prefill_rank, &received.headers, 0)?;
    let generation = SglangGenerationRequest {
        id: id.clone(),
        tools: chat::requested_tools(&chat),
        parses_calls: chat::parses_hermes_tool_calls(app, &chat),
        reasoning: chat::reasoning_fraction(app, &chat),
        prompts: PromptSource::Conversations(vec![chat::chat_conversation(app, &mut chat)]),
        sampling,
        logprobs,
        rank,
        priority: request.priority,
        cache_salt: request::cache_salt(request.cache_salt.as_ref().map(first_element_or_self)),
        stream: request.stream,
        target,
        ..SglangGenerationRequest::default()
    };
    let started = request::start_sglang_generation(app, received, lora, generation).await;
    let StartedSglangGeneration { reply, job, mut meta, counter } =
        started.map_err(|refused| text_only_fault(refused, request))?;
    if request.return_prompt_token_ids || request.return_token_ids {
        meta.store_prompt_token_ids(&job);
    }
    meta.texts = true;
    let mut format = SglangChatFormat::new(
        request,
        id,
        meta,
        UsageSettings::new(app, request.stream_options.as_ref()),
    );
    format.hides_output = hides_output;
    format.parses_calls = calls == ToolCallRendering::Parsed && chat.tools.is_some();
    Ok(StartedChatGeneration { reply, format, counter })
}

/// Returns SGLang's error for a media part in a request to a model that reads only text.
fn text_only_fault(
    refused: RejectedRequest<Fault>,
    request: &SglangChatRequest,
) -> RejectedRequest<Fault> {
    if refused.late.is_some() || !refused.error.message.ends_with("is not a multimodal model") {
        return refused;
    }
    let kind = request.first_media_part_type().unwrap_or("unknown");
    let text =
        format!("Model only supports text input; received unsupported content type '{kind}'.");
    Fault::bad_request(text).into()
}
