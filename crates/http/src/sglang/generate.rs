//! `POST /generate`: SGLang's native route.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use serde_json::{Value, json};

use super::disaggregation::PrefillBootstrapTarget;
use super::generate_render::{GenerateStream, SglangGenerateFormat};
use super::meta::LogprobOptions;
use super::request::{
    self, SglangGenerationRequest, StartedSglangGeneration, first_element_or_self, new_request_id,
};
use super::session_store::{SessionParams, SessionTurn};
use super::usage::EndedRequestCounter;
use super::{endpoint, errors};
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::error::{self, ok_json_response};
use crate::generation;
use crate::openai::logprobs;
use crate::pooling::encode_text;
use crate::stream;
use vllm_sim_service::prompt::{
    PromptSource, PromptTextOrTokenIds, PromptTextsOrTokenIds, PromptTruncation,
};
use vllm_sim_service::{RejectedRequest, Reply};
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::fault::{ErrorType, Fault};
use vllm_sim_wire::sglang::generate::{GenerateRequest, VertexRequest};
use vllm_sim_wire::sglang::generate_types::check_generate_body_types;
use vllm_sim_wire::sglang::sampling::SglangSamplingParams;
use vllm_sim_wire::sglang::server_control::Struct;

pub(super) async fn generate(State(app): AppState, received: RawRequest) -> Response<Body> {
    let request = match read(&app, &received) {
        Ok(request) => request,
        Err(fault) => return errors::native_route_error_response(&fault),
    };
    answer_generate_request(&app, &received, &request).await
}

/// Reads a `/generate` request and checks the types of its members.
fn read(app: &App, received: &RawRequest) -> Result<GenerateRequest, Fault> {
    let (request, body) = endpoint::read_request_and_body(app, received, &endpoint::GENERATE)?;
    match body.as_object().map(check_generate_body_types) {
        Some(Err(text)) => Err(Fault::new(400, ErrorType::Bare, text)),
        _ => Ok(request),
    }
}

/// Handles a `/generate` request, or a request of another route that was converted to one.
pub(super) async fn answer_generate_request(
    app: &Arc<App>,
    received: &RawRequest,
    request: &GenerateRequest,
) -> Response<Body> {
    match answer(app, received, request).await {
        Ok(Output::Json(body)) => ok_json_response(&body),
        Ok(Output::Stream(response)) => response,
        Err(fault) if request.stream && is_wrong_value(&fault) => {
            errors::invalid_native_stream_response(&fault)
        }
        Err(fault) => errors::native_route_error_response(&fault),
    }
}

/// Handles `POST /vertex_generate`: generates outputs for a batch of prompts with the parameters of
/// `/generate`.
pub(super) async fn vertex_generate(State(app): AppState, received: RawRequest) -> Response<Body> {
    let Struct(request): Struct<VertexRequest> =
        match endpoint::read_request(&app, &received, &endpoint::VERTEX_GENERATE) {
            Ok(request) => request,
            Err(fault) => return errors::openai_error(&fault),
        };
    if request.instances.is_empty() {
        return error::json_response(StatusCode::OK, "[]".to_owned());
    }
    let body = request.to_generate_body();
    let read =
        endpoint::read_parsed_body::<GenerateRequest>(&app, Some(&body), &endpoint::GENERATE);
    // SGLang's constructor of the request has no schema: a wrong parameter is its bug.
    let Ok(request) = read else {
        return errors::native_route_error_response(&errors::unhandled_exception_fault());
    };
    match answer(&app, &received, &request).await {
        Ok(Output::Json(body)) => {
            let body = json!({"predictions": body});
            ok_json_response(&body)
        }
        Ok(Output::Stream(response)) => response,
        Err(fault) => errors::native_route_error_response(&fault),
    }
}

/// Returns whether an error is one that SGLang's tokenizer manager would raise as Python's
/// `ValueError`.
fn is_wrong_value(fault: &Fault) -> bool {
    fault.status == 400 && fault.error_type == ErrorType::BadRequest
}

/// The prompts of a `/generate` request.
struct Batch {
    prompts: Vec<PromptTextOrTokenIds>,
    /// Whether the `/generate` request gives a single prompt instead of a list of prompts.
    is_single: bool,
}

/// Response of `/generate`: one JSON value or a stream.
enum Output {
    Json(Value),
    Stream(Response<Body>),
}

async fn answer(
    app: &Arc<App>,
    received: &RawRequest,
    request: &GenerateRequest,
) -> Result<Output, Fault> {
    request.reject_unsimulated_members()?;
    let mut batch = read_prompts(request)?;
    let count = batch.prompts.len();
    let params = sampling_of_prompts(app, request, &batch)?;
    let rank = request.routed_dp_rank.or(request.data_parallel_rank);
    let rank = request::data_parallel_rank(app, &received.headers, rank)?;
    let rids = request_ids(request.rid.as_ref(), &batch)?;
    if request.rid.is_some() {
        rids.iter().try_for_each(|rid| request::check_unused_request_id(app, rid))?;
    }
    let session = session_turn(app, request, &mut batch, &rids).await?;
    let is_single = batch.is_single && params.first().is_none_or(|one| one.output_count() == 1);
    if request.stream {
        check_equal_parameters(request)?;
        let Some(sampling) = params.into_iter().next() else {
            let done = Body::from("data: [DONE]\n\n");
            return Ok(Output::Stream(stream::event_stream_response(done)));
        };
        let prompts = std::mem::take(&mut batch.prompts);
        let of_all = Item { sampling, rank, prompts, index: 0, session };
        return Ok(Output::Stream(stream(app, received, request, of_all, rids, &batch).await?));
    }
    // All prompts run at the same time; a refusal drops those that were started.
    let mut started = Vec::with_capacity(count);
    for (index, (prompt, sampling)) in batch.prompts.into_iter().zip(params).enumerate() {
        let session = session.clone();
        let one = Item { sampling, rank, prompts: vec![prompt], index, session };
        let one = start(app, received, request, one, rids[index].clone());
        started.push(one.await.map_err(|refused| refused.error)?);
    }
    let mut outputs = Vec::new();
    for Started { reply, format, counter, .. } in started {
        let body = generation::render_finished_reply(reply, move |reply| {
            counter.count_ended_reply(reply);
            format.generation_outputs_json(reply)
        });
        outputs.extend(body.await?);
    }
    Ok(Output::Json(match (is_single, outputs.pop()) {
        (true, Some(only)) => only,
        (_, last) => outputs.into_iter().chain(last).collect(),
    }))
}

/// Returns the sampling parameters of each prompt of a `/generate` request.
///
/// # Errors
/// SGLang's 400 for a wrong parameter, and its 500 for lists that do not fit the prompts.
fn sampling_of_prompts(
    app: &App,
    request: &GenerateRequest,
    batch: &Batch,
) -> Result<Vec<SglangSamplingParams>, Fault> {
    let params = request.sampling_params.as_ref();
    let number = |params: &Value| params.get("n").cloned().unwrap_or_else(|| 1.into());
    let outputs = match params {
        Some(Value::Array(items)) => {
            let first = items.first().ok_or_else(errors::unhandled_exception_fault)?;
            if items.iter().any(|other| number(other) != number(first)) {
                return Err(Fault::bad_request(
                    "The parallel_sample_num should be the same for all samples in sample params.",
                ));
            }
            number(first)
        }
        Some(params) => number(params),
        None => 1.into(),
    };
    let outputs = outputs.as_i64().ok_or_else(errors::unhandled_exception_fault)?;
    check_lists(request, batch, outputs)?;
    let vocabulary = app.service.generator.tokenizer().vocab_size();
    let of_prompt = |index: usize| {
        let value = item(params, index).unwrap_or(&Value::Null);
        SglangSamplingParams::parse_sampling_with_output_count(value, vocabulary, outputs.max(1))
    };
    (0..batch.prompts.len()).map(of_prompt).collect()
}

/// Checks the members of a `/generate` request that may be lists, and the lengths of these lists.
fn check_lists(request: &GenerateRequest, batch: &Batch, outputs: i64) -> Result<(), Fault> {
    let length = |value: &Option<Value>| value.as_ref().and_then(Value::as_array).map(Vec::len);
    let count = batch.prompts.len();
    let is_batch = !batch.is_single || outputs > 1;
    match length(&request.cache_salt) {
        Some(_) if !is_batch => {
            return Err(Fault::bad_request("cache_salt should be a string for a single request."));
        }
        Some(length) if length != count => {
            return Err(Fault::bad_request(
                "The length of cache_salt should be equal to the batch size.",
            ));
        }
        _ => {}
    }
    let fails = match is_batch {
        true => {
            let lists = [
                &request.sampling_params,
                &request.return_logprob,
                &request.logprob_start_len,
                &request.top_logprobs_num,
                &request.lora_path,
            ];
            outputs < 1 || lists.into_iter().any(|list| length(list).is_some_and(|n| n < count))
        }
        false => length(&request.sampling_params).or(length(&request.rid)).is_some(),
    };
    if fails { Err(errors::unhandled_exception_fault()) } else { Ok(()) }
}

/// Prompts of a `/generate` request that the engine runs as one generation job.
struct Item {
    sampling: SglangSamplingParams,
    rank: Option<i64>,
    prompts: Vec<PromptTextOrTokenIds>,
    /// Index of this job's first prompt in the `/generate` request.
    index: usize,
    session: Option<SessionTurn>,
}

/// A started generation for a `/generate` request, with the format of its response.
struct Started {
    reply: Reply,
    format: SglangGenerateFormat,
    counter: EndedRequestCounter,
    interval: u32,
}

async fn start(
    app: &Arc<App>,
    received: &RawRequest,
    request: &GenerateRequest,
    from: Item,
    rid: Arc<str>,
) -> Result<Started, RejectedRequest<Fault>> {
    let lora = item(request.lora_path.as_ref(), from.index);
    if let (Some(Value::Array(list)), false) = (&request.lora_path, app.settings.lora.enabled)
        && !list.is_empty()
    {
        let first = list.iter().filter_map(Value::as_str).find(|name| !name.is_empty());
        request::check_adapter(app, first.unwrap_or("None"))?;
    }
    let lora = request::resolve_model(app, received, None, lora)?;
    let interval = generation::min_tokens_per_event(from.sampling.stream_interval());
    let hides_output = from.sampling.max_new_tokens() == Some(0);
    let outputs = from.sampling.output_count();
    let members = [&request.bootstrap_host, &request.bootstrap_port, &request.bootstrap_room];
    let target = PrefillBootstrapTarget::from_request_body(
        members,
        request.disagg_prefill_dp_rank,
        &received.headers,
        from.index,
    )?;
    let generation = SglangGenerationRequest {
        id: rid.clone(),
        prompts: PromptSource::Inputs(PromptTextsOrTokenIds {
            inputs: from.prompts,
            add_special_tokens: true,
            truncation: PromptTruncation::default(),
        }),
        sampling: from.sampling,
        logprobs: logprob_options(app, request, from.index),
        rank: from.rank,
        priority: request.priority,
        cache_salt: request::cache_salt(item(request.cache_salt.as_ref(), from.index)),
        stream: request.stream,
        target,
        ..SglangGenerationRequest::default()
    };
    let started = request::start_sglang_generation(app, received, lora, generation).await;
    let StartedSglangGeneration { reply, job, mut meta, mut counter } = started?;
    if request.return_prompt_token_ids {
        meta.store_prompt_token_ids(&job);
    }
    meta.texts = request.return_text_in_logprobs;
    meta.streams = request.stream;
    counter.session = from.session;
    let format = SglangGenerateFormat {
        meta,
        // Every output of a request with several ones has an id of its own.
        rids: if outputs == 1 { vec![rid] } else { Vec::new() },
        shows_prompt: request.return_prompt_token_ids,
        hides_output,
    };
    Ok(Started { reply, format, counter, interval })
}

async fn stream(
    app: &Arc<App>,
    received: &RawRequest,
    request: &GenerateRequest,
    prompts: Item,
    rids: Vec<Arc<str>>,
    batch: &Batch,
) -> Result<Response<Body>, Fault> {
    let outputs = prompts.sampling.output_count();
    let started = start(app, received, request, prompts, rids[0].clone()).await;
    let mut started = match started {
        Ok(started) => started,
        Err(refused) => {
            let prompt = refused.late.as_ref().and_then(|job| job.prompts.first());
            let tokens = prompt.map_or(0, |prompt| prompt.tokens.len());
            let fault = request::kv_negotiation_fault_or_other(refused)?;
            return Ok(errors::failed_native_stream(&fault, &rids[0], tokens));
        }
    };
    if outputs == 1 {
        started.format.rids = rids;
    }
    let mut render = GenerateStream::new(started.format, started.counter, &started.reply);
    render.is_incremental = app.settings.answers.incremental_output;
    render.shows_index = !batch.is_single || outputs != 1;
    Ok(stream::stream_reply(app, received, started.reply, render, started.interval).await)
}

/// Prepends the tokens of a session's earlier requests to the prompt of a request that continues
/// them.
async fn session_turn(
    app: &Arc<App>,
    request: &GenerateRequest,
    batch: &mut Batch,
    rids: &[Arc<str>],
) -> Result<Option<SessionTurn>, Fault> {
    let Some(params) = request.session_params.clone() else {
        return Ok(None);
    };
    let params = SessionParams::read_session_params(&Value::Object(params))?;
    if params.id.is_none() {
        return Ok(None);
    }
    let [prompt] = &mut batch.prompts[..] else {
        return Err(Fault::bad_request(
            "session_params must have one prompt; several are not simulated",
        ));
    };
    let tokens = match prompt {
        PromptTextOrTokenIds::Tokens { ids, .. } => {
            ids.iter().map(|id| u32::try_from(*id).unwrap_or(u32::MAX)).collect()
        }
        PromptTextOrTokenIds::Text(text) => {
            encode_text(app, text, SpecialTokenHandling::With).await
        }
    };
    // An empty text has only the token that begins every text.
    let begin =
        app.service.generator.tokenizer().encode("", SpecialTokenHandling::With).first().copied();
    let place = (begin, app.service.now());
    let turn = app.sglang.sessions.add_request_to_session(params, &rids[0], tokens, place)?;
    *prompt = PromptTextOrTokenIds::Tokens {
        ids: turn.prompt_token_ids().collect(),
        text: None,
        media: Vec::new(),
    };
    Ok(Some(turn))
}

/// Returns the value of a `/generate` member for one prompt: an element of a list, or a single
/// value for all prompts.
fn item(value: Option<&Value>, index: usize) -> Option<&Value> {
    let value = value.filter(|value| !value.is_null())?;
    match value.as_array() {
        Some(items) => items.get(index).filter(|item| !item.is_null()),
        None => Some(value),
    }
}

fn logprob_options(app: &App, request: &GenerateRequest, index: usize) -> LogprobOptions {
    let wanted = item(request.return_logprob.as_ref(), index).and_then(Value::as_bool);
    if wanted != Some(true) {
        return LogprobOptions::default();
    }
    let number = |value: &Option<Value>| item(value.as_ref(), index).and_then(Value::as_i64);
    let top = number(&request.top_logprobs_num).unwrap_or(0).max(0);
    let start = number(&request.logprob_start_len).unwrap_or(-1);
    LogprobOptions {
        top: Some(logprobs::logprob_count(app, top.into())),
        start: usize::try_from(start).ok(),
    }
}

/// Returns the prompts of a `/generate` request.
///
/// # Errors
/// SGLang's 400 without prompt, or with an empty one.
fn read_prompts(request: &GenerateRequest) -> Result<Batch, Fault> {
    let missing =
        || Fault::bad_request("Either text, input_ids or input_embeds should be provided.");
    let given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
    // Token ids win over a text.
    let text = request.text.as_ref().filter(|text| !text.is_null());
    if let Some(text) = text.filter(|_| !given(&request.input_ids)) {
        let texts = match text {
            Value::String(text) => vec![text.clone()],
            texts => texts
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|text| text.as_str().map(str::to_owned))
                .collect(),
        };
        let prompts = texts.into_iter().map(PromptTextOrTokenIds::Text).collect();
        return Ok(Batch { prompts, is_single: text.is_string() });
    }
    let ids = request.input_ids.as_ref().filter(|ids| !ids.is_null()).ok_or_else(missing)?;
    let read = |ids: &Value| -> Vec<i64> {
        ids.as_array().into_iter().flatten().filter_map(Value::as_i64).collect()
    };
    let is_single = !first_element_or_self(ids).is_array();
    // The history of a session may be the whole prompt.
    let has_session = request.session_params.as_ref().is_some_and(|params| {
        params.get("id").and_then(Value::as_str).is_some_and(|id| !id.is_empty())
    });
    let lists: Vec<Vec<i64>> = match is_single {
        true => vec![read(ids)],
        false => ids.as_array().into_iter().flatten().map(read).collect(),
    };
    if lists.iter().any(Vec::is_empty) && !(is_single && has_session) {
        return Err(Fault::bad_request("input_ids cannot be empty."));
    }
    let prompt = |ids| PromptTextOrTokenIds::Tokens { ids, text: None, media: Vec::new() };
    Ok(Batch { prompts: lists.into_iter().map(prompt).collect(), is_single })
}

/// Returns one request id per prompt of a `/generate` request.
///
/// # Errors
/// SGLang's 400 for a list of another length, and for an id that occurs twice.
fn request_ids(rid: Option<&Value>, batch: &Batch) -> Result<Vec<Arc<str>>, Fault> {
    let count = batch.prompts.len();
    match rid.filter(|rid| !rid.is_null()) {
        None => Ok((0..count).map(|_| new_request_id()).collect()),
        Some(Value::String(rid)) if batch.is_single => Ok(vec![rid.as_str().into()]),
        Some(Value::String(rid)) => {
            Ok((0..count).map(|index| format!("{rid}_{index}").into()).collect())
        }
        Some(rids) => {
            let listed = rids.as_array().into_iter().flatten().filter_map(Value::as_str);
            let listed: Vec<Arc<str>> = listed.map(Into::into).collect();
            if listed.len() != count {
                return Err(Fault::bad_request(
                    "The specified rids length mismatch with the batch_size for batch processing.",
                ));
            }
            let repeated = |(at, id): &(usize, &Arc<str>)| listed[..*at].contains(id);
            let repeated = listed.iter().enumerate().filter(repeated).map(|(_, id)| id);
            let repeated: BTreeSet<&Arc<str>> = repeated.collect();
            if !repeated.is_empty() {
                let shown: Vec<String> = repeated.iter().map(|id| format!("'{id}'")).collect();
                return Err(Fault::bad_request(format!(
                    "Duplicate request IDs detected within the request: [{}]",
                    shown.join(", ")
                )));
            }
            Ok(listed)
        }
    }
}

/// Refuses a stream whose prompts have different parameters, which is not simulated.
fn check_equal_parameters(request: &GenerateRequest) -> Result<(), Fault> {
    let lists = [
        ("sampling_params", &request.sampling_params),
        ("lora_path", &request.lora_path),
        ("return_logprob", &request.return_logprob),
        ("top_logprobs_num", &request.top_logprobs_num),
        ("logprob_start_len", &request.logprob_start_len),
        ("cache_salt", &request.cache_salt),
    ];
    let differs = |value: &Option<Value>| {
        let items = value.as_ref().and_then(Value::as_array);
        items.is_some_and(|items| items.iter().any(|item| Some(item) != items.first()))
    };
    match lists.into_iter().find(|(_, value)| differs(value)) {
        None => Ok(()),
        Some((name, _)) => Err(Fault::bad_request(format!(
            "{name} must be equal for all prompts of a stream; other streams are not simulated"
        ))),
    }
}
