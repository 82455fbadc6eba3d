//! The settings in force, and reading them by their flags.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;

use indexmap::IndexMap;

use super::cli_mode::CliMode;
use super::error::ConfigError;
use super::flag::{Flag, FlagKind, FlagSpec, FlagValue, Refused, Typed};
use super::flags;
use super::layers::{Layer, Setting, ValueSource};
use super::nearest::closest;

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
    /// Of these, the ones of settings that do nothing beside the others.
    pub(super) without_effect: Vec<String>,
    pub(super) derived: Vec<Derivation>,
    bare_durations: Vec<&'static str>,
}

/// What a value that was left open has become.
#[derive(Debug, Clone)]
pub(super) struct Derivation {
    pub(super) name: &'static str,
    pub(super) value: String,
    /// Why, where that is worth a sentence.
    pub(super) rule: Option<String>,
}

impl Values {
    /// What a layer says, with the defaults of a command line for the rest.
    pub(super) fn new(layer: &Layer, cli_mode: CliMode) -> Self {
        let settings = flags::flags().map(|flag| {
            let default = || Setting {
                values: flag
                    .default(cli_mode)
                    .map(str::to_owned)
                    .into_iter()
                    .collect(),
                source: ValueSource::Default,
            };
            let given = layer.settings.get(flag.name).cloned();
            (flag.name, given.unwrap_or_else(default))
        });
        Self {
            cli_mode,
            settings: settings.collect(),
            notes: RefCell::default(),
        }
    }

    /// Whether anybody set it.
    pub(super) fn given(&self, flag: &FlagSpec) -> bool {
        self.source(flag) != ValueSource::Default
    }

    /// The same by its name.
    pub(super) fn is_given(&self, name: &str) -> bool {
        let setting = self.settings.get(name);
        setting.is_some_and(|setting| setting.source != ValueSource::Default)
    }

    pub(super) fn source(&self, flag: &FlagSpec) -> ValueSource {
        self.settings
            .get(flag.name)
            .map_or(ValueSource::Default, |s| s.source.clone())
    }

    /// What was typed or is the default; lists as they stand.
    pub(super) fn raw(&self, flag: &FlagSpec) -> &[String] {
        self.settings.get(flag.name).map_or(&[], |s| &s.values)
    }

    fn typed<'a>(&'a self, flag: &'a FlagSpec) -> Typed<'a> {
        Typed {
            spec: flag,
            cli_mode: self.cli_mode,
            values: self.raw(flag),
        }
    }

    /// The flag's value, within its bounds.
    pub(super) fn get<T: FlagValue>(&self, flag: &Flag<T>) -> Result<T, ConfigError> {
        let typed = self.typed(flag);
        let value = T::read(&typed).map_err(|refused| self.refused(flag, refused))?;
        if flag.kind == FlagKind::Duration
            && self.given(flag)
            && typed.duration().is_ok_and(|read| read.bare)
        {
            self.notes.borrow_mut().bare_durations.push(flag.name);
        }
        Ok(value)
    }

    /// What a choice says; `None`: nothing.
    pub(super) fn choice<T: Clone>(&self, flag: &Flag<T>) -> Result<Option<T>, ConfigError> {
        let text = self.text(flag);
        // `none` is a word of some choices.
        let Some(word) = text.or_else(|| self.raw(flag).last().map(String::as_str)) else {
            return Ok(None);
        };
        let known = flag
            .words()
            .iter()
            .position(|w| w.eq_ignore_ascii_case(word));
        match (known, text) {
            (Some(at), _) => Ok(flag.meaning(at).cloned()),
            (None, None) => Ok(None),
            (None, Some(text)) => {
                let hint = closest(text, flag.words().iter().copied())
                    .map_or_else(String::new, |near| format!("; did you mean {near}?"));
                let allowed = flag.words().join(", ");
                Err(self.bad(flag, text, format!("one of {allowed}{hint}")))
            }
        }
    }

    /// A whole number, whatever the flag's bounds.
    pub(super) fn whole(&self, flag: &FlagSpec) -> Result<Option<i64>, ConfigError> {
        let read = self.typed(flag).whole();
        read.map_err(|refused| self.refused(flag, refused))
    }

    /// A number in a range that other flags decide; outside of it `words` say so.
    pub(super) fn fit<T: TryFrom<i64>>(
        &self,
        flag: &FlagSpec,
        value: i64,
        range: RangeInclusive<i64>,
        words: &str,
    ) -> Result<T, ConfigError> {
        let value = range.contains(&value).then(|| T::try_from(value).ok());
        value.flatten().ok_or_else(|| self.wrong(words, flag))
    }

    /// The last value, unless it is missing, empty or `none`.
    pub(super) fn text<'a>(&'a self, flag: &'a FlagSpec) -> Option<&'a str> {
        self.typed(flag).text()
    }

    /// The values of a list whose elements cannot hold a comma.
    pub(super) fn comma_list(&self, flag: &Flag<Vec<String>>) -> Result<Vec<String>, ConfigError> {
        let list = self.get(flag)?;
        let words = list.iter().flat_map(|value| value.split([',', ' ']));
        let words = words.filter(|value| !value.is_empty());
        Ok(words.map(str::to_owned).collect())
    }

    pub(super) fn warn(&self, text: impl Into<String>) {
        self.notes.borrow_mut().warnings.push(text.into());
    }

    /// Adds a warning of a setting that does nothing beside the others.
    pub(super) fn warn_without_effect(&self, text: String) {
        self.warn(text.clone());
        self.notes.borrow_mut().without_effect.push(text);
    }

    /// Records what a value that was left open has become.
    pub(super) fn derive(&self, flag: &FlagSpec, value: impl Display) {
        self.note(flag, value, None);
    }

    /// The same, and the rule that it follows from.
    pub(super) fn derive_by(&self, flag: &FlagSpec, value: impl Display, rule: impl Into<String>) {
        self.note(flag, value, Some(rule.into()));
    }

    fn note(&self, flag: &FlagSpec, value: impl Display, rule: Option<String>) {
        let (name, value) = (flag.name, value.to_string());
        let derived = Derivation { name, value, rule };
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

    fn refused(&self, flag: &FlagSpec, refused: Refused) -> ConfigError {
        match refused {
            Refused::Unreadable { value, expected } => self.bad(flag, &value, expected),
            Refused::OutOfBounds => self.wrong(flag.out_of_bounds(self.cli_mode), flag),
        }
    }

    /// The error for a value that cannot be read.
    pub(super) fn bad(
        &self,
        flag: &FlagSpec,
        value: &str,
        expected: impl Into<String>,
    ) -> ConfigError {
        ConfigError::Value {
            flag: format!("--{}", flag.name),
            value: value.to_owned(),
            expected: expected.into(),
            origin: self.source(flag).to_string(),
        }
    }

    /// The same for one key of a JSON flag.
    pub(super) fn bad_key(
        &self,
        flag: &FlagSpec,
        key: &str,
        value: &str,
        expected: impl Into<String>,
    ) -> ConfigError {
        ConfigError::Value {
            flag: format!("--{}.{key}", flag.name),
            value: value.to_owned(),
            expected: expected.into(),
            // Where one key of several was typed is not known.
            origin: ValueSource::Default.to_string(),
        }
    }

    /// The error for a value that can be read but not used: upstream's words, then ours.
    pub(super) fn wrong(&self, words: impl Display, flag: &FlagSpec) -> ConfigError {
        let value = self.raw(flag).join(" ");
        let origin = self.source(flag);
        ConfigError::Invalid(format!(
            "{words} (--{} is {value:?}, from {origin})",
            flag.name
        ))
    }
}
