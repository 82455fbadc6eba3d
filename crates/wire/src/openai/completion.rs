//! Request of `POST /v1/completions`.
//!
//! Source: `vllm/entrypoints/openai/completion/protocol.py`, `CompletionRequest`.

use std::borrow::Cow;

use serde_json::{Map, Value};
use vllm_sim_python::PythonValue;

use super::sampling_fields::{
    CACHE_SALT_SCHEMA, ExtraSamplingArgs, LogitBias, MM_PAYLOAD_SCHEMA,
    NULLABLE_POSITIVE_INT_SCHEMA, RepetitionDetection, StopStrings, THINKING_TOKEN_BUDGET_SCHEMA,
    TRUNCATE_PROMPT_TOKENS_SCHEMA, TRUNCATION_SIDE_SCHEMA,
};
use super::shared_request_fields::{
    self, JsonBody, ResponseFormat, StreamOptions, StructuredOutputs, ValidatorResult,
    is_truthy_member, non_null_member, reject_parameter,
};
use crate::body;
use crate::bounds::RequestBounds;
use crate::fault::Fault;
use crate::long_ids;
use crate::schema::{ANY_LENGTH, INT, RequestField, STR, Schema, int_at_least_schema, wire_model};

/// Default of `max_tokens` in a completion request.
pub const DEFAULT_MAX_TOKENS: i128 = 16;

/// One prompt of a completion request.
#[derive(Debug, Clone, PartialEq)]
pub enum CompletionPrompt {
    /// A prompt as text, to be tokenized.
    Text(String),
    /// A prompt as a list of token ids.
    Tokens(Vec<i64>),
}

/// Prompt token ids as sent; integers beyond 64 bits become the nearest 64-bit integer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PromptTokenIds(pub Vec<i64>);

impl RequestField for PromptTokenIds {
    const SCHEMA: Schema = Schema::List(&INT, ANY_LENGTH);

    fn read(value: &Value) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "clamped")]
        let id =
            |id: &Value| i128::read(id).map(|id| id.clamp(i64::MIN.into(), i64::MAX.into()) as i64);
        value.as_array()?.iter().map(id).collect::<Option<_>>().map(Self)
    }
}

/// The request field `prompt`: a text, token ids, or a list of either.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CompletionPrompts(pub Vec<CompletionPrompt>);

impl RequestField for CompletionPrompts {
    const SCHEMA: Schema = Schema::Union(&[
        Schema::List(&int_at_least_schema(0), ANY_LENGTH),
        Schema::List(&Schema::List(&int_at_least_schema(0), ANY_LENGTH), ANY_LENGTH),
        STR,
        Schema::List(&STR, ANY_LENGTH),
    ]);

    fn read(value: &Value) -> Option<Self> {
        let prompts = match value {
            Value::String(text) => vec![CompletionPrompt::Text(text.clone())],
            Value::Array(items) => match items.first() {
                None => Vec::new(),
                Some(Value::String(_)) => items
                    .iter()
                    .map(|text| String::read(text).map(CompletionPrompt::Text))
                    .collect::<Option<_>>()?,
                Some(Value::Array(_)) => items
                    .iter()
                    .map(|ids| PromptTokenIds::read(ids).map(|ids| CompletionPrompt::Tokens(ids.0)))
                    .collect::<Option<_>>()?,
                Some(_) => vec![CompletionPrompt::Tokens(PromptTokenIds::read(value)?.0)],
            },
            _ => return None,
        };
        Some(Self(prompts))
    }
}

wire_model! {
    /// A completion request. Absent fields have vLLM's defaults; unknown ones are ignored.
    pub struct CompletionRequest: Wrapped "CompletionRequest" before [
        validate_prompt_and_embeds,
        shared_request_fields::validate_stream_options,
        check_logprobs,
        check_structured_outputs_count,
        shared_request_fields::validate_response_format,
        normalize_null_max_tokens,
        shared_request_fields::check_cache_salt_support,
        shared_request_fields::apply_return_mm_kwargs_alias,
    ] {
        /// Name of the served model or LoRA adapter; null or empty selects the base model.
        model: Option<String> = None,
        /// Prompts of the request, each continued by the model.
        prompt: Option<CompletionPrompts> = None,
        /// Whether the output starts with a copy of the prompt.
        echo: Option<bool> = Some(false),
        /// Frequency penalty, -2 to 2.
        frequency_penalty: Option<f64> = None,
        /// Values added to the logits of token ids before sampling, -100 to 100.
        logit_bias: Option<LogitBias> = None,
        /// Number of log probabilities to return per output token; -1 for the whole vocabulary.
        logprobs: Option<i128> = None,
        /// Maximum number of tokens to generate.
        max_tokens: Option<i128> = Some(DEFAULT_MAX_TOKENS),
        /// Number of outputs (choices) per prompt.
        n: i128 = 1,
        /// Presence penalty, -2 to 2.
        presence_penalty: Option<f64> = None,
        /// Seed of the sampler; -1 for none.
        seed: Option<i64> = None,
        /// Stop strings: the output ends before the first of them.
        stop: Option<StopStrings> = Some(StopStrings::default()),
        /// Whether to stream server-sent events instead of one body.
        stream: Option<bool> = Some(false),
        /// Options for token usage in a streamed response.
        stream_options: Option<StreamOptions> = None,
        /// Text after the output, for fill-in-the-middle models only.
        suffix: Option<String> = None,
        /// Sampling temperature, 0 to 2; 0 is greedy.
        temperature: Option<f64> = None,
        /// Nucleus sampling threshold, above 0 and at most 1.
        top_p: Option<f64> = None,
        /// Id of the end user; ignored.
        user: Option<String> = None,
        /// Whether to use beam search instead of sampling.
        use_beam_search: bool = false,
        /// Number of most likely tokens to sample from; 0 or -1 for all.
        top_k: Option<i128> = None,
        /// Minimum probability of a sampled token relative to the most likely one, 0 to 1.
        min_p: Option<f64> = None,
        /// Repetition penalty, above 0; 1 is neutral.
        repetition_penalty: Option<f64> = None,
        /// Whether to apply the engine's watermark to generated tokens.
        watermarking: Option<bool> = None,
        /// Length penalty of beam search.
        length_penalty: f64 = 1.0,
        /// Stop token ids: the output ends at the first of them.
        stop_token_ids: Option<Vec<i128>> = Some(Vec::new()),
        /// Whether the output includes the stop string that ended it.
        include_stop_str_in_output: bool = false,
        /// Whether generation continues past the end-of-sequence token.
        ignore_eos: bool = false,
        /// Minimum number of output tokens before a stop condition applies.
        min_tokens: i128 = 0,
        /// Whether to omit special tokens from the output text; null uses the server's default.
        skip_special_tokens: Option<bool> = None,
        /// Whether the output text has spaces between special tokens.
        spaces_between_special_tokens: bool = true,
        /// Number of prompt tokens to keep when truncating; -1 for all that fit the context.
        truncate_prompt_tokens: Option<i64> [TRUNCATE_PROMPT_TOKENS_SCHEMA] = None,
        /// Side of the prompt to truncate: `left` or `right`.
        truncation_side: Option<String> [TRUNCATION_SIDE_SCHEMA] = None,
        /// Allowed token ids: sampling considers only these.
        allowed_token_ids: Option<Vec<i128>> = None,
        /// Number of log probabilities to return per prompt token; -1 for the whole vocabulary.
        prompt_logprobs: Option<i128> = None,
        /// The token ids whose log probabilities are returned at every output position.
        logprob_token_ids: Option<Vec<i128>> = None,
        /// Forbidden words: the output contains none of these strings.
        bad_words: Vec<String> = Vec::new(),
        /// Prompt embeddings instead of a prompt, in base64.
        prompt_embeds: Option<Value> [Schema::Nullable(&Schema::Union(&[
            Schema::Bytes,
            Schema::List(&Schema::Bytes, ANY_LENGTH),
        ]))] = None,
        /// Whether the tokenizer adds special tokens, such as BOS, to the prompt text.
        add_special_tokens: bool = true,
        /// Required format of the model's reply: text, JSON or a structural tag.
        response_format: Option<ResponseFormat> = None,
        /// Structured-output constraint on the generated text.
        structured_outputs: Option<StructuredOutputs> = None,
        /// Scheduling priority of the request; lower values are scheduled first.
        priority: i64 = 0,
        /// Id of the request, returned in the response; generated when absent.
        request_id: Option<String> [STR] = None,
        /// Id of the client's session.
        session_id: Option<String> = None,
        /// Whether log probabilities name tokens as `token_id:N` instead of their text.
        return_tokens_as_token_ids: Option<bool> = None,
        /// Whether to return the output's token ids in addition to its text.
        return_token_ids: Option<bool> = None,
        /// Whether each choice reports the versions of the model weights that produced it.
        return_weight_versions: bool = false,
        /// Number of leading prompt tokens to omit from the returned expert-routing data.
        routed_experts_prompt_start: i128 [int_at_least_schema(0)] = 0,
        /// Whether a render response includes the text offset of each prompt token.
        return_token_offsets: Option<bool> = Some(false),
        /// Form of images, audio and video in a render response: `tensors` or `none`.
        mm_payload: String [MM_PAYLOAD_SCHEMA] = "tensors".to_owned(),
        /// Deprecated form of `mm_payload`: false means `none`.
        return_mm_kwargs: Option<bool> = None,
        /// Salt of the prompt's KV block hashes; only requests with equal salts share prefix-cache
        /// blocks.
        cache_salt: Option<String> [CACHE_SALT_SCHEMA] = None,
        /// Parameters for the KV connector, such as the blocks of a remote prefill server.
        kv_transfer_params: Option<Map<String, Value>> = None,
        /// Parameters for the encoder-cache connector.
        ec_transfer_params: Option<Map<String, Value>> = None,
        /// Custom sampling arguments for vLLM extensions (`vllm_xargs`).
        vllm_xargs: Option<ExtraSamplingArgs> = None,
        /// Settings of the detection of repetitions, which ends an output that repeats itself.
        repetition_detection: Option<RepetitionDetection> = None,
        /// Maximum number of reasoning tokens to generate.
        thinking_token_budget: Option<i128> [THINKING_TOKEN_BUDGET_SCHEMA] = None,
        /// Number of output tokens per chunk of a streamed response.
        stream_interval: Option<i128> [NULLABLE_POSITIVE_INT_SCHEMA] = None,
    }
}

impl CompletionRequest {
    /// Validates and reads a request body whose prompt is a long list of token ids.
    ///
    /// The request body is returned too, as JSON with a placeholder prompt. `None` means that
    /// [`Self::parse_completion_request`] must read the body.
    pub fn parse_long_prompt_and_body(
        body_json: &[u8],
        bounds: &RequestBounds,
    ) -> Option<(Self, Value)> {
        let (value, ids) = long_ids::extract_long_token_ids(body_json, "prompt")?;
        let mut request = Self::parse_completion_request(&value, bounds).ok()?;
        request.prompt = Some(CompletionPrompts(vec![CompletionPrompt::Tokens(ids)]));
        Some((request, value))
    }

    /// Validates and reads the request body, within the configured limits.
    ///
    /// # Errors
    /// vLLM's 400 if the body does not match the schema.
    pub fn parse_completion_request(value: &Value, bounds: &RequestBounds) -> Result<Self, Fault> {
        validate_prompt_list_length(value, bounds)?;
        body::read_body_within_bounds(value, bounds)
    }
}

/// Limits the number of prompts of a request.
///
/// Source: vLLM's `validate_prompt_list_length`.
fn validate_prompt_list_length(body: &Value, bounds: &RequestBounds) -> Result<(), Fault> {
    let most = bounds.prompts;
    let too_many = |key: &str, count: usize| {
        Fault::bad_parameter(
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
            PythonValue::from_json_value(&prompts[0]),
            PythonValue::Int(_) | PythonValue::BigInt(_) | PythonValue::Bool(_)
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

/// Checks that a completion has a `prompt` or `prompt_embeds`.
///
/// Source: vLLM's `validate_prompt_and_prompt_embeds`.
fn validate_prompt_and_embeds(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    let no_prompt = non_null_member(body, "prompt").is_none_or(|prompt| prompt == "");
    let no_embeds = non_null_member(body, "prompt_embeds")
        .is_none_or(|embeds| embeds.as_array().is_some_and(Vec::is_empty));
    if no_prompt && no_embeds {
        return reject_parameter(
            "Either prompt or prompt_embeds must be provided and non-empty.",
            "prompt",
        );
    }
    Ok(())
}

/// Checks `logprobs` and `prompt_logprobs` of a completion.
///
/// Source: vLLM's `check_logprobs`.
fn check_logprobs(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    let ids = "logprob_token_ids";
    let wanted = is_truthy_member(body, ids);
    let beams = is_truthy_member(body, "use_beam_search");
    let echo = is_truthy_member(body, "echo");
    let logprobs = non_null_member(body, "logprobs");
    if wanted && beams {
        return reject_parameter("`logprob_token_ids` is not supported with beam search.", ids);
    }
    if beams && echo && logprobs.is_some() {
        return reject_parameter(
            "`echo` with `logprobs` is not supported with beam search because beam search does \
             not compute prompt logprobs.",
            "echo",
        );
    }
    let no_output =
        body.get("max_tokens").and_then(|max| PythonValue::from_json_value(max).as_number())
            == Some(0.0);
    if wanted && echo && no_output {
        return reject_parameter(
            "`logprob_token_ids` is not supported when `echo=True` and `max_tokens=0` because \
             no output tokens are generated.",
            ids,
        );
    }
    if wanted && logprobs.is_none() {
        return reject_parameter("when using `logprob_token_ids`, `logprobs` must be set.", ids);
    }
    shared_request_fields::check_number_or_absent(body, "prompt_logprobs")?;
    shared_request_fields::check_number_or_absent(body, "logprobs")?;
    shared_request_fields::check_prompt_logprobs(body)?;
    match non_null_member(body, "logprobs") {
        Some(count) => shared_request_fields::check_not_below_minus_one("logprobs", count),
        None => Ok(()),
    }
}

/// Checks that a completion request has at most one kind of structured-output constraint.
///
/// Source: vLLM's `check_structured_outputs_count`.
fn check_structured_outputs_count(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    shared_request_fields::has_single_constraint(body, || {
        Fault::bad_parameter(
            "You can only use one kind of constraints for structured outputs ('json', 'regex' or \
             'choice').",
            "structured_outputs",
        )
    })?;
    shared_request_fields::check_structural_tag(body)
}

/// Sets a `max_tokens` that is missing or null to 16.
///
/// Source: vLLM's `normalize_null_max_tokens`.
fn normalize_null_max_tokens(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    if non_null_member(body, "max_tokens").is_none() {
        #[expect(clippy::cast_possible_truncation, reason = "16")]
        body.to_mut().insert("max_tokens".to_owned(), Value::from(DEFAULT_MAX_TOKENS as i64));
    }
    Ok(())
}
