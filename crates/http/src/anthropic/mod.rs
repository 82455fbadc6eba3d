//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's API, converted to chat.
//!
//! Source: `vllm/entrypoints/anthropic/`.

pub(crate) mod chat_conversion;
mod inline_system;
mod message_format;
mod render;
mod tools;

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use serde_json::Value;

use self::render::{AnthropicMessageStream, anthropic_error_event, anthropic_message_json};
use super::app::{App, AppState};
use super::dialect::ApiEndpoint;
use super::generation::{self, GenerationRequestBody};
use super::{error, transfer};
use crate::body::RawRequest;
use crate::error::HandlerResult;
use crate::openai::chat;
use crate::request_head::request_id;
use crate::stream;
use vllm_sim_observe::metrics::ToolParserMode;
use vllm_sim_service::RejectedRequest;
use vllm_sim_service::prompt::PromptSource;
use vllm_sim_wire::anthropic::{CountTokensRequest, MessagesRequest};
use vllm_sim_wire::body::{read_body_within_bounds, validate_and_read_body};
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::fault::Fault;

impl GenerationRequestBody for MessagesRequest {
    const ENDPOINT: ApiEndpoint = ApiEndpoint::Messages;
    const TEXT_MEMBERS: &[&str] = &["messages", "system", "tools"];

    fn read(body: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        read_body_within_bounds(body, bounds)
    }

    fn model(&self) -> Option<&str> {
        Some(&self.model)
    }
}

pub(super) async fn create_anthropic_message(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let threshold = transfer::cache_hit_threshold(&app, &received.headers, &value);
    // Errors of bodies that do not parse keep OpenAI's envelope.
    let request = generation::parse_generation_request_body(&app, &received, Cow::Owned(value))?;
    let answer = answer_message(&app, &received, request, threshold).await;
    Ok(answer.unwrap_or_else(|fault| app.dialect.message_error_response(&fault, app.version)))
}

pub(super) async fn count_message_tokens(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let value = received.parse_dialect_json(&app)?;
    let request = validate_and_read_body::<CountTokensRequest>(&value)?;
    let count = async {
        generation::resolve_model_without_faults(&app, Some(&request.model))?;
        received.check_prompt_encodable(MessagesRequest::TEXT_MEMBERS)?;
        let mut request = chat_conversion::chat_request_for_count_tokens(&app, &request)?;
        request.validate_without_prompt(&app.rules.limits)?;
        let conversation = vec![chat::chat_conversation(&app, &mut request)];
        let prompts = PromptSource::Conversations(conversation);
        app.service.create_prompts(&app.rules, prompts).await
    };
    Ok(match count.await {
        Ok(prompts) => {
            let tokens = prompts[0].tokens.len();
            let body = format!(
                "{{\"input_tokens\":{tokens},\"context_management\":{{\"original_input_tokens\":{tokens}}}}}"
            );
            error::json_response(StatusCode::OK, body)
        }
        Err(fault) => app.dialect.message_error_response(&fault, app.version),
    })
}

async fn answer_message(
    app: &Arc<App>,
    received: &RawRequest,
    message: Box<MessagesRequest>,
    threshold: Option<f64>,
) -> Result<Response<Body>, Fault> {
    let stream = message.stream.unwrap_or(false);
    let mut request = chat_conversion::to_chat_request(app, &message)?;
    let lora = generation::resolve_request_model(app, received, &*message)?;
    let dialect = app.dialect;
    let id = request_id(dialect.properties().message_id_prefix, &received.headers, None);
    let requests = std::slice::from_mut(&mut request);
    let started = chat::start_chat_generation(app, received, requests, lora, id, threshold).await;
    let late = dialect.properties().late_error_reporting;
    let (mut chat, reply) =
        match started.map_err(|refused| generation::with_stream_error_reporting(refused, late)) {
            Ok(started) => started,
            Err(RejectedRequest { error, late: Some(_) }) if stream => {
                let event = anthropic_error_event(&error, app.rules.limits.version);
                return Ok(stream::event_stream_response(Body::from(event)));
            }
            Err(refused) => return Err(refused.error),
        };
    chat.call_ids = dialect.id_format().tool_call_ids("toolu_");
    let fields = dialect.properties().response_field_set;
    if stream {
        let render = AnthropicMessageStream::new(chat, fields, reply.prompt_token_count());
        return Ok(stream::stream_reply_without_keep_alive(app, received, reply, render).await);
    }
    let body = generation::render_finished_reply(reply, move |reply| {
        let choice = &reply.choices[0];
        let called =
            !chat.tool_calls_in_released_tokens(choice, choice.released_tokens()).is_empty();
        chat.count_tool_parser_run(ToolParserMode::NonStreaming, called);
        anthropic_message_json(&chat, fields, reply)
    })
    .await?;
    Ok(generation::json_response_with_load_header(app, &received.headers, body))
}
