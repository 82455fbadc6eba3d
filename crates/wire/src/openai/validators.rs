//! Validators of the raw request body, run by vLLM before schema validation.
//!
//! The validator function declared last runs first, and the first error is the response. Python's
//! own errors are part of the contract: iterating over a number is a `TypeError` and a 400. Calling
//! `.get` on a string is an `AttributeError` and upstream a 500. A client's mistake is a 400 here,
//! with the same message.
//!
//! Source: the `model_validator(mode="before")` methods of
//! `vllm/entrypoints/openai/{chat_completion,completion}/protocol.py` and the helpers of
//! `vllm/entrypoints/generate/base/protocol.py`.

use std::borrow::Cow;
use std::fmt;

use serde_json::{Map, Value};
use vllm_sim_python::{self as python, PythonValue};

use crate::fault::Fault;
use crate::schema::ValidatorError;
use crate::schema::find_member;

/// The raw JSON body of a request.
pub(crate) type JsonBody = Map<String, Value>;

pub(crate) type ValidatorResult = Result<(), ValidatorError>;

/// Rejects the request with a 400.
pub(crate) fn reject_request(message: impl Into<String>) -> ValidatorResult {
    Err(Fault::bad_request(message).into())
}

/// Rejects the request with a 400 that names the parameter.
pub(crate) fn reject_parameter(message: impl fmt::Display, param: &str) -> ValidatorResult {
    Err(Fault::bad_parameter(message, param).into())
}

/// Rejects the request with a 400 that names the parameter and shows its value.
pub(crate) fn reject_value(
    message: impl fmt::Display,
    param: &str,
    value: impl fmt::Display,
) -> ValidatorResult {
    Err(Fault::invalid_value_fault(message, param, value).into())
}

/// Returns Python's `bool(data.get(key))` for a member of the request body.
pub(crate) fn is_truthy_member(body: &JsonBody, key: &str) -> bool {
    find_member(body, key).is_some_and(|(_, value)| PythonValue::from_json_value(value).is_truthy())
}

/// Returns a member of the request body, `null` included.
pub(crate) fn body_member<'b>(body: &'b JsonBody, key: &str) -> Option<&'b Value> {
    find_member(body, key).map(|(_, value)| value)
}

/// Returns a member of the request body; `None` if it is absent or null.
pub(crate) fn non_null_member<'b>(body: &'b JsonBody, key: &str) -> Option<&'b Value> {
    body_member(body, key).filter(|value| !value.is_null())
}

/// Returns the 400 with Python's `TypeError` of `for x in value`.
pub(crate) fn not_iterable_fault(value: &Value) -> Fault {
    Fault::bad_request(format!(
        "'{}' object is not iterable",
        PythonValue::from_json_value(value).python_type_name()
    ))
}

/// Returns the 400 with Python's `AttributeError` of `value.get`.
pub(crate) fn python_get_attribute_error_fault(value: &Value) -> Fault {
    let name = PythonValue::from_json_value(value).python_type_name();
    Fault::bad_request(format!("'{name}' object has no attribute 'get'"))
}

/// Checks that `cache_salt`, if given, is a text of 1 to 128 allowed characters.
///
/// Source: vLLM's `check_cache_salt_support`.
pub(crate) fn check_cache_salt_support(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    const FORBIDDEN_CHARS: [char; 4] = ['@', '/', '\\', '\0'];
    const MAX_SALT_LENGTH: usize = 128;

    let Some(salt) = non_null_member(body, "cache_salt") else {
        return Ok(());
    };
    match salt.as_str() {
        None | Some("") => reject_parameter(
            "Parameter 'cache_salt' must be a non-empty string if provided.",
            "cache_salt",
        ),
        Some(salt) if salt.chars().count() > MAX_SALT_LENGTH || salt.contains(FORBIDDEN_CHARS) => {
            reject_parameter(
                "Parameter 'cache_salt' must be at most 128 characters and must not contain \
                 '@', '/', '\\\\', or NUL.",
                "cache_salt",
            )
        }
        Some(_) => Ok(()),
    }
}

/// Checks that `continue_final_message` and `add_generation_prompt` are not both true.
///
/// Source: vLLM's `ChatRequestMixin.check_generation_prompt`.
pub(crate) fn check_generation_prompt(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    if is_truthy_member(body, "continue_final_message")
        && is_truthy_member(body, "add_generation_prompt")
    {
        return reject_request(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
        );
    }
    Ok(())
}

/// Translates `return_mm_kwargs: false` into `mm_payload: none`.
///
/// Source: vLLM's `apply_return_mm_kwargs_alias`.
pub(crate) fn apply_return_mm_kwargs_alias(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    let silent = body_member(body, "mm_payload").is_none();
    if body_member(body, "return_mm_kwargs") == Some(&Value::Bool(false)) && silent {
        body.to_mut().insert("mm_payload".to_owned(), Value::from("none"));
    }
    Ok(())
}

/// Checks that `stream_options` comes with `stream: true`.
///
/// Source: vLLM's `validate_stream_options`.
pub(crate) fn validate_stream_options(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    if is_truthy_member(body, "stream_options") && !is_truthy_member(body, "stream") {
        return reject_parameter(
            "Stream options can only be defined when `stream=True`.",
            "stream_options",
        );
    }
    Ok(())
}

/// Checks that a `response_format` has the schema or the tag that its type needs.
///
/// Source: vLLM's `validate_response_format`.
pub(crate) fn validate_response_format(body: &mut Cow<'_, JsonBody>) -> ValidatorResult {
    let Some(Value::Object(format)) = non_null_member(body, "response_format") else {
        return Ok(());
    };
    match format.get("type").and_then(Value::as_str) {
        Some("json_schema") if non_null_member(format, "json_schema").is_none() => {
            reject_parameter(
                "When response_format type is 'json_schema', the 'json_schema' field must be \
             provided.",
                "response_format",
            )
        }
        _ => validate_structural_tag_format(body),
    }
}

/// Checks that a response format of type `structural_tag` has the member `format`, or `structures`
/// and `triggers`.
///
/// Source: vLLM's `validate_structural_tag_response_format`.
pub(crate) fn validate_structural_tag_format(body: &JsonBody) -> ValidatorResult {
    let Some(Value::Object(format)) = non_null_member(body, "response_format") else {
        return Ok(());
    };
    let tag = format.get("type").is_some_and(|kind| kind == "structural_tag");
    if tag && !is_structural_tag(format) {
        return reject_parameter(
            "Invalid response_format structural_tag specification.",
            "response_format",
        );
    }
    Ok(())
}

/// Returns whether a structural tag has one of its two forms: `format`, or `structures` and
/// `triggers`.
fn is_structural_tag(format: &JsonBody) -> bool {
    let text = |value: &Value, key: &str| value.get(key).is_some_and(Value::is_string);
    let legacy = || {
        let structures = format.get("structures").and_then(Value::as_array);
        let triggers = format.get("triggers").and_then(Value::as_array);
        structures.is_some_and(|all| all.iter().all(|s| text(s, "begin") && text(s, "end")))
            && triggers.is_some_and(|all| !all.is_empty() && all.iter().all(Value::is_string))
    };
    match format.get("format") {
        Some(Value::Object(inner)) => inner.get("type").is_some_and(Value::is_string),
        Some(_) => false,
        None => legacy(),
    }
}

/// Returns whether a request body has one of the constraints `json`, `regex` and `choice`; more
/// than one is an error.
///
/// The check is the part of `check_structured_outputs_count` that is common to chat and
/// completions.
pub(crate) fn has_single_constraint(
    body: &JsonBody,
    conflict_fault: impl FnOnce() -> Fault,
) -> Result<bool, ValidatorError> {
    let Some(outputs) = non_null_member(body, "structured_outputs") else {
        return Ok(false);
    };
    let PythonValue::Dict(outputs) = PythonValue::from_json_value(outputs) else {
        return Err(python_get_attribute_error_fault(outputs).into());
    };
    let count =
        ["json", "regex", "choice"].iter().filter(|key| non_null_member(outputs, key).is_some());
    match count.count() {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(conflict_fault().into()),
    }
}

/// Checks that the request's structural tag is a JSON document, as `check_structured_outputs_count`
/// does.
pub(crate) fn check_structural_tag(body: &JsonBody) -> ValidatorResult {
    let tag = body_member(body, "structured_outputs")
        .and_then(|outputs| non_null_member(outputs.as_object()?, "structural_tag"));
    let good = match tag {
        None => true,
        Some(Value::String(text)) => matches!(
            serde_json::from_str::<Value>(text),
            Ok(Value::Object(tag)) if is_structural_tag(&tag)
        ),
        Some(_) => false,
    };
    if good {
        return Ok(());
    }
    reject_parameter(
        "Invalid structured_outputs structural_tag specification.",
        "structured_outputs",
    )
}

/// Checks that a member of the request body like `logprobs` is absent or a number, so that it can
/// be compared.
pub(crate) fn check_number_or_absent(body: &JsonBody, key: &str) -> ValidatorResult {
    match non_null_member(body, key) {
        Some(value) if PythonValue::from_json_value(value).as_number().is_none() => reject_value(
            format_args!("`{key}` must be an integer."),
            key,
            python::python_str(value),
        ),
        _ => Ok(()),
    }
}

/// Checks the field `prompt_logprobs`: not with streams, and not below -1. Mirrors
/// `check_logprobs`.
pub(crate) fn check_prompt_logprobs(body: &JsonBody) -> ValidatorResult {
    let key = "prompt_logprobs";
    let Some(value) = non_null_member(body, key) else {
        return Ok(());
    };
    let count = PythonValue::from_json_value(value).as_number().unwrap_or_default();
    if is_truthy_member(body, "stream") && (count > 0.0 || count == -1.0) {
        return reject_parameter("`prompt_logprobs` are not available when `stream=True`.", key);
    }
    check_not_below_minus_one(key, value)
}

/// Rejects a request field with a negative number other than -1.
pub(crate) fn check_not_below_minus_one(key: &str, value: &Value) -> ValidatorResult {
    match PythonValue::from_json_value(value).as_number() {
        Some(count) if count < 0.0 && count != -1.0 => reject_value(
            format_args!("`{key}` must be a positive value or -1."),
            key,
            python::python_str(value),
        ),
        _ => Ok(()),
    }
}
