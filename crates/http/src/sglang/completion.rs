//! `POST /v1/completions` of an SGLang server.

use axum::extract::State;

use super::completion_render::{CompletionFormat, CompletionStream};
use super::disaggregation::PrefillBootstrapTarget;
use super::errors::SglangResult;
use super::meta::LogprobOptions;
use super::request::{
    self, SglangGenerationRequest, StartedSglangGeneration, first_element_or_self,
    given_or_new_request_id,
};
use super::usage::UsageSettings;
use super::{endpoint, errors};
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::generation;
use crate::openai::logprobs;
use crate::stream;
use vllm_sim_service::prompt::{
    PromptSource, PromptTextOrTokenIds, PromptTextsOrTokenIds, PromptTruncation,
};
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::openai::completion::CompletionPrompt;
use vllm_sim_wire::sglang::completion::SglangCompletionRequest;
use vllm_sim_wire::sglang::sampling::SglangSamplingParams;

pub(super) async fn create_completion(State(app): AppState, received: RawRequest) -> SglangResult {
    let request: SglangCompletionRequest =
        endpoint::read_request(&app, &received, &endpoint::COMPLETIONS)?;
    request.validate_completion_request()?;
    request.check_request_ids()?;
    let vocabulary = app.service.generator.tokenizer().vocab_size();
    let sampling =
        SglangSamplingParams::parse_sampling_params(&request.sampling_params()?, vocabulary)?;
    let rank = request.routed_dp_rank.or(request.data_parallel_rank);
    let rank = request::data_parallel_rank(&app, &received.headers, rank)?;
    // A request with `echo` and log probabilities also gets those of the prompt.
    let start = (request.echo && request.logprobs.is_some_and(|top| top > 0)).then_some(0);
    let top = request.logprobs.map(|top| logprobs::logprob_count(&app, top.max(0).into()));
    let logprobs = LogprobOptions { top, start };
    let model = Some(request.model.as_str());
    let lora = request::resolve_model(&app, &received, model, request.lora_path.as_ref())?;
    let id = given_or_new_request_id(&app, request.rid.as_ref())?;
    let members = [&request.bootstrap_host, &request.bootstrap_port, &request.bootstrap_room];
    let prefill_rank = request.disagg_prefill_dp_rank;
    let target =
        PrefillBootstrapTarget::from_request_body(members, prefill_rank, &received.headers, 0)?;
    let generation = SglangGenerationRequest {
        id: id.clone(),
        prompts: PromptSource::Inputs(prompt_inputs(&request)),
        sampling,
        logprobs,
        rank,
        priority: request.priority,
        cache_salt: request::cache_salt(request.cache_salt.as_ref().map(first_element_or_self)),
        echo: request.echo,
        stream: request.stream,
        target,
        ..SglangGenerationRequest::default()
    };
    let started = request::start_sglang_generation(&app, &received, lora, generation).await;
    let StartedSglangGeneration { reply, job, mut meta, counter } = match started {
        Ok(started) => started,
        Err(refused) if request.stream => {
            let fault = request::kv_negotiation_fault_or_other(refused)?;
            return Ok(errors::failed_openai_stream(&fault));
        }
        Err(refused) => return Err(refused.error.into()),
    };
    if request.return_token_ids {
        meta.store_prompt_token_ids(&job);
    }
    meta.texts = true;
    let usage = UsageSettings::new(&app, request.stream_options.as_ref());
    let echo = request.echo.then(|| echoed_texts(&app, &request));
    let format = CompletionFormat::new(&request, id, meta, usage, echo.unwrap_or_default());
    if request.stream {
        let interval = generation::min_tokens_per_event(None);
        let render = CompletionStream::new(format, counter, &reply);
        return Ok(stream::stream_reply(&app, &received, reply, render, interval).await);
    }
    let body = generation::render_finished_reply(reply, move |reply| {
        counter.count_ended_reply(reply);
        format.completion_body_json(reply)
    });
    Ok(generation::json_response_with_load_header(&app, &received.headers, body.await?.to_string()))
}

fn prompt_inputs(request: &SglangCompletionRequest) -> PromptTextsOrTokenIds {
    let inputs = request.prompt.0.iter().map(|prompt| match prompt {
        CompletionPrompt::Text(text) => PromptTextOrTokenIds::Text(text.clone()),
        CompletionPrompt::Tokens(ids) => {
            PromptTextOrTokenIds::Tokens { ids: ids.clone(), text: None, media: Vec::new() }
        }
    });
    PromptTextsOrTokenIds {
        inputs: inputs.collect(),
        add_special_tokens: true,
        truncation: PromptTruncation::default(),
    }
}

/// Returns the texts of the prompts that `echo` puts before the outputs.
fn echoed_texts(app: &App, request: &SglangCompletionRequest) -> Vec<String> {
    let tokenizer = app.service.generator.tokenizer();
    let texts = request.prompt.0.iter().map(|prompt| match prompt {
        CompletionPrompt::Text(text) => text.clone(),
        CompletionPrompt::Tokens(ids) => {
            let ids = ids.iter().map(|id| u32::try_from(*id).unwrap_or(u32::MAX));
            tokenizer.decode(&ids.collect::<Vec<_>>(), SpecialTokenHandling::Without)
        }
    });
    texts.collect()
}
