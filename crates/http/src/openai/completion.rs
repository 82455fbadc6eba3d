//! `POST /v1/completions`: OpenAI's completion API.

use std::sync::Arc;

use axum::extract::State;
use serde_json::Value;

use super::completion_render::{CompletionResponseSettings, CompletionStream, EchoedPrompt};
use super::logprobs;
use super::response_settings::ResponseSettings;
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::dialect::ApiEndpoint;
use crate::error::HandlerResult;
use crate::generation::{self, GenerationRequestBody};
use crate::request_head::request_id;
use crate::stream;
use crate::transfer::{self, RequestKvTransfer};
use vllm_sim_service::generate::request::TokenizedPrompt;
use vllm_sim_service::prompt::{
    PromptSource, PromptTextOrTokenIds, PromptTextsOrTokenIds, PromptTruncation, TruncationSide,
};
use vllm_sim_service::{
    GenerationJob, GenerationRequest, OutputTokenBudget, PrefixCacheReadRules, RejectedRequest,
    RequestSubmissionChecks,
};
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::openai::completion::{CompletionPrompt as Asked, CompletionRequest};

impl GenerationRequestBody for CompletionRequest {
    const ENDPOINT: ApiEndpoint = ApiEndpoint::Completions;
    const TEXT_MEMBERS: &[&str] = &["prompt"];

    fn read(body: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        Self::parse_completion_request(body, bounds)
    }

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn check_before_model_lookup(&self) -> Result<(), Fault> {
        self.validate_before_model_lookup()
    }
}

pub(crate) async fn create_completion(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let bounds = &app.rules.defaults.bounds;
    let text = received.raw_body_for_schema_check(&app);
    if let Some((request, value)) =
        text.and_then(|t| CompletionRequest::parse_long_prompt_and_body(t, bounds))
    {
        return respond_completion(&app, &received, &value, Box::new(request)).await;
    }
    let value = received.parse_dialect_json(&app)?;
    answer_completion_request(&app, &received, &value).await
}

pub(crate) async fn answer_completion_request(
    app: &Arc<App>,
    received: &RawRequest,
    value: &Value,
) -> HandlerResult {
    let body = generation::move_guided_to_structured_outputs(app, value);
    let request = generation::parse_generation_request_body(app, received, body)?;
    respond_completion(app, received, value, request).await
}

async fn respond_completion(
    app: &Arc<App>,
    received: &RawRequest,
    value: &Value,
    mut request: Box<CompletionRequest>,
) -> HandlerResult {
    let lora = generation::resolve_request_model(app, received, &*request)?;
    if value.get("max_tokens").is_none_or(Value::is_null) {
        request.max_tokens = app.dialect.properties().default_max_tokens;
    }
    let stream = request.stream.unwrap_or(false);
    let interval = generation::min_tokens_per_event(request.stream_interval);
    let headers = received.headers_unless_all_common();
    let id = request_id("cmpl-", headers, request.request_id.as_deref());
    let terms =
        RequestKvTransfer::read_kv_transfer_params(app, &id, request.kv_transfer_params.as_ref());
    let generation = GenerationRequest {
        n: request.n,
        max_tokens: request.max_tokens,
        room: match request.only_echoes_prompt() {
            true => OutputTokenBudget::OneToken,
            false => OutputTokenBudget::PerPrompt,
        },
        validation: request.validate_without_tokenizer(&app.rules.limits).into(),
        checks: match request.use_beam_search {
            true => RequestSubmissionChecks::AllButSamplingRanges,
            false => RequestSubmissionChecks::All,
        },
        sampling: request.sampling_params(&app.rules.defaults).map(Some).into(),
        echo: request.echo.unwrap_or(false) || request.return_token_ids.unwrap_or(false),
        priority: generation::request_priority(headers, request.priority),
        transfer: terms.transfer.clone(),
        kv_labels: generation::kv_block_labels(
            received,
            request.cache_salt.as_deref(),
            request.session_id.as_deref(),
            request.vllm_xargs.as_ref(),
        ),
        prefix_cache: PrefixCacheReadRules::with_hit_threshold(transfer::cache_hit_threshold(
            app, headers, value,
        )),
        prompts: PromptSource::Inputs(take_prompt_inputs(&mut request)),
        ..generation::new_generation_request(app, received, id, request.model.as_deref())
    };
    let (reply, job) = match generation::start_generation(app, lora, generation).await {
        Ok(started) => started,
        Err(RejectedRequest { error, late: Some(_) }) if stream => {
            return Ok(stream::failed_stream_response(&error));
        }
        Err(refused) => return Err(refused.error),
    };
    let mut view = completion_view(app, &request, &job);
    view.view.kv_transfer_params = terms.response_kv_transfer_params(app, &job.prompts);
    drop((job, request));
    if stream {
        let render = CompletionStream::new(view, reply.choices.len(), &reply.prompts);
        return Ok(stream::stream_reply(app, received, reply, render, interval).await);
    }
    let body =
        generation::render_finished_reply(reply, move |reply| view.completion_body_json(reply))
            .await?;
    Ok(generation::json_response_with_load_header(app, headers, body))
}

pub(crate) fn take_prompt_inputs(request: &mut CompletionRequest) -> PromptTextsOrTokenIds {
    let prompts = request.prompt.take().map(|prompts| prompts.0);
    let inputs = prompts.unwrap_or_default().into_iter();
    PromptTextsOrTokenIds {
        inputs: inputs
            .map(|prompt| match prompt {
                Asked::Text(text) => PromptTextOrTokenIds::Text(text),
                Asked::Tokens(ids) => {
                    PromptTextOrTokenIds::Tokens { ids, text: None, media: Vec::new() }
                }
            })
            .collect(),
        add_special_tokens: request.add_special_tokens,
        truncation: PromptTruncation {
            keep: request.truncate_prompt_tokens,
            side: TruncationSide::from_side_name(request.truncation_side.as_deref()),
            special: request.add_special_tokens && request.truncation_side.is_none(),
        },
    }
}

fn completion_view(
    app: &App,
    request: &CompletionRequest,
    job: &GenerationJob,
) -> CompletionResponseSettings {
    let mut view = ResponseSettings::new(app, job);
    view.set_usage_reporting(request.include_usage_and_continuous_stats());
    view.return_token_ids = request.return_token_ids.unwrap_or(false);
    view.tokens_as_ids = request.return_tokens_as_token_ids.unwrap_or(view.tokens_as_ids);
    view.weights = request.return_weight_versions.then(|| app.weight_version.load_full());
    view.logprobs = request.logprobs.map(|top| logprobs::logprob_count(app, top));
    // vLLM serves beam search on another path, which reports no prompt details.
    view.prompt_details &= !request.use_beam_search;
    let echo = request.echo.unwrap_or(false);
    let shown = echo || view.return_token_ids || request.prompt_logprobs.is_some();
    let tokenizer = app.service.generator.tokenizer();
    let show = |prompt: &TokenizedPrompt| EchoedPrompt {
        ids: prompt.tokens.as_slice().into(),
        text: tokenizer.decode(&prompt.tokens, SpecialTokenHandling::Without).into(),
    };
    CompletionResponseSettings {
        echo,
        echo_only: echo && request.max_tokens == Some(0),
        prompt_logprobs: request.prompt_logprobs.map(|top| logprobs::logprob_count(app, top)),
        prompts: shown.then(|| job.prompts.iter().map(show).collect()),
        ec_transfer_params: None,
        appends_prompt_index: app.dialect.properties().appends_prompt_index,
        view,
    }
}
