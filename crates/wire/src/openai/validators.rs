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

use serde_json::{Map, Value};
use vllm_sim_python::{self as python, Py};

use crate::fault::Fault;
use crate::schema::ValidatorError;
use crate::schema::find;

/// The raw JSON body of a request.
pub(crate) type Body = Map<String, Value>;

pub(crate) type ValidatorResult = Result<(), ValidatorError>;

/// Returns Python's `bool(data.get(key))` for a body member.
pub(crate) fn truthy(body: &Body, key: &str) -> bool {
    find(body, key).is_some_and(|(_, value)| Py::of(value).truthy())
}

/// Returns a member of the request body, `null` included.
pub(crate) fn member<'b>(body: &'b Body, key: &str) -> Option<&'b Value> {
    find(body, key).map(|(_, value)| value)
}

/// Returns a member of the request body; `None` if it is absent or null.
pub(crate) fn given<'b>(body: &'b Body, key: &str) -> Option<&'b Value> {
    member(body, key).filter(|value| !value.is_null())
}

/// Returns the 400 with Python's `TypeError` of `for x in value`.
pub(crate) fn not_iterable(value: &Value) -> Fault {
    Fault::bad_request(format!(
        "'{}' object is not iterable",
        Py::of(value).type_name()
    ))
}

/// Returns the 400 with Python's `AttributeError` of `value.get`.
pub(crate) fn no_get(value: &Value) -> Fault {
    let name = Py::of(value).type_name();
    Fault::bad_request(format!("'{name}' object has no attribute 'get'"))
}

/// Mirrors vLLM's `check_cache_salt_support`.
pub(crate) fn cache_salt(body: &mut Cow<'_, Body>) -> ValidatorResult {
    const FORBIDDEN: [char; 4] = ['@', '/', '\\', '\0'];
    const LONGEST: usize = 128;

    let Some(salt) = given(body, "cache_salt") else {
        return Ok(());
    };
    match salt.as_str() {
        None | Some("") => Err(Fault::parameter(
            "Parameter 'cache_salt' must be a non-empty string if provided.",
            "cache_salt",
        )
        .into()),
        Some(salt) if salt.chars().count() > LONGEST || salt.contains(FORBIDDEN) => {
            Err(Fault::parameter(
                "Parameter 'cache_salt' must be at most 128 characters and must not contain \
                 '@', '/', '\\\\', or NUL.",
                "cache_salt",
            )
            .into())
        }
        Some(_) => Ok(()),
    }
}

/// Mirrors vLLM's `apply_return_mm_kwargs_alias`.
pub(crate) fn mm_payload_alias(body: &mut Cow<'_, Body>) -> ValidatorResult {
    let silent = member(body, "mm_payload").is_none();
    if member(body, "return_mm_kwargs") == Some(&Value::Bool(false)) && silent {
        body.to_mut()
            .insert("mm_payload".to_owned(), Value::from("none"));
    }
    Ok(())
}

/// Mirrors vLLM's `validate_stream_options`.
pub(crate) fn stream_options(body: &mut Cow<'_, Body>) -> ValidatorResult {
    if truthy(body, "stream_options") && !truthy(body, "stream") {
        return Err(Fault::parameter(
            "Stream options can only be defined when `stream=True`.",
            "stream_options",
        )
        .into());
    }
    Ok(())
}

/// Mirrors vLLM's `validate_response_format`.
pub(crate) fn response_format(body: &mut Cow<'_, Body>) -> ValidatorResult {
    let Some(Value::Object(format)) = given(body, "response_format") else {
        return Ok(());
    };
    match format.get("type").and_then(Value::as_str) {
        Some("json_schema") if given(format, "json_schema").is_none() => Err(Fault::parameter(
            "When response_format type is 'json_schema', the 'json_schema' field must be \
             provided.",
            "response_format",
        )
        .into()),
        _ => structural_tag_format(body),
    }
}

/// Mirrors vLLM's `validate_structural_tag_response_format`, for response formats of that type.
pub(crate) fn structural_tag_format(body: &Body) -> ValidatorResult {
    let Some(Value::Object(format)) = given(body, "response_format") else {
        return Ok(());
    };
    let tag = format
        .get("type")
        .is_some_and(|kind| kind == "structural_tag");
    if tag && !is_structural_tag(format) {
        return Err(Fault::parameter(
            "Invalid response_format structural_tag specification.",
            "response_format",
        )
        .into());
    }
    Ok(())
}

/// Returns whether a structural tag has one of its two forms: `format`, or `structures` and
/// `triggers`.
fn is_structural_tag(format: &Body) -> bool {
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

/// Returns whether a body has one of the constraints `json`, `regex` and `choice`; more than one is
/// an error.
///
/// The check is the part of `check_structured_outputs_count` that is common to chat and
/// completions.
pub(crate) fn structured_outputs_count(body: &Body, two: Fault) -> Result<bool, ValidatorError> {
    let Some(outputs) = given(body, "structured_outputs") else {
        return Ok(false);
    };
    let Py::Dict(outputs) = Py::of(outputs) else {
        return Err(no_get(outputs).into());
    };
    let count = ["json", "regex", "choice"]
        .iter()
        .filter(|key| given(outputs, key).is_some());
    match count.count() {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(two.into()),
    }
}

/// Checks that the request's structural tag is a JSON document, as `check_structured_outputs_count`
/// does.
pub(crate) fn structural_tag(body: &Body) -> ValidatorResult {
    let tag = member(body, "structured_outputs")
        .and_then(|outputs| given(outputs.as_object()?, "structural_tag"));
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
    Err(Fault::parameter(
        "Invalid structured_outputs structural_tag specification.",
        "structured_outputs",
    )
    .into())
}

/// Checks that a body member like `logprobs` is absent or a number, so that it can be compared.
pub(crate) fn number_or_absent(body: &Body, key: &str) -> ValidatorResult {
    match given(body, key) {
        Some(value) if Py::of(value).number().is_none() => Err(Fault::invalid_value(
            format_args!("`{key}` must be an integer."),
            key,
            python::str(value),
        )
        .into()),
        _ => Ok(()),
    }
}

/// Checks the field `prompt_logprobs`: not with streams, and not below -1. Mirrors
/// `check_logprobs`.
pub(crate) fn prompt_logprobs(body: &Body) -> ValidatorResult {
    let key = "prompt_logprobs";
    let Some(value) = given(body, key) else {
        return Ok(());
    };
    let count = Py::of(value).number().unwrap_or_default();
    if truthy(body, "stream") && (count > 0.0 || count == -1.0) {
        return Err(Fault::parameter(
            "`prompt_logprobs` are not available when `stream=True`.",
            key,
        )
        .into());
    }
    positive_or_minus_one(key, value)
}

/// Rejects a request field with a negative number other than -1.
pub(crate) fn positive_or_minus_one(key: &str, value: &Value) -> ValidatorResult {
    match Py::of(value).number() {
        Some(count) if count < 0.0 && count != -1.0 => Err(Fault::invalid_value(
            format_args!("`{key}` must be a positive value or -1."),
            key,
            python::str(value),
        )
        .into()),
        _ => Ok(()),
    }
}
