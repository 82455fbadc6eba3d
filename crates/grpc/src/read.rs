//! From messages to what the road of requests asks.

use std::sync::Arc;

use super::parts::Parts;
use super::proto::generate_request::Input;
use super::proto::sampling_params::Constraint as Asked;
use super::proto::{self, GenerateRequest, TokenizedInput};
use vllm_sim_config::Config;
use vllm_sim_schema_sampler::Constraint;
use vllm_sim_service::generate::request::{Prompt, Target};
use vllm_sim_service::{
    EngineChecks, GenerationRequest, OutputRoom, Policy, Prepared, Protocol, Refusal,
    RequestFaults, Service, TokenUsage, Transfer, off_thread,
};
use vllm_sim_tokenizer::Tokenizer;
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::sampling::{Texts, TokenBias};
use vllm_sim_wire::{Fault, Limits, SamplingDefaults, SamplingParams, Version};

/// The rules of vLLM's gRPC server: no model to name, no generation config, and admission with the
/// job alone.
pub(super) fn policy(config: &Config, service: &Service) -> Policy {
    let tokenizer = service.generator.tokenizer();
    let limits = Limits {
        max_model_len: config.model.max_model_len,
        max_logprobs: config.api.max_logprobs.map_or(-1, i64::from),
        // The simulated tokenizer knows every id.
        vocab_size: matches!(**tokenizer, Tokenizer::Hf(_)).then(|| tokenizer.vocab_size()),
        version: Version::of(&config.model.vllm_version),
        speculative: config.engine.speculative.is_some(),
        data_parallel_ranks: service.ranks().len() as u32,
        ..Limits::default()
    };
    let defaults = SamplingDefaults {
        bounds: RequestBounds {
            n: config.api.limits.n.into(),
            ..RequestBounds::default()
        },
        ..SamplingDefaults::default()
    };
    Policy::of_token_ids(limits, defaults, config.api.limits.bad_words as usize)
}

/// What the metadata of a call say.
pub(super) struct CallMetadata {
    pub(super) rank: Option<i64>,
    pub(super) trace: Option<(Box<str>, Option<Box<str>>)>,
    pub(super) faults: Arc<RequestFaults>,
    /// Where its tokens are counted; `None`: nobody asks.
    pub(super) usage: Option<Arc<TokenUsage>>,
}

/// What is wanted, and who answers the road's questions about it.
pub(super) fn request<'r>(
    parts: &'r Parts,
    policy: &'r Policy,
    asked: GenerateRequest,
    metadata: CallMetadata,
) -> (GenerationRequest<'static>, TokenCall<'r>) {
    let id = match asked.request_id.as_str() {
        "" => format!("grpc-{}", uuid::Uuid::new_v4().simple()),
        given => given.to_owned(),
    };
    let input = match asked.input {
        Some(Input::Tokenized(input)) => input,
        Some(Input::Text(original_text)) => TokenizedInput {
            original_text,
            input_ids: Vec::new(),
        },
        None => TokenizedInput::default(),
    };
    let sampling = asked.sampling_params.unwrap_or_default();
    let params = params(&sampling);
    let request = GenerationRequest {
        id: id.into(),
        arrived: parts.service.now(),
        model: None,
        n: params.n,
        prompts: 1,
        max_tokens: params.max_tokens,
        room: OutputRoom::PerPrompt,
        checks: EngineChecks::All,
        constraint: sampling.constraint.and_then(constraint),
        tools: None,
        parses_calls: false,
        echo: false,
        reasoning: None,
        priority: 0,
        rank: metadata.rank,
        cache_salt: None,
        hit_threshold: None,
        skip_cache_read: false,
        trace: metadata.trace,
        faults: Some(metadata.faults),
        usage: metadata.usage,
    };
    let call = TokenCall {
        parts,
        policy,
        input,
        params,
        truncate: sampling.truncate_prompt_tokens.map(i64::from),
    };
    (request, call)
}

/// What the road asks of a call.
pub(super) struct TokenCall<'r> {
    parts: &'r Parts,
    policy: &'r Policy,
    input: TokenizedInput,
    params: SamplingParams,
    /// How many of the last tokens are kept.
    truncate: Option<i64>,
}

impl Protocol for TokenCall<'_> {
    type View = ();

    fn validate(&self) -> Result<(), Fault> {
        let limits = &self.policy.limits;
        limits.asked("max_tokens", self.params.max_tokens, self.truncate)
    }

    async fn prompts(&mut self, _: &Target) -> Result<Vec<Prompt>, Refusal> {
        let limits = &self.policy.limits;
        let input = std::mem::take(&mut self.input);
        let (mut tokens, echo) = tokens(self.parts, input).await;
        keep(&mut tokens, self.truncate, limits.max_model_len);
        limits.prompt_tokens(tokens.len())?;
        Ok(vec![Prompt {
            tokens,
            echo: (*echo).into(),
            ..Prompt::default()
        }])
    }

    fn sampling_params(&mut self, budget: i128) -> Result<Box<SamplingParams>, Fault> {
        let mut params = std::mem::take(&mut self.params);
        params.max_tokens = Some(budget);
        params.verify(&self.policy.defaults.bounds)?;
        Ok(Box::new(params))
    }

    fn view(&mut self, _: &Prepared) -> ((), Transfer) {
        ((), Transfer::Local)
    }
}

/// The tokens of an input, and what echo mode says to it. Ids win over the text they came from.
pub(super) async fn tokens(parts: &Parts, input: TokenizedInput) -> (Vec<u32>, Arc<str>) {
    let TokenizedInput {
        original_text: text,
        input_ids: ids,
    } = input;
    if !ids.is_empty() {
        if !text.is_empty() {
            return (ids, text.into());
        }
        let listed: Vec<_> = ids.iter().map(ToString::to_string).collect();
        return (ids, listed.join(",").into());
    }
    if text.is_empty() {
        return (ids, text.into());
    }
    let tokenizer = parts.service.generator.tokenizer().clone();
    let text: Arc<str> = text.into();
    let encoded = text.clone();
    let encode = move || tokenizer.encode(&encoded, true);
    let tokens = off_thread(text.len(), encode).await;
    (tokens, text)
}

/// The parameters as vLLM builds them from the message: 0 is «not said» where it makes no sense.
///
/// Source: `_sampling_params_from_proto` of `vllm/entrypoints/grpc_server.py`.
fn params(asked: &proto::SamplingParams) -> SamplingParams {
    let or_one = |value: f32| if value == 0.0 { 1.0 } else { f64::from(value) };
    let mut biases: Vec<_> = asked.logit_bias.iter().collect();
    biases.sort_unstable_by_key(|(id, _)| **id);
    let biases = biases
        .into_iter()
        .map(|(id, bias)| (i128::from(*id), f64::from(*bias)));
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
        stop: (!asked.stop.is_empty()).then(|| Texts(asked.stop.clone())),
        stop_token_ids: Some(
            asked
                .stop_token_ids
                .iter()
                .map(|id| i128::from(*id))
                .collect(),
        ),
        ignore_eos: asked.ignore_eos,
        n: asked.n.max(1).into(),
        logprobs: asked.logprobs.map(i128::from),
        prompt_logprobs: asked.prompt_logprobs.map(i128::from),
        seed: asked.seed.map(i128::from),
        include_stop_str_in_output: asked.include_stop_str_in_output,
        logit_bias: (!asked.logit_bias.is_empty()).then(|| TokenBias(biases.collect())),
        skip_special_tokens: asked.skip_special_tokens,
        // Stop texts need text.
        detokenize: !asked.stop.is_empty(),
        ..SamplingParams::default()
    }
}

/// What the text has to satisfy.
fn constraint(asked: Asked) -> Option<Constraint> {
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

/// Keeps the last tokens of a prompt: −1 leaves one of the context for the answer.
fn keep(tokens: &mut Vec<u32>, asked: Option<i64>, max_model_len: u32) {
    let Some(asked) = asked else { return };
    let most = (max_model_len as usize).saturating_sub(1);
    let keep = usize::try_from(asked).unwrap_or(most);
    if tokens.len() > keep {
        tokens.drain(..tokens.len() - keep);
    }
}
