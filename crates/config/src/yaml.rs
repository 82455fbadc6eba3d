//! Reads YAML files with values of flags.

use std::fs;

use serde_json::{Map, Value};

use super::command_line;
use super::error::ConfigError;
use super::flag::{FlagKind, FlagSpec};
use super::flags;
use super::ignored;
use super::layers::{ConfigLayer, FlagValueSource};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UnknownKeyPolicy {
    Reject,
    Warn,
}

/// Reads a YAML file with values of flags.
///
/// # Errors
/// [`ConfigError::File`] if the file cannot be read or is not a YAML mapping;
/// [`ConfigError::Unknown`] for an unknown key with [`UnknownKeyPolicy::Reject`].
pub(super) fn read_config_file(
    path: &str,
    unknown: UnknownKeyPolicy,
) -> Result<ConfigLayer, ConfigError> {
    let file = |reason: String| ConfigError::File { path: format!("--config {path}"), reason };
    let text = fs::read_to_string(path).map_err(|e| file(e.to_string()))?;
    parse_config_yaml(&text, path, unknown)
}

pub(super) fn parse_config_yaml(
    text: &str,
    path: &str,
    unknown: UnknownKeyPolicy,
) -> Result<ConfigLayer, ConfigError> {
    let file = |reason: String| ConfigError::File { path: path.to_owned(), reason };
    let keys = match serde_saphyr::from_str::<Option<Value>>(text) {
        Ok(None | Some(Value::Null)) => Map::new(),
        Ok(Some(Value::Object(keys))) => keys,
        Ok(Some(other)) => {
            return Err(file(format!(
                "a mapping of flag names to values was expected, not {}",
                yaml_type_name(&other)
            )));
        }
        Err(e) => return Err(file(format!("not YAML: {e}"))),
    };
    let mut layer = ConfigLayer::default();
    for (key, value) in &keys {
        set_from_yaml_key(&mut layer, key, value, path, unknown)?;
    }
    Ok(layer)
}

fn set_from_yaml_key(
    layer: &mut ConfigLayer,
    key: &str,
    value: &Value,
    path: &str,
    unknown: UnknownKeyPolicy,
) -> Result<(), ConfigError> {
    let source = FlagValueSource::File(path.to_owned());
    let typed = key.trim_start_matches('-');
    let (base, below) = command_line::split_at_first(typed, '.');
    let base = base.replace('_', "-");
    if let Some(flag) = flags::find_long_flag(&base).or_else(|| flags::find_short_flag(&base)) {
        return match below {
            Some(below) if flag.kind == FlagKind::Json => {
                layer.set_json_key(flag, below, &yaml_scalar_text(value), source)
            }
            Some(_) => handle_unknown_key(layer, key, &base, path, unknown),
            None => {
                if let Some(values) = yaml_to_flag_values(flag, value) {
                    let is_list = matches!(flag.kind, FlagKind::List | FlagKind::Repeat);
                    if !is_list && layer.settings.contains_key(flag.name) {
                        layer.warnings.push(format!(
                            "{path}: {key} replaces an earlier value of {} in this file",
                            flag.name
                        ));
                    }
                    layer.set_flag(flag, values, source);
                }
                Ok(())
            }
        };
    }
    if let Some((name, _)) =
        ignored::find_ignored_long_flag(&base).or_else(|| ignored::find_ignored_short_flag(&base))
    {
        layer.ignored.push(format!("--{name}"));
        return Ok(());
    }
    let inverse = ignored::inverse_switch_name(&base);
    if inverse.is_some() {
        layer.release_dependent.push(format!("--{base}"));
    }
    let negated = inverse.or_else(|| base.strip_prefix("no-"));
    if let Some(flag) = negated.and_then(flags::find_long_flag)
        && flag.kind == FlagKind::Switch
    {
        let off =
            matches!(value, Value::Bool(true) | Value::Null) || yaml_scalar_text(value) == "true";
        layer.set_flag(flag, vec![(!off).to_string()], source);
        return Ok(());
    }
    if let Some((name, _)) = negated.and_then(ignored::find_ignored_long_flag) {
        layer.ignored.push(format!("--{name}"));
        return Ok(());
    }
    handle_unknown_key(layer, key, &base, path, unknown)
}

fn handle_unknown_key(
    layer: &mut ConfigLayer,
    key: &str,
    base: &str,
    path: &str,
    unknown: UnknownKeyPolicy,
) -> Result<(), ConfigError> {
    let error = ConfigError::Unknown {
        what: format!("key in {path}:"),
        name: key.to_owned(),
        nearest: command_line::nearest_flag_name(base).map(str::to_owned),
    };
    if unknown == UnknownKeyPolicy::Reject {
        return Err(error);
    }
    layer.warnings.push(error.to_string());
    Ok(())
}

/// Converts a YAML value to the values of a flag; `None` if it is empty.
fn yaml_to_flag_values(flag: &FlagSpec, value: &Value) -> Option<Vec<String>> {
    match (flag.kind, value) {
        (_, Value::Null) => None,
        (FlagKind::List, Value::Array(items)) => {
            Some(items.iter().map(yaml_scalar_text).filter(|item| !item.is_empty()).collect())
        }
        (FlagKind::List, Value::String(item)) if item.is_empty() => Some(Vec::new()),
        (_, value) => Some(vec![yaml_scalar_text(value)]),
    }
}

fn yaml_scalar_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn yaml_type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}
