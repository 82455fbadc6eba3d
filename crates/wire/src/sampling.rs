//! Sampling parameters: what a request asks of the sampler once defaults are filled in.
//!
//! Source: `vllm/sampling_params.py`, `SamplingParams`.

use serde_json::{Map, Value};
use vllm_sim_python as python;

use super::bounds::RequestBounds;
use super::fault::Fault;
use super::limits::Limits;
use super::openai::shared::{RepetitionDetection, StructuredOutputs, THINKING_BUDGET};
use super::schema::{ANY_LENGTH, FLOAT, INT, STR, Schema, ValidatorError, Wire, wire_model};

/// Below this a temperature means greedy sampling.
pub const GREEDY: f64 = 1e-5;

/// Bias per token id, in the order given.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenBias(pub Vec<(i128, f64)>);

impl Wire for TokenBias {
    const SCHEMA: Schema = Schema::Dict(&INT, &FLOAT);

    fn read(value: &Value) -> Option<Self> {
        let pairs = value.as_object()?.iter();
        pairs
            .map(|(id, bias)| Some((id.trim().replace('_', "").parse().ok()?, f64::read(bias)?)))
            .collect::<Option<_>>()
            .map(Self)
    }
}

/// One string or any number of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Texts(pub Vec<String>);

impl Wire for Texts {
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
    /// What the sampler is asked to do for one prompt. As part of a request body it is vLLM's
    /// own class, so its checks run while the body is read.
    pub struct SamplingParams: TypedDict "SamplingParams" within verified {
        /// Choices.
        n: i128 = 1,
        /// -2 to 2.
        presence_penalty: f64 = 0.0,
        /// -2 to 2.
        frequency_penalty: f64 = 0.0,
        /// Above 0.
        repetition_penalty: f64 = 1.0,
        /// 0 to 2; 0 is greedy.
        temperature: f64 = 1.0,
        /// Whether the engine's watermark applies.
        watermarking: Option<bool> = None,
        /// Above 0, up to 1.
        top_p: f64 = 1.0,
        /// 0 or -1 for off.
        top_k: i128 = 0,
        /// 0 to 1.
        min_p: f64 = 0.0,
        /// Seed; -1 for none.
        seed: Option<i128> = None,
        /// Texts that end the reply.
        stop: Option<Texts> = None,
        /// Tokens that end the reply.
        stop_token_ids: Option<Vec<i128>> = None,
        /// Whether the end token does not end the reply.
        ignore_eos: bool = false,
        /// Most tokens to generate; the rest of the context when null.
        max_tokens: Option<i128> = Some(16),
        /// Tokens before anything may end the reply.
        min_tokens: i128 = 0,
        /// Alternatives per token; -1 for the whole vocabulary.
        logprobs: Option<i128> = None,
        /// Alternatives per prompt token; -1 for the whole vocabulary.
        prompt_logprobs: Option<i128> = None,
        /// Tokens to score per row of the prompt.
        prompt_logprob_token_ids: Option<Vec<Vec<i128>>> = None,
        /// First row of the prompt to score.
        prompt_logprob_start: Option<i128> = None,
        /// Tokens whose log probability is wanted.
        logprob_token_ids: Option<Vec<i128>> = None,
        /// Another form of log probabilities inside the engine.
        flat_logprobs: bool = false,
        /// Whether text is made of the tokens.
        detokenize: bool = true,
        /// Whether special tokens stay out of the text.
        skip_special_tokens: bool = true,
        /// Blanks between special tokens.
        spaces_between_special_tokens: bool = true,
        /// Whether the reply keeps the stop text.
        include_stop_str_in_output: bool = false,
        /// All so far, only what is new, or only the end.
        output_kind: i128 [Schema::IntEnum(&[0, 1, 2])] = 0,
        /// Tokens per chunk.
        stream_interval: Option<i128> = None,
        /// Engine-internal.
        skip_clone: bool = false,
        /// Engine-internal.
        output_text_buffer_length: i128 = 0,
        /// A constraint on the text.
        structured_outputs: Option<StructuredOutputs> = None,
        /// Bias per token.
        logit_bias: Option<TokenBias> = None,
        /// Tokens the reply may have.
        allowed_token_ids: Option<Vec<i128>> = None,
        /// For extensions and connectors.
        extra_args: Option<Map<String, Value>> = None,
        /// Texts the reply may not have.
        bad_words: Option<Vec<String>> = None,
        /// Whether the prefix cache is not read.
        skip_reading_prefix_cache: Option<bool> = None,
        /// Most tokens of reasoning.
        thinking_token_budget: Option<i128> = None,
        /// When to stop because the reply repeats itself.
        repetition_detection: Option<RepetitionDetection> = None,
        /// Prompt tokens left out of the routing data.
        routed_experts_prompt_start: i128 = 0,
        /// Tokens to emit instead of sampled ones.
        trace_decode_token_ids: Option<Vec<i128>> = None,
    }
}

/// What a server fills in where a request is silent: its generation config.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SamplingDefaults {
    /// As in [`SamplingParams`].
    pub temperature: Option<f64>,
    /// As in [`SamplingParams`].
    pub top_p: Option<f64>,
    /// As in [`SamplingParams`].
    pub top_k: Option<i128>,
    /// As in [`SamplingParams`].
    pub min_p: Option<f64>,
    /// As in [`SamplingParams`].
    pub repetition_penalty: Option<f64>,
    /// As in [`SamplingParams`].
    pub presence_penalty: Option<f64>,
    /// As in [`SamplingParams`].
    pub frequency_penalty: Option<f64>,
    /// Most tokens to generate.
    pub max_tokens: Option<i128>,
    /// As in [`SamplingParams`].
    pub skip_special_tokens: Option<bool>,
    /// Further tokens that end a reply.
    pub stop_token_ids: Vec<i128>,
    /// What single requests may have.
    pub bounds: RequestBounds,
}

/// What a client asks of the sampler, before it is known how many tokens the context leaves.
#[derive(Debug, Clone, Default)]
pub struct SamplingRequest {
    /// The parameters; `max_tokens` is filled in by [`Self::with_budget`].
    pub params: Box<SamplingParams>,
    /// The limit on the output.
    pub limit: OutputLimit,
    /// The checks that the parameters pass.
    pub checks: SamplingChecks,
}

/// The limit on the tokens of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputLimit {
    /// The budget that the context leaves.
    #[default]
    Budget,
    /// A number of tokens, whatever the context leaves.
    Exactly(i128),
}

/// The checks that sampling parameters pass in front of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SamplingChecks {
    /// Those of `SamplingParams._verify_args`.
    #[default]
    All,
    /// None: a front end has made them, or upstream makes none (beam search).
    None,
}

impl SamplingRequest {
    /// Returns the parameters for an output of at most `budget` tokens.
    ///
    /// # Errors
    /// 400 for values out of range.
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

/// Tokens that may be generated: what the context leaves, at most what is asked.
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

/// `logit_bias` of an OpenAI request: keys to token ids, values into -100..100.
///
/// # Errors
/// 400 naming the keys that are no integers.
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

/// `SamplingParams.__post_init__`, where the parameters are part of a body.
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
