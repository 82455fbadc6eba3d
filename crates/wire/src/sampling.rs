//! Sampling parameters of a request, with all defaults applied, and their checks in upstream's
//! order.
//!
//! [`SamplingParams::normalize_and_verify`] runs before a stream starts,
//! [`SamplingParams::verify_against_engine`] after it. An error of the latter is a 400 for a unary
//! request and an event in a stream.
//!
//! Source: `vllm/sampling_params.py` (`SamplingParams.__post_init__`, `_verify_args`, `verify`),
//! `vllm/v1/engine/input_processor.py` (`_validate_params`).

use serde_json::{Map, Value};
use vllm_sim_python::{self as python, PythonValue};

use super::bounds::RequestBounds;
use super::fault::Fault;
use super::limits::ServerLimits;
use super::openai::sampling_fields::{
    RepetitionDetection, StopStrings, THINKING_TOKEN_BUDGET_SCHEMA, TokenLogitBias,
};
use super::openai::shared_request_fields::StructuredOutputs;
use super::schema::{ANY_LENGTH, RequestField, STR, Schema, ValidatorError, wire_model};
use super::structured;

/// Minimum temperature of random sampling; below it, sampling is greedy.
pub const GREEDY_TEMPERATURE: f64 = 1e-5;
/// Minimum sampling temperature above 0; lower values are raised to it.
const LOWEST_TEMPERATURE: f64 = 1e-2;
/// Maximum number of `logprob_token_ids` in a request.
const MAX_LOGPROB_TOKEN_IDS: usize = 128;

/// Schema of a string or a list of strings.
pub(crate) const STRING_OR_LIST_SCHEMA: Schema =
    Schema::Union(&[STR, Schema::List(&STR, ANY_LENGTH)]);

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
        stop: Option<StopStrings> [Schema::Nullable(&STRING_OR_LIST_SCHEMA)] = None,
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

    /// Normalizes the sampling parameters and checks their ranges.
    ///
    /// # Errors
    /// The first 400 in vLLM's order.
    pub fn normalize_and_verify(&mut self, bounds: &RequestBounds) -> Result<(), Fault> {
        if 0.0 < self.temperature && self.temperature < LOWEST_TEMPERATURE {
            self.temperature = LOWEST_TEMPERATURE;
        }
        self.seed = self.seed.filter(|seed| *seed != -1);
        self.thinking_token_budget = self.thinking_token_budget.filter(|budget| *budget != -1);
        for list in [&mut self.stop_token_ids].into_iter().flatten() {
            let mut seen = std::collections::HashSet::new();
            list.retain(|id| seen.insert(*id));
        }
        self.verify_sequence_counts(bounds.n)?;
        self.verify_distribution()?;
        self.verify_output_limits()?;
        self.verify_strings()?;
        if self.temperature < GREEDY_TEMPERATURE {
            (self.top_p, self.top_k, self.min_p) = (1.0, 0, 0.0);
            if self.n > 1 {
                let n = self.n;
                return reject_with(format!("n must be 1 when using greedy sampling, got {n}."));
            }
        }
        Ok(())
    }

    fn verify_sequence_counts(&self, most: i128) -> Result<(), Fault> {
        check_sequence_count(self.n, "n", most)?;
        match &self.extra_args {
            Some(args) if args.values().any(has_long_integer) => Err(Fault::bad_parameter(
                "extra_args integers must be between -2**63 and 2**64 - 1.",
                "extra_args",
            )),
            _ => Ok(()),
        }
    }

    /// Checks the ranges of penalties, temperature, `top_p`, `top_k` and `min_p`.
    fn verify_distribution(&self) -> Result<(), Fault> {
        let text = python::python_repr_of_float;
        for (name, value) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            if !(-2.0..=2.0).contains(&value) {
                return reject_with(format!("{name} must be in [-2, 2], got {}.", text(value)));
            }
        }
        let value = self.repetition_penalty;
        if !value.is_finite() {
            return reject_with(format!(
                "repetition_penalty must be a finite number, got {}.",
                text(value)
            ));
        }
        if value <= 0.0 {
            return reject_with(format!(
                "repetition_penalty must be greater than zero, got {}.",
                text(value)
            ));
        }
        let value = self.temperature;
        let rule = match value {
            v if !v.is_finite() => Some("be a finite number"),
            v if v < 0.0 => Some("be non-negative"),
            v if v > 2.0 => Some("be in [0, 2]"),
            _ => None,
        };
        if let Some(rule) = rule {
            return reject_out_of_range("temperature", rule, &text(value));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return reject_out_of_range("top_p", "be in (0, 1]", &text(self.top_p));
        }
        if self.top_k < -1 {
            let k = self.top_k;
            return reject_with(format!("top_k must be 0 (disable), or at least 1, got {k}."));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return reject_with(format!("min_p must be in [0, 1], got {}.", text(self.min_p)));
        }
        Ok(())
    }

    /// Checks the limits on output length and log probabilities.
    fn verify_output_limits(&self) -> Result<(), Fault> {
        let min = self.min_tokens;
        if let Some(max) = self.max_tokens.filter(|max| *max < 1) {
            return reject_out_of_range("max_tokens", "be at least 1", &max.to_string());
        }
        if min < 0 {
            return reject_with(format!(
                "min_tokens must be greater than or equal to 0, got {min}."
            ));
        }
        if let Some(max) = self.max_tokens.filter(|max| min > *max) {
            return reject_with(format!(
                "min_tokens must be less than or equal to max_tokens={max}, got {min}."
            ));
        }
        if let Some(interval) = self.stream_interval.filter(|interval| *interval < 1) {
            return reject_out_of_range("stream_interval", "be at least 1", &interval.to_string());
        }
        for (name, count) in
            [("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)]
        {
            if let Some(count) = count.filter(|count| *count < -1) {
                return reject_out_of_range(name, "be non-negative or -1", &count.to_string());
            }
        }
        Ok(())
    }

    fn verify_strings(&self) -> Result<(), Fault> {
        let stop = self.stop.as_ref().map_or(&[][..], |stop| &stop.0);
        if stop.iter().any(String::is_empty) {
            return reject_with("stop cannot contain an empty string.".to_owned());
        }
        if !stop.is_empty() && !self.detokenize {
            return reject_with(
                "stop strings are only supported when detokenize is True. Set detokenize=True \
                 to use stop."
                    .to_owned(),
            );
        }
        match &self.bad_words {
            Some(words) if words.iter().any(String::is_empty) => reject_with(format!(
                "bad_words cannot contain an empty string. Got bad_words={}",
                python::python_repr(&Value::from(words.clone()))
            )),
            _ => Ok(()),
        }
    }

    /// Checks the sampling parameters whose bounds depend on the engine.
    ///
    /// # Errors
    /// The error of the first failed check in vLLM's order.
    pub fn verify_against_engine(&self, limits: &ServerLimits) -> Result<(), Fault> {
        self.verify_logprobs(limits)?;
        if let Some(bias) = &self.logit_bias {
            check_in_vocabulary("logit_bias", bias.0.iter().map(|(id, _)| *id), limits)?;
        }
        if let Some(ids) = &self.stop_token_ids {
            check_in_vocabulary("stop_token_ids", ids.iter().copied(), limits)?;
        }
        self.verify_allowed_token_ids(limits)?;
        let biased = self.logit_bias.as_ref().is_some_and(|bias| !bias.0.is_empty());
        if limits.speculative && (self.min_p > GREEDY_TEMPERATURE || biased) {
            return reject_with(
                "The min_p and logit_bias sampling parameters are not yet supported with \
                 speculative decoding."
                    .to_owned(),
            );
        }
        if let Some(outputs) = &self.structured_outputs {
            structured::verify_structured_outputs(outputs)?;
        }
        if self.thinking_token_budget.is_some() && !limits.reasoning_parser {
            return reject_with(
                "thinking_token_budget is set but reasoning_config is not configured. Please \
                 set --reasoning-parser and/or --reasoning-config to use thinking_token_budget."
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Checks `routed_experts_prompt_start` against the prompt length; the engine's last check.
    ///
    /// # Errors
    /// A 400 that names the request field.
    pub fn verify_against_prompt(&self, prompt_tokens: usize) -> Result<(), Fault> {
        let start = self.routed_experts_prompt_start;
        if (0..=prompt_tokens as i128).contains(&start) {
            return Ok(());
        }
        Err(Fault::invalid_value_fault(
            format_args!(
                "routed_experts_prompt_start must be between 0 and the prompt length \
                 ({prompt_tokens}), inclusive."
            ),
            "routed_experts_prompt_start",
            start,
        ))
    }

    fn verify_logprobs(&self, limits: &ServerLimits) -> Result<(), Fault> {
        let vocabulary = limits.vocab_size.map_or(i128::MAX, i128::from);
        let whole = |count: i128| if count == -1 { vocabulary } else { count };
        let most = whole(i128::from(limits.max_logprobs));
        let over = |count: Option<i128>| count.map(whole).filter(|count| *count > most);
        let too_many = |what: &str, name: &str, count: i128| {
            // Without a vocabulary, the number of all its tokens is unknown.
            let count = if count == i128::MAX { -1 } else { count };
            Err(Fault::invalid_value_fault(
                format_args!(
                    "Requested {what} logprobs of {count}, which is greater than max allowed: \
                     {most}"
                ),
                name,
                count,
            ))
        };
        if let Some(count) = over(self.logprobs) {
            return too_many("sample", "logprobs", count);
        }
        if let Some(ids) = &self.logprob_token_ids {
            let name = "logprob_token_ids";
            let n = ids.len();
            if n > MAX_LOGPROB_TOKEN_IDS {
                return Err(Fault::invalid_value_fault(
                    format_args!(
                        "Requested logprob_token_ids of length {n}, which is greater than max \
                         allowed: {MAX_LOGPROB_TOKEN_IDS}"
                    ),
                    name,
                    n,
                ));
            }
            check_in_vocabulary(name, ids.iter().copied(), limits)?;
            if let Some(logprobs) = self.logprobs.filter(|logprobs| *logprobs != n as i128) {
                return Err(Fault::invalid_value_fault(
                    format_args!(
                        "When both logprobs and logprob_token_ids are set, logprobs must equal \
                         len(logprob_token_ids). Got logprobs={logprobs}, \
                         len(logprob_token_ids)={n}."
                    ),
                    name,
                    n,
                ));
            }
        }
        match over(self.prompt_logprobs) {
            Some(count) => too_many("prompt", "prompt_logprobs", count),
            None => Ok(()),
        }
    }

    fn verify_allowed_token_ids(&self, limits: &ServerLimits) -> Result<(), Fault> {
        let name = "allowed_token_ids";
        let Some(ids) = &self.allowed_token_ids else {
            return Ok(());
        };
        if ids.is_empty() {
            return Err(Fault::invalid_value_fault(
                "allowed_token_ids is not None and empty!",
                name,
                "[]",
            ));
        }
        let unknown = ids_outside_vocabulary(ids.iter().copied(), limits);
        if unknown.is_empty() {
            return Ok(());
        }
        let text = "allowed_token_ids contains out-of-vocab token id!";
        Err(Fault::invalid_value_fault(text, name, python_list_text(&unknown)))
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

/// Returns vLLM's 400 if the number of sequences in the request field `name` is not in `1..=most`.
///
/// Source: vLLM's `_verify_num_sequences`.
pub(crate) fn check_sequence_count(count: i128, name: &str, max_count: i128) -> Result<(), Fault> {
    if count < 1 {
        return reject_with(format!("{name} must be at least 1, got {count}."));
    }
    if count > max_count {
        return reject_with(format!(
            "{name} must be at most {max_count}, got {count}. To increase this limit, set the \
             VLLM_MAX_N_SEQUENCES environment variable."
        ));
    }
    Ok(())
}

fn reject_with(message: String) -> Result<(), Fault> {
    Err(Fault::bad_request(message))
}

/// Returns the sampling error `NAME must RULE, got VALUE.` with vLLM's details.
fn reject_out_of_range(name: &str, rule: &str, value: &str) -> Result<(), Fault> {
    Err(Fault::invalid_value_fault(format_args!("{name} must {rule}, got {value}."), name, value))
}

fn ids_outside_vocabulary(ids: impl Iterator<Item = i128>, limits: &ServerLimits) -> Vec<i128> {
    let size = limits.vocab_size.map_or(i128::MAX, i128::from);
    ids.filter(|id| !(0..size).contains(id)).collect()
}

fn python_list_text(ids: &[i128]) -> String {
    let texts: Vec<String> = ids.iter().map(i128::to_string).collect();
    format!("[{}]", texts.join(", "))
}

fn check_in_vocabulary(
    name: &str,
    ids: impl Iterator<Item = i128>,
    limits: &ServerLimits,
) -> Result<(), Fault> {
    let unknown = ids_outside_vocabulary(ids, limits);
    if unknown.is_empty() {
        return Ok(());
    }
    let ids = python_list_text(&unknown);
    let size = limits.vocab_size.unwrap_or_default();
    Err(Fault::invalid_value_fault(
        format_args!(
            "token_id(s) {ids} in {name} contain out-of-vocab token ids. Vocabulary size: {size}"
        ),
        name,
        &ids,
    ))
}

/// Returns whether any integer nested in the value exceeds 64 bits, which vLLM's msgpack transport
/// cannot carry.
fn has_long_integer(value: &Value) -> bool {
    match PythonValue::from_json_value(value) {
        PythonValue::BigInt(_) => true,
        PythonValue::Int(i) => i64::try_from(i).is_err() && u64::try_from(i).is_err(),
        PythonValue::List(items) => items.iter().any(has_long_integer),
        PythonValue::Dict(map) => map.values().any(has_long_integer),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bad_parameter_in_upstreams_order_is_named() {
        let bad = SamplingParams { n: 1, top_k: -5, top_p: 2.0, ..SamplingParams::default() };
        let text = |mut params: SamplingParams| {
            params.normalize_and_verify(&RequestBounds::default()).map_err(|fault| fault.message)
        };
        assert_eq!(
            text(bad.clone()),
            Err("top_p must be in (0, 1], got 2.0. (parameter=top_p, value=2.0)".to_owned())
        );
        assert_eq!(
            text(SamplingParams { top_p: 1.0, ..bad.clone() }),
            Err("top_k must be 0 (disable), or at least 1, got -5.".to_owned())
        );
        assert_eq!(
            text(SamplingParams { presence_penalty: 3.0, ..bad }),
            Err("presence_penalty must be in [-2, 2], got 3.0.".to_owned())
        );
    }

    #[test]
    fn greedy_sampling_ignores_cut_offs_and_refuses_choices() {
        let mut params = SamplingParams { temperature: 0.0, top_k: 3, ..Default::default() };
        assert_eq!(params.normalize_and_verify(&RequestBounds::default()), Ok(()));
        assert_eq!(params.top_k, 0);
        params.n = 2;
        assert_eq!(
            params.normalize_and_verify(&RequestBounds::default()).map_err(|fault| fault.message),
            Err("n must be 1 when using greedy sampling, got 2.".to_owned())
        );
    }

    #[test]
    fn token_ids_out_of_the_vocabulary_are_rejected() {
        let limits = ServerLimits { vocab_size: Some(4096), ..ServerLimits::default() };
        let bias = TokenLogitBias(vec![(5, 1.0), (99_999, 1.0)]);
        let params = SamplingParams { logit_bias: Some(bias), ..SamplingParams::default() };
        assert_eq!(
            params.verify_against_engine(&limits).map_err(|fault| fault.message),
            Err("token_id(s) [99999] in logit_bias contain out-of-vocab token ids. Vocabulary \
                 size: 4096 (parameter=logit_bias, value=[99999])"
                .to_owned())
        );
    }
}
