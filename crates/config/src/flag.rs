//! What a flag is: the one description that parsing, checks, help, printouts and docs come from.

use std::ops::Deref;

use super::cli_mode::CliMode;
use super::group::FlagGroup;

/// The greatest number of things.
pub(crate) const MANY: i64 = u32::MAX as i64;

/// A flag whose values are read as `T`.
///
/// The constants of [`flags`](super::flags) are of this type: a name stands once, and what reads
/// the flag names the constant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flag<T: 'static> {
    pub(crate) spec: FlagSpec,
    /// Of a choice: what each of its words means, in their order.
    meanings: &'static [T],
}

/// A flag without the type of its values.
#[derive(Debug, Clone, Copy)]
pub struct FlagSpec {
    /// Name without the two dashes; also the YAML key.
    pub name: &'static str,
    /// Other long names.
    pub aliases: &'static [&'static str],
    /// Names after one dash (`tp` for `-tp`).
    pub shorts: &'static [&'static str],
    /// Heading it stands under.
    pub group: FlagGroup,
    /// What it takes.
    pub kind: FlagKind,
    /// Default of llm-d's command line and of vLLM's; empty: none.
    pub defaults: (&'static str, &'static str),
    /// Bounds of llm-d's command line and of vLLM's.
    pub ranges: Option<(Range, Range)>,
    /// What is said of a value out of bounds; `{most}` stands for the upper one.
    pub(crate) refusal: &'static str,
    /// Environment variables beside `VLLM_SIM_<NAME>`.
    pub env: &'static [&'static str],
    /// What it does, one or two sentences.
    pub help: &'static str,
    /// Left out of `--help`, not of the documentation.
    pub hidden: bool,
    /// Never printed.
    pub secret: bool,
    /// Whose setting may be changed while running (llm-d's `/admin/config`); `None`: nobody's.
    pub live: Option<Scope>,
}

/// What a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagKind {
    /// `--x`, `--x=false`, `--x false`, `--no-x`.
    Switch,
    /// A whole number.
    Int,
    /// A whole number that may end in k, K, m, M, g, G, t, T as vLLM reads them.
    Count,
    /// A number.
    Float,
    /// A Go duration; a bare number is milliseconds.
    Duration,
    /// A Go duration; a bare number is seconds.
    Seconds,
    /// Any text.
    Text,
    /// A file or folder.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any number of values: up to the next flag, repeated, or a JSON array.
    List,
    /// One value each time it stands there.
    Repeat,
    /// A JSON object, whole or in dotted pieces.
    Json,
}

impl FlagKind {
    /// What stands for the value in help texts.
    pub fn placeholder(self) -> &'static str {
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

/// Least and greatest value of a flag.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Range {
    /// Of whole numbers.
    Whole(i64, i64),
    /// Of numbers.
    Number(f64, f64),
}

/// Whose setting a change while running is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Each engine's own.
    Engine,
    /// The same for all engines behind one port.
    Server,
}

/// The words of a choice, and what each means.
pub(crate) struct ChoiceWords<T: 'static> {
    pub(crate) names: &'static [&'static str],
    pub(crate) meanings: &'static [T],
}

/// A type that the values of a flag can be read as.
pub(crate) trait FlagValue: Sized {
    /// What such a flag takes.
    const KIND: FlagKind;

    /// Reads what was typed, or the default.
    fn read(typed: &Typed<'_>) -> Result<Self, Refused>;
}

/// The values of one flag as they were typed.
pub(crate) struct Typed<'a> {
    pub(crate) spec: &'a FlagSpec,
    pub(crate) cli_mode: CliMode,
    pub(crate) values: &'a [String],
}

/// Why a value is refused.
pub(crate) enum Refused {
    /// It cannot be read as what the flag takes.
    Unreadable { value: String, expected: String },
    /// It is out of the flag's bounds.
    OutOfBounds,
}

impl<T: FlagValue> Flag<T> {
    /// A visible flag without default, bounds, aliases or variables.
    pub(crate) const fn new(name: &'static str, group: FlagGroup, help: &'static str) -> Self {
        Self {
            spec: FlagSpec::new(name, group, T::KIND, help),
            meanings: &[],
        }
    }
}

impl<T> Flag<T> {
    /// As [`Self::new`], one of a few words.
    pub(crate) const fn choice(
        name: &'static str,
        group: FlagGroup,
        words: ChoiceWords<T>,
        help: &'static str,
    ) -> Self {
        Self {
            spec: FlagSpec::new(name, group, FlagKind::Choice(words.names), help),
            meanings: words.meanings,
        }
    }

    /// The same default on both command lines.
    pub(crate) const fn or(self, value: &'static str) -> Self {
        self.by_mode(value, value)
    }

    /// The default of llm-d's command line, and of vLLM's.
    pub(crate) const fn by_mode(mut self, llmd: &'static str, vllm: &'static str) -> Self {
        self.spec.defaults = (llmd, vllm);
        self
    }

    /// Other long names.
    pub(crate) const fn also(mut self, aliases: &'static [&'static str]) -> Self {
        self.spec.aliases = aliases;
        self
    }

    /// Names after one dash.
    pub(crate) const fn short(mut self, shorts: &'static [&'static str]) -> Self {
        self.spec.shorts = shorts;
        self
    }

    /// Environment variables that set it.
    pub(crate) const fn env(mut self, names: &'static [&'static str]) -> Self {
        self.spec.env = names;
        self
    }

    /// Leaves it out of `--help`.
    pub(crate) const fn hide(mut self) -> Self {
        self.spec.hidden = true;
        self
    }

    /// Keeps its value out of every printout.
    pub(crate) const fn secret(mut self) -> Self {
        self.spec.secret = true;
        self
    }

    /// Lets it be changed while running.
    pub(crate) const fn live(mut self, scope: Scope) -> Self {
        self.spec.live = Some(scope);
        self
    }

    /// A bare number of a duration is seconds.
    pub(crate) const fn seconds(mut self) -> Self {
        self.spec.kind = FlagKind::Seconds;
        self
    }

    /// A whole number may end in vLLM's `k`, `K`, `m`, ….
    pub(crate) const fn suffixed(mut self) -> Self {
        self.spec.kind = FlagKind::Count;
        self
    }

    /// Whole numbers from `least` to `most`; of others `refusal` is said.
    pub(crate) const fn range(self, least: i64, most: i64, refusal: &'static str) -> Self {
        self.range_by_mode((least, most), (least, most), refusal)
    }

    /// The bounds of llm-d's command line, and of vLLM's.
    pub(crate) const fn range_by_mode(
        mut self,
        llmd: (i64, i64),
        vllm: (i64, i64),
        refusal: &'static str,
    ) -> Self {
        self.spec.ranges = Some((Range::Whole(llmd.0, llmd.1), Range::Whole(vllm.0, vllm.1)));
        self.refusal(refusal)
    }

    /// Numbers from `least` to `most`; of others `refusal` is said.
    pub(crate) const fn within(mut self, least: f64, most: f64, refusal: &'static str) -> Self {
        let range = Range::Number(least, most);
        self.spec.ranges = Some((range, range));
        self.refusal(refusal)
    }

    /// What is said of a value out of bounds; durations are not negative.
    pub(crate) const fn refusal(mut self, refusal: &'static str) -> Self {
        self.spec.refusal = refusal;
        self
    }

    /// What the `at`-th word of a choice means.
    pub(crate) fn meaning(&self, at: usize) -> Option<&'static T> {
        self.meanings.get(at)
    }

    /// What a word of a choice means.
    pub(crate) fn named(&self, word: &str) -> Option<&'static T> {
        let at = self.spec.words().iter().position(|known| *known == word)?;
        self.meaning(at)
    }
}

impl<T> Deref for Flag<T> {
    type Target = FlagSpec;

    fn deref(&self) -> &FlagSpec {
        &self.spec
    }
}

impl FlagSpec {
    const fn new(name: &'static str, group: FlagGroup, kind: FlagKind, help: &'static str) -> Self {
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

    /// Its default on a command line; `None`: none.
    pub fn default(&self, cli_mode: CliMode) -> Option<&'static str> {
        let text = match cli_mode {
            CliMode::Llmd => self.defaults.0,
            CliMode::Vllm => self.defaults.1,
        };
        (!text.is_empty()).then_some(text)
    }

    /// Its bounds on a command line; `None`: those of its type.
    pub fn range(&self, cli_mode: CliMode) -> Option<Range> {
        let (llmd, vllm) = self.ranges?;
        Some(match cli_mode {
            CliMode::Llmd => llmd,
            CliMode::Vllm => vllm,
        })
    }

    /// What is said of a value out of bounds.
    pub(crate) fn out_of_bounds(&self, cli_mode: CliMode) -> String {
        let most = match self.range(cli_mode) {
            Some(Range::Whole(_, most)) => most.to_string(),
            Some(Range::Number(_, most)) => most.to_string(),
            None => String::new(),
        };
        self.refusal.replace("{most}", &most)
    }

    /// The variable that every flag has.
    pub fn env_name(&self) -> String {
        format!("VLLM_SIM_{}", self.name.to_uppercase().replace('-', "_"))
    }

    /// The words of a choice.
    pub(crate) fn words(&self) -> &'static [&'static str] {
        match self.kind {
            FlagKind::Choice(words) => words,
            _ => &[],
        }
    }
}
