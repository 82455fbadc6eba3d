//! Python values stored in JSON values.
//!
//! `NaN`, the infinities and integers beyond 64 bits do not fit a [`serde_json::Number`].
//! [`number_beyond_json`] stores their text in an object with a key that clients do not send by accident;
//! [`PythonValue::of_json`] reads it.

use serde_json::{Map, Value};

const PYTHON_NUMBER_KEY: &str = "\0python-number";

/// Python value of a JSON value, as `json.loads` returns it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PythonValue<'a> {
    /// Python's `None`.
    None,
    /// A Python `bool`.
    Bool(bool),
    /// A Python `int` that fits 128 bits.
    Int(i128),
    /// A longer Python `int`, as normalized decimal text.
    BigInt(&'a str),
    /// A Python `float`, which may be NaN or infinite.
    Float(f64),
    /// A Python `str`.
    Str(&'a str),
    /// A Python `list`, with its items as JSON values.
    List(&'a [Value]),
    /// A Python `dict`, with its values as JSON values.
    Dict(&'a Map<String, Value>),
}

impl<'a> PythonValue<'a> {
    /// Returns the Python value of a JSON value.
    pub fn of_json(value: &'a Value) -> Self {
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

    /// Returns Python's `bool(value)`.
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

    /// Returns Python's `type(value).__name__`.
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
pub fn number_beyond_json(text: &str) -> Value {
    Value::Object(Map::from_iter([(PYTHON_NUMBER_KEY.to_owned(), Value::from(text))]))
}

/// Returns a JSON value for a float, finite or not.
pub fn json_of_python_float(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or_else(
        || {
            number_beyond_json(match value {
                v if v.is_nan() => "NaN",
                v if v > 0.0 => "Infinity",
                _ => "-Infinity",
            })
        },
        Value::Number,
    )
}

/// Returns a JSON value for an integer of any size.
pub fn json_of_python_int(value: i128) -> Value {
    i64::try_from(value)
        .map(Value::from)
        .or_else(|_| u64::try_from(value).map(Value::from))
        .unwrap_or_else(|_| number_beyond_json(&value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_infinity_and_bigint_round_trip() {
        assert_eq!(PythonValue::of_json(&json_of_python_int(1 << 70)), PythonValue::Int(1 << 70));
        assert_eq!(
            PythonValue::of_json(&json_of_python_float(f64::INFINITY)),
            PythonValue::Float(f64::INFINITY)
        );
        let digits = "9".repeat(60);
        assert_eq!(
            PythonValue::of_json(&number_beyond_json(&digits)),
            PythonValue::BigInt(&digits)
        );
    }
}
