//! Describes all flags: the source for parsing, checks, help texts, printed configurations and
//! docs.

use std::ops::Deref;

use serde_json::Value;

use super::cli_mode::CliMode;
use super::group::FlagHelpGroup;

/// Upper bound of the values of flags that take a count.
pub(crate) const MAX_COUNT_FLAG_VALUE: i64 = u32::MAX as i64;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Flag<T: 'static> {
    pub(crate) spec: FlagSpec,
    meanings: &'static [T],
}

/// Description of a command-line flag, without the Rust type of its values.
#[derive(Debug, Clone, Copy)]
pub struct FlagSpec {
    /// Name of the flag without the two dashes; also its YAML key.
    pub name: &'static str,
    /// Alternative long names of the flag, without dashes.
    pub aliases: &'static [&'static str],
    /// Short names of the flag, after a single dash (`tp` for `-tp`).
    pub shorts: &'static [&'static str],
    /// Group of the flag, shown under one heading of the help text.
    pub group: FlagHelpGroup,
    /// Kind of value that the flag takes.
    pub kind: FlagKind,
    /// Default values of the flag on llm-d's and on vLLM's command line; empty: no default.
    pub defaults: (&'static str, &'static str),
    /// Bounds of the flag's value on llm-d's and on vLLM's command line.
    pub ranges: Option<(FlagValueBounds, FlagValueBounds)>,
    pub(crate) refusal: &'static str,
    /// Environment variables of the flag, in addition to `VLLM_SIM_<NAME>`.
    pub env: &'static [&'static str],
    /// Help text of the flag, one or two sentences, under 200 bytes.
    pub help: &'static str,
    /// Whether `--help` omits the flag; the documentation lists it.
    pub hidden: bool,
    /// Whether the flag's value is a secret and never printed.
    pub secret: bool,
    /// Scope of a change of the flag at run time (llm-d's `/admin/config`); `None`: fixed after
    /// start.
    pub live: Option<RuntimeChangeScope>,
}

/// Kind of value that a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagKind {
    /// The flag takes a boolean: `--x`, `--x=false`, `--x false`, `--no-x`.
    Switch,
    /// The flag takes a whole number.
    Int,
    /// The flag takes a whole number, with vLLM's suffixes k, K, m, M, g, G, t, T.
    Count,
    /// The flag takes a floating-point number.
    Float,
    /// The flag takes a Go duration; a number without unit is in milliseconds.
    Duration,
    /// The flag takes a Go duration; a number without unit is in seconds.
    Seconds,
    /// The flag takes any text as its value.
    Text,
    /// The flag takes the path of a file or folder.
    Path,
    /// The flag takes one word of this list.
    Choice(&'static [&'static str]),
    /// The flag takes a list: values up to the next flag, one value per use of the flag, or a JSON
    /// array.
    List,
    /// The flag takes one value and can be repeated, which makes a list.
    Repeat,
    /// The flag takes a JSON object, as one text or as `--flag.key value`.
    Json,
}

impl FlagKind {
    /// Returns the placeholder of the value in help texts, such as `N`.
    pub fn value_placeholder(self) -> &'static str {
        match self {
            Self::Switch => "",
            Self::Int | Self::Count => "N",
            Self::Float => "X",
            Self::Duration => "DURATION",
            Self::Seconds => "SECONDS",
            Self::Text => "TEXT",
            Self::Path | Self::Repeat => "PATH",
            Self::Choice(_) => "CHOICE",
            Self::List => "VALUE…",
            Self::Json => "JSON",
        }
    }
}

/// Minimum and maximum value of a flag, both allowed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FlagValueBounds {
    /// Inclusive bounds of a whole-number flag.
    Whole(i64, i64),
    /// Inclusive bounds of a floating-point flag.
    Number(f64, f64),
}

/// Scope of a setting that can be changed at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeChangeScope {
    /// A change of the setting at run time affects one engine.
    Engine,
    /// A change of the setting at run time affects all engines behind one port.
    Server,
}

pub(crate) struct FlagChoices<T: 'static> {
    pub(crate) names: &'static [&'static str],
    pub(crate) meanings: &'static [T],
}

pub(crate) trait FlagValue: Sized {
    const KIND: FlagKind;

    fn read(typed: &RawFlagValues<'_>) -> Result<Self, FlagValueError>;
}

pub(crate) struct RawFlagValues<'a> {
    pub(crate) spec: &'a FlagSpec,
    pub(crate) cli_mode: CliMode,
    pub(crate) values: &'a [String],
}

pub(crate) enum FlagValueError {
    Unreadable { value: String, expected: String },
    OutOfBounds,
}

impl<T: FlagValue> Flag<T> {
    /// Returns a flag that help texts show, without default, bounds, aliases or environment
    /// variables.
    pub(crate) const fn new(name: &'static str, group: FlagHelpGroup, help: &'static str) -> Self {
        Self { spec: FlagSpec::new(name, group, T::KIND, help), meanings: &[] }
    }
}

impl<T> Flag<T> {
    /// Returns a flag like [`Self::new`] whose value is one of a fixed list of words.
    pub(crate) const fn choice(
        name: &'static str,
        group: FlagHelpGroup,
        words: FlagChoices<T>,
        help: &'static str,
    ) -> Self {
        Self {
            spec: FlagSpec::new(name, group, FlagKind::Choice(words.names), help),
            meanings: words.meanings,
        }
    }

    pub(crate) const fn with_default(self, value: &'static str) -> Self {
        self.with_default_by_mode(value, value)
    }

    pub(crate) const fn with_default_by_mode(
        mut self,
        llmd: &'static str,
        vllm: &'static str,
    ) -> Self {
        self.spec.defaults = (llmd, vllm);
        self
    }

    pub(crate) const fn with_aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.spec.aliases = aliases;
        self
    }

    pub(crate) const fn with_short_names(mut self, shorts: &'static [&'static str]) -> Self {
        self.spec.shorts = shorts;
        self
    }

    pub(crate) const fn with_env_names(mut self, names: &'static [&'static str]) -> Self {
        self.spec.env = names;
        self
    }

    pub(crate) const fn hidden_from_help(mut self) -> Self {
        self.spec.hidden = true;
        self
    }

    pub(crate) const fn with_secret_value(mut self) -> Self {
        self.spec.secret = true;
        self
    }

    pub(crate) const fn changeable_at_run_time(mut self, scope: RuntimeChangeScope) -> Self {
        self.spec.live = Some(scope);
        self
    }

    /// Sets seconds as the unit of the flag's values that are typed without a unit.
    pub(crate) const fn default_unit_seconds(mut self) -> Self {
        self.spec.kind = FlagKind::Seconds;
        self
    }

    /// Allows vLLM's suffixes `k`, `K`, `m`, … in the flag's value.
    pub(crate) const fn allow_size_suffixes(mut self) -> Self {
        self.spec.kind = FlagKind::Count;
        self
    }

    /// Limits the flag's whole-number value to `least..=most`; `refusal` is the error message.
    pub(crate) const fn with_integer_bounds(
        self,
        least: i64,
        most: i64,
        refusal: &'static str,
    ) -> Self {
        self.with_integer_bounds_by_mode((least, most), (least, most), refusal)
    }

    pub(crate) const fn with_integer_bounds_by_mode(
        mut self,
        llmd: (i64, i64),
        vllm: (i64, i64),
        refusal: &'static str,
    ) -> Self {
        self.spec.ranges =
            Some((FlagValueBounds::Whole(llmd.0, llmd.1), FlagValueBounds::Whole(vllm.0, vllm.1)));
        self.with_bounds_error(refusal)
    }

    /// Limits the flag's floating-point value to `least..=most`; `refusal` is the error message.
    pub(crate) const fn with_float_bounds(
        mut self,
        least: f64,
        most: f64,
        refusal: &'static str,
    ) -> Self {
        let range = FlagValueBounds::Number(least, most);
        self.spec.ranges = Some((range, range));
        self.with_bounds_error(refusal)
    }

    /// Sets the error message for a value out of bounds; `{most}` is replaced by the upper bound.
    pub(crate) const fn with_bounds_error(mut self, refusal: &'static str) -> Self {
        self.spec.refusal = refusal;
        self
    }

    pub(crate) fn choice_at_index(&self, index: usize) -> Option<&'static T> {
        self.meanings.get(index)
    }

    pub(crate) fn choice_by_name(&self, word: &str) -> Option<&'static T> {
        let at = self.spec.allowed_choice_words().iter().position(|known| *known == word)?;
        self.choice_at_index(at)
    }
}

impl<T> Deref for Flag<T> {
    type Target = FlagSpec;

    fn deref(&self) -> &FlagSpec {
        &self.spec
    }
}

impl FlagSpec {
    const fn new(
        name: &'static str,
        group: FlagHelpGroup,
        kind: FlagKind,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            aliases: &[],
            shorts: &[],
            group,
            kind,
            defaults: ("", ""),
            ranges: None,
            refusal: "",
            env: &[],
            help,
            hidden: false,
            secret: false,
            live: None,
        }
    }

    /// Returns the flag's default value on a command line; `None`: no default.
    pub fn default_for_mode(&self, cli_mode: CliMode) -> Option<&'static str> {
        let text = match cli_mode {
            CliMode::Llmd => self.defaults.0,
            CliMode::Vllm => self.defaults.1,
        };
        (!text.is_empty()).then_some(text)
    }

    /// Returns the bounds of the flag's value on a command line; `None`: only the bounds of the
    /// flag's type.
    pub fn value_bounds_for_mode(&self, cli_mode: CliMode) -> Option<FlagValueBounds> {
        let (llmd, vllm) = self.ranges?;
        Some(match cli_mode {
            CliMode::Llmd => llmd,
            CliMode::Vllm => vllm,
        })
    }

    pub(crate) fn out_of_bounds_message(&self, cli_mode: CliMode) -> String {
        let most = match self.value_bounds_for_mode(cli_mode) {
            Some(FlagValueBounds::Whole(_, most)) => most.to_string(),
            Some(FlagValueBounds::Number(_, most)) => most.to_string(),
            None => String::new(),
        };
        self.refusal.replace("{most}", &most)
    }

    /// Returns the environment variable derived from the flag's name, `VLLM_SIM_<NAME>`.
    pub fn env_variable_name(&self) -> String {
        format!("VLLM_SIM_{}", self.name.to_uppercase().replace('-', "_"))
    }

    pub(crate) fn allowed_choice_words(&self) -> &'static [&'static str] {
        match self.kind {
            FlagKind::Choice(words) => words,
            _ => &[],
        }
    }
}

/// Returns the text that a JSON value has as the value of a flag.
pub(super) fn value_to_flag_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
