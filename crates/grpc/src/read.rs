//! From messages to a job, or to a refusal in vLLM's words.

use std::sync::Arc;

use tonic::Status;

use super::proto::generate_request::Input;
use super::proto::sampling_params::Constraint as Asked;
use super::proto::{self, GenerateRequest, TokenizedInput};
use super::{Parts, status};
use vllm_sim_schema_sampler::{Constraint, compile};
use vllm_sim_service::generate::request::{Bias, Prompt, Stops, Target};
use vllm_sim_service::{Content, Job, Transfer};
use vllm_sim_tokenizer::Tokenizer;
use vllm_sim_wire::bounds::RequestBounds;
use vllm_sim_wire::sampling::{GREEDY, Texts, TokenBias, output_budget};
use vllm_sim_wire::{Fault, Limits, SamplingDefaults, SamplingParams, Version};

/// Text above which encoding leaves the async threads, in bytes.
const LONG: usize = 16 * 1024;

/// What is wanted.
///
/// # Errors
/// `INVALID_ARGUMENT` with vLLM's text for what cannot be served.
pub(super) async fn job(parts: &Parts, request: GenerateRequest) -> Result<Job, Status> {
    let arrived = parts.service.now();
    let asked = request.sampling_params.unwrap_or_default();
    let input = match request.input {
        Some(Input::Tokenized(input)) => input,
        Some(Input::Text(original_text)) => TokenizedInput {
            original_text,
            input_ids: Vec::new(),
        },
        None => TokenizedInput::default(),
    };
    let (mut tokens, echo) = tokens(parts, input).await;
    let refuse = |fault: Fault| status::fault(&fault);
    let limits = limits(parts);
    let bounds = RequestBounds {
        n: parts.config.api.limits.n.into(),
        ..RequestBounds::default()
    };
    let mut params = params(&asked);
    let truncate = asked.truncate_prompt_tokens.map(i64::from);
    limits
        .asked("max_tokens", params.max_tokens, truncate)
        .map_err(refuse)?;
    keep(&mut tokens, truncate, limits.max_model_len);
    limits.prompt_tokens(tokens.len()).map_err(refuse)?;
    let budget = output_budget(
        &limits,
        params.max_tokens,
        tokens.len(),
        &SamplingDefaults::default(),
    );
    params.max_tokens = Some(budget);
    params.verify(&bounds).map_err(refuse)?;
    params.verify_engine(&limits).map_err(refuse)?;
    limits
        .prompt_ids(&tokens.iter().map(|id| i64::from(*id)).collect::<Vec<_>>())
        .map_err(refuse)?;
    let id = match request.request_id.as_str() {
        "" => format!("grpc-{}", uuid::Uuid::new_v4().simple()),
        given => given.to_owned(),
    };
    Ok(Job {
        id: id.into(),
        target: Target::Base,
        prompts: vec![Prompt {
            tokens,
            echo,
            media: Vec::new(),
            text_hash: None,
            heard: None,
        }],
        n: small(params.n),
        max_tokens: asked.max_tokens,
        limited: asked.max_tokens.is_some(),
        seed: asked.seed.filter(|seed| *seed != -1).map(i64::from),
        greedy: params.temperature < GREEDY,
        stops: Stops {
            strings: asked.stop,
            include: asked.include_stop_str_in_output,
            ids: asked.stop_token_ids,
            ignore_eos: asked.ignore_eos,
            min_tokens: asked.min_tokens,
        },
        bias: Bias {
            logits: bias(&asked.logit_bias),
            ..Bias::default()
        },
        content: content(asked.constraint)?,
        reasoning: None,
        skip_special_tokens: asked.skip_special_tokens,
        priority: 0,
        rank: None,
        transfer: Transfer::Local,
        cache_salt: None,
        hit_threshold: None,
        skip_cache_read: asked.prompt_logprobs.is_some(),
        tail: std::time::Duration::ZERO,
        trace: None,
        sampling: (params.temperature, params.top_p),
        arrived,
        settings: None,
    })
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
    let tokens = if text.len() < LONG {
        encode()
    } else {
        match tokio::task::spawn_blocking(encode).await {
            Ok(tokens) => tokens,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    };
    (tokens, text)
}

/// What the server allows.
fn limits(parts: &Parts) -> Limits {
    let config = &parts.config;
    let tokenizer = parts.service.generator.tokenizer();
    Limits {
        max_model_len: config.model.max_model_len,
        max_logprobs: config.api.max_logprobs.map_or(-1, i64::from),
        // The simulated tokenizer knows every id.
        vocab_size: matches!(**tokenizer, Tokenizer::Hf(_)).then(|| tokenizer.vocab_size()),
        version: Version::of(&config.model.vllm_version),
        speculative: config.engine.speculative.is_some(),
        ..Limits::default()
    }
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
        // Stop texts need text.
        detokenize: !asked.stop.is_empty(),
        ..SamplingParams::default()
    }
}

fn bias(asked: &std::collections::HashMap<i32, f32>) -> Vec<(u32, f64)> {
    let known = asked
        .iter()
        .filter_map(|(id, bias)| Some((u32::try_from(*id).ok()?, f64::from(*bias))));
    let mut bias: Vec<_> = known.collect();
    bias.sort_unstable_by_key(|(id, _)| *id);
    bias
}

/// What the answer is made of.
fn content(asked: Option<Asked>) -> Result<Content, Status> {
    let parsed =
        |text: String| serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text));
    let constraint = match asked {
        None | Some(Asked::JsonObject(false)) => return Ok(Content::Text),
        Some(Asked::JsonObject(true)) => Constraint::JsonObject,
        Some(Asked::JsonSchema(schema)) => Constraint::Json(schema.into()),
        Some(Asked::Regex(regex)) => Constraint::Regex(regex),
        Some(Asked::Grammar(grammar)) => Constraint::Grammar(grammar),
        Some(Asked::StructuralTag(tag)) => Constraint::StructuralTag(parsed(tag)),
        Some(Asked::Choice(choice)) => Constraint::Choice(choice.choices),
    };
    match compile(&constraint) {
        Ok(compiled) => Ok(Content::Constrained(Arc::new(compiled))),
        Err(error) => Err(Status::invalid_argument(error.to_string())),
    }
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

fn small(n: i128) -> u32 {
    u32::try_from(n.max(0)).unwrap_or(u32::MAX)
}
