//! Converts gRPC messages to generation requests.

use super::parts::GrpcState;
use super::proto::generate_request::Input;
use super::proto::sampling_params::Constraint as Asked;
use super::proto::{self, GenerateRequest, TokenizedInput};
use vllm_sim_schema_sampler::Constraint;
use vllm_sim_service::prompt::{
    PromptSource, PromptTextOrTokenIds, PromptTextsOrTokenIds, PromptTruncation,
};
use vllm_sim_service::{
    GenerationRequest, OutputTokenBudget, RequestContext, run_blocking_if_large,
};
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::openai::sampling_fields::{StopStrings, TokenLogitBias};
use vllm_sim_wire::{SamplingParams, ServerLimits};

/// Properties of a gRPC call that its message does not contain, such as the requested rank and the
/// trace context.
pub(super) struct GrpcCallMetadata {
    pub(super) rank: Option<i64>,
    pub(super) trace: Option<(Box<str>, Option<Box<str>>)>,
    /// Metadata of the gRPC call, which conditions of scripted replies examine.
    pub(super) headers: Box<[(Box<str>, Box<str>)]>,
    pub(super) context: RequestContext,
}

/// Converts a `GenerateRequest` message to a generation request.
pub(super) fn to_generation_request(
    parts: &GrpcState,
    limits: &ServerLimits,
    asked: GenerateRequest,
    metadata: GrpcCallMetadata,
) -> GenerationRequest {
    let id = match asked.request_id.as_str() {
        "" => format!("grpc-{}", uuid::Uuid::new_v4().simple()),
        given => given.to_owned(),
    };
    let sampling = asked.sampling_params.unwrap_or_default();
    let params = to_sampling_params(&sampling);
    let keep = sampling.truncate_prompt_tokens.map(i64::from);
    let validation =
        limits.check_output_and_truncation_limits("max_tokens", params.max_tokens, keep);
    GenerationRequest {
        id: id.into(),
        arrived: parts.service.now(),
        prompts: PromptSource::Inputs(PromptTextsOrTokenIds {
            inputs: vec![match asked.input {
                Some(Input::Tokenized(input)) => read_prompt(input),
                Some(Input::Text(text)) => PromptTextOrTokenIds::Text(text),
                None => read_prompt(TokenizedInput::default()),
            }],
            add_special_tokens: true,
            truncation: PromptTruncation { keep, ..PromptTruncation::default() },
        }),
        n: params.n,
        max_tokens: params.max_tokens,
        room: OutputTokenBudget::PerPrompt,
        validation: validation.into(),
        sampling: Ok(Some(Box::new(params))).into(),
        constraint: sampling.constraint.and_then(read_constraint),
        rank: metadata.rank,
        trace: metadata.trace,
        headers: metadata.headers,
        context: metadata.context,
        ..GenerationRequest::default()
    }
}

/// Returns the prompt of a gRPC message, whose token ids take precedence over its text.
fn read_prompt(input: TokenizedInput) -> PromptTextOrTokenIds {
    let TokenizedInput { original_text: text, input_ids: ids } = input;
    if ids.is_empty() && !text.is_empty() {
        return PromptTextOrTokenIds::Text(text);
    }
    PromptTextOrTokenIds::Tokens {
        text: (ids.is_empty() || !text.is_empty()).then(|| text.into()),
        ids: ids.into_iter().map(i64::from).collect(),
        media: Vec::new(),
    }
}

/// Returns the token ids of a gRPC message's prompt: the ids in the message, or else the ids of the
/// message's text.
pub(super) async fn read_prompt_token_ids(parts: &GrpcState, input: TokenizedInput) -> Vec<u32> {
    let TokenizedInput { original_text: text, input_ids: ids } = input;
    if !ids.is_empty() || text.is_empty() {
        return ids;
    }
    let tokenizer = parts.service.generator.tokenizer().clone();
    let size = text.len();
    let encode = move || tokenizer.encode(&text, SpecialTokenHandling::With);
    run_blocking_if_large(size, encode).await
}

/// Returns the sampling parameters of a gRPC message; as in vLLM, 0 means unset in some fields.
///
/// Source: `_sampling_params_from_proto` of `vllm/entrypoints/grpc_server.py`.
fn to_sampling_params(asked: &proto::SamplingParams) -> SamplingParams {
    let or_one = |value: f32| if value == 0.0 { 1.0 } else { f64::from(value) };
    let mut biases: Vec<_> = asked.logit_bias.iter().collect();
    biases.sort_unstable_by_key(|(id, _)| **id);
    let biases = biases.into_iter().map(|(id, bias)| (i128::from(*id), f64::from(*bias)));
    SamplingParams {
        temperature: asked.temperature.map_or(1.0, f64::from),
        top_p: or_one(asked.top_p),
        top_k: asked.top_k.into(),
        min_p: asked.min_p.into(),
        frequency_penalty: asked.frequency_penalty.into(),
        presence_penalty: asked.presence_penalty.into(),
        repetition_penalty: or_one(asked.repetition_penalty),
        max_tokens: asked.max_tokens.map(i128::from),
        min_tokens: asked.min_tokens.into(),
        stop: (!asked.stop.is_empty()).then(|| StopStrings(asked.stop.clone())),
        stop_token_ids: Some(asked.stop_token_ids.iter().map(|id| i128::from(*id)).collect()),
        ignore_eos: asked.ignore_eos,
        n: asked.n.max(1).into(),
        logprobs: asked.logprobs.map(i128::from),
        prompt_logprobs: asked.prompt_logprobs.map(i128::from),
        seed: asked.seed.map(i128::from),
        include_stop_str_in_output: asked.include_stop_str_in_output,
        logit_bias: (!asked.logit_bias.is_empty()).then(|| TokenLogitBias(biases.collect())),
        skip_special_tokens: asked.skip_special_tokens,
        // Only stop strings need the text.
        detokenize: !asked.stop.is_empty(),
        ..SamplingParams::default()
    }
}

/// Returns the structured-output constraint of a gRPC message.
fn read_constraint(asked: Asked) -> Option<Constraint> {
    let parsed =
        |text: String| serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text));
    Some(match asked {
        Asked::JsonObject(false) => return None,
        Asked::JsonObject(true) => Constraint::JsonObject,
        Asked::JsonSchema(schema) => Constraint::Json(schema.into()),
        Asked::Regex(regex) => Constraint::Regex(regex),
        Asked::Grammar(grammar) => Constraint::Grammar(grammar),
        Asked::StructuralTag(tag) => Constraint::StructuralTag(parsed(tag)),
        Asked::Choice(choice) => Constraint::Choice(choice.choices),
    })
}
