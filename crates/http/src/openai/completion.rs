//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::Value;

use super::completion_render::{CompletionStream, CompletionView, ShownPrompt};
use super::{legacy, prepare};
use crate::app::App;
use crate::body::Received;
use crate::error::Answer;
use crate::generation::{self, Refused, Started};
use crate::policy::Api;
use crate::request_head::RequestHead;
use crate::transfer;
use vllm_sim_engine::SimTime;
use vllm_sim_service::generate::request::{Prompt, Target};
use vllm_sim_service::{
    GenerationRequest, OutputRoom, Prepared, Protocol, Refusal, Transfer, off_thread,
};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::completion::{CompletionRequest, Prompt as Asked};
use vllm_sim_wire::sampling::SamplingParams;

/// Answers a completion.
pub(crate) async fn create(State(app): State<Arc<App>>, received: Received) -> Answer {
    let arrived = app.service.now();
    let bounds = &app.policy.generation.defaults.bounds;
    let reader = app.policy.first_reader;
    let read = |text: &[u8]| {
        let request = CompletionRequest::read_plain(text, bounds)?;
        let taken = request
            .prompt
            .as_ref()
            .is_none_or(|all| reader.takes(&all.0));
        taken.then_some(request)
    };
    let (head, text) = (&received.head, received.text(&app));
    // A body of usual members says nothing beside the request.
    if let Some(mut request) =
        generation::arrive_straight(&app, head, Api::Completions, text, read)?
    {
        request.max_tokens = request.max_tokens.or(app.policy.default_max_tokens);
        return respond(&app, head, &Value::Null, request, arrived).await;
    }
    let value = received.posted(&app)?;
    answer(&app, &received.head, &value).await
}

/// Answers a completion whose body is read.
pub(crate) async fn answer(
    app: &Arc<App>,
    head: &RequestHead,
    value: &Value,
) -> Result<Response<Body>, Fault> {
    let arrived = app.service.now();
    let body = generation::arrive(app, head, Api::Completions, legacy::body(app, value))?;
    let mut request = CompletionRequest::parse(&body, &app.policy.generation.defaults.bounds)
        .map_err(|fault| app.policy.first_reader.unread(fault))?;
    if body.get("max_tokens").is_none_or(Value::is_null) {
        request.max_tokens = app.policy.default_max_tokens;
    }
    respond(app, head, value, request, arrived).await
}

/// Answers a completion; `value`: its body.
async fn respond(
    app: &Arc<App>,
    head: &RequestHead,
    value: &Value,
    request: CompletionRequest,
    arrived: SimTime,
) -> Result<Response<Body>, Fault> {
    let stream = request.stream.unwrap_or(false);
    let interval = request.stream_interval.unwrap_or(1).max(1) as u32;
    let id = prepare::request_id(
        "cmpl-",
        head.special_headers(),
        request.request_id.as_deref(),
    );
    let mut generation = GenerationRequest {
        arrived,
        model: request.model.as_deref(),
        n: request.n,
        prompts: request.prompt.as_ref().map_or(1, |p| p.0.len().max(1)),
        max_tokens: request.max_tokens,
        room: OutputRoom::PerPrompt,
        echo: request.echo.unwrap_or(false) || request.return_token_ids.unwrap_or(false),
        priority: generation::priority(head.special_headers(), request.priority),
        cache_salt: request.cache_salt.as_deref().map(Into::into),
        hit_threshold: transfer::hit_threshold(app, head.special_headers(), value),
        ..generation::request(app, head, id)
    };
    let mut protocol = Completions {
        app,
        request: &request,
    };
    let started = match generation::serve(app, head, &mut generation, &mut protocol).await {
        Ok(started) => started,
        Err(Refused::Late { fault, .. }) if stream => {
            return Ok(prepare::failed_stream(&fault, false));
        }
        Err(refused) => return Err(refused.into()),
    };
    let Started { view, reply, guard } = started;
    if stream {
        let render = CompletionStream::new(view, reply.choices.len(), &reply.prompts);
        return Ok(prepare::stream(app, head, reply, render, interval, guard));
    }
    let body = prepare::whole(reply, move |reply| view.unary(reply)).await?;
    Ok(prepare::unary(app, head.special_headers(), body))
}

/// What the road asks of a completion.
struct Completions<'r> {
    app: &'r Arc<App>,
    request: &'r CompletionRequest,
}

impl Protocol for Completions<'_> {
    type View = CompletionView;

    fn check_first(&self) -> Result<(), Fault> {
        self.request.validate_first()?;
        let stream = self.request.stream.unwrap_or(false);
        let remote = self.request.kv_transfer_params.as_ref();
        self.app.policy.prefill(remote, stream)
    }

    fn validate(&self) -> Result<(), Fault> {
        self.request
            .validate_early(&self.app.policy.generation.limits)
    }

    async fn prompts(&mut self, _: &Target) -> Result<Vec<Prompt>, Refusal> {
        Ok(prompts(self.app, self.request).await?)
    }

    fn sampling_params(&mut self, budget: i128) -> Result<Box<SamplingParams>, Fault> {
        let defaults = &self.app.policy.generation.defaults;
        self.request.sampling_params(budget, defaults).map(Box::new)
    }

    fn view(&mut self, ready: &Prepared) -> (CompletionView, Transfer) {
        let mut view = view(self.app, self.request, ready);
        let remote = self.request.kv_transfer_params.as_ref();
        let transfer = transfer::terms(self.app, &mut view.view, remote, &ready.prompts);
        (view, transfer)
    }
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
                let cut = request.truncate_prompt_tokens.is_some();
                let longest = app.service.generator.tokenizer().max_token_chars();
                app.policy.text_fits(text, longest, cut)?;
                let tokens = off_thread(text.len(), encode).await;
                Prompt {
                    tokens,
                    echo: text.as_str().into(),
                    ..Prompt::default()
                }
            }
            Asked::Tokens(ids) => {
                let tokens: Vec<u32> = ids
                    .iter()
                    .map(|id| u32::try_from(*id).unwrap_or(u32::MAX))
                    .collect();
                Prompt {
                    echo: listed(ids).into(),
                    echo_ids: app.policy.echo_ids(&tokens),
                    tokens,
                    ..Prompt::default()
                }
            }
        };
        let cut = prepare::Truncation {
            keep: request.truncate_prompt_tokens,
            side: request.truncation_side.as_deref(),
            special: request.add_special_tokens && matches!(asked, Asked::Text(_)),
        };
        let tokens = cut.apply(app, prompt.tokens);
        app.policy
            .generation
            .fits(&tokens, matches!(asked, Asked::Text(_)))?;
        prompts.push(Prompt { tokens, ..prompt });
    }
    Ok(prompts)
}

/// Token ids as the text that an echo says, in one piece: a prompt may have millions.
fn listed(ids: &[i64]) -> String {
    let mut text = String::with_capacity(8 * ids.len());
    for id in ids {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(itoa::Buffer::new().format(*id));
    }
    text
}

fn view(app: &App, request: &CompletionRequest, ready: &Prepared) -> CompletionView {
    let mut view = prepare::view(app, &request.into(), ready);
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
        prompts: shown.then(|| ready.prompts.iter().map(show).collect()),
        ec_transfer_params: None,
        numbers_prompts: app.policy.numbers_prompts,
        view,
    }
}
