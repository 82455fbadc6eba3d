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

    fn wrong_value_error(&self, name: &str, value: &Value, allowed: &str) -> WorkloadError {
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

    /// Reads a number of tokens, at least `least`, from the first field of `names` that exists.
    pub(super) fn token_count_field(
        &self,
        names: &[&str],
        least: u32,
    ) -> Result<Option<u32>, WorkloadError> {
        let Some((name, value)) = self.find_field(names) else {
            return Ok(None);
        };
        as_whole_number(value)
            .filter(|n| (u64::from(least)..=MAX_PROMPT_OR_OUTPUT_TOKENS).contains(n))
            .map(|n| Some(n as u32))
            .ok_or_else(|| {
                let allowed =
                    format!("a whole number from {least} to {MAX_PROMPT_OR_OUTPUT_TOKENS}");
                self.wrong_value_error(name, value, &allowed)
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
        let Some((name, value)) = self.find_field(names) else {
            return Ok(None);
        };
        value
            .as_f64()
            .filter(|n| n.is_finite())
            .map(Some)
            .ok_or_else(|| self.wrong_value_error(name, value, "a number"))
    }

    pub(super) fn positive_number_field(
        &self,
        names: &[&str],
    ) -> Result<Option<f64>, WorkloadError> {
        let Some((name, value)) = self.find_field(names) else {
            return Ok(None);
        };
        value
            .as_f64()
            .filter(|n| n.is_finite() && *n >= 0.0)
            .map(Some)
            .ok_or_else(|| self.wrong_value_error(name, value, "a number of 0 or more"))
    }

    pub(super) fn integer_field<T: TryFrom<i64>>(
        &self,
        name: &str,
    ) -> Result<Option<T>, WorkloadError> {
        let Some((name, value)) = self.find_field(&[name]) else {
            return Ok(None);
        };
        value
            .as_i64()
            .and_then(|n| T::try_from(n).ok())
            .map(Some)
            .ok_or_else(|| self.wrong_value_error(name, value, "a whole number in range"))
    }

    pub(super) fn text_field(&self, name: &str) -> Result<Option<&'a str>, WorkloadError> {
        match self.find_field(&[name]) {
            None => Ok(None),
            Some((_, Value::String(text))) => Ok(Some(text)),
            Some((_, value)) => Err(self.wrong_value_error(name, value, "a string")),
        }
    }

    pub(super) fn array_field(&self, name: &str) -> Result<Option<&'a [Value]>, WorkloadError> {
        match self.find_field(&[name]) {
            None => Ok(None),
            Some((_, Value::Array(list))) => Ok(Some(list)),
            Some((_, value)) => Err(self.wrong_value_error(name, value, "a list")),
        }
    }

    pub(super) fn object_field(&self, name: &str) -> Result<Option<JsonRow<'a>>, WorkloadError> {
        match self.find_field(&[name]) {
            None => Ok(None),
            Some((_, Value::Object(fields))) => Ok(Some(JsonRow { place: self.place, fields })),
            Some((_, value)) => Err(self.wrong_value_error(name, value, "an object")),
        }
    }

    pub(super) fn number_array_field(&self, name: &str) -> Result<Option<Vec<f64>>, WorkloadError> {
        let Some(list) = self.array_field(name)? else {
            return Ok(None);
        };
        let numbers = list.iter().enumerate().map(|(i, value)| {
            value.as_f64().filter(|n| n.is_finite() && *n >= 0.0).ok_or_else(|| {
                self.wrong_value_error(&format!("{name}[{i}]"), value, "a number of 0 or more")
            })
        });
        numbers.collect::<Result<_, _>>().map(Some)
    }

    pub(super) fn integer_array_field(
        &self,
        name: &str,
    ) -> Result<Option<Vec<u64>>, WorkloadError> {
        let Some(list) = self.array_field(name)? else {
            return Ok(None);
        };
        let ids = list.iter().enumerate().map(|(i, value)| {
            let wrong = || {
                self.wrong_value_error(
                    &format!("{name}[{i}]"),
                    value,
                    "a whole number of 0 or more",
                )
            };
            as_whole_number(value).ok_or_else(wrong)
        });
        ids.collect::<Result<_, _>>().map(Some)
    }
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
