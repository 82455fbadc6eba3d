//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Response};
use serde_json::Value;

use super::completion_render::{CompletionStream, CompletionView, ShownPrompt};
use super::prepare;
use crate::http::app::App;
use crate::http::{body, error};
use crate::job::{Prompt, Target};
use crate::service::{Content, Job};
use crate::wire::fault::Fault;
use crate::wire::openai::completion::{CompletionRequest, Prompt as Asked};

/// Answers a completion.
pub(in crate::http) async fn create(
    State(app): State<Arc<App>>,
    request: Request,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let answer = async {
        let value = body::json(&app, &parts.headers, body).await?;
        answer(&app, &parts.headers, &value).await
    };
    answer
        .await
        .unwrap_or_else(|fault: Fault| error::response(&fault))
}

/// Answers a completion whose body is read.
pub(in crate::http) async fn answer(
    app: &Arc<App>,
    headers: &HeaderMap,
    value: &Value,
) -> Result<Response<Body>, Fault> {
    let arrived = app.service.now();
    let request = CompletionRequest::parse(value)?;
    let guard = app.config.server.load_tracking.then(|| app.load_guard());
    let target = prepare::target(app, request.model.as_deref())?;
    let n = u32::try_from(request.n.max(1)).unwrap_or(u32::MAX);
    let asked = request.prompt.as_ref().map_or(1, |p| p.0.len().max(1)) as u32;
    app.service
        .admits(n.saturating_mul(asked))
        .map_err(|e| error::fault(&e))?;
    let limits = app.limits();
    request.validate_early(&limits)?;
    let prompts = prompts(app, &request).await?;
    let mut least = u32::MAX;
    for prompt in &prompts {
        least = least.min(prepare::room(app, prompt)?);
    }
    request.validate_sampling(&limits, least)?;
    let stream = request.stream.unwrap_or(false);
    let content = match request.validate_engine(&limits, &prompts_ids(&prompts)) {
        Ok(()) => content(&request),
        Err(fault) => Err(fault),
    };
    let content = match content {
        Ok(content) => content,
        Err(fault) if stream => return Ok(prepare::failed_stream(&fault, false)),
        Err(fault) => return Err(fault),
    };
    let id = prepare::request_id("cmpl-", headers, request.request_id.as_deref());
    let view = view(app, &request, &id, &target, &prompts);
    let interval = request.stream_interval.unwrap_or(1).max(1) as u32;
    let mut job = Job {
        id,
        target,
        prompts,
        n,
        content,
        ..prepare::job(&request.common(), headers, arrived)
    };
    if view.echo_only {
        job.max_tokens = Some(1);
    }
    let reply = match app.service.generate(&job) {
        Ok(reply) => reply,
        Err(error) if stream && error.is_late() => {
            return Ok(prepare::failed_stream(&error::fault(&error), false));
        }
        Err(error) => return Err(error::fault(&error)),
    };
    if stream {
        let render = CompletionStream::new(view, reply.choices.len(), &reply.prompts);
        return Ok(prepare::stream(app, reply, render, interval, guard));
    }
    reply.ended().await;
    let body = view.unary(&reply);
    Ok(prepare::unary(app, headers, body))
}

fn prompts_ids(prompts: &[Prompt]) -> Vec<&[u32]> {
    prompts.iter().map(|p| p.tokens.as_slice()).collect()
}

/// The tokens of every prompt.
///
/// # Errors
/// vLLM's words for a prompt that is empty or names no token.
pub(in crate::http) async fn prompts(
    app: &Arc<App>,
    request: &CompletionRequest,
) -> Result<Vec<Prompt>, Fault> {
    let mut prompts = Vec::new();
    for asked in request
        .prompt
        .as_ref()
        .map(|p| p.0.as_slice())
        .unwrap_or_default()
    {
        let prompt = match asked {
            Asked::Text(text) => {
                let tokenizer = app.service.generator.tokenizer().clone();
                let special = request.add_special_tokens;
                let owned = text.clone();
                let encode = move || tokenizer.encode(&owned, special);
                let tokens = prepare::off_thread(text.len(), encode).await;
                Prompt {
                    tokens,
                    echo: text.as_str().into(),
                }
            }
            Asked::Tokens(ids) => {
                let listed: Vec<_> = ids.iter().map(ToString::to_string).collect();
                let tokens = ids
                    .iter()
                    .map(|id| u32::try_from(*id).unwrap_or(u32::MAX))
                    .collect();
                Prompt {
                    tokens,
                    echo: listed.join(",").into(),
                }
            }
        };
        let side = request.truncation_side.as_deref();
        let keep = request.truncate_prompt_tokens;
        let tokens = prepare::truncate(app, prompt.tokens, keep, side);
        if tokens.is_empty() {
            return Err(Fault::bad_request("The decoder prompt cannot be empty"));
        }
        prompts.push(Prompt { tokens, ..prompt });
    }
    Ok(prompts)
}

fn content(request: &CompletionRequest) -> Result<Content, Fault> {
    let outputs = request.structured_outputs.as_ref();
    match prepare::constraint(outputs, request.response_format.as_ref()) {
        Some(constraint) => prepare::constrained(&constraint),
        None => Ok(Content::Text),
    }
}

fn view(
    app: &App,
    request: &CompletionRequest,
    id: &Arc<str>,
    target: &Target,
    prompts: &[Prompt],
) -> CompletionView {
    let mut view = prepare::view(app, &request.common(), id, target);
    view.logprobs = request.logprobs.map(|top| prepare::top(app, top));
    // Beam search answers through another path, which fills no details.
    view.prompt_details &= !request.use_beam_search;
    let echo = request.echo.unwrap_or(false);
    let shown = echo || view.return_token_ids || request.prompt_logprobs.is_some();
    let tokenizer = app.service.generator.tokenizer();
    let show = |prompt: &Prompt| ShownPrompt {
        ids: prompt.tokens.as_slice().into(),
        text: tokenizer.decode(&prompt.tokens, true).into(),
    };
    CompletionView {
        echo,
        echo_only: echo && request.max_tokens == Some(0),
        prompt_logprobs: request.prompt_logprobs.map(|top| prepare::top(app, top)),
        prompts: shown.then(|| prompts.iter().map(show).collect()),
        ec_transfer_params: None,
        view,
    }
}
