//! `POST /inference/v1/generate`: token ids in, token ids out.

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::State;
use serde_json::{Map, Value};

use super::generate_render::{GenerateResponseSettings, GenerateStream};
use crate::app::{App, AppState};
use crate::body::RawRequest;
use crate::dialect::ApiEndpoint;
use crate::error::HandlerResult;
use crate::generation::{self, GenerationRequestBody};
use crate::media;
use crate::openai::logprobs;
use crate::openai::response_settings::ResponseSettings;
use crate::request_head::request_id;
use crate::stream;
use crate::transfer::{self, RequestKvTransfer};
use vllm_sim_service::prompt::{PromptSource, PromptTextOrTokenIds, PromptTextsOrTokenIds};
use vllm_sim_service::{GenerationJob, GenerationRequest, PrefixCacheReadRules, RejectedRequest};
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::fault::Fault;
use vllm_sim_wire::vllm::GenerateRequest;

impl GenerationRequestBody for GenerateRequest {
    const ENDPOINT: ApiEndpoint = ApiEndpoint::Generate;
    const TEXT_MEMBERS: &[&str] = &[];

    fn read(body: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        Self::parse_generate_request(body, bounds)
    }

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn check_before_model_lookup(&self) -> Result<(), Fault> {
        if self.stream.unwrap_or(false) && self.output_mode == "derender" {
            return Err(Fault::bad_request(
                "output_mode='derender' is not supported with stream=True.",
            ));
        }
        Ok(())
    }
}

pub(crate) async fn create_generation(
    State(app): AppState,
    mut received: RawRequest,
) -> HandlerResult {
    let bounds = &app.rules.defaults.bounds;
    let text = received.raw_body_for_schema_check(&app);
    if let Some((request, value)) =
        text.and_then(|text| GenerateRequest::parse_long_prompt_and_body(text, bounds))
    {
        return answer_generate(&app, &received, &value, Box::new(request)).await;
    }
    let value = received.parse_dialect_json(&app)?;
    let body = Cow::Borrowed(&value);
    let request = generation::parse_generation_request_body(&app, &received, body)?;
    answer_generate(&app, &received, &value, request).await
}

/// Returns the `kv_transfer_params` of a generate request: from its root, or from `extra_args` as
/// vLLM's front end sends them.
fn kv_transfer_params(request: &GenerateRequest) -> Option<&Map<String, Value>> {
    let hidden = || {
        let extra = request.sampling_params.extra_args.as_ref()?;
        extra.get("kv_transfer_params")?.as_object()
    };
    request.kv_transfer_params.as_ref().or_else(hidden)
}

async fn answer_generate(
    app: &Arc<App>,
    received: &RawRequest,
    value: &Value,
    mut request: Box<GenerateRequest>,
) -> HandlerResult {
    let lora = generation::resolve_request_model(app, received, &*request)?;
    let stream = request.stream.unwrap_or(false);
    let given = request.request_id.as_deref();
    let id = request_id(app.dialect.properties().generate_id_prefix, &received.headers, given);
    let terms = RequestKvTransfer::read_kv_transfer_params(app, &id, kv_transfer_params(&request));
    let params = request.sampling_params.clone();
    let interval = generation::min_tokens_per_event(params.stream_interval);
    let generation = GenerationRequest {
        n: params.n,
        max_tokens: params.max_tokens,
        sampling: Ok(Some(Box::new(params))).into(),
        priority: request.priority,
        transfer: terms.transfer.clone(),
        kv_labels: generation::kv_block_labels(received, request.cache_salt.as_deref(), None, None),
        prefix_cache: PrefixCacheReadRules::with_hit_threshold(transfer::cache_hit_threshold(
            app,
            &received.headers,
            value,
        )),
        prompts: PromptSource::Inputs(PromptTextsOrTokenIds {
            inputs: vec![PromptTextOrTokenIds::Tokens {
                ids: std::mem::take(&mut request.token_ids.0),
                text: None,
                media: media::parse_media_features(request.features.as_ref()),
            }],
            ..PromptTextsOrTokenIds::default()
        }),
        ..generation::new_generation_request(app, received, id, request.model.as_deref())
    };
    let (reply, job) = match generation::start_generation(app, lora, generation).await {
        Ok(started) => started,
        Err(RejectedRequest { error, late: Some(_) }) if stream => {
            return Ok(stream::failed_stream_response(&error));
        }
        Err(refused) => return Err(refused.error),
    };
    let mut view = generate_view(app, &request, &job);
    view.view.kv_transfer_params = terms.response_kv_transfer_params(app, &job.prompts);
    drop((job, request));
    if stream {
        let render = GenerateStream::new(view);
        return Ok(stream::stream_reply(app, received, reply, render, interval).await);
    }
    let body =
        generation::render_finished_reply(reply, move |reply| view.generate_body_json(reply))
            .await?;
    Ok(generation::json_response_with_load_header(app, &received.headers, body))
}

fn generate_view(
    app: &App,
    request: &GenerateRequest,
    job: &GenerationJob,
) -> GenerateResponseSettings {
    let prompt = &job.prompts[0];
    let options = request.stream_options.as_ref();
    let wants = |flag: Option<bool>| flag.unwrap_or(false);
    let mut view = ResponseSettings::new(app, job);
    view.set_usage_reporting((
        options.is_some_and(|o| wants(o.include_usage)),
        options.is_some_and(|o| wants(o.continuous_usage_stats)),
    ));
    view.return_token_ids = request.return_token_ids.unwrap_or(false);
    view.logprobs = job.params.logprobs.map(|top| logprobs::logprob_count(app, top));
    GenerateResponseSettings {
        mode: request.output_mode.as_str().into(),
        prompt: prompt.tokens.as_slice().into(),
        placeholders: match media::media_placeholders_json(&prompt.media) {
            Value::Null => None,
            places => Some(places.to_string().into()),
        },
        prompt_logprobs: job.params.prompt_logprobs.map(|top| logprobs::logprob_count(app, top)),
        weight_version: app.weight_version.load_full(),
        fields: app.dialect.properties().response_field_set,
        ec_transfer_params: app
            .settings
            .is_encoder
            .then(|| media::encoder_transfer_params_json(&prompt.media))
            .flatten(),
        view,
    }
}
