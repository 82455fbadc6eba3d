//! `POST /v1/completions`: OpenAI's completion API.

use std::sync::Arc;

use axum::extract::State;
use serde_json::Value;

use super::completion_render::{CompletionStream, CompletionView, ShownPrompt};
use super::{legacy, prepare};
use crate::app::App;
use crate::body::RawRequest;
use crate::dialect::Endpoint;
use crate::error::HandlerResult;
use crate::generation::{self, GenerationBody, ParsedBody, RejectedRequest};
use crate::request_head::RequestHead;
use crate::transfer::{self, TransferTerms};
use vllm_sim_service::generate::request::Prompt;
use vllm_sim_service::prompt::{CutSide, PromptInput, PromptInputs, PromptSource, Truncation};
use vllm_sim_service::{GenerationRequest, OutputBudget, ReplyFacts};
use vllm_sim_tokenizer::SpecialTokens;
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::completion::{CompletionRequest, Prompt as Asked};

impl GenerationBody for CompletionRequest {
    const API: Endpoint = Endpoint::Completions;

    fn read(body: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        Self::parse(body, bounds)
    }

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn check_first(&self) -> Result<(), Fault> {
        self.validate_first()
    }
}

pub(crate) async fn create(State(app): State<Arc<App>>, received: RawRequest) -> HandlerResult {
    let (head, bounds) = (&received.head, &app.rules.defaults.bounds);
    let text = received.schema_only_body(&app);
    if let Some((request, value)) = text.and_then(|t| CompletionRequest::read_long(t, bounds)) {
        return respond(&app, head, &value, ParsedBody::of(request)).await;
    }
    let value = received.parse_json(&app)?;
    answer(&app, head, &value).await
}

pub(crate) async fn answer(app: &Arc<App>, head: &RequestHead, value: &Value) -> HandlerResult {
    let read = ParsedBody::new(app, head, legacy::body(app, value))?;
    respond(app, head, value, read).await
}

async fn respond(
    app: &Arc<App>,
    head: &RequestHead,
    value: &Value,
    read: ParsedBody<CompletionRequest>,
) -> HandlerResult {
    let (mut request, resolved) = read.resolve(app, head)?;
    if value.get("max_tokens").is_none_or(Value::is_null) {
        request.max_tokens = app.dialect.default_max_tokens();
    }
    let stream = request.stream.unwrap_or(false);
    let interval = prepare::tokens_per_event(request.stream_interval);
    let headers = head.special_headers();
    let id = prepare::request_id("cmpl-", headers, request.request_id.as_deref());
    let terms = TransferTerms::of(app, &id, request.kv_transfer_params.as_ref());
    let generation = GenerationRequest {
        n: request.n,
        max_tokens: request.max_tokens,
        room: OutputBudget::PerPrompt,
        validation: request.validate_early(&app.rules.limits).into(),
        sampling: request.sampling(&app.rules.defaults).into(),
        echo: request.echo.unwrap_or(false) || request.return_token_ids.unwrap_or(false),
        priority: generation::priority(headers, request.priority),
        transfer: terms.transfer.clone(),
        cache_salt: request.cache_salt.as_deref().map(Into::into),
        hit_threshold: transfer::hit_threshold(app, headers, value),
        prompts: PromptSource::Inputs(inputs(&mut request)),
        ..generation::request(app, head, id)
    };
    let (generated, guard) = match generation::start(app, resolved, generation).await {
        Ok(started) => started,
        Err(RejectedRequest::Late { fault, .. }) if stream => {
            return Ok(prepare::failed_stream(&fault));
        }
        Err(refused) => return Err(refused.into()),
    };
    let reply = generated.reply;
    let mut view = view(app, &request, &generated.facts);
    view.view.kv_transfer_params = terms.offer(app, &generated.facts.prompts);
    drop((generated.facts, request));
    if stream {
        let render = CompletionStream::new(view, reply.choices.len(), &reply.prompts);
        return Ok(prepare::stream(app, head, reply, render, interval, guard));
    }
    let body = prepare::render_finished(reply, move |reply| view.unary(reply)).await?;
    Ok(prepare::unary(app, headers, body))
}

pub(crate) fn inputs(request: &mut CompletionRequest) -> PromptInputs {
    let prompts = request.prompt.take().map(|prompts| prompts.0);
    let inputs = prompts.unwrap_or_default().into_iter();
    PromptInputs {
        inputs: inputs
            .map(|prompt| match prompt {
                Asked::Text(text) => PromptInput::Text(text),
                Asked::Tokens(ids) => PromptInput::Tokens {
                    ids,
                    text: None,
                    media: Vec::new(),
                },
            })
            .collect(),
        add_special_tokens: request.add_special_tokens,
        truncation: Truncation {
            keep: request.truncate_prompt_tokens,
            side: CutSide::of(request.truncation_side.as_deref()),
            special: request.add_special_tokens,
        },
    }
}

fn view(app: &App, request: &CompletionRequest, facts: &ReplyFacts) -> CompletionView {
    let mut view = prepare::response_shape(app, &request.into(), facts);
    view.weights = request
        .return_weight_versions
        .then(|| app.weight_version.load_full());
    view.logprobs = request.logprobs.map(|top| prepare::logprob_count(app, top));
    // vLLM serves beam search on another path, which reports no prompt details.
    view.prompt_details &= !request.use_beam_search;
    let echo = request.echo.unwrap_or(false);
    let shown = echo || view.return_token_ids || request.prompt_logprobs.is_some();
    let tokenizer = app.service.generator.tokenizer();
    let show = |prompt: &Prompt| ShownPrompt {
        ids: prompt.tokens.as_slice().into(),
        text: tokenizer
            .decode(&prompt.tokens, SpecialTokens::Without)
            .into(),
    };
    CompletionView {
        echo,
        echo_only: echo && request.max_tokens == Some(0),
        prompt_logprobs: request
            .prompt_logprobs
            .map(|top| prepare::logprob_count(app, top)),
        prompts: shown.then(|| facts.prompts.iter().map(show).collect()),
        ec_transfer_params: None,
        appends_prompt_index: app.dialect.appends_prompt_index(),
        view,
    }
}
