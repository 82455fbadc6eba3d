//! Types of the members of `POST /generate`, which SGLang checks after the schema of its class.
//!
//! The class coerces values; this check refuses those that are not exactly of the type, in words
//! like those of serde. It ends at the first wrong member, in the order of the body.
//!
//! Source: SGLang 0.5.23 `api/v1/api_types.py`, `decode_GenerateRequest`,
//! `decode_SamplingParams`; `srt/entrypoints/api_contract.py`.

use serde_json::{Map, Value};
use vllm_sim_python as python;

/// Type of a member of a `/generate` request. Null stands for an absent member, except in
/// [`Shape::Required`].
#[derive(Debug, Clone, Copy)]
enum Shape {
    /// Type of a `/generate` request member: any JSON value.
    Any,
    /// Type of a `/generate` request member: a value of the given type, which must not be null.
    Required(&'static Shape),
    Bool,
    Int,
    /// Type of a `/generate` request member: a non-negative integer.
    Uint,
    Float,
    Str,
    /// Type of a `/generate` request member: a list whose items have the given type.
    List(&'static Shape),
    /// Type of a `/generate` request member: a list whose items have the given type or are null.
    NullableList(&'static Shape),
    /// Type of a `/generate` request member: one item of the given type, or a list of such items.
    /// Error messages contain the type's name.
    OrList(&'static str, &'static Shape),
    /// Type of a `/generate` request member: one item of the given type, or a list whose items may
    /// also be null. Error messages contain the type's name.
    OrNullableList(&'static str, &'static Shape),
    /// Type of a `/generate` request member: the token ids of one prompt, or of several.
    TokenIds,
    /// Type of a `/generate` request member: an object whose values have the given type.
    MapOf(&'static Shape),
    /// Type of a `/generate` request member: an object with only the given members. Error messages
    /// contain the type's name.
    Struct(&'static str, &'static [(&'static str, Shape)]),
    /// Type of a `/generate` request member: one object of sampling parameters, or a list of them.
    Sampling,
    /// Type of a `/generate` request member: images, videos or audio clips.
    Media,
}

const STRINGS: Shape = Shape::OrList("StringOrList", &Shape::Str);
const NULLABLE_STRINGS: Shape = Shape::OrNullableList("OptionalStringOrList", &Shape::Str);
const BOOLS: Shape = Shape::OrList("BoolOrList", &Shape::Bool);
const INTS: Shape = Shape::OrList("Int64OrList", &Shape::Int);
const NULLABLE_INTS: Shape = Shape::OrNullableList("OptionalInt64OrList", &Shape::Int);

const SAMPLING: &[(&str, Shape)] = &[
    ("max_new_tokens", Shape::Int),
    ("stop", STRINGS),
    ("stop_token_ids", Shape::List(&Shape::Int)),
    ("stop_regex", STRINGS),
    ("temperature", Shape::Float),
    ("top_p", Shape::Float),
    ("top_k", Shape::Int),
    ("min_p", Shape::Float),
    ("frequency_penalty", Shape::Float),
    ("presence_penalty", Shape::Float),
    ("repetition_penalty", Shape::Float),
    ("min_new_tokens", Shape::Int),
    ("n", Shape::Int),
    ("json_schema", Shape::Str),
    ("regex", Shape::Str),
    ("ebnf", Shape::Str),
    ("structural_tag", Shape::Str),
    ("ignore_eos", Shape::Bool),
    ("skip_special_tokens", Shape::Bool),
    ("spaces_between_special_tokens", Shape::Bool),
    ("no_stop_trim", Shape::Bool),
    ("stream_interval", Shape::Int),
    ("logit_bias", Shape::MapOf(&Shape::Float)),
    ("sampling_seed", Shape::Int),
    ("custom_params", Shape::Any),
    ("beam_width", Shape::Int),
    (
        "watermark",
        Shape::Struct(
            "WatermarkRequestConfig",
            &[("enabled", Shape::Bool), ("key", Shape::Str), ("context_window", Shape::Int)],
        ),
    ),
    ("choice", Shape::List(&Shape::Str)),
];

/// Members of a `/generate` request whose types are checked; others are ignored.
const GENERATE: &[(&str, Shape)] = &[
    ("rid", STRINGS),
    ("text", STRINGS),
    ("input_ids", Shape::TokenIds),
    ("stream", Shape::Bool),
    ("sampling_params", Shape::Sampling),
    ("return_logprob", BOOLS),
    ("logprob_start_len", INTS),
    ("top_logprobs_num", INTS),
    ("token_ids_logprob", Shape::TokenIds),
    ("return_hidden_states", BOOLS),
    ("return_text_in_logprobs", Shape::Bool),
    ("bootstrap_host", NULLABLE_STRINGS),
    ("bootstrap_port", NULLABLE_INTS),
    ("bootstrap_room", NULLABLE_INTS),
    ("routed_dp_rank", Shape::Int),
    ("disagg_prefill_dp_rank", Shape::Int),
    ("image_data", Shape::Media),
    ("video_data", Shape::Media),
    ("audio_data", Shape::Media),
    ("extra_key", STRINGS),
    ("priority", Shape::Int),
    ("cache_salt", STRINGS),
    ("require_reasoning", Shape::Bool),
    ("lora_path", NULLABLE_STRINGS),
    ("routing_key", Shape::Str),
    ("max_thinking_tokens", Shape::Uint),
    ("session_id", Shape::Str),
    ("custom_logit_processor", NULLABLE_STRINGS),
    ("custom_labels", Shape::MapOf(&Shape::Str)),
    ("return_prompt_token_ids", Shape::Required(&Shape::Bool)),
    ("routed_experts_start_len", Shape::Required(&Shape::Int)),
    ("return_sampling_mask", BOOLS),
    ("modalities", Shape::NullableList(&Shape::Str)),
];

/// Checks the types of the members of a `/generate` request.
///
/// # Errors
/// The message for the first member of another type.
pub fn check_generate_body_types(body: &Map<String, Value>) -> Result<(), String> {
    for (name, value) in body {
        if let Some((_, shape)) = GENERATE.iter().find(|(known, _)| known == name) {
            check(shape, value)?;
        }
    }
    Ok(())
}

/// Checks the types of the members of `sampling_params`.
///
/// # Errors
/// The message for the first unknown member, or the first of another type.
pub(super) fn check_sampling_param_types(params: &Map<String, Value>) -> Result<(), String> {
    check_struct(SAMPLING, params)
}

fn check_struct(members: &[(&str, Shape)], map: &Map<String, Value>) -> Result<(), String> {
    for (name, value) in map {
        match members.iter().find(|(known, _)| known == name) {
            Some((_, shape)) => check(shape, value)?,
            None => {
                let known: Vec<String> =
                    members.iter().map(|(name, _)| format!("`{name}`")).collect();
                let known = known.join(", ");
                return Err(format!("unknown field `{name}`, expected one of {known}"));
            }
        }
    }
    Ok(())
}

fn check(shape: &Shape, value: &Value) -> Result<(), String> {
    match (shape, value) {
        (Shape::Required(inner), _) => check_item(inner, value),
        (Shape::Any, _) | (_, Value::Null) => Ok(()),
        _ => check_item(shape, value),
    }
}

/// Checks the type of a member of a `/generate` request that is not null.
fn check_item(shape: &Shape, value: &Value) -> Result<(), String> {
    let fail = |expected: &str| Err(invalid_type(value, expected));
    match (shape, value) {
        (Shape::Any, _) | (Shape::Bool, Value::Bool(_)) | (Shape::Str, Value::String(_)) => Ok(()),
        (Shape::Float, Value::Number(_)) => Ok(()),
        (Shape::Int | Shape::Uint, Value::Number(number)) if !number.is_f64() => {
            match matches!(shape, Shape::Uint) && !number.is_u64() {
                true => Err(format!("invalid value: integer `{number}`, expected u64")),
                false => Ok(()),
            }
        }
        (Shape::Required(inner), _) => check_item(inner, value),
        (Shape::List(item) | Shape::OrList(_, item), Value::Array(items)) => {
            items.iter().try_for_each(|value| check_item(item, value))
        }
        (Shape::NullableList(item) | Shape::OrNullableList(_, item), Value::Array(items)) => {
            items.iter().try_for_each(|value| check(item, value))
        }
        (Shape::OrList(name, item) | Shape::OrNullableList(name, item), _) => {
            let expected = format!("a value or an array of values for {name}");
            check_item(item, value).map_err(|_| invalid_type(value, &expected))
        }
        (Shape::TokenIds, Value::Array(items)) => match items.first() {
            None | Some(Value::Number(_)) => check_item(&Shape::List(&Shape::Int), value),
            Some(_) => check_item(&Shape::List(&Shape::List(&Shape::Int)), value),
        },
        (Shape::MapOf(item), Value::Object(map)) => {
            map.values().try_for_each(|value| check_item(item, value))
        }
        (Shape::Struct(_, members), Value::Object(map)) => check_struct(members, map),
        (Shape::Sampling, Value::Object(map)) => check_sampling_param_types(map),
        (Shape::Sampling, Value::Array(items)) => items.iter().try_for_each(|item| match item {
            Value::Object(map) => check_sampling_param_types(map),
            _ => Err(invalid_type(item, "struct SamplingParams")),
        }),
        (Shape::Media, Value::Array(_) | Value::String(_) | Value::Object(_)) => Ok(()),
        (Shape::Bool, _) => fail("a boolean"),
        (Shape::Int, _) => fail("i64"),
        (Shape::Uint, _) => fail("u64"),
        (Shape::Float, _) => fail("f64"),
        (Shape::Str, _) => fail("a string"),
        (Shape::List(_) | Shape::NullableList(_), _) => fail("a sequence"),
        (Shape::TokenIds, _) => fail("a value or an array of values for TokenIdsOrList"),
        (Shape::MapOf(_), _) => fail("a map"),
        (Shape::Struct(name, _), _) => fail(&format!("struct {name}")),
        (Shape::Sampling, _) => fail("a value or an array of values for SamplingParamsOrList"),
        (Shape::Media, _) => fail("one of the MediaInput shapes"),
    }
}

fn invalid_type(value: &Value, expected: &str) -> String {
    let found = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(truth) => format!("boolean `{truth}`"),
        Value::Number(number) if number.is_f64() => {
            format!("floating point `{}`", python::python_repr(value))
        }
        Value::Number(number) => format!("integer `{number}`"),
        Value::String(text) => format!("string \"{text}\""),
        Value::Array(_) => "sequence".to_owned(),
        Value::Object(_) => "map".to_owned(),
    };
    format!("invalid type: {found}, expected {expected}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_member_of_another_type_is_named() {
        for (body, message) in [
            (json!({"stream": 1}), "invalid type: integer `1`, expected a boolean"),
            (json!({"priority": 1.0}), "invalid type: floating point `1.0`, expected i64"),
            (json!({"input_ids": [true]}), "invalid type: boolean `true`, expected a sequence"),
            (
                json!({"return_logprob": 1, "stream": 1}),
                "invalid type: integer `1`, expected a value or an array of values for BoolOrList",
            ),
            (json!({"max_thinking_tokens": -1}), "invalid value: integer `-1`, expected u64"),
            (json!({"return_prompt_token_ids": null}), "invalid type: null, expected a boolean"),
            (
                json!({"sampling_params": [{"n": 1e30}]}),
                "invalid type: floating point `1e+30`, expected i64",
            ),
            (
                json!({"image_data": 5}),
                "invalid type: integer `5`, expected one of the MediaInput shapes",
            ),
            (
                json!({"sampling_params": {"watermark": {"x": 1}}}),
                "unknown field `x`, expected one of `enabled`, `key`, `context_window`",
            ),
        ] {
            let found = check_generate_body_types(body.as_object().unwrap());
            assert_eq!(found, Err(message.to_owned()), "{body}");
        }
        let body = json!({"input_ids": [[5], [6]], "lora_path": [null], "stream": null,
            "text": ["a"], "unknown": 1, "sampling_params": {"stop": "x", "temperature": 1}});
        assert_eq!(check_generate_body_types(body.as_object().unwrap()), Ok(()));
    }
}
