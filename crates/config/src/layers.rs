//! Layers of settings (files, environment, command line) and their merging.

use std::fmt;

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::error::ConfigError;
use super::flag::{FlagKind, FlagSpec};
use super::flags::all_effective_flags;

/// Source of a flag's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlagValueSource {
    /// The value is the default of the flag.
    Default,
    /// The value is derived from that of another flag.
    Derived,
    /// The value is from the YAML file of this path.
    File(String),
    /// The value is from the environment variable of this name.
    Environment(String),
    /// The value is from the command line.
    CommandLine,
    /// The value was changed at run time through the admin API.
    Operator,
}

impl fmt::Display for FlagValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Derived => f.write_str("derived"),
            Self::File(path) => write!(f, "file {path}"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::CommandLine => f.write_str("command line"),
            Self::Operator => f.write_str("operator"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigLayerSetting {
    /// Values of the flag: one, or any number for a list.
    pub(super) values: Vec<String>,
    pub(super) source: FlagValueSource,
}

/// Settings from one source (file, environment or command line), by flag name, with ignored flags
/// and warnings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ConfigLayer {
    pub(super) settings: IndexMap<&'static str, ConfigLayerSetting>,
    /// Flags without effect in a simulator, with their dashes as typed.
    pub(super) ignored: Vec<String>,
    /// Flags with an effect in this simulator that do not exist in all releases of vLLM, with their
    /// dashes as typed.
    pub(super) release_dependent: Vec<String>,
    pub(super) warnings: Vec<String>,
}

impl ConfigLayer {
    /// Sets a flag that the layer does not set.
    pub(super) fn set_if_unset(&mut self, flag: &FlagSpec, value: &str, source: FlagValueSource) {
        let setting = || ConfigLayerSetting { values: vec![value.to_owned()], source };
        self.settings.entry(flag.name).or_insert_with(setting);
    }

    pub(super) fn set_flag(
        &mut self,
        flag: &FlagSpec,
        values: Vec<String>,
        source: FlagValueSource,
    ) {
        match self.settings.get_mut(flag.name) {
            Some(begun) if matches!(flag.kind, FlagKind::List | FlagKind::Repeat) => {
                begun.values.extend(values)
            }
            _ => {
                self.settings.insert(flag.name, ConfigLayerSetting { values, source });
            }
        }
    }

    /// Sets one key in the value of a JSON flag (`--flag.a.b value`), or appends to a list in it
    /// (`--flag.a+ value`).
    ///
    /// # Errors
    /// [`ConfigError::Value`] if the flag's value is not a JSON object, or if there are too many
    /// keys.
    pub(super) fn set_json_key(
        &mut self,
        flag: &FlagSpec,
        path: &str,
        value: &str,
        source: FlagValueSource,
    ) -> Result<(), ConfigError> {
        if path.split('.').count() > MAX_KEY_DEPTH {
            return Err(ConfigError::Value {
                flag: format!("--{}", flag.name),
                value: path.chars().take(80).collect(),
                expected: format!("a path of at most {MAX_KEY_DEPTH} keys"),
                origin: source.to_string(),
            });
        }
        let whole = self.settings.get(flag.name).map(|s| s.values.concat());
        let mut object = match whole.as_deref() {
            None | Some("") => Map::new(),
            Some(text) => serde_json::from_str(text).map_err(|_| ConfigError::Value {
                flag: format!("--{}", flag.name),
                value: text.to_owned(),
                expected: "a JSON object, so that its keys can be set".to_owned(),
                origin: source.to_string(),
            })?,
        };
        let (path, update) = match path.strip_suffix('+') {
            Some(path) => (path, KeyUpdate::Append),
            None => (path, KeyUpdate::Replace),
        };
        update_json_key(&mut object, path, value, update);
        let values = vec![Value::Object(object).to_string()];
        self.settings.insert(flag.name, ConfigLayerSetting { values, source });
        Ok(())
    }

    /// Merges the settings of the layer `upper` into this layer of settings; a flag in `upper`
    /// replaces the flag's value here.
    pub(super) fn merge_from_upper_layer(&mut self, upper: Self) {
        self.settings.extend(upper.settings);
        self.release_dependent.extend(upper.release_dependent);
        for name in upper.ignored {
            if !self.ignored.contains(&name) {
                self.ignored.push(name);
            }
        }
        self.warnings.extend(upper.warnings);
    }
}

/// Maximum number of keys in `--flag.a.b.c`; the JSON parser accepts 128 levels.
const MAX_KEY_DEPTH: usize = 100;

#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyUpdate {
    Replace,
    /// Appends items to the list in one key of a JSON flag (`--flag.key+=a,b`).
    Append,
}

fn update_json_key(object: &mut Map<String, Value>, path: &str, value: &str, update: KeyUpdate) {
    match path.split_once('.') {
        Some((head, tail)) => {
            let below =
                object.entry(head.replace('-', "_")).or_insert_with(|| Value::Object(Map::new()));
            if !below.is_object() {
                *below = Value::Object(Map::new());
            }
            if let Value::Object(below) = below {
                update_json_key(below, tail, value, update);
            }
        }
        None if update == KeyUpdate::Append => {
            let list =
                object.entry(path.replace('-', "_")).or_insert_with(|| Value::Array(Vec::new()));
            if !list.is_array() {
                *list = Value::Array(Vec::new());
            }
            if let Value::Array(list) = list {
                list.extend(value.split(',').map(parse_json_scalar));
            }
        }
        None => {
            object.insert(path.replace('-', "_"), parse_json_scalar(value));
        }
    }
}

/// Parses the value of one key of a JSON flag; text that is not JSON becomes a string.
fn parse_json_scalar(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| match text {
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        "None" => Value::Null,
        _ => Value::String(text.to_owned()),
    })
}

/// Reads the settings from environment variables; empty variables are skipped.
pub(super) fn layer_from_environment(env: &dyn Fn(&str) -> Option<String>) -> ConfigLayer {
    let mut layer = ConfigLayer::default();
    for flag in all_effective_flags() {
        let own = flag.env_variable_name();
        // `VLLM_SIM_<NAME>` wins over other variables of the flag.
        let names = std::iter::once(own.as_str()).chain(flag.env.iter().copied());
        for name in names {
            let Some(text) = env(name).filter(|text| !text.is_empty()) else {
                continue;
            };
            if flag.name.ends_with("port") && text.contains("://") {
                layer.warnings.push(format!(
                    "{name}={text} is ignored: it looks like the address that Kubernetes sets for \
                     a Service"
                ));
                continue;
            }
            let values = match flag.kind {
                FlagKind::List | FlagKind::Repeat if name == own => split_list_variable(&text),
                _ => vec![text],
            };
            layer.set_flag(flag, values, FlagValueSource::Environment(name.to_owned()));
            break;
        }
    }
    layer
}

/// Splits the value of a list variable at commas; a JSON array or object is kept whole.
fn split_list_variable(text: &str) -> Vec<String> {
    let text = text.trim();
    if text.starts_with(['[', '{']) {
        return vec![text.to_owned()];
    }
    text.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}
