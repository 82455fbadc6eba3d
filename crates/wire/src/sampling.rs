//! Sampling parameters of a request, with all defaults applied.
//!
//! Source: `vllm/sampling_params.py`, `SamplingParams`.

use serde_json::{Map, Value};
use vllm_sim_python as python;

use super::bounds::RequestBounds;
use super::fault::Fault;
use super::limits::ServerLimits;
use super::openai::shared_request_fields::{
    RepetitionDetection, StructuredOutputs, THINKING_TOKEN_BUDGET_SCHEMA,
};
use super::schema::{
    ANY_LENGTH, FLOAT, INT, RequestField, STR, Schema, ValidatorError, wire_model,
};

/// Minimum temperature of random sampling; below it, sampling is greedy.
pub const GREEDY_TEMPERATURE: f64 = 1e-5;

/// Logit bias per token id, in the order of the request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenLogitBias(pub Vec<(i128, f64)>);

impl RequestField for TokenLogitBias {
    const SCHEMA: Schema = Schema::Dict(&INT, &FLOAT);

    fn read(value: &Value) -> Option<Self> {
        let pairs = value.as_object()?.iter();
        pairs
            .map(|(id, bias)| Some((id.trim().replace('_', "").parse().ok()?, f64::read(bias)?)))
            .collect::<Option<_>>()
            .map(Self)
    }
}

/// A request field with a string or a list of strings, read into a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StringOrList(pub Vec<String>);

/// Schema of a string or a list of strings.
pub(crate) const STRING_OR_LIST_SCHEMA: Schema =
    Schema::Union(&[STR, Schema::List(&STR, ANY_LENGTH)]);

impl RequestField for StringOrList {
    const SCHEMA: Schema = STRING_OR_LIST_SCHEMA;

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
    /// In the body of `/inference/v1/generate` they are vLLM's own class, so its checks run while
    /// the body is parsed.
    pub struct SamplingParams: TypedDict "SamplingParams" within verify_sampling_in_body {
        /// Number of outputs (choices) per prompt.
        n: i128 = 1,
        /// Presence penalty, -2 to 2.
        presence_penalty: f64 = 0.0,
        /// Frequency penalty, -2 to 2.
        frequency_penalty: f64 = 0.0,
        /// Repetition penalty, above 0; 1 is neutral.
        repetition_penalty: f64 = 1.0,
        /// Sampling temperature, 0 to 2; 0 is greedy.
        temperature: f64 = 1.0,
        /// Whether to apply the engine's watermark to generated tokens.
        watermarking: Option<bool> = None,
        /// Nucleus sampling threshold, above 0 and at most 1.
        top_p: f64 = 1.0,
        /// Number of most likely tokens to sample from; 0 or -1 for all.
        top_k: i128 = 0,
        /// Minimum probability of a sampled token relative to the most likely one, 0 to 1.
        min_p: f64 = 0.0,
        /// Sampling seed; -1 for none.
        seed: Option<i128> = None,
        /// Stop strings: the output ends before the first of them.
        stop: Option<StringOrList> = None,
        /// Stop token ids: the output ends at the first of them.
        stop_token_ids: Option<Vec<i128>> = None,
        /// Whether generation continues past the end-of-sequence token.
        ignore_eos: bool = false,
        /// Maximum number of tokens to generate; null allows the rest of the context.
        max_tokens: Option<i128> = Some(16),
        /// Minimum number of output tokens before a stop condition applies.
        min_tokens: i128 = 0,
        /// Number of log probabilities to return per output token; -1 for the whole vocabulary.
        logprobs: Option<i128> = None,
        /// Number of log probabilities to return per prompt token; -1 for the whole vocabulary.
        prompt_logprobs: Option<i128> = None,
        /// The token ids whose log probabilities are returned, for each prompt position.
        prompt_logprob_token_ids: Option<Vec<Vec<i128>>> = None,
        /// First prompt position with a returned log probability.
        prompt_logprob_start: Option<i128> = None,
        /// The token ids whose log probabilities are returned at every output position.
        logprob_token_ids: Option<Vec<i128>> = None,
        /// Whether the engine stores log probabilities in vLLM's flat format.
        flat_logprobs: bool = false,
        /// Whether output tokens are converted to text.
        detokenize: bool = true,
        /// Whether to omit special tokens from the output text.
        skip_special_tokens: bool = true,
        /// Whether the output text has spaces between special tokens.
        spaces_between_special_tokens: bool = true,
        /// Whether the output includes the stop string that ended it.
        include_stop_str_in_output: bool = false,
        /// Content of each engine output: 0 all tokens so far, 1 new tokens, 2 only the final
        /// output.
        output_kind: i128 [Schema::IntEnum(&[0, 1, 2])] = 0,
        /// Number of output tokens per chunk of a streamed response.
        stream_interval: Option<i128> = None,
        /// Whether vLLM may use the sampling parameters without a copy; has no effect here.
        skip_clone: bool = false,
        /// Number of characters that vLLM holds back to find stop strings; has no effect here.
        output_text_buffer_length: i128 = 0,
        /// Structured-output constraint on the generated text.
        structured_outputs: Option<StructuredOutputs> = None,
        /// Values added to the logits of token ids before sampling.
        logit_bias: Option<TokenLogitBias> = None,
        /// Allowed token ids: sampling considers only these.
        allowed_token_ids: Option<Vec<i128>> = None,
        /// Custom sampling arguments for extensions and connectors.
        extra_args: Option<Map<String, Value>> = None,
        /// Forbidden words: the output contains none of these strings.
        bad_words: Option<Vec<String>> = None,
        /// Whether the request skips prefix-cache lookups.
        skip_reading_prefix_cache: Option<bool> = None,
        /// Maximum number of reasoning tokens to generate.
        thinking_token_budget: Option<i128> = None,
        /// Settings of the detection of repetitions, which ends an output that repeats itself.
        repetition_detection: Option<RepetitionDetection> = None,
        /// Number of leading prompt tokens to omit from the returned expert-routing data.
        routed_experts_prompt_start: i128 = 0,
        /// Fixed output: token ids to emit instead of sampled ones.
        trace_decode_token_ids: Option<Vec<i128>> = None,
    }
}

/// Server defaults for sampling parameters that a request leaves unset (the generation config).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SamplingDefaults {
    /// Default sampling temperature; `None`: vLLM's default.
    pub temperature: Option<f64>,
    /// Default nucleus sampling threshold (`top_p`); `None`: vLLM's default.
    pub top_p: Option<f64>,
    /// Default number of most likely tokens to sample from (`top_k`); `None`: vLLM's default.
    pub top_k: Option<i128>,
    /// Default minimum relative probability (`min_p`); `None`: vLLM's default.
    pub min_p: Option<f64>,
    /// Default repetition penalty; `None`: vLLM's default.
    pub repetition_penalty: Option<f64>,
    /// Default presence penalty; `None`: vLLM's default.
    pub presence_penalty: Option<f64>,
    /// Default frequency penalty; `None`: vLLM's default.
    pub frequency_penalty: Option<f64>,
    /// Default maximum number of tokens to generate; `None`: no limit.
    pub max_tokens: Option<i128>,
    /// Default for omitting special tokens from the output text; `None`: vLLM's default.
    pub skip_special_tokens: Option<bool>,
    /// Default stop token ids, in addition to those of the request.
    pub stop_token_ids: Vec<i128>,
    /// Limits of `n`, prompts and stop strings in one request.
    pub bounds: RequestBounds,
}

impl SamplingParams {
    /// Returns the sampling parameters for an output of at most `budget` tokens.
    ///
    /// # Errors
    /// A 400 for a sampling parameter out of range.
    pub fn with_output_budget(
        mut self: Box<Self>,
        budget: i128,
        bounds: &RequestBounds,
    ) -> Result<Box<Self>, Fault> {
        self.max_tokens = Some(budget);
        self.normalize_and_verify(bounds)?;
        Ok(self)
    }
}

/// Returns the number of tokens that a request may generate: the remaining context, or less if the
/// client asks for less.
///
/// Source: `get_max_tokens` of `vllm/entrypoints/serve/utils/api_utils.py`.
pub fn output_budget_tokens(
    limits: &ServerLimits,
    asked: Option<i128>,
    prompt_tokens: usize,
    defaults: &SamplingDefaults,
) -> i128 {
    let room = i128::from(limits.max_model_len) - prompt_tokens as i128;
    asked.or(defaults.max_tokens).map_or(room, |asked| asked.min(room))
}

/// Converts `logit_bias` of an OpenAI request: keys to token ids, values clamped to -100..100.
///
/// # Errors
/// A 400 with the keys that are not integers.
pub(crate) fn to_token_logit_bias<'b>(
    bias: impl IntoIterator<Item = (&'b String, &'b f64)> + Clone,
) -> Result<TokenLogitBias, Fault> {
    let id = |text: &str| i128::read(&super::lax::parse_python_int(text)?);
    let bad: Vec<Value> = bias
        .clone()
        .into_iter()
        .filter(|(key, _)| id(key).is_none())
        .map(|(key, _)| Value::from(key.as_str()))
        .collect();
    if !bad.is_empty() {
        let keys = python::python_repr(&Value::Array(bad));
        return Err(Fault::invalid_value_fault(
            format_args!(
                "logit_bias contains key(s) that cannot be converted to integer token IDs: {keys}"
            ),
            "logit_bias",
            &keys,
        ));
    }
    // `max(-100.0, nan)` is -100.0 in Python.
    let clamped = |bias: f64| {
        if bias.is_nan() { -100.0 } else { bias.clamp(-100.0, 100.0) }
    };
    let pairs = bias.into_iter().filter_map(|(key, bias)| Some((id(key)?, clamped(*bias))));
    Ok(TokenLogitBias(pairs.collect()))
}

/// Checks sampling parameters given as an object inside a request body.
///
/// Source: vLLM's `SamplingParams.__post_init__`.
fn verify_sampling_in_body(
    map: &Map<String, Value>,
    bounds: &RequestBounds,
) -> Result<(), ValidatorError> {
    if let Some(budget) = map.get("thinking_token_budget")
        && let Schema::Before(check, _) = THINKING_TOKEN_BUDGET_SCHEMA
    {
        check(budget)?;
    }
    match SamplingParams::read(&Value::Object(map.clone())) {
        Some(mut params) => params.normalize_and_verify(bounds).map_err(ValidatorError::Fault),
        None => Ok(()),
    }
}
