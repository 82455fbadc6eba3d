//! Parses command-line arguments into settings of flags.
//!
//! The parser accepts the syntax of argparse (vLLM) and pflag (llm-d): dashes or underscores,
//! `--flag value`, `--flag=value`, `--no-flag`, `--flag true`, `-tp 2`, `-O3`, `--flag.key value`,
//! lists up to the next flag.

use super::did_you_mean::closest;
use super::error::ConfigError;
use super::flag::{FlagKind, FlagSpec};
use super::flags::{self, flags};
use super::ignored::{self, Arity};
use super::layers::{Layer, ValueSource};

#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) layer: Layer,
    pub(super) positional: Vec<String>,
    pub(super) help: Option<HelpRequest>,
    pub(super) version: bool,
    /// Unknown flags and positional arguments in their order, with [`UnknownFlags::Return`].
    pub(super) unknown: Vec<String>,
}

/// A request for help in place of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HelpRequest {
    /// `-h`: the short help.
    Short,
    /// `--help`: the long help.
    Long,
    /// `--help=TOPIC`: help about a group of flags, flags with this part of a name, or `all`.
    Topic(String),
}

impl HelpRequest {
    /// Returns the command-line argument that asks for this help.
    pub(super) fn word(&self) -> String {
        match self {
            Self::Short => "-h".to_owned(),
            Self::Long => "--help".to_owned(),
            Self::Topic(topic) => format!("--help={topic}"),
        }
    }
}

#[derive(Clone, Copy)]
enum Known {
    Ours(&'static FlagSpec),
    Ignored(&'static str, Arity),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UnknownFlags {
    Reject,
    /// Unknown flags are returned to the caller. They may belong to another command, so prefixes
    /// are not expanded.
    Return,
}

/// Parses command-line arguments into settings of flags.
///
/// # Errors
/// [`ConfigError::Unknown`] for a flag that does not exist, [`ConfigError::Invalid`] for one that
/// lacks its value.
pub(super) fn read(words: &[String], unknown: UnknownFlags) -> Result<Read, ConfigError> {
    let mut reader = Reader {
        words,
        at: 0,
        out: Read::default(),
        unknown,
    };
    while let Some(word) = reader.next() {
        reader.word(word)?;
    }
    Ok(reader.out)
}

struct Reader<'a> {
    words: &'a [String],
    at: usize,
    out: Read,
    unknown: UnknownFlags,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let word = self.words.get(self.at)?;
        self.at += 1;
        Some(word)
    }

    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).map(String::as_str)
    }

    fn word(&mut self, word: &'a str) -> Result<(), ConfigError> {
        match word {
            "--" => {
                self.out
                    .positional
                    .extend_from_slice(&self.words[self.at..]);
                self.at = self.words.len();
            }
            "-h" => self.out.help = Some(HelpRequest::Short),
            "--help" => self.out.help = Some(HelpRequest::Long),
            "--version" | "-V" => self.out.version = true,
            _ => {
                if let Some(topic) = word.strip_prefix("--help=") {
                    self.out.help = Some(HelpRequest::Topic(topic.to_owned()));
                } else if let Some(body) = word.strip_prefix("--") {
                    self.long(word, body)?;
                } else if word.starts_with('-') && !is_number(word) && word.len() > 1 {
                    self.short(word)?;
                } else if self.unknown == UnknownFlags::Return {
                    self.out.unknown.push(word.to_owned());
                } else {
                    self.out.positional.push(word.to_owned());
                }
            }
        }
        Ok(())
    }

    fn long(&mut self, word: &'a str, body: &'a str) -> Result<(), ConfigError> {
        let (name, inline) = cut(body);
        let (base, key) = match name.split_once('.') {
            Some((base, key)) => (base, Some(key)),
            None => (name, None),
        };
        let base = base.replace('_', "-");
        if let Some(known) = find(&base) {
            return self.take(known, &base, key, inline);
        }
        if let Some(known) = base.strip_prefix("no-").and_then(find)
            && key.is_none()
            && is_switch(known)
        {
            return self.negate(known, word, inline);
        }
        // A manifest with `- --port 8000` passes flag and value as one word.
        if let Some((name, value)) = body.split_once(char::is_whitespace)
            && let Some(known) = find(&name.replace('_', "-"))
        {
            let value = value.trim().trim_matches(['"', '\'']);
            self.out.layer.warnings.push(format!(
                "{word:?} is one argument; read as --{name} with the value {value:?}"
            ));
            return self.take(known, name, None, Some(value));
        }
        if self.unknown == UnknownFlags::Reject
            && let Some(known) = abbreviated(&base)
        {
            self.out
                .layer
                .warnings
                .push(format!("--{base} is short for --{}", known_name(known)));
            return self.take(known, &base, key, inline);
        }
        self.unknown(word, &base)
    }

    fn short(&mut self, word: &'a str) -> Result<(), ConfigError> {
        let body = &word[1..];
        let (name, inline) = cut(body);
        let (base, key) = match name.split_once('.') {
            Some((base, key)) => (base, Some(key)),
            None => (name, None),
        };
        if let Some(known) = find_short(base) {
            return self.take(known, base, key, inline);
        }
        // `-O3`, `-v5`: the value follows the name without a separator.
        if let Some(digits) = base.find(|c: char| c.is_ascii_digit())
            && let Some(known) = find_short(&base[..digits])
        {
            return self.take(known, base, None, Some(&base[digits..]));
        }
        self.unknown(word, base)
    }

    fn take(
        &mut self,
        known: Known,
        typed: &str,
        key: Option<&str>,
        inline: Option<&'a str>,
    ) -> Result<(), ConfigError> {
        match (known, key) {
            (Known::Ours(flag), Some(key)) if flag.kind == FlagKind::Json => {
                let value = self.value(typed, inline)?;
                self.out
                    .layer
                    .set_key(flag, key, value, ValueSource::CommandLine)
            }
            (Known::Ours(_), Some(key)) => self.unknown(&format!("--{typed}.{key}"), typed),
            (Known::Ours(flag), None) => {
                if ignored::last_release(typed).is_some() {
                    self.out.layer.dropped.push(format!("--{typed}"));
                }
                let values = match flag.kind {
                    FlagKind::Switch => vec![self.switch(typed, inline)],
                    FlagKind::List => self.list(inline),
                    _ => vec![self.value(typed, inline)?.to_owned()],
                };
                self.out.layer.set(flag, values, ValueSource::CommandLine);
                Ok(())
            }
            (Known::Ignored(name, arity), _) => {
                match arity {
                    Arity::Switch => drop(self.switch(typed, inline)),
                    Arity::Value => drop(self.value(typed, inline)?),
                    Arity::List => drop(self.list(inline)),
                }
                self.ignore(name);
                Ok(())
            }
        }
    }

    fn negate(
        &mut self,
        known: Known,
        word: &str,
        inline: Option<&str>,
    ) -> Result<(), ConfigError> {
        if inline.is_some() {
            return Err(ConfigError::Invalid(format!("{word}: takes no value")));
        }
        match known {
            Known::Ours(flag) => {
                self.out
                    .layer
                    .set(flag, vec!["false".to_owned()], ValueSource::CommandLine);
            }
            Known::Ignored(name, _) => self.ignore(name),
        }
        Ok(())
    }

    fn ignore(&mut self, name: &str) {
        let name = format!("--{name}");
        if !self.out.layer.ignored.contains(&name) {
            self.out.layer.ignored.push(name);
        }
    }

    fn switch(&mut self, typed: &str, inline: Option<&str>) -> String {
        if let Some(value) = inline {
            return value.to_owned();
        }
        match self.peek() {
            Some(word) if matches!(word.to_ascii_lowercase().as_str(), "true" | "false") => {
                self.at += 1;
                self.out
                    .layer
                    .warnings
                    .push(format!("--{typed} {word}: read as --{typed}={word}"));
                word.to_ascii_lowercase()
            }
            _ => "true".to_owned(),
        }
    }

    /// Returns the value of a flag: the next argument, unless it starts with `--`.
    fn value(&mut self, typed: &str, inline: Option<&'a str>) -> Result<&'a str, ConfigError> {
        if let Some(value) = inline {
            return Ok(value);
        }
        match self.peek() {
            Some(word) if !word.starts_with("--") => {
                self.at += 1;
                Ok(word)
            }
            _ => Err(ConfigError::Invalid(format!("--{typed} needs a value"))),
        }
    }

    /// Returns the values of a list flag: the arguments up to the next flag. Empty ones are
    /// dropped, so a list can be cleared.
    fn list(&mut self, inline: Option<&str>) -> Vec<String> {
        if let Some(value) = inline {
            return if value.is_empty() {
                Vec::new()
            } else {
                vec![value.to_owned()]
            };
        }
        let mut values = Vec::new();
        while let Some(word) = self.peek().filter(|word| !is_flag(word)) {
            self.at += 1;
            if !word.is_empty() {
                values.push(word.to_owned());
            }
        }
        values
    }

    fn unknown(&mut self, word: &str, base: &str) -> Result<(), ConfigError> {
        if self.unknown == UnknownFlags::Return {
            self.out.unknown.push(word.to_owned());
            return Ok(());
        }
        Err(ConfigError::Unknown {
            what: "flag".to_owned(),
            name: cut(word).0.to_owned(),
            nearest: nearest(base).map(|name| format!("--{name}")),
        })
    }
}

fn cut(body: &str) -> (&str, Option<&str>) {
    match body.split_once('=') {
        // `--flag.key+=a,b`: the plus is part of the name.
        Some((name, value)) => (name, Some(value)),
        None => (body, None),
    }
}

fn find(name: &str) -> Option<Known> {
    flags::long(name)
        .map(Known::Ours)
        .or_else(|| ignored::long(name).map(|(name, arity)| Known::Ignored(name, arity)))
}

fn find_short(name: &str) -> Option<Known> {
    flags::short(name)
        .map(Known::Ours)
        .or_else(|| ignored::short(name).map(|(name, arity)| Known::Ignored(name, arity)))
}

fn is_switch(known: Known) -> bool {
    match known {
        Known::Ours(flag) => flag.kind == FlagKind::Switch,
        Known::Ignored(_, arity) => arity == Arity::Switch,
    }
}

fn known_name(known: Known) -> &'static str {
    match known {
        Known::Ours(flag) => flag.name,
        Known::Ignored(name, _) => name,
    }
}

/// Returns the flag of which `name` is a unique prefix, as argparse does.
fn abbreviated(name: &str) -> Option<Known> {
    if name.len() < 3 {
        return None;
    }
    let mut fits = names().filter(|full| full.starts_with(name));
    let first = fits.next()?;
    if fits.next().is_some() {
        return None;
    }
    find(first)
}

fn is_flag(word: &str) -> bool {
    if word.starts_with("--") {
        return true;
    }
    let Some(body) = word.strip_prefix('-') else {
        return false;
    };
    let (name, _) = cut(body);
    let base = name.split_once('.').map_or(name, |(base, _)| base);
    !is_number(word) && (body == "h" || find_short(base).is_some())
}

fn is_number(word: &str) -> bool {
    word.parse::<f64>().is_ok()
        || word.starts_with('-') && word[1..].starts_with(|c: char| c.is_ascii_digit())
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    flags()
        .flat_map(|flag| std::iter::once(flag.name).chain(flag.aliases.iter().copied()))
        .chain(ignored::ignored_flags().map(|(name, _)| name))
}

pub(super) fn nearest(typed: &str) -> Option<&'static str> {
    closest(typed, names())
}
