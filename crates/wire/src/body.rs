//! Reads request bodies: parses them as JSON, and validates them with pydantic's rules.
//!
//! Validation is in lax mode (numbers from strings, `"yes"` for true). All errors of a body are
//! collected in declaration order, a failed union lists each branch, and vLLM's error message is
//! made from the list.
//!
//! Sources: FastAPI `routing.py` (`get_request_handler`), `validate_json_request` of
//! `vllm/entrypoints/serve/utils/api_utils.py`; pydantic-core `src/validators/*.rs`,
//! `src/input/{input_python,shared}.rs`;
//! `vllm/entrypoints/serve/exception_handling/handlers/validation.py` for the text.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer as _};
use serde_json::{Map, Value};
use vllm_sim_python::{self as python, JsonLoadsError};

use super::bounds::RequestBounds;
use super::checker::{CheckError, SchemaChecker};
use super::fastapi::pydantic_schema_name;
use super::fault::{ErrorType, Fault};
use super::lax::PydanticError;
use super::report::{
    ErrorLocationItem, SchemaError, SchemaErrorStyle, pydantic_error_text, schema_errors_fault,
};
use super::schema::{RequestField, Schema};

/// Maximum number of JSON values in a request body; a parsed tree is many times larger than its
/// text.
const MAX_JSON_VALUES: usize = 4 << 20;

/// Parses a request body as JSON as Python does, up to 4,194,304 values.
///
/// # Errors
/// 413 for a body with more values; vLLM's 400 for text that is not JSON.
pub fn parse_python_json(body: &[u8]) -> Result<Value, Fault> {
    check_json_value_count(body)?;
    Ok(python::loads(body)?)
}

/// Parses a JSON object and deserializes its member `member` separately; the returned map has
/// `true` in place of that member.
///
/// The result is `None` if the text is not valid JSON, repeats `member`, or `member` is not a `T`.
pub(crate) fn parse_body_extracting_member<'b, T: Deserialize<'b>>(
    body: &'b [u8],
    member: &str,
) -> Option<(Map<String, Value>, Option<T>)> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let parts = reader.deserialize_map(SplitAtMember(member, PhantomData)).ok()?;
    reader.end().ok().map(|()| parts)
}

struct SplitAtMember<'m, T>(&'m str, PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for SplitAtMember<'_, T> {
    type Value = (Map<String, Value>, Option<T>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let (mut members, mut apart) = (Map::new(), None);
        while let Some(key) = from.next_key::<String>()? {
            let value = if key != self.0 {
                from.next_value()?
            } else if apart.replace(from.next_value()?).is_some() {
                return Err(A::Error::custom("a member twice"));
            } else {
                Value::Bool(true)
            };
            members.insert(key, value);
        }
        Ok((members, apart))
    }
}

/// Rejects a request body with more than 4,194,304 JSON values.
///
/// # Errors
/// A 413 that names the limit.
pub fn check_json_value_count(body: &[u8]) -> Result<(), Fault> {
    // Each further value takes at least a separator and one character.
    if body.len() <= 2 * MAX_JSON_VALUES || approximate_value_count(body) <= MAX_JSON_VALUES {
        return Ok(());
    }
    let message = format!("the request body holds more than {MAX_JSON_VALUES} JSON values");
    Err(Fault::new(413, ErrorType::TooLarge, message))
}

/// Approximate memory per value of a parsed and validated JSON body, in bytes (measured with a body of
/// 50,000 tools).
const BYTES_PER_VALUE: u64 = 320;

/// Returns the approximate memory of a request with this body, in bytes; for a body below 64 KiB,
/// only its length.
pub fn estimated_body_memory_bytes(body: &[u8]) -> u64 {
    const SMALL: usize = 64 << 10;
    let values = if body.len() < SMALL { 0 } else { approximate_value_count(body) };
    body.len() as u64 + values as u64 * BYTES_PER_VALUE
}

/// Returns the approximate number of JSON values in a body: one per opening bracket or comma
/// outside strings.
fn approximate_value_count(body: &[u8]) -> usize {
    let (mut count, mut quoted, mut escaped) = (1, false, false);
    for byte in body {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' | b',' if !quoted => count += 1,
            _ => {}
        }
    }
    count
}

/// Parses the body of a JSON route; an empty body reads as null.
///
/// Broken JSON is reported before a wrong content type, but only if the content type is some kind
/// of JSON.
///
/// # Errors
/// vLLM's 400 if the body is not JSON or the content type is not `application/json`.
pub fn read_json_body(content_type: Option<&str>, body: &[u8]) -> Result<Value, Fault> {
    let accepted = check_json_content_type(content_type);
    let is_json = accepted.is_ok() || is_json_media_type(content_type.unwrap_or_default());
    let value = match is_json && !body.is_empty() {
        true => parse_python_json(body)?,
        false => Value::Null,
    };
    accepted.map(|()| value)
}

/// Returns the members of a JSON body whose texts have an unpaired surrogate, which no tokenizer of
/// Hugging Face encodes.
pub fn members_with_unpaired_surrogates(body: &[u8]) -> Vec<String> {
    if !has_unpaired_surrogate_escape(body) || check_json_value_count(body).is_err() {
        return Vec::new();
    }
    // The two values differ only where a surrogate was replaced.
    let [one, other] = ['a', 'b'].map(|unpaired| {
        python::loads_replacing_unpaired_surrogates(body, unpaired).unwrap_or_default()
    });
    let members = one.as_object().into_iter().flatten();
    let unpaired = members.filter(|(name, value)| other.get(name) != Some(value));
    unpaired.map(|(name, _)| name.clone()).collect()
}

/// Returns whether a JSON text has an escape like `\ud800` without the other half of its pair.
fn has_unpaired_surrogate_escape(body: &[u8]) -> bool {
    // Most bodies have no escape, and `contains` compares several bytes at a time.
    if !body.contains(&b'\\') {
        return false;
    }
    let (mut rest, mut after_high) = (body, false);
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        let unit = escaped_code_unit(&rest[at..]);
        let is_low = unit.is_some_and(|unit| matches!(unit, 0xdc00..=0xdfff));
        if (after_high || is_low) && !(after_high && is_low && at == 0) {
            return true;
        }
        after_high = unit.is_some_and(|unit| matches!(unit, 0xd800..=0xdbff));
        let length = if unit.is_some() { 6 } else { 2 };
        rest = rest.get(at + length..).unwrap_or_default();
    }
    after_high
}

/// Returns the UTF-16 code unit of an escape `\uXXXX` at the start of a text.
fn escaped_code_unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()
}

/// Returns vLLM's 400 for a prompt that its tokenizer cannot read, with the tokenizer's message.
pub fn unencodable_prompt_fault() -> Fault {
    Fault::bad_request(
        "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]",
    )
}

/// Parses the optional body of a JSON route; `None` if absent.
///
/// FastAPI treats a body of another content type as absent; a route without `validate_json_request`
/// accepts that.
///
/// # Errors
/// vLLM's 400 for a body that is not JSON.
pub fn read_optional_body(content_type: Option<&str>, body: &[u8]) -> Result<Option<Value>, Fault> {
    if body.is_empty() {
        return Ok(None);
    }
    let value = if is_json_media_type(content_type.unwrap_or_default()) {
        parse_python_json(body)?
    } else {
        // The schema rejects a string, because it is not a mapping.
        Value::String(String::from_utf8_lossy(body).into_owned())
    };
    Ok(Some(value).filter(|value| !value.is_null()))
}

/// Rejects requests with a content type other than `application/json`.
///
/// # Errors
/// vLLM's 400 for another content type.
pub fn check_json_content_type(content_type: Option<&str>) -> Result<(), Fault> {
    let content_type = content_type.unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default();
    if media_type.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Fault::new(
        400,
        ErrorType::BadRequestPhrase,
        "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
    ))
}

/// Returns whether a content type is `application/json` or `application/…+json`, parsed as Python's
/// `email` does.
fn is_json_media_type(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.split_once('/') {
        Some(("application", subtype)) => {
            !subtype.contains('/') && (subtype == "json" || subtype.ends_with("+json"))
        }
        _ => false,
    }
}

impl From<JsonLoadsError> for Fault {
    fn from(error: JsonLoadsError) -> Self {
        match error {
            JsonLoadsError::Unreadable => {
                Self::new(400, ErrorType::Detail, "There was an error parsing the body")
            }
            JsonLoadsError::Decode { message, position } => {
                let error = python::python_repr_of_str(message);
                let text = format!(
                    "1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{position}', \
                     'msg': 'JSON decode error', 'input': '<dict of 0 items>', \
                     'ctx': {{'error': {error}}}}}"
                );
                Self {
                    param: Some(format!("body.{position}")),
                    ..Self::new(400, ErrorType::BadRequestPhrase, text)
                }
            }
        }
    }
}

/// Validates a request body against its request class and reads the class's fields.
///
/// # Errors
/// vLLM's 400: the error of a validator function, else all schema errors in one text.
pub fn validate_and_read_body<T: RequestField>(value: &Value) -> Result<T, Fault> {
    read_body_within_bounds(value, &RequestBounds::default())
}

/// Validates and reads a request body like [`validate_and_read_body`], with configured limits.
///
/// # Errors
/// The errors of [`validate_and_read_body`].
pub fn read_body_within_bounds<T: RequestField>(
    value: &Value,
    bounds: &RequestBounds,
) -> Result<T, Fault> {
    let checked = checked_body_within(&T::SCHEMA, value, bounds)?;
    T::read(&checked).ok_or_else(unreadable_value_fault)
}

/// Returns the error for a value that passed validation but that its Rust type cannot read. This is
/// a bug of the simulator, which must fail only one request.
pub fn unreadable_value_fault() -> Fault {
    Fault::bad_request("The request could not be read.")
}

/// Validates a request body and returns it with its values coerced to the schema's types.
///
/// # Errors
/// The errors of [`validate_and_read_body`].
pub(crate) fn validate_body<'a>(
    schema: &Schema,
    value: &'a Value,
) -> Result<Cow<'a, Value>, Fault> {
    checked_body_within(schema, value, &RequestBounds::default())
}

fn checked_body_within<'a>(
    schema: &Schema,
    value: &'a Value,
    bounds: &RequestBounds,
) -> Result<Cow<'a, Value>, Fault> {
    const BODY_LOCATION: ErrorLocationItem<'_> = ErrorLocationItem::Key("body");
    if value.is_null() {
        let missing = PydanticError::new("missing", "Field required");
        return Err(schema_errors_fault(
            &SchemaError::new(missing, &[BODY_LOCATION], value).into(),
        ));
    }
    let mut checker = SchemaChecker::at_location(BODY_LOCATION).with_bounds(*bounds);
    let changed = checker.check_value(schema, value).map_err(check_error_fault)?;
    Ok(changed.map_or(Cow::Borrowed(value), Cow::Owned))
}

/// Validates and reads the query parameters of a request, all of which are strings.
///
/// # Errors
/// The errors of [`validate_and_read_body`], whose locations start with `query`.
pub fn read_query<T: RequestField>(value: &Value) -> Result<T, Fault> {
    let changed = SchemaChecker::at_location(ErrorLocationItem::Key("query"))
        .check_value(&T::SCHEMA, value)
        .map_err(check_error_fault)?;
    T::read(changed.as_ref().unwrap_or(value)).ok_or_else(unreadable_value_fault)
}

/// Returns the index of the best-matching branch of a union type, and the coerced value.
///
/// In the coerced value, a `TypedDict` gets its own keys first, in declaration order.
pub(crate) fn best_union_branch(branches: &[Schema], value: &Value) -> Option<(usize, Value)> {
    let mut checker = SchemaChecker::default().with_ordered_typed_dicts();
    let (index, changed) = checker.check_union_branch(branches, value).ok()?;
    Some((index, changed.unwrap_or_else(|| value.clone())))
}

/// Returns whether a value satisfies a schema.
pub(crate) fn matches_schema(schema: &Schema, value: &Value) -> bool {
    SchemaChecker::default().check_value(schema, value).is_ok()
}

/// Validates one item of a JSON list that the request's schema accepted without checking its items
/// (Python's `Iterable`).
///
/// # Errors
/// A 400 with the text of the pydantic `ValidationError` that Python's `for` raises.
pub(crate) fn validate_iterable_item(
    schema: &Schema,
    index: usize,
    value: &Value,
) -> Result<Value, Fault> {
    let changed = SchemaChecker::at_location(ErrorLocationItem::Index(index))
        .with_ordered_typed_dicts()
        .with_error_style(SchemaErrorStyle::Verbose)
        .check_value(schema, value)
        .map_err(|error| uncaught_error_fault("ValidatorIterator", error))?;
    Ok(changed.unwrap_or_else(|| value.clone()))
}

/// Validates a JSON value other than a request body, and returns it if a coercion changed it.
///
/// # Errors
/// A 400 with the text of the pydantic `ValidationError`.
pub(crate) fn validate_json_value(schema: &Schema, value: &Value) -> Result<Option<Value>, Fault> {
    SchemaChecker::default()
        .with_error_style(SchemaErrorStyle::Verbose)
        .check_value(schema, value)
        .map_err(|error| uncaught_error_fault(&pydantic_schema_name(schema), error))
}

/// Validates and reads a JSON value other than a request body.
///
/// # Errors
/// The errors of [`validate_json_value`].
pub fn read_json_value<T: RequestField>(value: &Value) -> Result<T, Fault> {
    let changed = validate_json_value(&T::SCHEMA, value)?;
    T::read(changed.as_ref().unwrap_or(value)).ok_or_else(unreadable_value_fault)
}

fn check_error_fault(error: CheckError) -> Fault {
    match error {
        CheckError::Schema(errors) => schema_errors_fault(&errors),
        CheckError::Raised(fault) => fault,
    }
}

/// Returns the error response of a route whose vLLM handler does not catch pydantic's
/// `ValidationError`.
fn uncaught_error_fault(title: &str, error: CheckError) -> Fault {
    match error {
        CheckError::Schema(errors) => Fault::bad_request(pydantic_error_text(title, &errors)),
        CheckError::Raised(fault) => fault,
    }
}

#[cfg(test)]
mod tests {
    use serde::de::IgnoredAny;
    use serde_json::json;

    use super::*;

    #[test]
    fn json_and_its_media_type_are_both_required() {
        let text = |content_type, body: &str| {
            read_json_body(content_type, body.as_bytes()).map_err(|fault| fault.message)
        };
        let media = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is \
                     allowed";
        assert_eq!(text(Some("application/json"), "{}"), Ok(json!({})));
        assert_eq!(text(Some("Application/JSON; charset=utf-8"), "{}"), Ok(json!({})));
        assert_eq!(text(Some("application/json"), ""), Ok(Value::Null));
        assert_eq!(text(None, "{"), Err(media.to_owned()));
        assert_eq!(text(Some("text/plain"), "{"), Err(media.to_owned()));
        assert_eq!(text(Some("application/x+json"), "{}"), Err(media.to_owned()));
        assert!(text(Some("application/x+json"), "{").is_err_and(|m| m.contains("json_invalid")));
    }

    #[test]
    fn one_member_is_deserialized_separately() {
        let body = br#"{"prompt":[1,{"n":2}],"n":1,"stop":["prompt"]}"#.as_slice();
        let around = json!({"prompt": true, "n": 1, "stop": ["prompt"]});
        let read = |body| {
            parse_body_extracting_member::<IgnoredAny>(body, "prompt")
                .map(|(members, _)| members.into())
        };
        assert_eq!(read(body), Some(around));
        assert_eq!(read(b"[1]".as_slice()), None);
    }

    #[test]
    fn the_number_of_json_values_is_limited() {
        let text = format!("\"{}\\\"{}\"", ",[".repeat(MAX_JSON_VALUES), ",".repeat(9));
        assert_eq!(check_json_value_count(text.as_bytes()), Ok(()));
        let list = |count| format!("[{}1]", "1,".repeat(count - 1));
        assert_eq!(check_json_value_count(list(MAX_JSON_VALUES - 1).as_bytes()), Ok(()));
        let fault = check_json_value_count(list(MAX_JSON_VALUES + 1).as_bytes()).unwrap_err();
        let words = "the request body holds more than 4194304 JSON values";
        assert_eq!((fault.status, fault.message.as_str()), (413, words));
    }

    #[test]
    fn members_with_unpaired_surrogates_are_named() {
        let members = |body: &str| members_with_unpaired_surrogates(body.as_bytes());
        for paired in [
            r#"{"a": "\ud83d\ude00\uD83D\uDE00"}"#,
            "{\"a\": \"\u{10ffff} \\ud83d\\ude00\"}",
            r#"{"a": "\\ud800 \u0041"}"#,
            r#"{"a": "\u"#,
            r#"["\ud800"]"#,
        ] {
            assert_eq!(members(paired), [""; 0], "{paired}");
        }
        for unpaired in [
            r"\ud800",
            r"\udc00",
            r"\udc00\ud800",
            r"\ud83d\ud83d\ude00",
            r"\ud800x\udc00",
            r"\ud800\n\udc00",
            r"\ude00\ud83d\ude00\\",
        ] {
            let body = format!(r#"{{"a": "b", "c": [{{"d": "{unpaired}"}}], "e": 1e400}}"#);
            assert_eq!(members(&body), ["c"], "{unpaired}");
        }
    }

    #[test]
    fn undecodable_input_is_unicode_error() {
        assert_eq!(
            Fault::from(JsonLoadsError::Unreadable).to_json(),
            r#"{"detail":"There was an error parsing the body"}"#
        );
    }
}
