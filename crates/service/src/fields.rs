//! Reads fields of the YAML files that operators write: scripted replies and fault scenarios.

use serde_json::{Map, Value};

/// Returns the fields of a mapping whose keys must be among `keys`, which commas separate.
pub(crate) fn expect_mapping<'v>(
    value: &'v Value,
    keys: &str,
) -> Result<&'v Map<String, Value>, String> {
    let Value::Object(fields) = value else {
        return Err(format!("a mapping with the keys {keys} was expected, not {value}"));
    };
    match fields.keys().find(|key| keys.split(", ").all(|known| known != **key)) {
        Some(key) => Err(format!("unknown key {key:?}; allowed are {keys}")),
        None => Ok(fields),
    }
}

pub(crate) fn non_null_field<'v>(fields: &'v Map<String, Value>, key: &str) -> Option<&'v Value> {
    fields.get(key).filter(|value| !value.is_null())
}

pub(crate) fn text_field(fields: &Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match non_null_field(fields, key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(format!("'{key}' must be a string, not {other}")),
    }
}

pub(crate) fn whole_number_field(
    fields: &Map<String, Value>,
    key: &str,
    least: u64,
) -> Result<Option<u64>, String> {
    let Some(value) = non_null_field(fields, key) else {
        return Ok(None);
    };
    match value.as_u64().filter(|number| *number >= least) {
        Some(number) => Ok(Some(number)),
        None => Err(format!("'{key}' must be a whole number of at least {least}, not {value}")),
    }
}
