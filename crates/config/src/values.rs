//! Settings → typed values: clap's one parse, and the readers that the groups use.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, Command};
use indexmap::IndexMap;
use serde_json::Value;

use super::error::ConfigError;
use super::layers::{Layer, Setting, Source};
use super::registry::{self, Flag, Kind};
use super::{CliMode, words};
use vllm_sim_engine::duration::{self, Typed};

/// Every flag's values, defaults filled in, by name.
#[derive(Debug, Clone)]
pub(super) struct Values {
    pub(super) cli_mode: CliMode,
    settings: IndexMap<&'static str, Setting>,
    /// What the groups found worth saying, and what they derived.
    notes: RefCell<Notes>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Notes {
    pub(super) warnings: Vec<String>,
    pub(super) derived: Vec<(&'static str, String)>,
    bare_durations: Vec<&'static str>,
}

impl Values {
    /// Turns settings into one canonical argument list and lets clap parse it.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with clap's words.
    pub(super) fn parse(layer: &Layer, cli_mode: CliMode) -> Result<Self, ConfigError> {
        let canonical = layer.settings.iter().flat_map(|(name, setting)| {
            setting
                .values
                .iter()
                .map(move |value| format!("--{name}={value}"))
        });
        let words = std::iter::once("vllm-sim".to_owned()).chain(canonical);
        let matches = command()
            .try_get_matches_from(words)
            .map_err(|e| ConfigError::Invalid(e.to_string()))?;
        Ok(Self::fill(layer, cli_mode, |flag, _| {
            matches
                .get_many::<String>(flag.name)
                .map(|values| values.cloned().collect())
                .unwrap_or_default()
        }))
    }

    /// Settings as they stand, to look up one that decides how the rest is read.
    pub(super) fn peek(layer: &Layer) -> Self {
        Self::fill(layer, CliMode::default(), |_, given| given.values.clone())
    }

    fn fill(
        layer: &Layer,
        cli_mode: CliMode,
        values: impl Fn(&'static Flag, &Setting) -> Vec<String>,
    ) -> Self {
        let settings = registry::flags().map(|flag| {
            let setting = match layer.settings.get(flag.name) {
                Some(given) => Setting {
                    values: values(flag, given),
                    source: given.source.clone(),
                },
                None => Setting {
                    values: flag
                        .default(cli_mode)
                        .map(str::to_owned)
                        .into_iter()
                        .collect(),
                    source: Source::Default,
                },
            };
            (flag.name, setting)
        });
        Self {
            cli_mode,
            settings: settings.collect(),
            notes: RefCell::default(),
        }
    }

    /// Whether anybody set it.
    pub(super) fn given(&self, name: &str) -> bool {
        self.source(name) != Source::Default
    }

    pub(super) fn source(&self, name: &str) -> Source {
        self.settings
            .get(name)
            .map_or(Source::Default, |s| s.source.clone())
    }

    /// What was typed or is the default; lists as they stand.
    pub(super) fn raw(&self, name: &str) -> &[String] {
        self.settings.get(name).map_or(&[], |s| &s.values)
    }

    /// The last value, unless it is missing, empty or `none`.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.raw(name)
            .last()
            .map(String::as_str)
            .filter(|text| !text.is_empty() && !text.eq_ignore_ascii_case("none"))
    }

    pub(super) fn owned(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    pub(super) fn warn(&self, text: impl Into<String>) {
        self.notes.borrow_mut().warnings.push(text.into());
    }

    /// Records what a value that was left open has become.
    pub(super) fn derive(&self, name: &'static str, value: impl Display) {
        let derived = (name, value.to_string());
        self.notes.borrow_mut().derived.push(derived);
    }

    /// Warnings and derived values so far; durations without a unit make one warning.
    pub(super) fn notes(&self) -> Notes {
        let mut notes = self.notes.borrow().clone();
        if !notes.bare_durations.is_empty() {
            let names = notes.bare_durations.join(", ");
            notes.warnings.push(format!(
                "durations without a unit are read as milliseconds: {names}"
            ));
        }
        notes
    }

    /// The error for a value that cannot be read.
    pub(super) fn bad(&self, name: &str, value: &str, expected: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            flag: format!("--{name}"),
            value: value.to_owned(),
            expected: expected.into(),
            origin: self.source(name).to_string(),
        }
    }

    /// The error for a value that can be read but not used: upstream's words, then ours.
    pub(super) fn wrong(&self, words: impl Display, name: &str) -> ConfigError {
        let value = self.raw(name).join(" ");
        let origin = self.source(name);
        ConfigError::Invalid(format!("{words} (--{name} is {value:?}, from {origin})"))
    }

    pub(super) fn switch(&self, name: &str) -> Result<bool, ConfigError> {
        Ok(self.opt_switch(name)?.unwrap_or(false))
    }

    pub(super) fn opt_switch(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match text.to_ascii_lowercase().as_str() {
            "true" | "t" | "1" | "yes" | "on" => Ok(Some(true)),
            "false" | "f" | "0" | "no" | "off" => Ok(Some(false)),
            _ => Err(self.bad(name, text, "true or false")),
        }
    }

    pub(super) fn opt_int(&self, name: &str) -> Result<Option<i64>, ConfigError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        // YAML and templates may write whole numbers as 8.0 or 1e3.
        let whole = text.parse::<f64>().ok().filter(|n| {
            n.fract() == 0.0
                && n.abs() < 9e15
                && !text.contains(|c: char| c.is_alphabetic() && c != 'e')
        });
        text.parse::<i64>()
            .ok()
            .or(whole.map(|n| n as i64))
            .map(Some)
            .ok_or_else(|| self.bad(name, text, "a whole number"))
    }

    pub(super) fn int(&self, name: &str) -> Result<i64, ConfigError> {
        self.opt_int(name)?
            .ok_or_else(|| self.bad(name, "", "a whole number"))
    }

    /// A whole number in a range; outside of it `words` say so.
    pub(super) fn ranged<T: TryFrom<i64>>(
        &self,
        name: &str,
        range: RangeInclusive<i64>,
        words: &str,
    ) -> Result<T, ConfigError> {
        let value = self.int(name)?;
        self.fit(name, value, range, words)
    }

    /// As [`Self::ranged`], for a flag that may be absent.
    pub(super) fn opt_ranged<T: TryFrom<i64>>(
        &self,
        name: &str,
        range: RangeInclusive<i64>,
        words: &str,
    ) -> Result<Option<T>, ConfigError> {
        match self.opt_int(name)? {
            None => Ok(None),
            Some(value) => self.fit(name, value, range, words).map(Some),
        }
    }

    fn fit<T: TryFrom<i64>>(
        &self,
        name: &str,
        value: i64,
        range: RangeInclusive<i64>,
        words: &str,
    ) -> Result<T, ConfigError> {
        if !range.contains(&value) {
            return Err(self.wrong(words, name));
        }
        T::try_from(value).map_err(|_| self.wrong(words, name))
    }

    /// A whole number with vLLM's suffixes (`1k` = 1000, `1K` = 1024, `25.6k`); `auto` and -1
    /// count as absent.
    pub(super) fn count(&self, name: &str) -> Result<Option<i64>, ConfigError> {
        let Some(text) = self.text(name).filter(|t| !t.eq_ignore_ascii_case("auto")) else {
            return Ok(None);
        };
        let expected = "a whole number, or one with k, K, m, M, g, G, t or T";
        let bad = || self.bad(name, text, expected);
        let (power, base): (u32, i32) = match text.chars().last() {
            Some('k') => (1, 1000),
            Some('K') => (1, 1024),
            Some('m') => (2, 1000),
            Some('M') => (2, 1024),
            Some('g') => (3, 1000),
            Some('G') => (3, 1024),
            Some('t') => (4, 1000),
            Some('T') => (4, 1024),
            _ => (0, 1),
        };
        if power == 0 {
            return self.opt_int(name);
        }
        let factor = i64::from(base).pow(power);
        let number = &text[..text.len() - 1];
        match number.parse::<i64>() {
            Ok(n) => n.checked_mul(factor).map(Some).ok_or_else(bad),
            Err(_) if base == 1000 => {
                let n: f64 = number.parse().map_err(|_| bad())?;
                let scaled = n * factor as f64;
                (scaled.is_finite() && scaled.abs() < 9e15)
                    .then_some(Some(scaled as i64))
                    .ok_or_else(bad)
            }
            Err(_) => Err(bad()),
        }
    }

    pub(super) fn opt_float(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        text.parse::<f64>()
            .ok()
            .filter(|n| n.is_finite())
            .map(Some)
            .ok_or_else(|| self.bad(name, text, "a number"))
    }

    pub(super) fn float(&self, name: &str) -> Result<f64, ConfigError> {
        self.opt_float(name)?
            .ok_or_else(|| self.bad(name, "", "a number"))
    }

    /// A number in a range; outside of it `words` say so.
    pub(super) fn ranged_float(
        &self,
        name: &str,
        range: RangeInclusive<f64>,
        words: &str,
    ) -> Result<f64, ConfigError> {
        let value = self.float(name)?;
        if range.contains(&value) {
            Ok(value)
        } else {
            Err(self.wrong(words, name))
        }
    }

    /// A duration with its sign; a bare number counts in the flag's unit.
    pub(super) fn signed(&self, name: &'static str) -> Result<Typed, ConfigError> {
        let seconds = registry::long(name).is_some_and(|flag| flag.kind == Kind::Seconds);
        let (unit, unit_name) = if seconds {
            (1_000_000_000, "seconds")
        } else {
            (1_000_000, "milliseconds")
        };
        let text = self.raw(name).last().map_or("0", String::as_str);
        let typed = duration::parse(text, unit).map_err(|why| {
            self.bad(
                name,
                text,
                format!("a duration such as 1.5s, 250us or a number of {unit_name}: {why}"),
            )
        })?;
        if typed.bare && !seconds && self.given(name) {
            self.notes.borrow_mut().bare_durations.push(name);
        }
        Ok(typed)
    }

    /// A duration that is not negative; otherwise `words` say so.
    pub(super) fn duration(
        &self,
        name: &'static str,
        words: &str,
    ) -> Result<Duration, ConfigError> {
        self.signed(name)?
            .positive()
            .ok_or_else(|| self.wrong(words, name))
    }

    /// One of the flag's words.
    pub(super) fn choice(&self, name: &str) -> Result<Option<&'static str>, ConfigError> {
        let Some(text) = self.text(name) else {
            // `none` is a choice of some flags.
            return Ok(self.raw(name).last().and_then(|raw| choices(name, raw)));
        };
        choices(name, text).map(Some).ok_or_else(|| {
            let allowed = allowed(name).join(", ");
            let hint = words::closest(text, allowed_names(name))
                .map_or_else(String::new, |near| format!("; did you mean {near}?"));
            self.bad(name, text, format!("one of {allowed}{hint}"))
        })
    }

    /// The values of a list; a value that is a JSON array stands for its elements.
    pub(super) fn list(&self, name: &str) -> Vec<String> {
        expanded(self.raw(name))
    }

    /// The values of a list whose elements cannot hold a comma.
    pub(super) fn comma_list(&self, name: &str) -> Vec<String> {
        self.list(name)
            .iter()
            .flat_map(|value| value.split([',', ' ']))
            .filter(|value| !value.is_empty())
            .map(str::to_owned)
            .collect()
    }

    pub(super) fn json(&self, name: &str) -> Result<Option<Value>, ConfigError> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match serde_json::from_str(text) {
            Ok(Value::Null) => Ok(None),
            Ok(value) => Ok(Some(value)),
            Err(e) => Err(self.bad(name, text, format!("JSON: {e}"))),
        }
    }

    pub(super) fn object(
        &self,
        name: &str,
    ) -> Result<Option<serde_json::Map<String, Value>>, ConfigError> {
        match self.json(name)? {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(self.bad(name, &other.to_string(), "a JSON object")),
        }
    }
}

/// Values of a list with JSON arrays taken apart and empty texts left out.
pub(super) fn expanded(values: &[String]) -> Vec<String> {
    let mut out = Vec::new();
    for value in values {
        match serde_json::from_str::<Value>(value) {
            Ok(Value::Array(items)) => out.extend(items.into_iter().map(|item| match item {
                Value::String(text) => text,
                other => other.to_string(),
            })),
            _ if value.is_empty() => {}
            _ => out.push(value.clone()),
        }
    }
    out
}

fn allowed(name: &str) -> &'static [&'static str] {
    match registry::long(name).map(|flag| flag.kind) {
        Some(Kind::Choice(words)) => words,
        _ => &[],
    }
}

fn allowed_names(name: &str) -> impl Iterator<Item = &'static str> {
    allowed(name).iter().copied()
}

fn choices(name: &str, text: &str) -> Option<&'static str> {
    allowed_names(name).find(|word| word.eq_ignore_ascii_case(text))
}

/// The clap command made of the registry.
pub(super) fn command() -> Command {
    Command::new("vllm-sim")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(registry::flags().map(argument))
}

fn argument(flag: &'static Flag) -> Arg {
    let arg = Arg::new(flag.name)
        .long(flag.name)
        .action(ArgAction::Append)
        .num_args(1)
        .allow_hyphen_values(true)
        .hide(flag.hidden)
        .help_heading(flag.group.title());
    match flag.kind {
        Kind::Switch => arg.num_args(0..=1).value_name("BOOL"),
        kind => arg.value_name(kind.placeholder()),
    }
}
