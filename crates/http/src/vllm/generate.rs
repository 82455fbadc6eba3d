//! `POST /inference/v1/generate`: tokens in, tokens out.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Map, Value};

use super::generate_render::{GenerateStream, GenerateView};
use crate::app::App;
use crate::body::Posted;
use crate::error::Answer;
use crate::openai::llmd;
use crate::openai::prepare::{self, Shape};
use crate::request_head::RequestHead;
use crate::{error, fault, media, transfer};
use vllm_sim_service::Job;
use vllm_sim_service::generate::request::Prompt;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sampling::output_budget;
use vllm_sim_wire::vllm::GenerateRequest;

/// Answers a request in tokens.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Posted { head, mut value }: Posted,
) -> Answer {
    if app.is_llmd() {
        llmd_fields(&mut value)?;
    }
    answer(&app, &head, &value).await
}

/// llm-d's words for what is missing, and its fields at the root that vLLM has inside.
fn llmd_fields(value: &mut Value) -> Result<(), Fault> {
    let Some(root) = value.as_object_mut() else {
        return Ok(());
    };
    if root
        .get("token_ids")
        .and_then(Value::as_array)
        .is_none_or(Vec::is_empty)
    {
        return Err(Fault::bad_request("Missing input token_ids"));
    }
    let outer: Vec<(&str, Value)> = ["n", "ignore_eos"]
        .into_iter()
        .filter_map(|key| Some((key, root.get(key)?.clone())))
        .collect();
    let Some(params) = root
        .get_mut("sampling_params")
        .and_then(Value::as_object_mut)
    else {
        return Err(Fault::bad_request("Missing sampling_params field"));
    };
    for (key, value) in outer {
        params.entry(key).or_insert(value);
    }
    Ok(())
}

/// The connector's parameters: at the root, or where the OpenAI front end hides them.
fn transfer_params(request: &GenerateRequest) -> Option<&Map<String, Value>> {
    let hidden = || {
        let extra = request.sampling_params.extra_args.as_ref()?;
        extra.get("kv_transfer_params")?.as_object()
    };
    request.kv_transfer_params.as_ref().or_else(hidden)
}

async fn answer(
    app: &Arc<App>,
    head: &RequestHead,
    value: &Value,
) -> Result<Response<Body>, Fault> {
    let arrived = app.service.now();
    let request = GenerateRequest::parse(value, &app.defaults.bounds)?;
    fault::inject(app, head, request.model.as_deref())?;
    let stream = request.stream.unwrap_or(false);
    if stream && request.output_mode == "derender" {
        return Err(Fault::bad_request(
            "output_mode='derender' is not supported with stream=True.",
        ));
    }
    let remote = transfer_params(&request);
    transfer::streams(app, remote, stream)?;
    let guard = app.config.server.load_tracking.then(|| app.load_guard());
    let target = prepare::target(app, request.model.as_deref())?;
    let mut params = request.sampling_params.clone();
    prepare::admit(app, params.n, 1)?;
    let tokens: Vec<u32> = request
        .token_ids
        .0
        .iter()
        .map(|id| u32::try_from(*id).unwrap_or(u32::MAX))
        .collect();
    let asked = params.max_tokens;
    prepare::fits(app, &tokens, false)?;
    llmd::context(app, [tokens.len()], asked)?;
    params.max_tokens = Some(output_budget(
        &app.limits,
        asked,
        tokens.len(),
        &app.defaults,
    ));
    params.verify(&app.defaults.bounds)?;
    let listed: Vec<String> = tokens.iter().map(ToString::to_string).collect();
    let prompt = Prompt {
        tokens,
        echo: listed.join(",").into(),
        media: media::given(request.features.as_ref()),
        text_hash: None,
        heard: None,
    };
    let late = prepare::late_checks(app, &head.headers, &params, std::slice::from_ref(&prompt));
    let content = match late.and_then(|()| prepare::constraint(&params)) {
        Ok(content) => content.unwrap_or_default(),
        Err(fault) if stream => return Ok(prepare::failed_stream(&fault, false)),
        Err(fault) => return Err(fault),
    };
    let id = prepare::request_id(
        "generate-tokens-",
        &head.headers,
        request.request_id.as_deref(),
    );
    let options = request.stream_options.as_ref();
    let wants = |flag: Option<bool>| flag.unwrap_or(false);
    let shape = Shape {
        usage: options.is_some_and(|o| wants(o.include_usage)),
        continuous_usage: options.is_some_and(|o| wants(o.continuous_usage_stats)),
        return_token_ids: request.return_token_ids.unwrap_or(false),
        tokens_as_ids: None,
    };
    let mut view = prepare::view(app, &shape, &id, &target);
    view.logprobs = params.logprobs.map(|top| prepare::top(app, top));
    let transfer = transfer::terms(app, &mut view, remote, std::slice::from_ref(&prompt));
    let view = GenerateView {
        mode: request.output_mode.as_str().into(),
        prompt: prompt.tokens.as_slice().into(),
        placeholders: match media::placeholders(&prompt.media) {
            serde_json::Value::Null => None,
            places => Some(places.to_string().into()),
        },
        prompt_logprobs: params.prompt_logprobs.map(|top| prepare::top(app, top)),
        weight_version: app.weight_version.load_full(),
        view,
    };
    let interval = params.stream_interval.unwrap_or(1).max(1) as u32;
    let job = Job {
        id,
        target,
        prompts: vec![prompt],
        content,
        priority: request.priority,
        cache_salt: request.cache_salt.as_deref().map(Into::into),
        transfer,
        hit_threshold: transfer::hit_threshold(app, &head.headers, value),
        limited: asked.or(app.defaults.max_tokens).is_some(),
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
        let render = GenerateStream::new(view);
        return Ok(prepare::stream(app, head, reply, render, interval, guard));
    }
    reply.ended().await;
    Ok(prepare::unary(app, &head.headers, view.unary(&reply)))
}
