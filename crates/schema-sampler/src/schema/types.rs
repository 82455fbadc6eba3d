//! Types and equality of JSON values.

use std::cmp::Ordering;

use serde_json::Value;

use super::number::JsonNumber;

/// A set of JSON types, in which integers are separate from other numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JsonTypes(u8);

impl JsonTypes {
    pub(crate) const NO_TYPES: Self = Self(0);
    pub(crate) const NULL: Self = Self(1);
    pub(crate) const BOOLEAN: Self = Self(2);
    pub(crate) const INTEGER: Self = Self(4);
    /// JSON type of the numbers that are not integers.
    pub(crate) const FRACTIONAL_NUMBER: Self = Self(8);
    pub(crate) const NUMBER: Self = Self(12);
    pub(crate) const STRING: Self = Self(16);
    pub(crate) const ARRAY: Self = Self(32);
    pub(crate) const OBJECT: Self = Self(64);
    pub(crate) const ALL_TYPES: Self = Self(127);

    pub(crate) fn contains_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) fn type_count(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) fn from_type_name(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::NULL,
            "boolean" => Self::BOOLEAN,
            "integer" => Self::INTEGER,
            "number" => Self::NUMBER,
            "string" => Self::STRING,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => return None,
        })
    }
}

impl Default for JsonTypes {
    fn default() -> Self {
        Self::ALL_TYPES
    }
}

/// Returns the JSON type of a value; a whole number such as `1.0` is an integer.
pub(crate) fn json_type_of(value: &Value) -> JsonTypes {
    match value {
        Value::Null => JsonTypes::NULL,
        Value::Bool(_) => JsonTypes::BOOLEAN,
        Value::Number(n) if JsonNumber::from_json_number(n).is_integral() => JsonTypes::INTEGER,
        Value::Number(_) => JsonTypes::FRACTIONAL_NUMBER,
        Value::String(_) => JsonTypes::STRING,
        Value::Array(_) => JsonTypes::ARRAY,
        Value::Object(_) => JsonTypes::OBJECT,
    }
}

/// Compares JSON values as JSON Schema does: `1` equals `1.0`, and members have no order.
pub(crate) fn json_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            JsonNumber::from_json_number(a).cmp(JsonNumber::from_json_number(b)) == Ordering::Equal
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| json_equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, value)| b.get(key).is_some_and(|other| json_equal(value, other)))
        }
        _ => a == b,
    }
}
