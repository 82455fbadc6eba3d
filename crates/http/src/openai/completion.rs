//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::Value;

use super::completion_render::{CompletionStream, CompletionView, ShownPrompt};
use super::{legacy, llmd, prepare};
use crate::app::App;
use crate::body::Posted;
use crate::error::Answer;
use crate::request_head::RequestHead;
use crate::{error, fault, transfer};
use vllm_sim_service::Job;
use vllm_sim_service::generate::request::{Prompt, Target};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::completion::{CompletionRequest, DEFAULT_MAX_TOKENS, Prompt as Asked};
use vllm_sim_wire::sampling::output_budget;

/// Answers a completion.
pub(crate) async fn create(State(app): State<Arc<App>>, Posted { head, value }: Posted) -> Answer {
    answer(&app, &head, &value).await
}

/// Answers a completion whose body is read.
pub(crate) async fn answer(
    app: &Arc<App>,
    head: &RequestHead,
    value: &Value,
) -> Result<Response<Body>, Fault> {
    let arrived = app.service.now();
    llmd::check(app, head, value, llmd::Api::Completions)?;
    let request = CompletionRequest::parse(&legacy::body(app, value), &app.defaults.bounds);
    let request = request.map_err(|fault| llmd::unread(app, fault))?;
    fault::inject(app, head, request.model.as_deref())?;
    request.validate_first()?;
    let guard = app.config.server.load_tracking.then(|| app.load_guard());
    let target = prepare::target(app, request.model.as_deref())?;
    let stream = request.stream.unwrap_or(false);
    let remote = request.kv_transfer_params.as_ref();
    transfer::streams(app, remote, stream)?;
    let given = request.prompt.as_ref().map_or(1, |p| p.0.len().max(1));
    prepare::admit(app, request.n, given)?;
    // llm-d has no default.
    let default = (!app.is_llmd()).then_some(DEFAULT_MAX_TOKENS);
    let asked = request.max_tokens.or(default);
    if !app.is_llmd() {
        request.validate_early(&app.limits)?;
    }
    let prompts = prompts(app, &request).await?;
    if app.is_llmd() {
        llmd::context(app, prompts.iter().map(|p| p.tokens.len()), asked)?;
        request.validate_early(&app.limits)?;
    }
    let longest = prompts.iter().map(|p| p.tokens.len()).max().unwrap_or(0);
    let budget = output_budget(&app.limits, asked, longest, &app.defaults);
    let params = request.sampling_params(budget, &app.defaults)?;
    let late = prepare::late_checks(app, &head.headers, &params, &prompts);
    let content = match late.and_then(|()| prepare::constraint(&params)) {
        Ok(content) => content.unwrap_or_default(),
        Err(fault) if stream => return Ok(prepare::failed_stream(&fault, false)),
        Err(fault) => return Err(fault),
    };
    let id = prepare::request_id("cmpl-", &head.headers, request.request_id.as_deref());
    let mut view = view(app, &request, &id, &target, &prompts);
    let transfer = transfer::terms(app, &mut view.view, remote, &prompts);
    let interval = request.stream_interval.unwrap_or(1).max(1) as u32;
    let job = Job {
        id,
        target,
        prompts,
        content,
        priority: prepare::priority(&head.headers, request.priority),
        cache_salt: request.cache_salt.as_deref().map(Into::into),
        transfer,
        hit_threshold: transfer::hit_threshold(app, &head.headers, value),
        limited: asked.is_some(),
        // Each prompt has its own room; the service cuts further where it must.
        max_tokens: asked.map(|n| n.clamp(1, i128::from(u32::MAX)) as u32),
        ..prepare::job(&params, head, arrived)
    };
    let reply = match prepare::generate(app, job).await {
        Ok(reply) => reply,
        Err(error) if stream && error.is_late() => {
            return Ok(prepare::failed_stream(&error::fault(&error), false));
        }
        Err(error) => return Err(error::fault(&error)),
    };
    if stream {
        let render = CompletionStream::new(view, reply.choices.len(), &reply.prompts);
        return Ok(prepare::stream(app, head, reply, render, interval, guard));
    }
    reply.ended().await;
    let body = view.unary(&reply);
    Ok(prepare::unary(app, &head.headers, body))
}

/// The tokens of every prompt.
///
/// # Errors
/// vLLM's words for a prompt that is empty or names no token.
pub(crate) async fn prompts(
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
                prepare::has_tokenizer(app)?;
                let tokenizer = app.service.generator.tokenizer().clone();
                let special = request.add_special_tokens;
                let owned = text.clone();
                let encode = move || tokenizer.encode(&owned, special);
                if request.truncate_prompt_tokens.is_none() && !app.is_llmd() {
                    let longest = app.service.generator.tokenizer().max_token_chars();
                    app.limits
                        .prompt_characters(text.chars().count(), longest)?;
                }
                let tokens = prepare::off_thread(text.len(), encode).await;
                Prompt {
                    tokens,
                    echo: text.as_str().into(),
                    media: Vec::new(),
                    text_hash: None,
                    heard: None,
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
                    media: Vec::new(),
                    text_hash: None,
                    heard: None,
                }
            }
        };
        let side = request.truncation_side.as_deref();
        let keep = request.truncate_prompt_tokens;
        let tokens = prepare::truncate(app, prompt.tokens, keep, side);
        prepare::fits(app, &tokens, matches!(asked, Asked::Text(_)))?;
        prompts.push(Prompt { tokens, ..prompt });
    }
    Ok(prompts)
}

fn view(
    app: &App,
    request: &CompletionRequest,
    id: &Arc<str>,
    target: &Target,
    prompts: &[Prompt],
) -> CompletionView {
    let mut view = prepare::view(app, &request.into(), id, target);
    view.weights = request
        .return_weight_versions
        .then(|| app.weight_version.load_full());
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
