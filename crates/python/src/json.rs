//! Python's `json.dumps`, for JSON values and for strings, and the Python values that JSON values store.
//!
//! `NaN`, the infinities and integers beyond 64 bits do not fit a [`serde_json::Number`].
//! [`json_of_number_text`] stores their text in an object with a key that clients do not send by accident;
//! [`PythonValue::from_json_value`] reads it.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::repr::python_repr_of_float;

/// Formats a JSON value like `json.dumps` with `ensure_ascii=True`, the default: a space after each
/// comma and colon.
///
/// Numbers are formatted by serde_json.
pub fn dumps(value: &Value) -> String {
    let mut out = String::with_capacity(128);
    push_json(&mut out, value, push_json_escaped_ascii);
    out
}

/// Formats a JSON value like `json.dumps` with `ensure_ascii=False`.
pub fn dumps_unicode(value: &Value) -> String {
    let mut out = String::new();
    push_json(&mut out, value, push_json_escaped_unicode);
    out
}

fn push_json(out: &mut String, value: &Value, push_escaped: fn(&mut String, &str)) {
    let string = |out: &mut String, text: &str| {
        out.push('"');
        push_escaped(out, text);
        out.push('"');
    };
    match value {
        Value::String(text) => string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                push_json(out, item, push_escaped);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (index, (key, item)) in members.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                string(out, key);
                out.push_str(": ");
                push_json(out, item, push_escaped);
            }
            out.push('}');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            // Writing to a String cannot fail.
            let _ = write!(out, "{value}");
        }
    }
}

fn needs_escape(byte: u8) -> bool {
    (byte < 0x20) | (byte == b'"') | (byte == b'\\')
}

/// Returns whether [`push_json_escaped_unicode`] changes the text; most texts contain no special character.
pub fn needs_json_escape(text: &str) -> bool {
    // Without an early exit the loop is vectorized.
    text.bytes().fold(false, |any, b| any | needs_escape(b))
}

/// Appends `text` as the content of a JSON string with `ensure_ascii=False`.
pub fn push_json_escaped_unicode(out: &mut String, text: &str) {
    if !needs_json_escape(text) {
        return out.push_str(text);
    }
    let mut rest = text;
    while let Some(at) = rest.bytes().position(needs_escape) {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            control => push_u_escape(out, control.into()),
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
}

/// Appends `text` as the content of a JSON string with `ensure_ascii=True`.
pub fn push_json_escaped_ascii(out: &mut String, text: &str) {
    let mut rest = text;
    while let Some((at, c)) = rest.char_indices().find(|(_, c)| *c >= '\x7f') {
        push_json_escaped_unicode(out, &rest[..at]);
        for unit in c.encode_utf16(&mut [0; 2]) {
            push_u_escape(out, *unit);
        }
        rest = &rest[at + c.len_utf8()..];
    }
    push_json_escaped_unicode(out, rest);
}

fn push_u_escape(out: &mut String, unit: u16) {
    // Writing to a String cannot fail.
    let _ = write!(out, "\\u{unit:04x}");
}

/// Formats a float like `json.dumps`, including NaN and infinities.
pub fn format_json_float(value: f64) -> String {
    match value.is_finite() {
        true => python_repr_of_float(value),
        false => text_of_non_finite(value).to_owned(),
    }
}

fn text_of_non_finite(value: f64) -> &'static str {
    match value {
        v if v.is_nan() => "NaN",
        v if v > 0.0 => "Infinity",
        _ => "-Infinity",
    }
}

/// Appends `text` as a JSON string with `ensure_ascii=False`.
#[inline]
pub fn write_json_string(out: &mut String, text: &str) {
    out.push('"');
    push_json_escaped_unicode(out, text);
    out.push('"');
}

/// Appends `text` as a JSON string, or `null` for `None`.
#[inline]
pub fn write_optional_json_string(out: &mut String, text: Option<&str>) {
    match text {
        Some(text) => write_json_string(out, text),
        None => out.push_str("null"),
    }
}

/// Appends an integer in decimal to the JSON text `out`.
pub fn write_json_int(out: &mut String, number: impl itoa::Integer) {
    out.push_str(itoa::Buffer::new().format(number));
}

/// Appends a compact JSON array of integers.
pub fn write_json_int_array(out: &mut String, numbers: impl IntoIterator<Item = u32>) {
    out.push('[');
    for (index, number) in numbers.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_json_int(out, number);
    }
    out.push(']');
}

/// Appends a float as Python's `json` prints it: the shortest round-trip text, `1.0` instead of
/// `1`.
pub fn write_python_float(out: &mut String, number: f64) {
    if number.is_finite() {
        let mut buffer = ryu::Buffer::new();
        let text = buffer.format_finite(number);
        out.push_str(text);
    } else {
        out.push_str("null");
    }
}

/// Appends a 32-bit float as numpy prints it: the shortest round-trip text.
pub fn write_numpy_float32(out: &mut String, number: f32) {
    if number.is_finite() {
        out.push_str(ryu::Buffer::new().format_finite(number));
    } else {
        out.push_str("null");
    }
}

/// A value that [`write_member`] can append to JSON text.
pub trait WriteJson {
    /// Appends the value to the JSON text `out`.
    fn write_json(self, out: &mut String);
}

impl<T: AsRef<str> + ?Sized> WriteJson for &T {
    fn write_json(self, out: &mut String) {
        write_json_string(out, self.as_ref());
    }
}

impl WriteJson for Option<&str> {
    fn write_json(self, out: &mut String) {
        write_optional_json_string(out, self);
    }
}

impl WriteJson for f64 {
    fn write_json(self, out: &mut String) {
        write_python_float(out, self);
    }
}

macro_rules! write_json_for_integers {
    ($($int:ty),*) => {$(
        impl WriteJson for $int {
            fn write_json(self, out: &mut String) {
                write_json_int(out, self);
            }
        }
    )*};
}

write_json_for_integers!(u8, u16, u32, u64, usize, i32, i64);

/// Appends a member of a JSON object: `name` with its quotes, the colon and what comes before it,
/// and the value.
#[inline]
pub fn write_member(out: &mut String, name: &str, value: impl WriteJson) {
    out.push_str(name);
    value.write_json(out);
}

/// Appends a JSON value as compact text to `out`, without spaces.
pub fn write_json_value(out: &mut String, value: &Value) {
    // Serializing a `Value` cannot fail.
    out.push_str(&serde_json::to_string(value).unwrap_or_default());
}

const PYTHON_NUMBER_KEY: &str = "\0python-number";

/// Python value of a JSON value, as `json.loads` returns it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PythonValue<'a> {
    /// The Python value is `None`.
    None,
    /// The Python value is a `bool`.
    Bool(bool),
    /// The Python value is an `int` that fits 128 bits.
    Int(i128),
    /// The Python value is a longer `int`, as normalized decimal text.
    BigInt(&'a str),
    /// The Python value is a `float`, which may be NaN or infinite.
    Float(f64),
    /// The Python value is a `str`.
    Str(&'a str),
    /// The Python value is a `list`, with its items as JSON values.
    List(&'a [Value]),
    /// The Python value is a `dict`, with its values as JSON values.
    Dict(&'a Map<String, Value>),
}

impl<'a> PythonValue<'a> {
    /// Returns the Python value of a JSON value.
    pub fn from_json_value(value: &'a Value) -> Self {
        match value {
            Value::Null => Self::None,
            Value::Bool(b) => Self::Bool(*b),
            Value::Number(n) => n
                .as_i64()
                .map(i128::from)
                .or_else(|| n.as_u64().map(i128::from))
                .map_or_else(|| Self::Float(n.as_f64().unwrap_or(f64::NAN)), Self::Int),
            Value::String(s) => Self::Str(s),
            Value::Array(items) => Self::List(items),
            Value::Object(map) => Self::of_json_object(map),
        }
    }

    fn of_json_object(map: &'a Map<String, Value>) -> Self {
        if map.len() != 1 {
            return Self::Dict(map);
        }
        match map.get(PYTHON_NUMBER_KEY).and_then(Value::as_str) {
            None => Self::Dict(map),
            Some("NaN") => Self::Float(f64::NAN),
            Some("Infinity") => Self::Float(f64::INFINITY),
            Some("-Infinity") => Self::Float(f64::NEG_INFINITY),
            Some(digits) => digits.parse().map_or(Self::BigInt(digits), Self::Int),
        }
    }

    /// Returns Python's `bool(value)` of a JSON value: whether it counts as true.
    pub fn is_truthy(self) -> bool {
        match self {
            Self::None => false,
            Self::Bool(b) => b,
            Self::Int(i) => i != 0,
            Self::BigInt(_) => true,
            Self::Float(f) => f != 0.0,
            Self::Str(s) => !s.is_empty(),
            Self::List(items) => !items.is_empty(),
            Self::Dict(map) => !map.is_empty(),
        }
    }

    /// Returns the name of the Python type of a JSON value, as `type(value).__name__`.
    pub fn python_type_name(self) -> &'static str {
        match self {
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::BigInt(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::List(_) => "list",
            Self::Dict(_) => "dict",
        }
    }

    /// Returns the numeric value of a `bool`, `int` or `float`; `None` for other types.
    pub fn as_number(self) -> Option<f64> {
        match self {
            Self::Bool(b) => Some(f64::from(u8::from(b))),
            #[expect(clippy::cast_precision_loss, reason = "only compared with small bounds")]
            Self::Int(i) => Some(i as f64),
            Self::BigInt(text) => text.parse().ok(),
            Self::Float(f) => Some(f),
            _ => None,
        }
    }
}

/// Returns a JSON value for a number beyond JSON: `NaN`, `Infinity`, `-Infinity` or the decimal
/// digits of a long integer.
pub fn json_of_number_text(text: &str) -> Value {
    Value::Object(Map::from_iter([(PYTHON_NUMBER_KEY.to_owned(), Value::from(text))]))
}

/// Returns a JSON value for a float, finite or not.
pub fn json_of_python_float(value: f64) -> Value {
    serde_json::Number::from_f64(value)
        .map_or_else(|| json_of_number_text(text_of_non_finite(value)), Value::Number)
}

/// Returns a JSON value for an integer of any size.
pub fn json_of_python_int(value: i128) -> Value {
    i64::try_from(value)
        .map(Value::from)
        .or_else(|_| u64::try_from(value).map(Value::from))
        .unwrap_or_else(|_| json_of_number_text(&value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dumps_formats_as_python() {
        let value = json!({"a": [1, 2.5, "é\"😀\u{7f}\u{1}\n"], "b": {}, "c": null, "d": [true]});
        assert_eq!(
            dumps(&value),
            r#"{"a": [1, 2.5, "\u00e9\"\ud83d\ude00\u007f\u0001\n"], "b": {}, "c": null, "d": [true]}"#
        );
    }

    #[test]
    fn dumps_formats_nan_and_infinity() {
        let values = [1.0, 1e22, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        assert_eq!(values.map(format_json_float), ["1.0", "1e+22", "NaN", "Infinity", "-Infinity"]);
    }

    #[test]
    fn nan_infinity_and_bigint_round_trip() {
        assert_eq!(
            PythonValue::from_json_value(&json_of_python_int(1 << 70)),
            PythonValue::Int(1 << 70)
        );
        assert_eq!(
            PythonValue::from_json_value(&json_of_python_float(f64::INFINITY)),
            PythonValue::Float(f64::INFINITY)
        );
        let digits = "9".repeat(60);
        assert_eq!(
            PythonValue::from_json_value(&json_of_number_text(&digits)),
            PythonValue::BigInt(&digits)
        );
    }
}
