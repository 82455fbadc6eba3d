//! `POST /inference/v1/generate`: tokens in, tokens out.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Map, Value};

use super::generate_render::{GenerateStream, GenerateView, TokensForm};
use crate::app::App;
use crate::body::Received;
use crate::error::Answer;
use crate::generation::{self, Refused, Started};
use crate::openai::prepare::{self, Shape};
use crate::policy::Api;
use crate::request_head::RequestHead;
use crate::{media, transfer};
use vllm_sim_engine::SimTime;
use vllm_sim_service::generate::request::{Prompt, Target};
use vllm_sim_service::{GenerationRequest, Prepared, Protocol, Refusal, Transfer};
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::sampling::SamplingParams;
use vllm_sim_wire::vllm::GenerateRequest;

/// Answers a request in tokens.
pub(crate) async fn create(State(app): State<Arc<App>>, received: Received) -> Answer {
    let arrived = app.service.now();
    let (head, bounds) = (&received.head, &app.policy.generation.defaults.bounds);
    let text = received.for_schema(&app);
    if let Some((request, value)) = text.and_then(|text| GenerateRequest::read_long(text, bounds)) {
        return answer(&app, head, &value, request, arrived).await;
    }
    let value = received.posted(&app)?;
    let body = generation::arrive(&app, head, Api::Generate, Cow::Owned(value))?;
    let request = GenerateRequest::parse(&body, bounds)
        .map_err(|fault| app.policy.first_reader.unread(fault))?;
    answer(&app, head, &body, request, arrived).await
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
    request: GenerateRequest,
    arrived: SimTime,
) -> Result<Response<Body>, Fault> {
    let stream = request.stream.unwrap_or(false);
    let given = request.request_id.as_deref();
    let id = prepare::request_id(app.policy.generate_id_prefix, &head.headers, given);
    let params = request.sampling_params.clone();
    let interval = params.stream_interval.unwrap_or(1).max(1) as u32;
    let mut generation = GenerationRequest {
        arrived,
        model: request.model.as_deref(),
        n: params.n,
        max_tokens: params.max_tokens,
        priority: request.priority,
        cache_salt: request.cache_salt.as_deref().map(Into::into),
        hit_threshold: transfer::hit_threshold(app, &head.headers, value),
        ..generation::request(app, head, id)
    };
    let mut protocol = TokensIn {
        app,
        request: &request,
        params,
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
        let render = GenerateStream::new(view);
        return Ok(prepare::stream(app, head, reply, render, interval, guard));
    }
    let body = prepare::whole(reply, move |reply| view.unary(reply)).await?;
    Ok(prepare::unary(app, &head.headers, body))
}

/// What the road asks of a request in tokens.
struct TokensIn<'r> {
    app: &'r Arc<App>,
    request: &'r GenerateRequest,
    params: SamplingParams,
}

impl Protocol for TokensIn<'_> {
    type View = GenerateView;

    fn check_first(&self) -> Result<(), Fault> {
        let stream = self.request.stream.unwrap_or(false);
        if stream && self.request.output_mode == "derender" {
            return Err(Fault::bad_request(
                "output_mode='derender' is not supported with stream=True.",
            ));
        }
        let remote = transfer_params(self.request);
        self.app.policy.prefill(remote, stream)
    }

    async fn prompts(&mut self, _: &Target) -> Result<Vec<Prompt>, Refusal> {
        let ids = self.request.token_ids.0.iter();
        let tokens: Vec<u32> = ids
            .map(|id| u32::try_from(*id).unwrap_or(u32::MAX))
            .collect();
        self.app.policy.generation.fits(&tokens, false)?;
        let mut listed = String::new();
        for (place, id) in tokens.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            // Writing to a string cannot fail.
            let _ = write!(listed, "{comma}{id}");
        }
        Ok(vec![Prompt {
            echo: listed.into(),
            echo_ids: self.app.policy.echo_ids(&tokens),
            tokens,
            media: media::given(self.request.features.as_ref()),
            ..Prompt::default()
        }])
    }

    fn sampling_params(&mut self, budget: i128) -> Result<Box<SamplingParams>, Fault> {
        let mut params = self.params.clone();
        params.max_tokens = Some(budget);
        params.verify(&self.app.policy.generation.defaults.bounds)?;
        Ok(Box::new(params))
    }

    fn view(&mut self, ready: &Prepared) -> (GenerateView, Transfer) {
        let (app, request, prompt) = (self.app, self.request, &ready.prompts[0]);
        let options = request.stream_options.as_ref();
        let wants = |flag: Option<bool>| flag.unwrap_or(false);
        let shape = Shape {
            usage: options.is_some_and(|o| wants(o.include_usage)),
            continuous_usage: options.is_some_and(|o| wants(o.continuous_usage_stats)),
            return_token_ids: request.return_token_ids.unwrap_or(false),
            tokens_as_ids: None,
        };
        let mut view = prepare::view(app, &shape, ready);
        view.logprobs = ready.params.logprobs.map(|top| prepare::top(app, top));
        let remote = transfer_params(request);
        let transfer = transfer::terms(app, &mut view, remote, &ready.prompts);
        let view = GenerateView {
            mode: request.output_mode.as_str().into(),
            prompt: prompt.tokens.as_slice().into(),
            placeholders: match media::placeholders(&prompt.media) {
                serde_json::Value::Null => None,
                places => Some(places.to_string().into()),
            },
            prompt_logprobs: ready
                .params
                .prompt_logprobs
                .map(|top| prepare::top(app, top)),
            weight_version: app.weight_version.load_full(),
            form: TokensForm::of(app.policy.answers),
            ec_transfer_params: media::encoded(app, &prompt.media),
            view,
        };
        (view, transfer)
    }
}
