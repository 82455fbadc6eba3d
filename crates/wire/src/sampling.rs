//! Sampling parameters of a request, with all defaults applied.
//!
//! Source: `vllm/sampling_params.py`, `SamplingParams`.

use serde_json::{Map, Value};
use vllm_sim_python as python;

use super::bounds::RequestBounds;
use super::fault::Fault;
use super::limits::Limits;
use super::openai::shared::{RepetitionDetection, StructuredOutputs, THINKING_BUDGET};
use super::schema::{
    ANY_LENGTH, FLOAT, INT, RequestField, STR, Schema, ValidatorError, wire_model,
};

/// Temperature below which sampling is greedy.
pub const GREEDY_TEMPERATURE: f64 = 1e-5;

/// Logit bias per token id, in the order of the request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenBias(pub Vec<(i128, f64)>);

impl RequestField for TokenBias {
    const SCHEMA: Schema = Schema::Dict(&INT, &FLOAT);

    fn read(value: &Value) -> Option<Self> {
        let pairs = value.as_object()?.iter();
        pairs
            .map(|(id, bias)| Some((id.trim().replace('_', "").parse().ok()?, f64::read(bias)?)))
            .collect::<Option<_>>()
            .map(Self)
    }
}

/// A string or a list of strings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StringOrList(pub Vec<String>);

impl RequestField for StringOrList {
    const SCHEMA: Schema = Schema::Union(&[STR, Schema::List(&STR, ANY_LENGTH)]);

    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(one) => Some(Self(vec![one.clone()])),
            value => Vec::read(value).map(Self),
        }
    }
}

wire_model! {
    default
    /// Sampling parameters of one prompt.
    ///
    /// In a request body they are vLLM's own class, so its checks run while the body is parsed.
    pub struct SamplingParams: TypedDict "SamplingParams" within verified {
        /// Number of choices.
        n: i128 = 1,
        /// Presence penalty, -2 to 2.
        presence_penalty: f64 = 0.0,
        /// Frequency penalty, -2 to 2.
        frequency_penalty: f64 = 0.0,
        /// Repetition penalty, above 0; 1 is neutral.
        repetition_penalty: f64 = 1.0,
        /// Sampling temperature, 0 to 2; 0 is greedy.
        temperature: f64 = 1.0,
        /// Whether to apply the engine's watermark.
        watermarking: Option<bool> = None,
        /// Nucleus sampling threshold, above 0 and at most 1.
        top_p: f64 = 1.0,
        /// Number of most likely tokens to sample from; 0 or -1 for all.
        top_k: i128 = 0,
        /// Minimum probability relative to the most likely token, 0 to 1.
        min_p: f64 = 0.0,
        /// Sampling seed; -1 for none.
        seed: Option<i128> = None,
        /// Stop strings.
        stop: Option<StringOrList> = None,
        /// Stop token ids.
        stop_token_ids: Option<Vec<i128>> = None,
        /// Whether to generate past the end-of-sequence token.
        ignore_eos: bool = false,
        /// Maximum number of tokens to generate; null allows the rest of the context.
        max_tokens: Option<i128> = Some(16),
        /// Minimum number of tokens before the reply may stop.
        min_tokens: i128 = 0,
        /// Number of alternatives to return per token; -1 for the whole vocabulary.
        logprobs: Option<i128> = None,
        /// Number of alternatives per prompt token; -1 for the whole vocabulary.
        prompt_logprobs: Option<i128> = None,
        /// Token ids to score for each prompt position.
        prompt_logprob_token_ids: Option<Vec<Vec<i128>>> = None,
        /// First prompt position to score.
        prompt_logprob_start: Option<i128> = None,
        /// Token ids to return log probabilities for.
        logprob_token_ids: Option<Vec<i128>> = None,
        /// Whether the engine keeps log probabilities in vLLM's flat format.
        flat_logprobs: bool = false,
        /// Whether to convert tokens to text.
        detokenize: bool = true,
        /// Whether to omit special tokens from the text.
        skip_special_tokens: bool = true,
        /// Whether to put spaces between special tokens.
        spaces_between_special_tokens: bool = true,
        /// Whether to keep the stop string in the output.
        include_stop_str_in_output: bool = false,
        /// Output mode: 0 cumulative, 1 delta, 2 only the final output.
        output_kind: i128 [Schema::IntEnum(&[0, 1, 2])] = 0,
        /// Number of tokens per stream chunk.
        stream_interval: Option<i128> = None,
        /// Whether vLLM may use the parameters without a copy; has no effect here.
        skip_clone: bool = false,
        /// Number of characters that vLLM holds back to find stop strings; has no effect here.
        output_text_buffer_length: i128 = 0,
        /// Structured-output constraint.
        structured_outputs: Option<StructuredOutputs> = None,
        /// Logit bias by token id.
        logit_bias: Option<TokenBias> = None,
        /// Token ids that sampling is restricted to.
        allowed_token_ids: Option<Vec<i128>> = None,
        /// Custom arguments of extensions and connectors.
        extra_args: Option<Map<String, Value>> = None,
        /// Strings that the reply must not contain.
        bad_words: Option<Vec<String>> = None,
        /// Whether to skip prefix-cache lookups.
        skip_reading_prefix_cache: Option<bool> = None,
        /// Maximum number of reasoning tokens.
        thinking_token_budget: Option<i128> = None,
        /// Stops the reply when it repeats itself.
        repetition_detection: Option<RepetitionDetection> = None,
        /// Number of leading prompt tokens to omit from the expert-routing data.
        routed_experts_prompt_start: i128 = 0,
        /// Token ids to emit instead of sampled ones.
        trace_decode_token_ids: Option<Vec<i128>> = None,
    }
}

/// Server defaults for unset parameters (the generation config).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SamplingDefaults {
    /// Default of the [`SamplingParams`] field of the same name.
    pub temperature: Option<f64>,
    /// Default of the [`SamplingParams`] field of the same name.
    pub top_p: Option<f64>,
    /// Default of the [`SamplingParams`] field of the same name.
    pub top_k: Option<i128>,
    /// Default of the [`SamplingParams`] field of the same name.
    pub min_p: Option<f64>,
    /// Default of the [`SamplingParams`] field of the same name.
    pub repetition_penalty: Option<f64>,
    /// Default of the [`SamplingParams`] field of the same name.
    pub presence_penalty: Option<f64>,
    /// Default of the [`SamplingParams`] field of the same name.
    pub frequency_penalty: Option<f64>,
    /// Maximum number of tokens to generate.
    pub max_tokens: Option<i128>,
    /// Default of the [`SamplingParams`] field of the same name.
    pub skip_special_tokens: Option<bool>,
    /// Further stop token ids.
    pub stop_token_ids: Vec<i128>,
    /// Limits of one request.
    pub bounds: RequestBounds,
}

/// Sampling parameters before the output budget is known.
#[derive(Debug, Clone, Default)]
pub struct SamplingRequest {
    /// Sampling parameters; [`Self::with_budget`] sets `max_tokens`.
    pub params: Box<SamplingParams>,
    /// Output limit of the request.
    pub limit: OutputLimit,
    /// Checks to run on the parameters.
    pub checks: SamplingChecks,
}

/// Output limit, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputLimit {
    /// The remaining context.
    #[default]
    Budget,
    /// A fixed number of tokens, independent of the remaining context.
    Exactly(i128),
}

/// Checks of sampling parameters before the request reaches the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SamplingChecks {
    /// All checks of `SamplingParams._verify_args`.
    #[default]
    All,
    /// No checks: a front end has run them, or upstream has none (beam search).
    None,
}

impl SamplingRequest {
    /// Returns the parameters for an output of at most `budget` tokens.
    ///
    /// # Errors
    /// 400 for a value out of range.
    pub fn with_budget(
        self,
        budget: i128,
        bounds: &RequestBounds,
    ) -> Result<Box<SamplingParams>, Fault> {
        let mut params = self.params;
        params.max_tokens = Some(match self.limit {
            OutputLimit::Budget => budget,
            OutputLimit::Exactly(tokens) => tokens,
        });
        if self.checks == SamplingChecks::All {
            params.verify(bounds)?;
        }
        Ok(params)
    }
}

impl From<SamplingParams> for SamplingRequest {
    fn from(params: SamplingParams) -> Self {
        Self {
            params: Box::new(params),
            ..Self::default()
        }
    }
}

/// Returns the number of tokens that may be generated: the remaining context, or less if the client
/// asks for less.
///
/// Source: `get_max_tokens` of `vllm/entrypoints/serve/utils/api_utils.py`.
pub fn output_budget(
    limits: &Limits,
    asked: Option<i128>,
    prompt_tokens: usize,
    defaults: &SamplingDefaults,
) -> i128 {
    let room = i128::from(limits.max_model_len) - prompt_tokens as i128;
    asked
        .or(defaults.max_tokens)
        .map_or(room, |asked| asked.min(room))
}

/// Converts `logit_bias` of an OpenAI request: keys to token ids, values clamped to -100..100.
///
/// # Errors
/// 400 that names the keys that are not integers.
pub(crate) fn token_bias<'b>(
    bias: impl IntoIterator<Item = (&'b String, &'b f64)> + Clone,
) -> Result<TokenBias, Fault> {
    let id = |text: &str| i128::read(&super::lax::integer(text)?);
    let bad: Vec<Value> = bias
        .clone()
        .into_iter()
        .filter(|(key, _)| id(key).is_none())
        .map(|(key, _)| Value::from(key.as_str()))
        .collect();
    if !bad.is_empty() {
        let keys = python::repr(&Value::Array(bad));
        return Err(Fault::value(
            format_args!(
                "logit_bias contains key(s) that cannot be converted to integer token IDs: {keys}"
            ),
            "logit_bias",
            &keys,
        ));
    }
    // `max(-100.0, nan)` is -100.0 in Python.
    let clamped = |bias: f64| {
        if bias.is_nan() {
            -100.0
        } else {
            bias.clamp(-100.0, 100.0)
        }
    };
    let pairs = bias
        .into_iter()
        .filter_map(|(key, bias)| Some((id(key)?, clamped(*bias))));
    Ok(TokenBias(pairs.collect()))
}

/// Mirrors `SamplingParams.__post_init__` for parameters inside a request body.
fn verified(map: &Map<String, Value>, bounds: &RequestBounds) -> Result<(), ValidatorError> {
    if let Some(budget) = map.get("thinking_token_budget")
        && let Schema::Before(check, _) = THINKING_BUDGET
    {
        check(budget)?;
    }
    match SamplingParams::read(&Value::Object(map.clone())) {
        Some(mut params) => params.verify(bounds).map_err(ValidatorError::Fault),
        None => Ok(()),
    }
}
