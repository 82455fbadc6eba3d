//! Request fields with sampling parameters that several routes share.
//!
//! Source: `vllm/entrypoints/generate/base/protocol.py`, `vllm/sampling_params.py`.

use indexmap::IndexMap;
use serde_json::{Map, Value};
use vllm_sim_python::{self as python, PythonValue};

use super::shared_request_fields::reject_request;
use crate::fault::Fault;
use crate::schema::Schema::{self, Before, Dict, List, Literal, Nullable, Union};
use crate::schema::{
    ANY_LENGTH, FLOAT, INT, LengthLimits, RequestField, STR, ValidatorError, int_at_least_schema,
    int_between_schema, wire_model,
};
use crate::{bounds, lax};

/// Stop strings of a request: one string or a list, read into a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopStrings(pub Vec<String>);

impl RequestField for StopStrings {
    const SCHEMA: Schema = Union(&[
        STR,
        List(&STR, LengthLimits { min: 0, max: bounds::MAX_STOP_STRINGS_PLACEHOLDER }),
    ]);

    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(one) => Some(Self(vec![one.clone()])),
            value => Vec::read(value).map(Self),
        }
    }
}

/// Custom sampling arguments for vLLM extensions, `dict[str, str | int | float | list[str | int |
/// float]]`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ExtraSamplingArgs(pub Map<String, Value>);

impl RequestField for ExtraSamplingArgs {
    const SCHEMA: Schema = Dict(
        &STR,
        &Union(&[STR, INT, f64::SCHEMA, List(&Union(&[STR, INT, f64::SCHEMA]), ANY_LENGTH)]),
    );

    fn read(value: &Value) -> Option<Self> {
        value.as_object().cloned().map(Self)
    }
}

/// Type of the request field `logit_bias`: token ids as text, and their bias.
pub(crate) type LogitBias = IndexMap<String, f64>;

/// Logit bias per token id, in the order of the request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenLogitBias(pub Vec<(i128, f64)>);

impl RequestField for TokenLogitBias {
    const SCHEMA: Schema = Dict(&INT, &FLOAT);

    fn read(value: &Value) -> Option<Self> {
        let pairs = value.as_object()?.iter();
        pairs
            .map(|(id, bias)| Some((id.trim().replace('_', "").parse().ok()?, f64::read(bias)?)))
            .collect::<Option<_>>()
            .map(Self)
    }
}

/// Converts `logit_bias` of an OpenAI request: keys to token ids, values clamped to -100..100.
///
/// # Errors
/// A 400 with the keys that are not integers.
pub(crate) fn to_token_logit_bias(bias: &LogitBias) -> Result<TokenLogitBias, Fault> {
    let id = |text: &str| i128::read(&lax::parse_python_int(text)?);
    let bad = bias.keys().filter(|key| id(key).is_none());
    let bad: Vec<Value> = bad.map(|key| Value::from(key.as_str())).collect();
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
    let pairs = bias.iter().filter_map(|(key, bias)| Some((id(key)?, clamped(*bias))));
    Ok(TokenLogitBias(pairs.collect()))
}

/// Schema of `truncate_prompt_tokens`; -1 keeps all tokens that fit the context.
pub(crate) const TRUNCATE_PROMPT_TOKENS_SCHEMA: Schema =
    Nullable(&int_between_schema(-1, i64::MAX as i128));

/// Schema of a request field with an optional integer of at least 1.
pub(crate) const NULLABLE_POSITIVE_INT_SCHEMA: Schema = Nullable(&int_at_least_schema(1));

/// Schema of the request field `cache_salt`; stricter limits are checked before.
pub(crate) const CACHE_SALT_SCHEMA: Schema =
    Nullable(&Schema::Str(LengthLimits { min: 1, max: 1024 }));

/// Schema of the request field `mm_payload`.
pub(crate) const MM_PAYLOAD_SCHEMA: Schema = Literal(&["tensors", "none"]);

/// Schema of the request field `truncation_side`.
pub(crate) const TRUNCATION_SIDE_SCHEMA: Schema = Nullable(&Literal(&["left", "right"]));

/// Schema of the request field `top_logprobs`; null means 0.
pub(crate) const TOP_LOGPROBS_SCHEMA: Schema =
    Before(|value| Ok(value.is_null().then(|| Value::from(0))), &INT);

/// Schema of `thinking_token_budget`: null, -1 for no limit, or a number of tokens.
///
/// Other values of the field are rejected before schema validation.
pub(crate) const THINKING_TOKEN_BUDGET_SCHEMA: Schema =
    Before(check_thinking_token_budget, &Nullable(&INT));

fn check_thinking_token_budget(value: &Value) -> Result<Option<Value>, Fault> {
    match PythonValue::from_json_value(value) {
        PythonValue::None => Ok(None),
        PythonValue::Int(-1) => Ok(Some(Value::Null)),
        PythonValue::Int(i) if i >= 0 => Ok(None),
        PythonValue::BigInt(text) if !text.starts_with('-') => Ok(None),
        _ => Err(Fault::invalid_value_fault(
            "`thinking_token_budget` must be a non-negative integer or -1 for unlimited.",
            "thinking_token_budget",
            python::python_str(value),
        )),
    }
}

wire_model! {
    /// Settings of the detection of repetitions, which ends an output that repeats itself.
    pub struct RepetitionDetection: Dataclass "RepetitionDetectionParams" after validate_repetition_detection {
        /// Maximum length of a repeated pattern, in tokens; 0 disables detection.
        max_pattern_size: i128 = 0,
        /// Minimum length of a repeated pattern, in tokens.
        min_pattern_size: i128 = 0,
        /// Number of repetitions at which the output ends.
        min_count: i128 = 0,
    }
}

/// Checks the pattern sizes and the minimum count of `repetition_detection`.
///
/// Source: vLLM's `RepetitionDetectionParams.__post_init__`.
fn validate_repetition_detection(map: &Map<String, Value>) -> Result<(), ValidatorError> {
    let number = |key: &str| map.get(key).and_then(i128::read).unwrap_or_default();
    let (max, min) = (number("max_pattern_size"), number("min_pattern_size"));
    if max < 0 || min < 0 || min > max {
        return reject_request(
            "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= \
             max_pattern_size. Set both to 0 to disable repetitive pattern detection.",
        );
    }
    if max > 0 && number("min_count") < 2 {
        return reject_request(
            "min_count must be >= 2 to detect repetitive patterns in engine output. If you do \
             not wish to detect repetitive patterns, set max_pattern_size to 0.",
        );
    }
    Ok(())
}
