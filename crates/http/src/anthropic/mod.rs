//! `POST /v1/messages`, `POST /v1/messages/count_tokens`: Anthropic's API over the chat route, as
//! vLLM serves it (`vllm/entrypoints/anthropic/`).

pub(crate) mod convert;
mod inline_system;
mod llmd;
mod render;
mod tools;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};

use self::render::{MessageStream, message};
use super::app::App;
use super::generation::{self, Refused, Started};
use super::openai::{self, chat, prepare};
use super::policy::{Envelope, FirstReader, IdForm, LateRefusals};
use super::{error, transfer};
use crate::body::Posted;
use crate::error::Answer;
use crate::request_head::RequestHead;
use vllm_sim_observe::metrics::ToolMode;
use vllm_sim_wire::anthropic::{CountTokensRequest, MessagesRequest};
use vllm_sim_wire::fault::Fault;

/// Answers a conversation.
pub(super) async fn create(State(app): State<Arc<App>>, Posted { head, value }: Posted) -> Answer {
    let threshold = transfer::hit_threshold(&app, &head.headers, &value);
    // Bodies that do not parse keep OpenAI's envelope.
    if app.policy.first_reader == FirstReader::Llmd {
        llmd::check(&value)?;
        openai::llmd::check(&app, &head, &value, openai::llmd::Api::Messages)?;
    }
    let request = MessagesRequest::parse(&value, &app.policy.generation.defaults.bounds);
    let request = request.map_err(|fault| openai::llmd::unread(&app, fault))?;
    let answer = answer(&app, &head, &request, threshold).await;
    Ok(answer.unwrap_or_else(|fault| refusal(&app, &fault)))
}

/// Counts the tokens of a conversation.
pub(super) async fn count_tokens(
    State(app): State<Arc<App>>,
    Posted { value, .. }: Posted,
) -> Answer {
    let request = CountTokensRequest::parse(&value)?;
    let count = async {
        generation::target(&app, Some(&request.model))?;
        let request = convert::counted(&app, &request)?;
        request.validate_early(&app.policy.generation.limits)?;
        chat::prompt(&app, &request).await
    };
    Ok(match count.await {
        Ok(prompt) => {
            let tokens = prompt.tokens.len();
            let body = format!(
                "{{\"input_tokens\":{tokens},\"context_management\":{{\"original_input_tokens\":{tokens}}}}}"
            );
            error::json(StatusCode::OK, body)
        }
        Err(fault) => refusal(&app, &fault),
    })
}

async fn answer(
    app: &Arc<App>,
    head: &RequestHead,
    request: &MessagesRequest,
    threshold: Option<f64>,
) -> Result<Response<Body>, Fault> {
    let stream = request.stream.unwrap_or(false);
    let request = convert::chat(app, request)?;
    let policy = &app.policy;
    let id = prepare::request_id(policy.message_id_prefix, &head.headers, None);
    let requests = std::slice::from_ref(&request);
    let started = match chat::start(app, head, requests, id, threshold).await {
        Ok(started) => started,
        Err(Refused::Late { fault, .. })
            if stream && policy.late_refusals == LateRefusals::InStream =>
        {
            return Ok(failed_stream(app, &fault));
        }
        Err(refused) => return Err(refused.into()),
    };
    let Started {
        view: mut chat,
        reply,
        guard,
    } = started;
    if policy.ids == IdForm::Numbered {
        chat.call_ids = prepare::numbered("toolu_");
    }
    if stream {
        let render = MessageStream::new(chat, reply.prompt_tokens());
        return Ok(prepare::silent_stream(app, head, reply, render, guard));
    }
    reply.ended().await;
    let choice = &reply.choices[0];
    let called = !chat.calls(choice, choice.released()).is_empty();
    chat.count_parsed(ToolMode::NonStreaming, called);
    Ok(prepare::unary(app, &head.headers, message(&chat, &reply)))
}

/// A handler's refusal, in Anthropic's envelope; llm-d has OpenAI's.
fn refusal(app: &App, fault: &Fault) -> Response<Body> {
    if app.policy.message_errors == Envelope::OpenAi {
        return error::response(fault);
    }
    error::json(
        error::status(fault.status),
        fault.to_anthropic_json(app.policy.generation.limits.version),
    )
}

/// A stream that fails before its first token.
fn failed_stream(app: &App, fault: &Fault) -> Response<Body> {
    let json = fault.to_anthropic_json(app.policy.generation.limits.version);
    prepare::events(Body::from(format!("event: error\ndata: {json}\n\n")))
}
