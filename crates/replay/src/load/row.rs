use std::fmt::Display;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::loaded::{TIME_OUT_OF_RANGE_TEXT, is_time_in_range};
use crate::workload::{MAX_PROMPT_OR_OUTPUT_TOKENS, WorkloadError};

pub(super) struct JsonRow<'a> {
    place: &'a dyn Fn() -> String,
    fields: &'a Map<String, Value>,
}

impl<'a> JsonRow<'a> {
    /// Wraps a JSON object for typed access to its fields; `place` is the location of the object
    /// for error messages.
    ///
    /// # Errors
    /// Returns [`WorkloadError::Bad`] if the value is not an object.
    pub(super) fn json_row_from_value(
        value: &'a Value,
        place: &'a dyn Fn() -> String,
    ) -> Result<Self, WorkloadError> {
        match value {
            Value::Object(fields) => Ok(Self { place, fields }),
            other => Err(WorkloadError::Bad {
                place: place(),
                problem: format!("is {}, must be an object", shorten_for_error(other)),
            }),
        }
    }

    pub(super) fn row_error(&self, problem: impl Into<String>) -> WorkloadError {
        WorkloadError::Bad { place: (self.place)(), problem: problem.into() }
    }

    fn wrong_value_error(&self, name: &str, value: &Value, allowed: impl Display) -> WorkloadError {
        self.row_error(format!("{name} is {}, must be {allowed}", shorten_for_error(value)))
    }

    pub(super) fn find_field<'n>(&self, names: &[&'n str]) -> Option<(&'n str, &'a Value)> {
        let mut found = names.iter().filter_map(|name| {
            let value = self.fields.get(*name)?;
            (!value.is_null()).then_some((*name, value))
        });
        found.next()
    }

    pub(super) fn has_field(&self, name: &str) -> bool {
        self.find_field(&[name]).is_some()
    }

    pub(super) fn missing_field_error(&self, name: &str) -> WorkloadError {
        self.row_error(format!("{name} is missing"))
    }

    /// Reads a field that must exist, with one of the readers of optional fields.
    pub(super) fn required<T>(
        &self,
        read: impl Fn(&Self, &str) -> Result<Option<T>, WorkloadError>,
        name: &str,
    ) -> Result<T, WorkloadError> {
        read(self, name)?.ok_or_else(|| self.missing_field_error(name))
    }

    /// Converts the first field of `names` that exists by `parse`, which returns `None` for a value
    /// that is not `allowed`.
    fn parse_field<T>(
        &self,
        names: &[&str],
        allowed: impl Display,
        parse: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, WorkloadError> {
        let Some((name, value)) = self.find_field(names) else {
            return Ok(None);
        };
        let wrong = || self.wrong_value_error(name, value, allowed);
        parse(value).map(Some).ok_or_else(wrong)
    }

    /// Converts each entry of a list by `parse`, as [`Self::parse_field`] converts a field.
    fn parse_array_field<T>(
        &self,
        name: &str,
        allowed: &str,
        parse: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, WorkloadError> {
        let Some(list) = self.array_field(name)? else {
            return Ok(None);
        };
        let entries = list.iter().enumerate().map(|(i, value)| {
            let wrong = || self.wrong_value_error(&format!("{name}[{i}]"), value, allowed);
            parse(value).ok_or_else(wrong)
        });
        entries.collect::<Result<_, _>>().map(Some)
    }

    /// Reads a number of tokens, at least `least`, from the first field of `names` that exists.
    pub(super) fn token_count_field(
        &self,
        names: &[&str],
        least: u32,
    ) -> Result<Option<u32>, WorkloadError> {
        let range = u64::from(least)..=MAX_PROMPT_OR_OUTPUT_TOKENS;
        let allowed = format_args!("a whole number from {least} to {MAX_PROMPT_OR_OUTPUT_TOKENS}");
        self.parse_field(names, allowed, |value| {
            as_whole_number(value).filter(|n| range.contains(n)).map(|n| n as u32)
        })
    }

    pub(super) fn required_token_count_field(
        &self,
        names: &[&str],
        least: u32,
    ) -> Result<u32, WorkloadError> {
        self.token_count_field(names, least)?.ok_or_else(|| self.missing_field_error(names[0]))
    }

    /// Reads the prompt length, in tokens, from a field that may be absent but not null.
    pub(super) fn prompt_length_field(&self) -> Result<Option<u32>, WorkloadError> {
        let names = ["input_length", "input_tokens"];
        if let Some(name) = names.iter().find(|name| self.fields.get(**name) == Some(&Value::Null))
        {
            let allowed = "a whole number of tokens, or absent";
            return Err(self.wrong_value_error(name, &Value::Null, allowed));
        }
        self.token_count_field(&names, 1)
    }

    pub(super) fn time_field_ms(&self, names: &[&str]) -> Result<Option<f64>, WorkloadError> {
        self.check_time_range(names, self.number_field(names)?)
    }

    /// Reads a time that the row has in seconds, and returns it in milliseconds.
    pub(super) fn seconds_field_as_ms(&self, names: &[&str]) -> Result<Option<f64>, WorkloadError> {
        let seconds = self.number_field(names)?;
        self.check_time_range(names, seconds.map(|seconds| seconds * 1e3))
    }

    pub(super) fn positive_millis_field(
        &self,
        names: &[&str],
    ) -> Result<Option<f64>, WorkloadError> {
        self.check_time_range(names, self.positive_number_field(names)?)
    }

    /// Reads a duration that the row has in seconds, and returns it in milliseconds.
    pub(super) fn positive_seconds_field_as_ms(
        &self,
        names: &[&str],
    ) -> Result<Option<f64>, WorkloadError> {
        let seconds = self.positive_number_field(names)?;
        self.check_time_range(names, seconds.map(|seconds| seconds * 1e3))
    }

    fn check_time_range(
        &self,
        names: &[&str],
        ms: Option<f64>,
    ) -> Result<Option<f64>, WorkloadError> {
        match (ms.is_none_or(is_time_in_range), self.find_field(names)) {
            (false, Some((name, value))) => {
                Err(self.wrong_value_error(name, value, TIME_OUT_OF_RANGE_TEXT))
            }
            _ => Ok(ms),
        }
    }

    pub(super) fn number_field(&self, names: &[&str]) -> Result<Option<f64>, WorkloadError> {
        self.parse_field(names, "a number", |value| value.as_f64().filter(|n| n.is_finite()))
    }

    pub(super) fn positive_number_field(
        &self,
        names: &[&str],
    ) -> Result<Option<f64>, WorkloadError> {
        self.parse_field(names, "a number of 0 or more", as_positive_number)
    }

    pub(super) fn integer_field<T: TryFrom<i64>>(
        &self,
        name: &str,
    ) -> Result<Option<T>, WorkloadError> {
        self.parse_field(&[name], "a whole number in range", |value| {
            T::try_from(value.as_i64()?).ok()
        })
    }

    pub(super) fn text_field(&self, name: &str) -> Result<Option<&'a str>, WorkloadError> {
        self.parse_field(&[name], "a string", Value::as_str)
    }

    pub(super) fn array_field(&self, name: &str) -> Result<Option<&'a [Value]>, WorkloadError> {
        self.parse_field(&[name], "a list", |value| value.as_array().map(Vec::as_slice))
    }

    pub(super) fn object_field(&self, name: &str) -> Result<Option<JsonRow<'a>>, WorkloadError> {
        let place = self.place;
        self.parse_field(&[name], "an object", |value| {
            value.as_object().map(|fields| JsonRow { place, fields })
        })
    }

    /// Reads an object that may be absent; an absent one has no fields.
    pub(super) fn object_field_or_empty(&self, name: &str) -> Result<JsonRow<'a>, WorkloadError> {
        static NO_FIELDS: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        let absent = JsonRow { place: self.place, fields: &NO_FIELDS };
        Ok(self.object_field(name)?.unwrap_or(absent))
    }

    pub(super) fn number_array_field(&self, name: &str) -> Result<Option<Vec<f64>>, WorkloadError> {
        self.parse_array_field(name, "a number of 0 or more", as_positive_number)
    }

    pub(super) fn integer_array_field(
        &self,
        name: &str,
    ) -> Result<Option<Vec<u64>>, WorkloadError> {
        self.parse_array_field(name, "a whole number of 0 or more", as_whole_number)
    }
}

fn as_positive_number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|n| n.is_finite() && *n >= 0.0)
}

/// Returns the JSON value as a whole number, also when written as `12.0`.
pub(super) fn as_whole_number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let n = value.as_f64()?;
        (n >= 0.0 && n.fract() == 0.0 && n < 9.0e15).then_some(n as u64)
    })
}

pub(super) fn shorten_for_error(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text,
    }
}
