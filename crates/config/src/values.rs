//! Values of all flags, merged from defaults, files, environment and command line.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;

use indexmap::IndexMap;

use super::cli_mode::CliMode;
use super::did_you_mean::spelling_hint;
use super::error::{ConfigError, invalid};
use super::flag::{Flag, FlagKind, FlagSpec, FlagValue, FlagValueError, RawFlagValues};
use super::flags;
use super::flags::model::VLLM_VERSION;
use super::layers::{ConfigLayer, ConfigLayerSetting, FlagValueSource};
use vllm_sim_wire::VllmVersion;

/// Values of all flags by name, including defaults.
#[derive(Debug, Clone)]
pub(super) struct FlagValues {
    pub(super) cli_mode: CliMode,
    settings: IndexMap<&'static str, ConfigLayerSetting>,
    notes: RefCell<FlagResolutionNotes>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct FlagResolutionNotes {
    pub(super) warnings: Vec<String>,
    /// Warnings about settings that have no effect in combination with other settings; a subset of
    /// `warnings`.
    pub(super) without_effect: Vec<String>,
    pub(super) derived: Vec<DerivedFlagValue>,
    bare_durations: Vec<&'static str>,
}

#[derive(Debug, Clone)]
pub(super) struct DerivedFlagValue {
    pub(super) name: &'static str,
    pub(super) value: String,
    pub(super) rule: Option<String>,
}

impl FlagValues {
    pub(super) fn new(layer: &ConfigLayer, cli_mode: CliMode) -> Self {
        let settings = flags::all_effective_flags().map(|flag| {
            let default = || ConfigLayerSetting {
                values: flag.default_for_mode(cli_mode).map(str::to_owned).into_iter().collect(),
                source: FlagValueSource::Default,
            };
            let given = layer.settings.get(flag.name).cloned();
            (flag.name, given.unwrap_or_else(default))
        });
        Self { cli_mode, settings: settings.collect(), notes: RefCell::default() }
    }

    /// Returns whether the value of the flag has a source other than the default.
    pub(super) fn is_flag_set(&self, flag: &FlagSpec) -> bool {
        self.flag_value_source(flag) != FlagValueSource::Default
    }

    /// Returns whether a user sets the flag, to whatever value.
    pub(super) fn is_flag_name_set(&self, name: &str) -> bool {
        let source = self.settings.get(name).map(|setting| &setting.source);
        !matches!(source, None | Some(FlagValueSource::Default | FlagValueSource::Derived))
    }

    /// Returns whether a user sets the flag, other than a switch to off.
    pub(super) fn is_flag_name_typed(&self, name: &str) -> bool {
        let is_off = |text: &String| ["", "false", "no", "off"].contains(&text.as_str());
        let last = self.settings.get(name).and_then(|setting| setting.values.last());
        self.is_flag_name_set(name) && !last.is_some_and(is_off)
    }

    pub(super) fn flag_value_source(&self, flag: &FlagSpec) -> FlagValueSource {
        self.settings.get(flag.name).map_or(FlagValueSource::Default, |s| s.source.clone())
    }

    /// Returns the values of a flag as typed, or its default; lists are not expanded.
    pub(super) fn raw_flag_texts(&self, flag: &FlagSpec) -> &[String] {
        self.settings.get(flag.name).map_or(&[], |s| &s.values)
    }

    fn raw_flag_values<'a>(&'a self, flag: &'a FlagSpec) -> RawFlagValues<'a> {
        RawFlagValues { spec: flag, cli_mode: self.cli_mode, values: self.raw_flag_texts(flag) }
    }

    pub(super) fn get<T: FlagValue>(&self, flag: &Flag<T>) -> Result<T, ConfigError> {
        let typed = self.raw_flag_values(flag);
        let value = T::read(&typed).map_err(|refused| self.flag_value_error(flag, refused))?;
        if flag.kind == FlagKind::Duration
            && self.is_flag_set(flag)
            && typed.parse_duration().is_ok_and(|read| read.bare)
        {
            self.notes.borrow_mut().bare_durations.push(flag.name);
        }
        Ok(value)
    }

    /// Returns the value of a flag that takes one of several words; `None` if the flag is not set.
    pub(super) fn get_choice<T: Clone>(&self, flag: &Flag<T>) -> Result<Option<T>, ConfigError> {
        let text = self.get_text(flag);
        // Some choices have the word `none`.
        let Some(word) = text.or_else(|| self.raw_flag_texts(flag).last().map(String::as_str))
        else {
            return Ok(None);
        };
        let known = flag.allowed_choice_words().iter().position(|w| w.eq_ignore_ascii_case(word));
        match (known, text) {
            (Some(at), _) => Ok(flag.choice_at_index(at).cloned()),
            (None, None) => Ok(None),
            (None, Some(text)) => {
                let hint = spelling_hint(text, flag.allowed_choice_words().iter().copied());
                let allowed = flag.allowed_choice_words().join(", ");
                Err(self.unreadable_value_error(flag, text, format!("one of {allowed}{hint}")))
            }
        }
    }

    /// Returns the release of vLLM that the server imitates.
    ///
    /// # Errors
    /// The error of a release that is not one of those imitated.
    pub(super) fn vllm_version(&self) -> Result<VllmVersion, ConfigError> {
        Ok(self.get_choice(&VLLM_VERSION)?.unwrap_or_default())
    }

    pub(super) fn get_integer(&self, flag: &FlagSpec) -> Result<Option<i64>, ConfigError> {
        let read = self.raw_flag_values(flag).parse_integer();
        read.map_err(|refused| self.flag_value_error(flag, refused))
    }

    /// Checks the number of a flag against a range; `words` is the error message.
    pub(super) fn check_integer_range<T: TryFrom<i64>>(
        &self,
        flag: &FlagSpec,
        value: i64,
        range: RangeInclusive<i64>,
        words: &str,
    ) -> Result<T, ConfigError> {
        let value = range.contains(&value).then(|| T::try_from(value).ok());
        value.flatten().ok_or_else(|| self.unsupported_value_error(words, flag))
    }

    /// Returns the last value of a flag; `None` if there is none, or it is empty or `none`.
    pub(super) fn get_text<'a>(&'a self, flag: &'a FlagSpec) -> Option<&'a str> {
        self.raw_flag_values(flag).last_value_text()
    }

    /// Returns the elements of a list flag, which may be separated by commas or spaces.
    pub(super) fn read_comma_separated_list(
        &self,
        flag: &Flag<Vec<String>>,
    ) -> Result<Vec<String>, ConfigError> {
        let list = self.get(flag)?;
        let words = list.iter().flat_map(|value| value.split([',', ' ']));
        let words = words.filter(|value| !value.is_empty());
        Ok(words.map(str::to_owned).collect())
    }

    pub(super) fn add_warning(&self, text: impl Into<String>) {
        self.notes.borrow_mut().warnings.push(text.into());
    }

    /// Adds a warning about a setting that has no effect in combination with other settings.
    pub(super) fn add_no_effect_warning(&self, text: String) {
        self.add_warning(text.clone());
        self.notes.borrow_mut().without_effect.push(text);
    }

    pub(super) fn record_derived_value(&self, flag: &FlagSpec, value: impl Display) {
        self.record_derivation(flag, value, None);
    }

    pub(super) fn record_value_derived_by_rule(
        &self,
        flag: &FlagSpec,
        value: impl Display,
        rule: impl Into<String>,
    ) {
        self.record_derivation(flag, value, Some(rule.into()));
    }

    fn record_derivation(&self, flag: &FlagSpec, value: impl Display, rule: Option<String>) {
        let (name, value) = (flag.name, value.to_string());
        let derived = DerivedFlagValue { name, value, rule };
        self.notes.borrow_mut().derived.push(derived);
    }

    pub(super) fn resolution_notes(&self) -> FlagResolutionNotes {
        let mut notes = self.notes.borrow().clone();
        if !notes.bare_durations.is_empty() {
            let names = notes.bare_durations.join(", ");
            notes
                .warnings
                .push(format!("durations without a unit are read as milliseconds: {names}"));
        }
        notes
    }

    fn flag_value_error(&self, flag: &FlagSpec, refused: FlagValueError) -> ConfigError {
        match refused {
            FlagValueError::Unreadable { value, expected } => {
                self.unreadable_value_error(flag, &value, expected)
            }
            FlagValueError::OutOfBounds => {
                self.unsupported_value_error(flag.out_of_bounds_message(self.cli_mode), flag)
            }
        }
    }

    pub(super) fn unreadable_value_error(
        &self,
        flag: &FlagSpec,
        value: &str,
        expected: impl Into<String>,
    ) -> ConfigError {
        let (flag, origin) = (format!("--{}", flag.name), self.flag_value_source(flag).to_string());
        ConfigError::Value { flag, value: value.to_owned(), expected: expected.into(), origin }
    }

    pub(super) fn unreadable_json_value_error(
        &self,
        flag: &FlagSpec,
        key: &str,
        value: &str,
        expected: impl Into<String>,
    ) -> ConfigError {
        let (flag, origin) =
            (format!("--{}.{key}", flag.name), self.flag_value_source(flag).to_string());
        ConfigError::Value { flag, value: value.to_owned(), expected: expected.into(), origin }
    }

    /// Returns the error for an unsupported flag value; upstream's message comes first.
    pub(super) fn unsupported_value_error(
        &self,
        words: impl Display,
        flag: &FlagSpec,
    ) -> ConfigError {
        let value = self.raw_flag_texts(flag).join(" ");
        let origin = self.flag_value_source(flag);
        invalid!("{words} (--{} is {value:?}, from {origin})", flag.name)
    }
}
