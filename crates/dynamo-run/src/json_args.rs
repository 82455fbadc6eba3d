use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};

use super::error::DynamoRunError;

/// Fields of a JSON object, removed one by one as they are read, so that unknown ones can be
/// rejected.
pub(super) struct DynamoJsonArgs {
    place: String,
    map: Map<String, Value>,
}

impl DynamoJsonArgs {
    pub(super) fn new(json_path: &str, value: &Value) -> Result<Self, DynamoRunError> {
        let map = match value {
            Value::Object(map) => map.clone(),
            Value::Null => Map::new(),
            _ => return Err(invalid_field_error(json_path, "must be an object")),
        };
        Ok(Self { place: json_path.to_owned(), map })
    }

    /// Removes and returns the JSON object in the field `key`; a missing field counts as an empty
    /// object.
    pub(super) fn take_object(&mut self, key: &str) -> Result<Self, DynamoRunError> {
        let value = self.take_value(key).unwrap_or_default();
        Self::new(&self.path_of(key), &value)
    }

    fn path_of(&self, key: &str) -> String {
        match self.place.is_empty() {
            true => key.to_owned(),
            false => format!("{}.{key}", self.place),
        }
    }

    pub(super) fn take_value(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key).filter(|value| !value.is_null())
    }

    /// Inserts a field of the JSON object again after [`Self::take_value`] removed it.
    pub(super) fn put_value_back(&mut self, key: &str, value: Value) {
        self.map.insert(key.to_owned(), value);
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key)
    }

    /// Returns whether the field `key` exists and is not `null`.
    pub(super) fn has_value(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| !value.is_null())
    }

    pub(super) fn invalid_field(&self, key: &str, problem: impl Into<String>) -> DynamoRunError {
        invalid_field_error(&self.path_of(key), problem)
    }

    /// Removes the field `key` and returns what `read` makes of its value; `kind` names the values
    /// that `read` accepts.
    fn take_as<T>(
        &mut self,
        key: &str,
        kind: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, DynamoRunError> {
        let Some(value) = self.take_value(key) else {
            return Ok(None);
        };
        let read = read(&value);
        read.map(Some).ok_or_else(|| self.invalid_field(key, format!("{value} is not {kind}")))
    }

    pub(super) fn take_optional_count(&mut self, key: &str) -> Result<Option<u32>, DynamoRunError> {
        self.take_as(key, "a whole number", |value| u32::try_from(value.as_u64()?).ok())
    }

    pub(super) fn take_count(&mut self, key: &str, default: u32) -> Result<u32, DynamoRunError> {
        Ok(self.take_optional_count(key)?.unwrap_or(default))
    }

    pub(super) fn take_optional_number(
        &mut self,
        key: &str,
    ) -> Result<Option<f64>, DynamoRunError> {
        let read = |value: &Value| value.as_f64().filter(|n| n.is_finite() && *n >= 0.0);
        self.take_as(key, "a number of 0 or more", read)
    }

    pub(super) fn take_number(&mut self, key: &str, default: f64) -> Result<f64, DynamoRunError> {
        Ok(self.take_optional_number(key)?.unwrap_or(default))
    }

    /// Removes the number of milliseconds in the field `key`; a missing field counts as 0.
    pub(super) fn take_milliseconds(&mut self, key: &str) -> Result<Duration, DynamoRunError> {
        let ms = self.take_number(key, 0.0)?;
        Duration::try_from_secs_f64(ms / 1e3)
            .map_err(|_| self.invalid_field(key, format!("{ms} ms is too long")))
    }

    pub(super) fn take_optional_bool(&mut self, key: &str) -> Result<Option<bool>, DynamoRunError> {
        self.take_as(key, "true or false", Value::as_bool)
    }

    pub(super) fn take_optional_text(
        &mut self,
        key: &str,
    ) -> Result<Option<String>, DynamoRunError> {
        self.take_as(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// Removes and returns the integer in the field `key`; `null` means no limit (`u32::MAX`).
    pub(super) fn take_count_limit(
        &mut self,
        key: &str,
        default: u32,
    ) -> Result<u32, DynamoRunError> {
        if self.map.get(key).is_some_and(Value::is_null) {
            self.map.remove(key);
            return Ok(u32::MAX);
        }
        self.take_count(key, default)
    }

    /// Removes the string in the field `key` and returns its index in `words`; 0 if the field is
    /// missing.
    pub(super) fn take_choice_index(
        &mut self,
        key: &str,
        words: &[&'static str],
    ) -> Result<usize, DynamoRunError> {
        let Some(text) = self.take_optional_text(key)? else {
            return Ok(0);
        };
        let found = words.iter().position(|word| *word == text);
        found.ok_or_else(|| {
            self.invalid_field(key, format!("{text:?} is not modelled, only {words:?}"))
        })
    }

    /// Removes fields of the JSON object that have no effect on the simulation.
    pub(super) fn ignore_fields(&mut self, keys: &[&str]) {
        keys.iter().for_each(|key| drop(self.map.remove(*key)));
    }

    /// Returns an error if the JSON object has a field that no call has removed.
    pub(super) fn reject_unknown_fields(&self) -> Result<(), DynamoRunError> {
        match self.map.iter().find(|(_, value)| !value.is_null()) {
            Some((key, value)) => Err(self.invalid_field(key, format!("{value} is not modelled"))),
            None => Ok(()),
        }
    }
}

pub(super) fn invalid_field_error(key: &str, problem: impl Into<String>) -> DynamoRunError {
    DynamoRunError::Argument { key: key.to_owned(), problem: problem.into() }
}

pub(super) fn read_json_file(path: &Path) -> Result<Value, DynamoRunError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| DynamoRunError::Io { path: path.to_owned(), error })?;
    serde_json::from_str(&text)
        .map_err(|error| DynamoRunError::Json { place: path.display().to_string(), error })
}
