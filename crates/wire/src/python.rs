//! Values as Python sees and prints them.
//!
//! vLLM's error texts quote Python's `repr` and `str` of what a client sent, so the words can
//! only be right when numbers, strings and containers are spelled as Python spells them.
//! Three things of Python's JSON have no [`serde_json::Number`]: `NaN`, the infinities and
//! integers beyond 64 bits. [`exotic`] wraps their text in an object whose only key no client
//! can send by accident; [`Py::of`] looks through it.

use std::fmt::Write as _;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

/// Key of the wrapper object that [`exotic`] builds.
const EXOTIC: &str = "\0python-number";

/// What Python's `json.loads` would have made of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Py<'a> {
    /// `None`.
    None,
    /// `bool`.
    Bool(bool),
    /// An `int` that fits 128 bits.
    Int(i128),
    /// A longer `int`, as its normalised decimal text.
    BigInt(&'a str),
    /// `float`, which may be NaN or infinite.
    Float(f64),
    /// `str`.
    Str(&'a str),
    /// `list`.
    List(&'a [Value]),
    /// `dict`.
    Dict(&'a Map<String, Value>),
}

impl<'a> Py<'a> {
    /// The Python value behind a JSON value.
    pub fn of(value: &'a Value) -> Self {
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
            Value::Object(map) => Self::of_object(map),
        }
    }

    fn of_object(map: &'a Map<String, Value>) -> Self {
        if map.len() != 1 {
            return Self::Dict(map);
        }
        match map.get(EXOTIC).and_then(Value::as_str) {
            None => Self::Dict(map),
            Some("NaN") => Self::Float(f64::NAN),
            Some("Infinity") => Self::Float(f64::INFINITY),
            Some("-Infinity") => Self::Float(f64::NEG_INFINITY),
            Some(digits) => digits.parse().map_or(Self::BigInt(digits), Self::Int),
        }
    }

    /// `bool(value)`.
    pub fn truthy(self) -> bool {
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

    /// `type(value).__name__`.
    pub fn type_name(self) -> &'static str {
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

    /// The number Python would compare with, for `bool`, `int` and `float`.
    pub fn number(self) -> Option<f64> {
        match self {
            Self::Bool(b) => Some(f64::from(u8::from(b))),
            #[expect(
                clippy::cast_precision_loss,
                reason = "only compared with small bounds"
            )]
            Self::Int(i) => Some(i as f64),
            Self::BigInt(text) => text.parse().ok(),
            Self::Float(f) => Some(f),
            _ => None,
        }
    }
}

/// A value that only Python's numbers can hold: `NaN`, `Infinity`, `-Infinity` or the decimal
/// digits of a long integer.
pub fn exotic(text: &str) -> Value {
    Value::Object(Map::from_iter([(EXOTIC.to_owned(), Value::from(text))]))
}

/// A JSON value for a float, finite or not.
pub fn float(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or_else(
        || {
            exotic(match value {
                v if v.is_nan() => "NaN",
                v if v > 0.0 => "Infinity",
                _ => "-Infinity",
            })
        },
        Value::Number,
    )
}

/// A JSON value for an integer of any size.
pub fn int(value: i128) -> Value {
    i64::try_from(value)
        .map(Value::from)
        .or_else(|_| u64::try_from(value).map(Value::from))
        .unwrap_or_else(|_| exotic(&value.to_string()))
}

/// `str(value)`: the text itself for a string, else [`repr`].
pub fn str(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        other => repr(other),
    }
}

/// `repr(value)`.
pub fn repr(value: &Value) -> String {
    let mut out = String::new();
    push_repr(&mut out, value);
    out
}

fn push_repr(out: &mut String, value: &Value) {
    match Py::of(value) {
        Py::None => out.push_str("None"),
        Py::Bool(true) => out.push_str("True"),
        Py::Bool(false) => out.push_str("False"),
        Py::Int(i) => {
            let _ = write!(out, "{i}");
        }
        Py::BigInt(text) => out.push_str(text),
        Py::Float(f) => out.push_str(&repr_float(f)),
        Py::Str(s) => push_repr_str(out, s),
        Py::List(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                push_repr(out, item);
            }
            out.push(']');
        }
        Py::Dict(map) => {
            out.push('{');
            for (i, (key, item)) in map.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                push_repr_str(out, key);
                out.push_str(": ");
                push_repr(out, item);
            }
            out.push('}');
        }
    }
}

/// `repr` of a string.
pub fn repr_str(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_repr_str(&mut out, text);
    out
}

/// Appends `repr` of a string: single quotes unless the text has those and no double ones,
/// backslash escapes, and everything Unicode calls unprintable as `\x`, `\u` or `\U`.
pub fn push_repr_str(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            ' '..='~' => out.push(c),
            c => push_other(out, c),
        }
    }
    out.push(quote);
}

fn push_other(out: &mut String, c: char) {
    /// What `str.isprintable` refuses, beyond ASCII.
    static UNPRINTABLE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^[\p{C}\p{Z}]$").expect("a constant pattern"));
    let mut buffer = [0; 4];
    if c > '\u{7f}' && !UNPRINTABLE.is_match(c.encode_utf8(&mut buffer)) {
        out.push(c);
        return;
    }
    let _ = match u32::from(c) {
        n @ 0..=0xff => write!(out, "\\x{n:02x}"),
        n @ 0x100..=0xffff => write!(out, "\\u{n:04x}"),
        n => write!(out, "\\U{n:08x}"),
    };
}

/// `repr` of a float: the shortest digits that read back, `1e+16` and `1e-05` style exponents
/// outside 1e-4..1e16, and always a sign that it is a float.
pub fn repr_float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_are_spelled_as_python_spells_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (2.5, "2.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (value, text) in cases {
            assert_eq!(repr_float(value), text);
        }
    }

    #[test]
    fn strings_choose_quotes_and_escapes_as_python_does() {
        let cases = [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("a\nb\\", "'a\\nb\\\\'"),
            (
                "é\u{a0}\u{200b}\u{1f600}\u{7f}",
                "'é\\xa0\\u200b\u{1f600}\\x7f'",
            ),
        ];
        for (text, repr) in cases {
            assert_eq!(repr_str(text), repr);
        }
    }

    #[test]
    fn containers_nest() {
        let value = json!({"a": [1, 2.0, null, true], "b": {"c": "d"}});
        assert_eq!(repr(&value), "{'a': [1, 2.0, None, True], 'b': {'c': 'd'}}");
    }

    #[test]
    fn exotic_numbers_keep_their_meaning() {
        assert_eq!(Py::of(&int(1 << 70)), Py::Int(1 << 70));
        assert_eq!(repr(&float(f64::INFINITY)), "inf");
        assert_eq!(repr(&exotic(&"9".repeat(60))), "9".repeat(60));
    }
}
