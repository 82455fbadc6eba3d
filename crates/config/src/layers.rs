//! Layers of settings, and how one is laid over another.

use std::fmt;

use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::error::ConfigError;
use super::flag::{FlagKind, FlagSpec};
use super::flags::flags;

/// Where a value was typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueSource {
    /// Nowhere.
    Default,
    /// Nowhere; it follows from another value.
    Derived,
    /// In this YAML file.
    File(String),
    /// In this environment variable.
    Environment(String),
    /// On the command line.
    CommandLine,
    /// By an operator while running.
    Operator,
}

impl fmt::Display for ValueSource {
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

/// What one layer says about one flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    /// One value, or any number for a list.
    pub(super) values: Vec<String>,
    pub(super) source: ValueSource,
}

/// Settings of one source, by flag name; what is not a setting is only counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) settings: IndexMap<&'static str, Setting>,
    /// Flags that mean nothing to a simulator, as typed.
    pub(super) ignored: Vec<String>,
    /// Flags that mean something here and that vLLM has dropped, as typed.
    pub(super) dropped: Vec<String>,
    pub(super) warnings: Vec<String>,
}

impl Layer {
    /// Sets a flag, or adds to a list that this layer has begun.
    pub(super) fn set(&mut self, flag: &FlagSpec, values: Vec<String>, source: ValueSource) {
        match self.settings.get_mut(flag.name) {
            Some(begun) if matches!(flag.kind, FlagKind::List | FlagKind::Repeat) => {
                begun.values.extend(values)
            }
            _ => {
                self.settings.insert(flag.name, Setting { values, source });
            }
        }
    }

    /// Sets one key of a JSON flag: `--flag.a.b value`, or adds to a list under it
    /// (`--flag.a+ value`).
    ///
    /// # Errors
    /// [`ConfigError::Value`] when what the flag holds so far is no JSON object, or the keys are
    /// too many.
    pub(super) fn set_key(
        &mut self,
        flag: &FlagSpec,
        path: &str,
        value: &str,
        source: ValueSource,
    ) -> Result<(), ConfigError> {
        if path.split('.').count() > MOST_KEYS {
            return Err(ConfigError::Value {
                flag: format!("--{}", flag.name),
                value: path.chars().take(80).collect(),
                expected: format!("a path of at most {MOST_KEYS} keys"),
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
        insert(&mut object, path, value, update);
        let values = vec![Value::Object(object).to_string()];
        self.settings.insert(flag.name, Setting { values, source });
        Ok(())
    }

    /// Lays `upper` over this layer: what it names is replaced whole.
    pub(super) fn cover(&mut self, upper: Self) {
        self.settings.extend(upper.settings);
        self.dropped.extend(upper.dropped);
        for name in upper.ignored {
            if !self.ignored.contains(&name) {
                self.ignored.push(name);
            }
        }
        self.warnings.extend(upper.warnings);
    }
}

/// Most keys of `--flag.a.b.c`: objects are read back as JSON, which may be 128 deep.
const MOST_KEYS: usize = 100;

/// Tells what a value does to the key that it is given for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyUpdate {
    Replace,
    /// `--flag.key+=a,b`: its items are added to the list.
    Append,
}

/// Walks to the last key of `a.b.c`, making objects on the way.
fn insert(object: &mut Map<String, Value>, path: &str, value: &str, update: KeyUpdate) {
    match path.split_once('.') {
        Some((head, tail)) => {
            let below = object
                .entry(head.replace('-', "_"))
                .or_insert_with(|| Value::Object(Map::new()));
            if !below.is_object() {
                *below = Value::Object(Map::new());
            }
            if let Value::Object(below) = below {
                insert(below, tail, value, update);
            }
        }
        None if update == KeyUpdate::Append => {
            let list = object
                .entry(path.replace('-', "_"))
                .or_insert_with(|| Value::Array(Vec::new()));
            if !list.is_array() {
                *list = Value::Array(Vec::new());
            }
            if let Value::Array(list) = list {
                list.extend(value.split(',').map(scalar));
            }
        }
        None => {
            object.insert(path.replace('-', "_"), scalar(value));
        }
    }
}

/// JSON where it is JSON, text otherwise.
fn scalar(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| match text {
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        "None" => Value::Null,
        _ => Value::String(text.to_owned()),
    })
}

/// The settings that environment variables make. An empty variable says nothing.
pub(super) fn environment(env: &dyn Fn(&str) -> Option<String>) -> Layer {
    let mut layer = Layer::default();
    for flag in flags() {
        let own = flag.env_name();
        // The variable that carries our name is the more specific one.
        let names = std::iter::once(own.as_str()).chain(flag.env.iter().copied());
        for name in names {
            let Some(text) = env(name).filter(|text| !text.is_empty()) else {
                continue;
            };
            if flag.name.ends_with("port") && text.contains("://") {
                layer.warnings.push(format!(
                    "{name}={text} is ignored: it is the address that Kubernetes gives a service"
                ));
                continue;
            }
            let values = match flag.kind {
                FlagKind::List | FlagKind::Repeat if name == own => split(&text),
                _ => vec![text],
            };
            layer.set(flag, values, ValueSource::Environment(name.to_owned()));
            break;
        }
    }
    layer
}

/// A list in one text: a JSON array or object stays whole, all else is cut at commas.
fn split(text: &str) -> Vec<String> {
    let text = text.trim();
    if text.starts_with(['[', '{']) {
        return vec![text.to_owned()];
    }
    text.split(',')
        .map(|part| part.trim().to_owned())
        .filter(|part| !part.is_empty())
        .collect()
}
