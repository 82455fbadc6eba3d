//! Reads YAML files with values of flags.

use std::fs;

use serde_json::{Map, Value};

use super::command_line;
use super::error::ConfigError;
use super::flag::{FlagKind, FlagSpec};
use super::flags;
use super::ignored;
use super::layers::{Layer, ValueSource};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UnknownKeys {
    Reject,
    Warn,
}

/// Reads a YAML file with values of flags.
///
/// # Errors
/// [`ConfigError::File`] if the file cannot be read or is not a YAML mapping;
/// [`ConfigError::Unknown`] for an unknown key with [`UnknownKeys::Reject`].
pub(super) fn read(path: &str, unknown: UnknownKeys) -> Result<Layer, ConfigError> {
    let file = |reason: String| ConfigError::File {
        path: format!("--config {path}"),
        reason,
    };
    let text = fs::read_to_string(path).map_err(|e| file(e.to_string()))?;
    parse(&text, path, unknown)
}

pub(super) fn parse(text: &str, path: &str, unknown: UnknownKeys) -> Result<Layer, ConfigError> {
    let file = |reason: String| ConfigError::File {
        path: path.to_owned(),
        reason,
    };
    let keys = match serde_saphyr::from_str::<Option<Value>>(text) {
        Ok(None | Some(Value::Null)) => Map::new(),
        Ok(Some(Value::Object(keys))) => keys,
        Ok(Some(other)) => {
            return Err(file(format!(
                "a mapping of flag names to values was expected, not {}",
                kind(&other)
            )));
        }
        Err(e) => return Err(file(format!("not YAML: {e}"))),
    };
    let mut layer = Layer::default();
    for (key, value) in &keys {
        set(&mut layer, key, value, path, unknown)?;
    }
    Ok(layer)
}

fn set(
    layer: &mut Layer,
    key: &str,
    value: &Value,
    path: &str,
    unknown: UnknownKeys,
) -> Result<(), ConfigError> {
    let source = ValueSource::File(path.to_owned());
    let typed = key.trim_start_matches('-');
    let (base, below) = match typed.split_once('.') {
        Some((base, below)) => (base, Some(below)),
        None => (typed, None),
    };
    let base = base.replace('_', "-");
    if let Some(flag) = flags::long(&base).or_else(|| flags::short(&base)) {
        return match below {
            Some(below) if flag.kind == FlagKind::Json => {
                layer.set_key(flag, below, &text(value), source)
            }
            Some(_) => on_unknown(layer, key, &base, path, unknown),
            None => {
                if let Some(values) = values(flag, value) {
                    layer.set(flag, values, source);
                }
                Ok(())
            }
        };
    }
    if let Some((name, _)) = ignored::long(&base).or_else(|| ignored::short(&base)) {
        layer.ignored.push(format!("--{name}"));
        return Ok(());
    }
    if let Some(flag) = base.strip_prefix("no-").and_then(flags::long)
        && flag.kind == FlagKind::Switch
    {
        let off = matches!(value, Value::Bool(true) | Value::Null) || text(value) == "true";
        layer.set(flag, vec![(!off).to_string()], source);
        return Ok(());
    }
    if let Some((name, _)) = base.strip_prefix("no-").and_then(ignored::long) {
        layer.ignored.push(format!("--{name}"));
        return Ok(());
    }
    on_unknown(layer, key, &base, path, unknown)
}

fn on_unknown(
    layer: &mut Layer,
    key: &str,
    base: &str,
    path: &str,
    unknown: UnknownKeys,
) -> Result<(), ConfigError> {
    let error = ConfigError::Unknown {
        what: format!("key in {path}:"),
        name: key.to_owned(),
        nearest: command_line::nearest(base).map(str::to_owned),
    };
    if unknown == UnknownKeys::Reject {
        return Err(error);
    }
    layer.warnings.push(error.to_string());
    Ok(())
}

/// Converts a YAML value to the values of a flag; `None` if it is empty.
fn values(flag: &FlagSpec, value: &Value) -> Option<Vec<String>> {
    match (flag.kind, value) {
        (_, Value::Null) => None,
        (FlagKind::List, Value::Array(items)) => Some(
            items
                .iter()
                .map(text)
                .filter(|item| !item.is_empty())
                .collect(),
        ),
        (FlagKind::List, Value::String(item)) if item.is_empty() => Some(Vec::new()),
        (_, value) => Some(vec![text(value)]),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}
