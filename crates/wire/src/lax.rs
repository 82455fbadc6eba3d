//! Coercions of scalar values in pydantic's lax mode, and the texts of pydantic's errors.
//!
//! Each coercion returns `Ok(None)` if the value already has the type, `Ok(Some(new))` if it was
//! coerced, and `Err` if it cannot be.
//!
//! Source: pydantic-core `src/errors/types.rs` (texts), `src/input/shared.rs` (`str_as_int`,
//! `str_as_float`, `str_as_bool`), `src/input/input_python.rs`.

use std::borrow::Cow;

use serde_json::Value;
use vllm_sim_python::{self as python, PythonValue};

use super::schema::{ClassKind, LengthLimits, Model, NumberBounds};

/// Maximum number of digits of an integer that pydantic parses from text.
const MAX_INT_DIGITS: usize = 4300;

/// The members of a pydantic error that do not depend on its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PydanticError {
    /// The error's `type` member, such as `int_parsing`.
    pub(super) kind: &'static str,
    /// The `msg` member of the pydantic error: its message text.
    pub(super) message: Cow<'static, str>,
    /// Items of the error's `ctx` dict in Python's spelling, without the braces; empty for no
    /// `ctx`.
    pub(super) context: String,
}

impl PydanticError {
    pub(super) fn new(kind: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), context: String::new() }
    }

    pub(super) fn with_error_context(self, context: String) -> Self {
        Self { context, ..self }
    }
}

pub(super) type CoercionResult = Result<Option<Value>, PydanticError>;

pub(super) fn coerce_bool(value: &Value) -> CoercionResult {
    let unreadable = || {
        PydanticError::new(
            "bool_parsing",
            "Input should be a valid boolean, unable to interpret input",
        )
    };
    let read = match PythonValue::from_json_value(value) {
        PythonValue::Bool(_) => return Ok(None),
        PythonValue::Str(text) => match text.to_ascii_lowercase().as_str() {
            "0" | "off" | "f" | "false" | "n" | "no" => Some(false),
            "1" | "on" | "t" | "true" | "y" | "yes" => Some(true),
            _ => return Err(unreadable()),
        },
        PythonValue::Int(i) if i64::try_from(i).is_err() => None,
        PythonValue::Int(0) => Some(false),
        PythonValue::Int(1) => Some(true),
        PythonValue::Int(_) => return Err(unreadable()),
        PythonValue::Float(f) if f.fract() == 0.0 && fits_i64(f) => match f {
            0.0 => Some(false),
            1.0 => Some(true),
            _ => return Err(unreadable()),
        },
        _ => None,
    };
    read.map(|b| Some(Value::Bool(b)))
        .ok_or_else(|| PydanticError::new("bool_type", "Input should be a valid boolean"))
}

/// Returns whether pydantic accepts a float as a 64-bit integer.
fn fits_i64(value: f64) -> bool {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    -LIMIT < value && value < LIMIT
}

pub(super) fn coerce_int(value: &Value) -> CoercionResult {
    match PythonValue::from_json_value(value) {
        PythonValue::Int(_) | PythonValue::BigInt(_) => Ok(None),
        PythonValue::Bool(b) => Ok(Some(Value::from(u8::from(b)))),
        PythonValue::Float(f) if !f.is_finite() => {
            Err(PydanticError::new("finite_number", "Input should be a finite number"))
        }
        PythonValue::Float(f) if f.fract() != 0.0 => Err(PydanticError::new(
            "int_from_float",
            "Input should be a valid integer, got a number with a fractional part",
        )),
        PythonValue::Float(f) if !fits_i64(f) => Err(int_too_large()),
        #[expect(clippy::cast_possible_truncation, reason = "whole and within 64 bits")]
        PythonValue::Float(f) => Ok(Some(Value::from(f as i64))),
        PythonValue::Str(text) => int_from_text(text).map(Some),
        _ => Err(PydanticError::new("int_type", "Input should be a valid integer")),
    }
}

fn int_too_large() -> PydanticError {
    PydanticError::new(
        "int_parsing_size",
        "Unable to parse input string as an integer, exceeded maximum size",
    )
}

/// Returns Python's `int(text)`, as an integer of any size.
pub(super) fn parse_python_int(text: &str) -> Option<Value> {
    if text.contains('.') { None } else { int_from_text(text).ok() }
}

fn int_from_text(text: &str) -> Result<Value, PydanticError> {
    let text = text.trim();
    if text.len() > MAX_INT_DIGITS {
        return Err(int_too_large());
    }
    let (sign, digits) = match text.as_bytes().first() {
        Some(b'-') => ("-", &text[1..]),
        Some(b'+') => ("", &text[1..]),
        _ => ("", text),
    };
    let whole = match digits.split_once('.') {
        Some((whole, zeros)) if !zeros.is_empty() && zeros.bytes().all(|b| b == b'0') => whole,
        Some(_) => "",
        None => digits,
    };
    let plain = remove_underscores(whole).ok_or_else(|| {
        PydanticError::new(
            "int_parsing",
            "Input should be a valid integer, unable to parse string as an integer",
        )
    })?;
    let trimmed = plain.trim_start_matches('0');
    let number = if trimmed.is_empty() { "0".to_owned() } else { format!("{sign}{trimmed}") };
    Ok(number
        .parse()
        .map_or_else(|_| python::json_of_number_text(&number), python::json_of_python_int))
}

fn remove_underscores(text: &str) -> Option<String> {
    let parts =
        text.split('_').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    parts.then(|| text.replace('_', ""))
}

pub(super) fn coerce_float(value: &Value) -> CoercionResult {
    match PythonValue::from_json_value(value) {
        PythonValue::Float(_) => Ok(None),
        PythonValue::Bool(b) => Ok(Some(python::json_of_python_float(f64::from(u8::from(b))))),
        #[expect(clippy::cast_precision_loss, reason = "Python's float() rounds too")]
        PythonValue::Int(i) => Ok(Some(python::json_of_python_float(i as f64))),
        PythonValue::BigInt(digits) => match digits.parse::<f64>() {
            Ok(f) if f.is_finite() => Ok(Some(python::json_of_python_float(f))),
            _ => Err(PydanticError::new("float_type", "Input should be a valid number")),
        },
        PythonValue::Str(text) => {
            float_from_text(text).map(|f| Some(python::json_of_python_float(f))).ok_or_else(|| {
                PydanticError::new(
                    "float_parsing",
                    "Input should be a valid number, unable to parse string as a number",
                )
            })
        }
        _ => Err(PydanticError::new("float_type", "Input should be a valid number")),
    }
}

fn float_from_text(text: &str) -> Option<f64> {
    let text = text.trim();
    if let Ok(value) = text.parse() {
        return Some(value);
    }
    let bytes = text.as_bytes();
    let between_digits = |i: usize| {
        i > 0 && bytes[i - 1].is_ascii_digit() && bytes.get(i + 1).is_some_and(u8::is_ascii_digit)
    };
    let fair = (0..bytes.len()).filter(|i| bytes[*i] == b'_').all(between_digits);
    if fair { text.replace('_', "").parse().ok() } else { None }
}

pub(super) fn coerce_str(value: &Value, length: LengthLimits) -> CoercionResult {
    let PythonValue::Str(text) = PythonValue::from_json_value(value) else {
        return Err(PydanticError::new("string_type", "Input should be a valid string"));
    };
    if length.min == 0 && length.max == usize::MAX {
        return Ok(None);
    }
    let count = text.chars().count();
    let (kind, bound, words, n) = match count {
        _ if count < length.min => ("string_too_short", "min_length", "at least", length.min),
        _ if count > length.max => ("string_too_long", "max_length", "at most", length.max),
        _ => return Ok(None),
    };
    let s = if n == 1 { "" } else { "s" };
    Err(PydanticError::new(kind, format!("String should have {words} {n} character{s}"))
        .with_error_context(format!("'{bound}': {n}")))
}

pub(super) fn coerce_bytes(value: &Value) -> CoercionResult {
    if value.is_string() {
        return Ok(None);
    }
    Err(PydanticError::new("bytes_type", "Input should be a valid bytes"))
}

pub(super) fn coerce_iterable(value: &Value) -> CoercionResult {
    match PythonValue::from_json_value(value) {
        PythonValue::Str(_) | PythonValue::List(_) | PythonValue::Dict(_) => Ok(None),
        _ => Err(PydanticError::new("iterable_type", "Input should be iterable")),
    }
}

pub(super) fn check_choice(kind: &'static str, value: &Value, choices: &[&str]) -> CoercionResult {
    if value.as_str().is_some_and(|text| choices.contains(&text)) {
        return Ok(None);
    }
    Err(choice_error(kind, choices.iter().map(|choice| python::python_repr_of_str(choice))))
}

fn choice_error(kind: &'static str, choices: impl Iterator<Item = String>) -> PydanticError {
    let expected = join_with_or(choices);
    let context = format!("'expected': {}", python::python_repr_of_str(&expected));
    PydanticError::new(kind, format!("Input should be {expected}")).with_error_context(context)
}

pub(super) fn coerce_int_member(value: &Value, choices: &[i64]) -> CoercionResult {
    let number = match PythonValue::from_json_value(value) {
        PythonValue::Bool(b) => Some(i64::from(b)),
        PythonValue::Int(i) => Some(i64::try_from(i).map_err(|_| int_too_large())?),
        PythonValue::BigInt(_) => return Err(int_too_large()),
        PythonValue::Float(_) => {
            coerce_int(value).ok().flatten().and_then(|number| number.as_i64())
        }
        _ => None,
    };
    if let Some(number) = number.filter(|number| choices.contains(number)) {
        return Ok(Some(Value::from(number)).filter(|new| new != value));
    }
    Err(choice_error("enum", choices.iter().map(i64::to_string)))
}

pub(super) fn not_an_instance_error(class: &str) -> PydanticError {
    PydanticError::new("is_instance_of", format!("Input should be an instance of {class}"))
        .with_error_context(format!("'class': {}", python::python_repr_of_str(class)))
}

/// Joins allowed values for an error message, as `a, b or c`.
fn join_with_or(names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.collect();
    match names.split_last() {
        Some((end, start)) if !start.is_empty() => format!("{} or {end}", start.join(", ")),
        Some((end, _)) => end.clone(),
        None => String::new(),
    }
}

pub(super) fn check_int_bounds(
    value: &Value,
    bounds: NumberBounds<i128>,
) -> Result<(), PydanticError> {
    let below = |limit: i128| match PythonValue::from_json_value(value) {
        PythonValue::Int(i) => i < limit,
        PythonValue::BigInt(text) => text.starts_with('-'),
        _ => false,
    };
    let above = |limit: i128| match PythonValue::from_json_value(value) {
        PythonValue::Int(i) => i > limit,
        PythonValue::BigInt(text) => !text.starts_with('-'),
        _ => false,
    };
    if let Some(limit) = bounds.le.filter(|limit| above(*limit)) {
        return Err(less_than_equal_error(&limit.to_string()));
    }
    if let Some(limit) = bounds.ge.filter(|limit| below(*limit)) {
        return Err(greater_than_equal_error(&limit.to_string()));
    }
    match bounds.gt {
        Some(limit) if !above(limit) => Err(greater_than_error(&limit.to_string())),
        _ => Ok(()),
    }
}

pub(super) fn check_float_bounds(
    value: &Value,
    bounds: NumberBounds<f64>,
) -> Result<(), PydanticError> {
    let number = PythonValue::from_json_value(value).as_number().unwrap_or(f64::NAN);
    // NaN violates no bound.
    let outside = |limit: Option<f64>, inside: fn(&f64, &f64) -> bool| {
        limit.filter(|limit| !inside(&number, limit))
    };
    if let Some(limit) = outside(bounds.le, f64::le) {
        return Err(float_bound_error(less_than_equal_error, limit));
    }
    if let Some(limit) = outside(bounds.ge, f64::ge) {
        return Err(float_bound_error(greater_than_equal_error, limit));
    }
    match outside(bounds.gt, f64::gt) {
        Some(limit) => Err(float_bound_error(greater_than_error, limit)),
        None => Ok(()),
    }
}

/// Builds the error of a violated float bound; the message shows the bound without `.0`, the
/// context shows it with `.0`.
fn float_bound_error(words: fn(&str) -> PydanticError, limit: f64) -> PydanticError {
    let full = python::python_repr_of_float(limit);
    let short = full.strip_suffix(".0").unwrap_or(&full).to_owned();
    let PydanticError { kind, message, context } = words(&short);
    PydanticError { kind, message, context: context.replace(&short, &full) }
}

fn less_than_equal_error(limit: &str) -> PydanticError {
    PydanticError::new("less_than_equal", format!("Input should be less than or equal to {limit}"))
        .with_error_context(format!("'le': {limit}"))
}

fn greater_than_equal_error(limit: &str) -> PydanticError {
    PydanticError::new(
        "greater_than_equal",
        format!("Input should be greater than or equal to {limit}"),
    )
    .with_error_context(format!("'ge': {limit}"))
}

fn greater_than_error(limit: &str) -> PydanticError {
    PydanticError::new("greater_than", format!("Input should be greater than {limit}"))
        .with_error_context(format!("'gt': {limit}"))
}

/// Returns pydantic's error for a list with too many or too few items; `None` if the number is
/// allowed.
///
/// Too few items are reported only if all items are valid (`good`), as in pydantic.
pub(super) fn list_length_error(
    count: usize,
    length: LengthLimits,
    good: bool,
) -> Option<PydanticError> {
    let (kind, bound, words, n) = match count {
        _ if count > length.max => ("too_long", "max_length", "at most", length.max),
        _ if good && count < length.min => ("too_short", "min_length", "at least", length.min),
        _ => return None,
    };
    let s = if n == 1 { "" } else { "s" };
    let text = format!("List should have {words} {n} item{s} after validation, not {count}");
    let context = format!("'field_type': 'List', '{bound}': {n}, 'actual_length': {count}");
    Some(PydanticError::new(kind, text).with_error_context(context))
}

pub(super) fn model_attributes_type_error() -> PydanticError {
    PydanticError::new(
        "model_attributes_type",
        "Input should be a valid dictionary or object to extract fields from",
    )
}

pub(super) fn model_type_error(model: &Model) -> PydanticError {
    match model.kind {
        ClassKind::Wrapped | ClassKind::Plain | ClassKind::Strict => model_attributes_type_error(),
        ClassKind::TypedDict => {
            PydanticError::new("dict_type", "Input should be a valid dictionary")
        }
        ClassKind::Dataclass => PydanticError::new(
            "dataclass_type",
            format!("Input should be a dictionary or an instance of {}", model.name),
        )
        .with_error_context(format!("'class_name': {}", python::python_repr_of_str(model.name))),
    }
}

pub(super) fn extra_forbidden_error() -> PydanticError {
    PydanticError::new("extra_forbidden", "Extra inputs are not permitted")
}

pub(super) fn value_error(text: &str) -> PydanticError {
    let context = format!("'error': ValueError({})", python::python_repr_of_str(text));
    PydanticError::new("value_error", format!("Value error, {text}")).with_error_context(context)
}

pub(super) fn tag_missing_error(discriminator: &str) -> PydanticError {
    PydanticError::new(
        "union_tag_not_found",
        format!("Unable to extract tag using discriminator '{discriminator}'"),
    )
    .with_error_context(format!(
        "'discriminator': {}",
        python::python_repr_of_str(&format!("'{discriminator}'"))
    ))
}

pub(super) fn tag_unknown_error<'n>(
    by: &str,
    tag: &Value,
    names: impl Iterator<Item = &'n str>,
) -> PydanticError {
    let expected = names.map(python::python_repr_of_str).collect::<Vec<_>>().join(", ");
    let tag = python::python_str(tag);
    PydanticError::new(
        "union_tag_invalid",
        format!(
            "Input tag '{tag}' found using '{by}' does not match any of the expected tags: \
             {expected}"
        ),
    )
    .with_error_context(format!(
        "'discriminator': {}, 'tag': {}, 'expected_tags': {}",
        python::python_repr_of_str(&format!("'{by}'")),
        python::python_repr_of_str(&tag),
        python::python_repr_of_str(&expected)
    ))
}

pub(super) fn tuple_too_long_error(max_length: usize, count: usize) -> PydanticError {
    let s = if max_length == 1 { "" } else { "s" };
    PydanticError::new(
        "too_long",
        format!("Tuple should have at most {max_length} item{s} after validation, not {count}"),
    )
    .with_error_context(format!(
        "'field_type': 'Tuple', 'max_length': {max_length}, 'actual_length': {count}"
    ))
}

pub(super) fn check_python_sequence(value: &Value) -> Result<(), PydanticError> {
    match PythonValue::from_json_value(value) {
        PythonValue::List(_) => Ok(()),
        PythonValue::Str(_) => Err(PydanticError::new(
            "sequence_str",
            "'str' instances are not allowed as a Sequence value",
        )
        .with_error_context("'type_name': 'str'".to_owned())),
        _ => Err(not_an_instance_error("Sequence")),
    }
}

/// Returns the error of a validator function for an empty list or dict.
pub(super) fn value_too_short_error() -> PydanticError {
    PydanticError::new("too_short", "Value should have at least 1 item after validation, not 0")
        .with_error_context("'field_type': 'Value', 'min_length': 1, 'actual_length': 0".to_owned())
}
