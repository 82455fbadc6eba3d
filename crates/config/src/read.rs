//! Parses the text values of flags into their types.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use super::flag::{
    FlagKind, FlagValue, FlagValueBounds, FlagValueError, RawFlagValues, value_to_flag_text,
};
use vllm_sim_engine::{MAX_SIMULATED_DELAY, duration};

pub(crate) type JsonMap = Map<String, Value>;

const EXPECTED_BOOL: &str = "true or false";
const EXPECTED_INTEGER: &str = "a whole number";
const EXPECTED_NUMBER: &str = "a number";

fn unreadable_value_error(value: &str, expected: impl Into<String>) -> FlagValueError {
    FlagValueError::Unreadable { value: value.to_owned(), expected: expected.into() }
}

impl<'a> RawFlagValues<'a> {
    /// Returns the last value of the flag; `None` if there is none, or it is empty or `none`.
    pub(crate) fn last_value_text(&self) -> Option<&'a str> {
        self.values
            .last()
            .map(String::as_str)
            .filter(|text| !text.is_empty() && !text.eq_ignore_ascii_case("none"))
    }

    fn parse_bool(&self) -> Result<Option<bool>, FlagValueError> {
        let Some(text) = self.last_value_text() else {
            return Ok(None);
        };
        match text.to_ascii_lowercase().as_str() {
            "true" | "t" | "1" | "yes" | "on" => Ok(Some(true)),
            "false" | "f" | "0" | "no" | "off" => Ok(Some(false)),
            _ => Err(unreadable_value_error(text, EXPECTED_BOOL)),
        }
    }

    pub(crate) fn parse_integer(&self) -> Result<Option<i64>, FlagValueError> {
        if self.spec.kind == FlagKind::Count {
            return self.parse_suffixed_count();
        }
        self.last_value_text().map(parse_integer_text).transpose()
    }

    /// Parses the value of a count flag with vLLM's suffixes (`1k` = 1000, `1K` = 1024, `25.6k`);
    /// `auto` is `None`.
    fn parse_suffixed_count(&self) -> Result<Option<i64>, FlagValueError> {
        let Some(text) = self.last_value_text().filter(|t| !t.eq_ignore_ascii_case("auto")) else {
            return Ok(None);
        };
        let (power, base): (u32, i32) = match text.chars().last() {
            Some('k') => (1, 1000),
            Some('K') => (1, 1024),
            Some('m') => (2, 1000),
            Some('M') => (2, 1024),
            Some('g') => (3, 1000),
            Some('G') => (3, 1024),
            Some('t') => (4, 1000),
            Some('T') => (4, 1024),
            _ => return parse_integer_text(text).map(Some),
        };
        let factor = i64::from(base).pow(power);
        let number = &text[..text.len() - 1];
        let scaled = match number.parse::<i64>() {
            Ok(n) => n.checked_mul(factor),
            Err(_) if base == 1000 => {
                let scaled = number.parse::<f64>().ok().map(|n| n * factor as f64);
                let fits = |n: &f64| n.is_finite() && n.abs() < 9e15;
                scaled.filter(fits).map(|n| n as i64)
            }
            Err(_) => None,
        };
        let expected = "a whole number, or one with k, K, m, M, g, G, t or T";
        scaled.map(Some).ok_or_else(|| unreadable_value_error(text, expected))
    }

    fn parse_bounded_integer(&self) -> Result<Option<i64>, FlagValueError> {
        let value = self.parse_integer()?;
        match (value, self.spec.value_bounds_for_mode(self.cli_mode)) {
            (Some(n), Some(FlagValueBounds::Whole(least, most)))
                if !(least..=most).contains(&n) =>
            {
                Err(FlagValueError::OutOfBounds)
            }
            _ => Ok(value),
        }
    }

    fn parse_float(&self) -> Result<Option<f64>, FlagValueError> {
        let Some(text) = self.last_value_text() else {
            return Ok(None);
        };
        let number = text.parse::<f64>().ok().filter(|n| n.is_finite());
        let number = number.ok_or_else(|| unreadable_value_error(text, EXPECTED_NUMBER))?;
        match self.spec.value_bounds_for_mode(self.cli_mode) {
            Some(FlagValueBounds::Number(least, most)) if !(least..=most).contains(&number) => {
                Err(FlagValueError::OutOfBounds)
            }
            _ => Ok(Some(number)),
        }
    }

    /// Parses a duration and its sign; a number without unit has the flag's default unit.
    pub(crate) fn parse_duration(&self) -> Result<duration::ParsedDuration, FlagValueError> {
        let (unit, unit_name) = match self.spec.kind {
            FlagKind::Seconds => (1_000_000_000, "seconds"),
            _ => (1_000_000, "milliseconds"),
        };
        let text = self.values.last().map_or("0", String::as_str);
        duration::parse_signed_duration(text, unit).map_err(|why| {
            if why == duration::DURATION_OVERFLOW_MESSAGE {
                return self.duration_too_long_error();
            }
            let such = format!("a duration such as 1.5s, 250us or a number of {unit_name}: {why}");
            unreadable_value_error(text, such)
        })
    }

    fn duration_too_long_error(&self) -> FlagValueError {
        let text = self.values.last().map_or("", String::as_str);
        unreadable_value_error(text, "a duration of at most 24h")
    }
}

/// Parses the value of a whole-number flag; YAML and templates may write 8.0 or 1e3.
fn parse_integer_text(text: &str) -> Result<i64, FlagValueError> {
    let loose = text.parse::<f64>().ok().filter(|n| {
        n.fract() == 0.0
            && n.abs() < 9e15
            && !text.contains(|c: char| c.is_alphabetic() && c != 'e')
    });
    text.parse::<i64>()
        .ok()
        .or(loose.map(|n| n as i64))
        .ok_or_else(|| unreadable_value_error(text, EXPECTED_INTEGER))
}

impl FlagValue for bool {
    const KIND: FlagKind = FlagKind::Switch;

    fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError> {
        Ok(typed.parse_bool()?.unwrap_or(false))
    }
}

impl FlagValue for Option<bool> {
    const KIND: FlagKind = FlagKind::Switch;

    fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError> {
        typed.parse_bool()
    }
}

macro_rules! whole_numbers {
    ($($int:ty),*) => {$(
        impl FlagValue for $int {
            const KIND: FlagKind = FlagKind::Int;

            fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError> {
                Option::<$int>::read(typed)?.ok_or_else(|| unreadable_value_error("", EXPECTED_INTEGER))
            }
        }

        impl FlagValue for Option<$int> {
            const KIND: FlagKind = FlagKind::Int;

            fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError> {
                let fit = |n| <$int>::try_from(n).map_err(|_| FlagValueError::OutOfBounds);
                typed.parse_bounded_integer()?.map(fit).transpose()
            }
        }
    )*};
}

whole_numbers!(u8, u16, u32, u64, usize, i64);

impl FlagValue for f64 {
    const KIND: FlagKind = FlagKind::Float;

    fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError> {
        typed.parse_float()?.ok_or_else(|| unreadable_value_error("", EXPECTED_NUMBER))
    }
}

impl FlagValue for Option<f64> {
    const KIND: FlagKind = FlagKind::Float;

    fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError> {
        typed.parse_float()
    }
}

impl FlagValue for Duration {
    const KIND: FlagKind = FlagKind::Duration;

    fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError> {
        Option::<Self>::read(typed)?.ok_or(FlagValueError::OutOfBounds)
    }
}

/// Parses the value of a duration flag; a negative one is `None`.
impl FlagValue for Option<Duration> {
    const KIND: FlagKind = FlagKind::Duration;

    fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError> {
        match typed.parse_duration()?.to_non_negative_duration() {
            Some(long) if long > MAX_SIMULATED_DELAY => Err(typed.duration_too_long_error()),
            duration => Ok(duration),
        }
    }
}

/// Parses the value of a text flag; an empty value is the default.
impl FlagValue for String {
    const KIND: FlagKind = FlagKind::Text;

    fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError> {
        let default = || typed.spec.default_for_mode(typed.cli_mode).unwrap_or_default();
        Ok(typed.last_value_text().unwrap_or_else(default).to_owned())
    }
}

impl FlagValue for Option<String> {
    const KIND: FlagKind = FlagKind::Text;

    fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError> {
        Ok(typed.last_value_text().map(str::to_owned))
    }
}

impl FlagValue for Option<PathBuf> {
    const KIND: FlagKind = FlagKind::Path;

    fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError> {
        Ok(typed.last_value_text().map(PathBuf::from))
    }
}

impl FlagValue for Vec<PathBuf> {
    const KIND: FlagKind = FlagKind::Repeat;

    fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError> {
        Ok(typed.values.iter().map(PathBuf::from).collect())
    }
}

/// Parses the values of a list flag; a JSON array is replaced by its elements.
impl FlagValue for Vec<String> {
    const KIND: FlagKind = FlagKind::List;

    fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError> {
        Ok(expand_json_lists(typed.values))
    }
}

impl FlagValue for Option<JsonMap> {
    const KIND: FlagKind = FlagKind::Json;

    fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError> {
        let Some(text) = typed.last_value_text() else {
            return Ok(None);
        };
        match serde_json::from_str(text) {
            Ok(Value::Null) => Ok(None),
            Ok(Value::Object(map)) => Ok(Some(map)),
            Ok(other) => Err(unreadable_value_error(&other.to_string(), "a JSON object")),
            Err(e) => Err(unreadable_value_error(text, format!("JSON: {e}"))),
        }
    }
}

pub(crate) fn expand_json_lists(values: &[String]) -> Vec<String> {
    let mut out = Vec::new();
    for value in values {
        match serde_json::from_str::<Value>(value) {
            Ok(Value::Array(items)) => out.extend(items.iter().map(value_to_flag_text)),
            _ if value.is_empty() => {}
            _ => out.push(value.clone()),
        }
    }
    out
}
