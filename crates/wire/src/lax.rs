//! Coercions of scalar values in pydantic's lax mode, and the texts of pydantic's errors.
//!
//! Each coercion returns `Ok(None)` if the value already has the type, `Ok(Some(new))` if it was
//! coerced, and `Err` if it cannot be.
//!
//! Source: pydantic-core `src/errors/types.rs` (texts), `src/input/shared.rs` (`str_as_int`,
//! `str_as_float`, `str_as_bool`), `src/input/input_python.rs`.

use std::borrow::Cow;

use serde_json::Value;
use vllm_sim_python::{self as python, Py};

use super::schema::{ClassKind, Length, Model, NumberBounds};

/// Maximum number of digits of an integer that pydantic parses from text.
const MAX_INT_DIGITS: usize = 4300;

/// The members of a pydantic error that do not depend on its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownError {
    /// The error's `type` member, such as `int_parsing`.
    pub(super) kind: &'static str,
    /// The error's `msg` member, the message.
    pub(super) message: Cow<'static, str>,
    /// Items of the error's `ctx` dict in Python's spelling, without the braces; empty for no
    /// `ctx`.
    pub(super) context: String,
}

impl KnownError {
    pub(super) fn new(kind: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            context: String::new(),
        }
    }

    fn with(self, context: String) -> Self {
        Self { context, ..self }
    }
}

pub(super) type Coerced = Result<Option<Value>, KnownError>;

pub(super) fn bool(value: &Value) -> Coerced {
    let unreadable = || {
        KnownError::new(
            "bool_parsing",
            "Input should be a valid boolean, unable to interpret input",
        )
    };
    let read = match Py::of(value) {
        Py::Bool(_) => return Ok(None),
        Py::Str(text) => match text.to_ascii_lowercase().as_str() {
            "0" | "off" | "f" | "false" | "n" | "no" => Some(false),
            "1" | "on" | "t" | "true" | "y" | "yes" => Some(true),
            _ => return Err(unreadable()),
        },
        Py::Int(i) if i64::try_from(i).is_err() => None,
        Py::Int(0) => Some(false),
        Py::Int(1) => Some(true),
        Py::Int(_) => return Err(unreadable()),
        Py::Float(f) if f.fract() == 0.0 && in_i64(f) => match f {
            0.0 => Some(false),
            1.0 => Some(true),
            _ => return Err(unreadable()),
        },
        _ => None,
    };
    read.map(|b| Some(Value::Bool(b)))
        .ok_or_else(|| KnownError::new("bool_type", "Input should be a valid boolean"))
}

/// Returns whether pydantic accepts a float as a 64-bit integer.
fn in_i64(value: f64) -> bool {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    -LIMIT < value && value < LIMIT
}

pub(super) fn int(value: &Value) -> Coerced {
    match Py::of(value) {
        Py::Int(_) | Py::BigInt(_) => Ok(None),
        Py::Bool(b) => Ok(Some(Value::from(u8::from(b)))),
        Py::Float(f) if !f.is_finite() => Err(KnownError::new(
            "finite_number",
            "Input should be a finite number",
        )),
        Py::Float(f) if f.fract() != 0.0 => Err(KnownError::new(
            "int_from_float",
            "Input should be a valid integer, got a number with a fractional part",
        )),
        Py::Float(f) if !in_i64(f) => Err(too_large()),
        #[expect(clippy::cast_possible_truncation, reason = "whole and within 64 bits")]
        Py::Float(f) => Ok(Some(Value::from(f as i64))),
        Py::Str(text) => int_from_text(text).map(Some),
        _ => Err(KnownError::new(
            "int_type",
            "Input should be a valid integer",
        )),
    }
}

fn too_large() -> KnownError {
    KnownError::new(
        "int_parsing_size",
        "Unable to parse input string as an integer, exceeded maximum size",
    )
}

/// Returns Python's `int(text)`, as an integer of any size.
pub(super) fn integer(text: &str) -> Option<Value> {
    if text.contains('.') {
        None
    } else {
        int_from_text(text).ok()
    }
}

fn int_from_text(text: &str) -> Result<Value, KnownError> {
    let text = text.trim();
    if text.len() > MAX_INT_DIGITS {
        return Err(too_large());
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
    let plain = underscored(whole).ok_or_else(|| {
        KnownError::new(
            "int_parsing",
            "Input should be a valid integer, unable to parse string as an integer",
        )
    })?;
    let trimmed = plain.trim_start_matches('0');
    let number = if trimmed.is_empty() {
        "0".to_owned()
    } else {
        format!("{sign}{trimmed}")
    };
    Ok(number
        .parse()
        .map_or_else(|_| python::beyond_json(&number), python::int))
}

fn underscored(text: &str) -> Option<String> {
    let parts = text
        .split('_')
        .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    parts.then(|| text.replace('_', ""))
}

pub(super) fn float(value: &Value) -> Coerced {
    match Py::of(value) {
        Py::Float(_) => Ok(None),
        Py::Bool(b) => Ok(Some(python::float(f64::from(u8::from(b))))),
        #[expect(clippy::cast_precision_loss, reason = "Python's float() rounds too")]
        Py::Int(i) => Ok(Some(python::float(i as f64))),
        Py::BigInt(digits) => match digits.parse::<f64>() {
            Ok(f) if f.is_finite() => Ok(Some(python::float(f))),
            _ => Err(KnownError::new(
                "float_type",
                "Input should be a valid number",
            )),
        },
        Py::Str(text) => float_from_text(text)
            .map(|f| Some(python::float(f)))
            .ok_or_else(|| {
                KnownError::new(
                    "float_parsing",
                    "Input should be a valid number, unable to parse string as a number",
                )
            }),
        _ => Err(KnownError::new(
            "float_type",
            "Input should be a valid number",
        )),
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
    let fair = (0..bytes.len())
        .filter(|i| bytes[*i] == b'_')
        .all(between_digits);
    if fair {
        text.replace('_', "").parse().ok()
    } else {
        None
    }
}

pub(super) fn str(value: &Value, length: Length) -> Coerced {
    let Py::Str(text) = Py::of(value) else {
        return Err(KnownError::new(
            "string_type",
            "Input should be a valid string",
        ));
    };
    if length.min == 0 && length.max == usize::MAX {
        return Ok(None);
    }
    let count = text.chars().count();
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    if count < length.min {
        let n = length.min;
        return Err(KnownError::new(
            "string_too_short",
            format!("String should have at least {n} character{}", plural(n)),
        )
        .with(format!("'min_length': {n}")));
    }
    if count > length.max {
        let n = length.max;
        return Err(KnownError::new(
            "string_too_long",
            format!("String should have at most {n} character{}", plural(n)),
        )
        .with(format!("'max_length': {n}")));
    }
    Ok(None)
}

pub(super) fn bytes(value: &Value) -> Coerced {
    if value.is_string() {
        return Ok(None);
    }
    Err(KnownError::new(
        "bytes_type",
        "Input should be a valid bytes",
    ))
}

pub(super) fn iterable(value: &Value) -> Coerced {
    match Py::of(value) {
        Py::Str(_) | Py::List(_) | Py::Dict(_) => Ok(None),
        _ => Err(KnownError::new("iterable_type", "Input should be iterable")),
    }
}

pub(super) fn literal(value: &Value, choices: &[&str]) -> Coerced {
    one_of("literal_error", value, choices)
}

pub(super) fn member(value: &Value, choices: &[&str]) -> Coerced {
    one_of("enum", value, choices)
}

fn one_of(kind: &'static str, value: &Value, choices: &[&str]) -> Coerced {
    if value.as_str().is_some_and(|text| choices.contains(&text)) {
        return Ok(None);
    }
    Err(choice_words(kind, choices))
}

fn choice_words(kind: &'static str, choices: &[&str]) -> KnownError {
    let expected = either(
        choices.iter().map(|choice| python::repr_str(choice)),
        " or ",
    );
    let context = format!("'expected': {}", python::repr_str(&expected));
    KnownError::new(kind, format!("Input should be {expected}")).with(context)
}

pub(super) fn int_member(value: &Value, choices: &[i64]) -> Coerced {
    let number = match Py::of(value) {
        Py::Bool(b) => Some(i64::from(b)),
        Py::Int(i) => Some(i64::try_from(i).map_err(|_| too_large())?),
        Py::BigInt(_) => return Err(too_large()),
        Py::Float(_) => int(value).ok().flatten().and_then(|number| number.as_i64()),
        _ => None,
    };
    if let Some(number) = number.filter(|number| choices.contains(number)) {
        return Ok(Some(Value::from(number)).filter(|new| new != value));
    }
    let expected = either(choices.iter().map(i64::to_string), " or ");
    let context = format!("'expected': {}", python::repr_str(&expected));
    Err(KnownError::new("enum", format!("Input should be {expected}")).with(context))
}

pub(super) fn not_an_instance(class: &str) -> KnownError {
    KnownError::new(
        "is_instance_of",
        format!("Input should be an instance of {class}"),
    )
    .with(format!("'class': {}", python::repr_str(class)))
}

/// Joins allowed values for a message, as `a, b or c`.
fn either(names: impl Iterator<Item = String>, last: &str) -> String {
    let names: Vec<String> = names.collect();
    match names.split_last() {
        Some((end, start)) if !start.is_empty() => format!("{}{last}{end}", start.join(", ")),
        Some((end, _)) => end.clone(),
        None => String::new(),
    }
}

pub(super) fn int_bounds(value: &Value, bounds: NumberBounds<i128>) -> Result<(), KnownError> {
    let below = |limit: i128| match Py::of(value) {
        Py::Int(i) => i < limit,
        Py::BigInt(text) => text.starts_with('-'),
        _ => false,
    };
    let above = |limit: i128| match Py::of(value) {
        Py::Int(i) => i > limit,
        Py::BigInt(text) => !text.starts_with('-'),
        _ => false,
    };
    if let Some(limit) = bounds.le.filter(|limit| above(*limit)) {
        return Err(at_most(&limit.to_string()));
    }
    if let Some(limit) = bounds.ge.filter(|limit| below(*limit)) {
        return Err(at_least(&limit.to_string()));
    }
    match bounds.gt {
        Some(limit) if !above(limit) => Err(more_than(&limit.to_string())),
        _ => Ok(()),
    }
}

pub(super) fn float_bounds(value: &Value, bounds: NumberBounds<f64>) -> Result<(), KnownError> {
    let number = Py::of(value).number().unwrap_or(f64::NAN);
    // NaN violates no bound.
    let outside = |limit: Option<f64>, inside: fn(&f64, &f64) -> bool| {
        limit.filter(|limit| !inside(&number, limit))
    };
    if let Some(limit) = outside(bounds.le, f64::le) {
        return Err(float_words(at_most, limit));
    }
    if let Some(limit) = outside(bounds.ge, f64::ge) {
        return Err(float_words(at_least, limit));
    }
    match outside(bounds.gt, f64::gt) {
        Some(limit) => Err(float_words(more_than, limit)),
        None => Ok(()),
    }
}

/// Builds the error of a float limit: without `.0` in the message and with it in the context.
fn float_words(words: fn(&str) -> KnownError, limit: f64) -> KnownError {
    let full = python::repr_float(limit);
    let short = full.strip_suffix(".0").unwrap_or(&full).to_owned();
    let KnownError {
        kind,
        message,
        context,
    } = words(&short);
    KnownError {
        kind,
        message,
        context: context.replace(&short, &full),
    }
}

fn at_most(limit: &str) -> KnownError {
    KnownError::new(
        "less_than_equal",
        format!("Input should be less than or equal to {limit}"),
    )
    .with(format!("'le': {limit}"))
}

fn at_least(limit: &str) -> KnownError {
    KnownError::new(
        "greater_than_equal",
        format!("Input should be greater than or equal to {limit}"),
    )
    .with(format!("'ge': {limit}"))
}

fn more_than(limit: &str) -> KnownError {
    KnownError::new(
        "greater_than",
        format!("Input should be greater than {limit}"),
    )
    .with(format!("'gt': {limit}"))
}

/// Returns pydantic's error for a list with too many or too few items, if so.
///
/// Too few items are reported only if all items are valid (`good`), as in pydantic.
pub(super) fn list_length(count: usize, length: Length, good: bool) -> Option<KnownError> {
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    if count > length.max {
        let n = length.max;
        let text = format!(
            "List should have at most {n} item{} after validation, not {count}",
            plural(n)
        );
        let context = format!("'field_type': 'List', 'max_length': {n}, 'actual_length': {count}");
        return Some(KnownError::new("too_long", text).with(context));
    }
    if good && count < length.min {
        let n = length.min;
        let text = format!(
            "List should have at least {n} item{} after validation, not {count}",
            plural(n)
        );
        let context = format!("'field_type': 'List', 'min_length': {n}, 'actual_length': {count}");
        return Some(KnownError::new("too_short", text).with(context));
    }
    None
}

pub(super) fn not_attributes() -> KnownError {
    KnownError::new(
        "model_attributes_type",
        "Input should be a valid dictionary or object to extract fields from",
    )
}

pub(super) fn not_a_model(model: &Model) -> KnownError {
    match model.kind {
        ClassKind::Wrapped | ClassKind::Plain | ClassKind::Strict => not_attributes(),
        ClassKind::TypedDict => KnownError::new("dict_type", "Input should be a valid dictionary"),
        ClassKind::Dataclass => KnownError::new(
            "dataclass_type",
            format!(
                "Input should be a dictionary or an instance of {}",
                model.name
            ),
        )
        .with(format!("'class_name': {}", python::repr_str(model.name))),
    }
}

pub(super) fn extra_forbidden() -> KnownError {
    KnownError::new("extra_forbidden", "Extra inputs are not permitted")
}

pub(super) fn value_error(text: &str) -> KnownError {
    let context = format!("'error': ValueError({})", python::repr_str(text));
    KnownError::new("value_error", format!("Value error, {text}")).with(context)
}

pub(super) fn tag_missing(by: &str) -> KnownError {
    KnownError::new(
        "union_tag_not_found",
        format!("Unable to extract tag using discriminator '{by}'"),
    )
    .with(format!(
        "'discriminator': {}",
        python::repr_str(&format!("'{by}'"))
    ))
}

pub(super) fn tag_unknown<'n>(
    by: &str,
    tag: &Value,
    names: impl Iterator<Item = &'n str>,
) -> KnownError {
    let expected = names.map(python::repr_str).collect::<Vec<_>>().join(", ");
    let tag = python::str(tag);
    KnownError::new(
        "union_tag_invalid",
        format!(
            "Input tag '{tag}' found using '{by}' does not match any of the expected tags: \
             {expected}"
        ),
    )
    .with(format!(
        "'discriminator': {}, 'tag': {}, 'expected_tags': {}",
        python::repr_str(&format!("'{by}'")),
        python::repr_str(&tag),
        python::repr_str(&expected)
    ))
}

pub(super) fn tuple_too_long(most: usize, count: usize) -> KnownError {
    let s = if most == 1 { "" } else { "s" };
    KnownError::new(
        "too_long",
        format!("Tuple should have at most {most} item{s} after validation, not {count}"),
    )
    .with(format!(
        "'field_type': 'Tuple', 'max_length': {most}, 'actual_length': {count}"
    ))
}

pub(super) fn sequence(value: &Value) -> Result<(), KnownError> {
    match Py::of(value) {
        Py::List(_) => Ok(()),
        Py::Str(_) => Err(KnownError::new(
            "sequence_str",
            "'str' instances are not allowed as a Sequence value",
        )
        .with("'type_name': 'str'".to_owned())),
        _ => Err(not_an_instance("Sequence")),
    }
}

/// Returns the error of a validator function for an empty list or dict.
pub(super) fn value_too_short() -> KnownError {
    KnownError::new(
        "too_short",
        "Value should have at least 1 item after validation, not 0",
    )
    .with("'field_type': 'Value', 'min_length': 1, 'actual_length': 0".to_owned())
}
