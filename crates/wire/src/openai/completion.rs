//! `POST /v1/completions`: the request.
//!
//! Source: `vllm/entrypoints/openai/completion/protocol.py`, `CompletionRequest`.

use std::borrow::Cow;

use serde_json::{Map, Value};
use vllm_sim_python::Py;

use super::shared::{
    CACHE_SALT, ExtraArgs, LogitBias, MM_PAYLOAD, POSITIVE, RepetitionDetection, ResponseFormat,
    SIDE, Stop, StreamOptions, StructuredOutputs, THINKING_BUDGET, TRUNCATE,
};
use super::validators::{self, Body, ValidatorResult, given, truthy};
use crate::bounds::RequestBounds;
use crate::check;
use crate::fault::Fault;
use crate::long_ids;
use crate::schema::{ANY_LENGTH, INT, STR, Schema, Wire, int_from, wire_model};

/// Tokens generated when the request does not say.
pub const DEFAULT_MAX_TOKENS: i128 = 16;

/// One prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// To be tokenized.
    Text(String),
    /// Token ids as they are.
    Tokens(Vec<i64>),
}

/// Token ids as a client may send them: any integers, the ends of 64 bits for longer ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenIds(pub Vec<i64>);

impl Wire for TokenIds {
    const SCHEMA: Schema = Schema::List(&INT, ANY_LENGTH);

    fn read(value: &Value) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "clamped")]
        let id =
            |id: &Value| i128::read(id).map(|id| id.clamp(i64::MIN.into(), i64::MAX.into()) as i64);
        value
            .as_array()?
            .iter()
            .map(id)
            .collect::<Option<_>>()
            .map(Self)
    }
}

/// What stands under `prompt`: a text, token ids, or a list of either.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prompts(pub Vec<Prompt>);

impl Wire for Prompts {
    const SCHEMA: Schema = Schema::Union(&[
        Schema::List(&int_from(0), ANY_LENGTH),
        Schema::List(&Schema::List(&int_from(0), ANY_LENGTH), ANY_LENGTH),
        STR,
        Schema::List(&STR, ANY_LENGTH),
    ]);

    fn read(value: &Value) -> Option<Self> {
        let prompts = match value {
            Value::String(text) => vec![Prompt::Text(text.clone())],
            Value::Array(items) => match items.first() {
                None => Vec::new(),
                Some(Value::String(_)) => items
                    .iter()
                    .map(|text| String::read(text).map(Prompt::Text))
                    .collect::<Option<_>>()?,
                Some(Value::Array(_)) => items
                    .iter()
                    .map(|ids| TokenIds::read(ids).map(|ids| Prompt::Tokens(ids.0)))
                    .collect::<Option<_>>()?,
                Some(_) => vec![Prompt::Tokens(TokenIds::read(value)?.0)],
            },
            _ => return None,
        };
        Some(Self(prompts))
    }
}

wire_model! {
    /// A completion request. Absent fields have upstream's defaults; unknown ones are ignored.
    pub struct CompletionRequest: Wrapped "CompletionRequest" before [
        prompt_given,
        validators::stream_options,
        logprobs,
        structured_outputs,
        validators::response_format,
        null_max_tokens,
        validators::cache_salt,
        validators::mm_payload_alias,
    ] {
        /// Served name; null or empty for the base model.
        model: Option<String> = None,
        /// What to continue.
        prompt: Option<Prompts> = None,
        /// Whether the prompt is repeated before the reply.
        echo: Option<bool> = Some(false),
        /// -2 to 2.
        frequency_penalty: Option<f64> = None,
        /// Bias per token id.
        logit_bias: Option<LogitBias> = None,
        /// Alternatives per token; -1 for the whole vocabulary.
        logprobs: Option<i128> = None,
        /// Most tokens to generate.
        max_tokens: Option<i128> = Some(DEFAULT_MAX_TOKENS),
        /// Choices per prompt.
        n: i128 = 1,
        /// -2 to 2.
        presence_penalty: Option<f64> = None,
        /// Seed of the sampler; -1 for none.
        seed: Option<i64> = None,
        /// Texts that end the reply.
        stop: Option<Stop> = Some(Stop::default()),
        /// Server-sent events instead of one body.
        stream: Option<bool> = Some(false),
        /// Usage in streams.
        stream_options: Option<StreamOptions> = None,
        /// Text after the gap; only for fill-in-the-middle models.
        suffix: Option<String> = None,
        /// 0 to 2.
        temperature: Option<f64> = None,
        /// Above 0, up to 1.
        top_p: Option<f64> = None,
        /// Ignored.
        user: Option<String> = None,
        /// Beam search instead of sampling.
        use_beam_search: bool = false,
        /// 0 or -1 for off.
        top_k: Option<i128> = None,
        /// 0 to 1.
        min_p: Option<f64> = None,
        /// Above 0.
        repetition_penalty: Option<f64> = None,
        /// Whether the engine's watermark applies.
        watermarking: Option<bool> = None,
        /// Of beam search.
        length_penalty: f64 = 1.0,
        /// Tokens that end the reply.
        stop_token_ids: Option<Vec<i128>> = Some(Vec::new()),
        /// Whether the reply keeps the stop text.
        include_stop_str_in_output: bool = false,
        /// Whether the end token does not end the reply.
        ignore_eos: bool = false,
        /// Tokens before anything may end the reply.
        min_tokens: i128 = 0,
        /// Whether special tokens stay out of the text; the server's default when null.
        skip_special_tokens: Option<bool> = None,
        /// Blanks between special tokens.
        spaces_between_special_tokens: bool = true,
        /// Tokens of the prompt to keep; -1 for all that fit.
        truncate_prompt_tokens: Option<i64> [TRUNCATE] = None,
        /// Which end of the prompt is cut: `left` or `right`.
        truncation_side: Option<String> [SIDE] = None,
        /// Tokens the reply may have.
        allowed_token_ids: Option<Vec<i128>> = None,
        /// Alternatives per prompt token; -1 for the whole vocabulary.
        prompt_logprobs: Option<i128> = None,
        /// Tokens whose log probability is wanted.
        logprob_token_ids: Option<Vec<i128>> = None,
        /// Texts the reply may not have.
        bad_words: Vec<String> = Vec::new(),
        /// Embeddings instead of a prompt, in base64.
        prompt_embeds: Option<Value> [Schema::Nullable(&Schema::Union(&[
            Schema::Bytes,
            Schema::List(&Schema::Bytes, ANY_LENGTH),
        ]))] = None,
        /// Whether the tokenizer adds special tokens.
        add_special_tokens: bool = true,
        /// Form of the reply.
        response_format: Option<ResponseFormat> = None,
        /// A constraint on the text.
        structured_outputs: Option<StructuredOutputs> = None,
        /// Lower goes first.
        priority: i64 = 0,
        /// Id in the answer; a fresh one when absent.
        request_id: Option<String> [STR] = None,
        /// Identity of the session.
        session_id: Option<String> = None,
        /// Token ids instead of texts in log probabilities.
        return_tokens_as_token_ids: Option<bool> = None,
        /// Token ids beside the text.
        return_token_ids: Option<bool> = None,
        /// Spans of weight versions in the choices.
        return_weight_versions: bool = false,
        /// Prompt tokens left out of the routing data.
        routed_experts_prompt_start: i128 [int_from(0)] = 0,
        /// Offsets of tokens, when rendering.
        return_token_offsets: Option<bool> = Some(false),
        /// What a render answer carries of media: `tensors` or `none`.
        mm_payload: String [MM_PAYLOAD] = "tensors".to_owned(),
        /// Older form of `mm_payload`.
        return_mm_kwargs: Option<bool> = None,
        /// Keeps the prefix cache apart.
        cache_salt: Option<String> [CACHE_SALT] = None,
        /// For the engine's KV connector.
        kv_transfer_params: Option<Map<String, Value>> = None,
        /// For the engine's encoder-cache connector.
        ec_transfer_params: Option<Map<String, Value>> = None,
        /// For extensions.
        vllm_xargs: Option<ExtraArgs> = None,
        /// When to stop because the reply repeats itself.
        repetition_detection: Option<RepetitionDetection> = None,
        /// Most tokens of reasoning.
        thinking_token_budget: Option<i128> [THINKING_BUDGET] = None,
        /// Tokens per chunk.
        stream_interval: Option<i128> [POSITIVE] = None,
    }
}

impl CompletionRequest {
    /// Reads a body whose prompt is a long list of token ids, and all but the prompt as JSON; `None`
    /// for any other body, which may be as good.
    pub fn read_long(text: &[u8], bounds: &RequestBounds) -> Option<(Self, Value)> {
        let (value, ids) = long_ids::split(text, "prompt")?;
        let mut request = Self::parse(&value, bounds).ok()?;
        request.prompt = Some(Prompts(vec![Prompt::Tokens(ids)]));
        Some((request, value))
    }

    /// Reads a body within the bounds of a server.
    ///
    /// # Errors
    /// vLLM's 400 for a body it does not take.
    pub fn parse(value: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        prompt_count(value, bounds)?;
        check::body_within(value, bounds)
    }
}

/// `validate_prompt_list_length`, the first of the class's validators.
fn prompt_count(body: &Value, bounds: &RequestBounds) -> Result<(), Fault> {
    let most = bounds.prompts;
    let too_many = |key: &str, count: usize| {
        Fault::parameter(
            format_args!(
                "{key} list length {count} exceeds the maximum allowed count of {most}. \
                 To increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment \
                 variable."
            ),
            key,
        )
    };
    if let Some(Value::Array(prompts)) = body.get("prompt")
        && prompts.len() > most
        && !matches!(
            Py::of(&prompts[0]),
            Py::Int(_) | Py::BigInt(_) | Py::Bool(_)
        )
    {
        return Err(too_many("prompt", prompts.len()));
    }
    match body.get("prompt_embeds") {
        Some(Value::Array(embeds)) if embeds.len() > most => {
            Err(too_many("prompt_embeds", embeds.len()))
        }
        _ => Ok(()),
    }
}

/// `validate_prompt_and_prompt_embeds`.
fn prompt_given(body: &mut Cow<'_, Body>) -> ValidatorResult {
    let no_prompt = given(body, "prompt").is_none_or(|prompt| prompt == "");
    let no_embeds = given(body, "prompt_embeds")
        .is_none_or(|embeds| embeds.as_array().is_some_and(Vec::is_empty));
    if no_prompt && no_embeds {
        return Err(Fault::parameter(
            "Either prompt or prompt_embeds must be provided and non-empty.",
            "prompt",
        )
        .into());
    }
    Ok(())
}

/// `check_logprobs`.
fn logprobs(body: &mut Cow<'_, Body>) -> ValidatorResult {
    let ids = "logprob_token_ids";
    let refuse = |text: &str, key: &str| Err(Fault::parameter(text, key).into());
    let wanted = truthy(body, ids);
    let beams = truthy(body, "use_beam_search");
    let echo = truthy(body, "echo");
    let logprobs = given(body, "logprobs");
    if wanted && beams {
        return refuse(
            "`logprob_token_ids` is not supported with beam search.",
            ids,
        );
    }
    if beams && echo && logprobs.is_some() {
        return refuse(
            "`echo` with `logprobs` is not supported with beam search because beam search does \
             not compute prompt logprobs.",
            "echo",
        );
    }
    let no_output = body.get("max_tokens").and_then(|max| Py::of(max).number()) == Some(0.0);
    if wanted && echo && no_output {
        return refuse(
            "`logprob_token_ids` is not supported when `echo=True` and `max_tokens=0` because \
             no output tokens are generated.",
            ids,
        );
    }
    if wanted && logprobs.is_none() {
        return refuse(
            "when using `logprob_token_ids`, `logprobs` must be set.",
            ids,
        );
    }
    validators::number_or_absent(body, "prompt_logprobs")?;
    validators::number_or_absent(body, "logprobs")?;
    validators::prompt_logprobs(body)?;
    match given(body, "logprobs") {
        Some(count) => validators::positive_or_minus_one("logprobs", count),
        None => Ok(()),
    }
}

/// `check_structured_outputs_count`.
fn structured_outputs(body: &mut Cow<'_, Body>) -> ValidatorResult {
    let two = Fault::parameter(
        "You can only use one kind of constraints for structured outputs ('json', 'regex' or \
         'choice').",
        "structured_outputs",
    );
    validators::structured_outputs_count(body, two)?;
    validators::structural_tag(body)
}

/// `normalize_null_max_tokens`.
fn null_max_tokens(body: &mut Cow<'_, Body>) -> ValidatorResult {
    if given(body, "max_tokens").is_none() {
        #[expect(clippy::cast_possible_truncation, reason = "16")]
        body.to_mut().insert(
            "max_tokens".to_owned(),
            Value::from(DEFAULT_MAX_TOKENS as i64),
        );
    }
    Ok(())
}
