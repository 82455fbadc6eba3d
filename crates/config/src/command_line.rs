//! Parses command-line arguments into settings of flags.
//!
//! The parser accepts the syntax of argparse (vLLM) and pflag (llm-d): dashes or underscores,
//! `--flag value`, `--flag=value`, `--no-flag`, `--flag true`, `-tp 2`, `-O3`, `--flag.key value`,
//! lists up to the next flag.

use std::iter::Peekable;
use std::slice;

use super::did_you_mean::closest_known_name;
use super::error::{ConfigError, bail, invalid};
use super::flag::{FlagKind, FlagSpec};
use super::flags::{self, all_effective_flags};
use super::ignored::{self, IgnoredFlagArity};
use super::layers::{ConfigLayer, FlagValueSource};

#[derive(Debug, Default)]
pub(super) struct ParsedCommandLine {
    pub(super) layer: ConfigLayer,
    pub(super) positional: Vec<String>,
    pub(super) help: Option<HelpRequest>,
    pub(super) version: bool,
    /// Unknown flags and positional arguments in their order; empty unless the policy is
    /// [`UnknownFlagPolicy::Return`].
    pub(super) unknown: Vec<String>,
}

/// Kind of help text for which the command line asks, instead of running the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HelpRequest {
    /// Help requested by `-h`: the short help text.
    Short,
    /// Help requested by `--help`: the long help text.
    Long,
    /// `--help=TOPIC`: help about a group of flags, about the flags whose names contain this text,
    /// or about all flags (`all`).
    Topic(String),
}

impl HelpRequest {
    /// Returns the command-line argument that requests this help text, such as `--help`.
    pub(super) fn to_help_argument(&self) -> String {
        match self {
            Self::Short => "-h".to_owned(),
            Self::Long => "--help".to_owned(),
            Self::Topic(topic) => format!("--help={topic}"),
        }
    }
}

#[derive(Clone, Copy)]
enum KnownFlag {
    Ours(&'static FlagSpec),
    Ignored(&'static str, IgnoredFlagArity),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UnknownFlagPolicy {
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
pub(super) fn parse_command_line(
    words: &[String],
    unknown: UnknownFlagPolicy,
) -> Result<ParsedCommandLine, ConfigError> {
    let words = words.iter().peekable();
    let mut reader = CommandLineParser { words, out: ParsedCommandLine::default(), unknown };
    while let Some(word) = reader.words.next() {
        reader.parse_word(word)?;
    }
    Ok(reader.out)
}

struct CommandLineParser<'a> {
    words: Peekable<slice::Iter<'a, String>>,
    out: ParsedCommandLine,
    unknown: UnknownFlagPolicy,
}

impl<'a> CommandLineParser<'a> {
    fn parse_word(&mut self, word: &'a str) -> Result<(), ConfigError> {
        match word {
            "--" => self.out.positional.extend(self.words.by_ref().cloned()),
            "-h" => self.out.help = Some(HelpRequest::Short),
            "--help" => self.out.help = Some(HelpRequest::Long),
            "--version" | "-V" => self.out.version = true,
            _ => {
                if let Some(topic) = word.strip_prefix("--help=") {
                    self.out.help = Some(HelpRequest::Topic(topic.to_owned()));
                } else if let Some(body) = word.strip_prefix("--") {
                    self.parse_long_flag(word, body)?;
                } else if word.starts_with('-') && !is_number(word) && word.len() > 1 {
                    self.parse_short_flag(word)?;
                } else if self.unknown == UnknownFlagPolicy::Return {
                    self.out.unknown.push(word.to_owned());
                } else {
                    self.out.positional.push(word.to_owned());
                }
            }
        }
        Ok(())
    }

    fn parse_long_flag(&mut self, word: &'a str, body: &'a str) -> Result<(), ConfigError> {
        // `--flag.key+=a,b`: the plus is part of the name.
        let (name, inline) = split_at_first(body, '=');
        let (base, key) = split_at_first(name, '.');
        let base = base.replace('_', "-");
        if let Some(known) = find_long_flag(&base) {
            return self.set_known_flag(known, &base, key, inline);
        }
        if let Some(known) = ignored::inverse_switch_name(&base).and_then(find_long_flag)
            && key.is_none()
        {
            self.out.layer.release_dependent.push(format!("--{base}"));
            return self.set_negated_switch(known, word, inline);
        }
        if let Some(known) = base.strip_prefix("no-").and_then(find_long_flag)
            && key.is_none()
            && is_switch(known)
        {
            return self.set_negated_switch(known, word, inline);
        }
        // A manifest with `- --port 8000` passes flag and value as one word.
        if let Some((name, value)) = body.split_once(char::is_whitespace)
            && let Some(known) = find_long_flag(&name.replace('_', "-"))
        {
            let value = value.trim().trim_matches(['"', '\'']);
            self.out.layer.warnings.push(format!(
                "{word:?} is one argument; read as --{name} with the value {value:?}"
            ));
            return self.set_known_flag(known, name, None, Some(value));
        }
        if self.unknown == UnknownFlagPolicy::Reject
            && let Some(known) = find_by_unique_prefix(&base)
        {
            self.out.layer.warnings.push(format!("--{base} is short for --{}", known_name(known)));
            return self.set_known_flag(known, &base, key, inline);
        }
        self.handle_unknown_flag(word, &base)
    }

    fn parse_short_flag(&mut self, word: &'a str) -> Result<(), ConfigError> {
        let body = &word[1..];
        // `--flag.key+=a,b`: the plus is part of the name.
        let (name, inline) = split_at_first(body, '=');
        let (base, key) = split_at_first(name, '.');
        if let Some(known) = find_short(base) {
            return self.set_known_flag(known, base, key, inline);
        }
        // `-O3`, `-v5`: the value follows the name without a separator.
        if let Some(digits) = base.find(|c: char| c.is_ascii_digit())
            && let Some(known) = find_short(&base[..digits])
        {
            return self.set_known_flag(known, base, None, Some(&base[digits..]));
        }
        self.handle_unknown_flag(word, base)
    }

    fn set_known_flag(
        &mut self,
        known: KnownFlag,
        typed: &str,
        key: Option<&str>,
        inline: Option<&'a str>,
    ) -> Result<(), ConfigError> {
        match (known, key) {
            (KnownFlag::Ours(flag), Some(key)) if flag.kind == FlagKind::Json => {
                let value = self.take_flag_value(typed, inline)?;
                self.out.layer.set_json_key(flag, key, value, FlagValueSource::CommandLine)
            }
            (KnownFlag::Ours(_), Some(key)) => {
                self.handle_unknown_flag(&format!("--{typed}.{key}"), typed)
            }
            (KnownFlag::Ours(flag), None) => {
                if ignored::is_release_dependent_flag(typed) {
                    self.out.layer.release_dependent.push(format!("--{typed}"));
                }
                let values = match flag.kind {
                    FlagKind::Switch => vec![self.take_switch_value(typed, inline)],
                    FlagKind::List => self.take_list_values(inline),
                    _ => vec![self.take_flag_value(typed, inline)?.to_owned()],
                };
                self.out.layer.set_flag(flag, values, FlagValueSource::CommandLine);
                Ok(())
            }
            (KnownFlag::Ignored(name, arity), _) => {
                match arity {
                    IgnoredFlagArity::Switch => drop(self.take_switch_value(typed, inline)),
                    IgnoredFlagArity::Value => drop(self.take_flag_value(typed, inline)?),
                    IgnoredFlagArity::List => drop(self.take_list_values(inline)),
                }
                self.record_ignored_flag(name);
                Ok(())
            }
        }
    }

    fn set_negated_switch(
        &mut self,
        known: KnownFlag,
        word: &str,
        inline: Option<&str>,
    ) -> Result<(), ConfigError> {
        if inline.is_some() {
            bail!("{word}: takes no value");
        }
        match known {
            KnownFlag::Ours(flag) => {
                self.out.layer.set_flag(
                    flag,
                    vec!["false".to_owned()],
                    FlagValueSource::CommandLine,
                );
            }
            KnownFlag::Ignored(name, _) => self.record_ignored_flag(name),
        }
        Ok(())
    }

    fn record_ignored_flag(&mut self, name: &str) {
        let name = format!("--{name}");
        if !self.out.layer.ignored.contains(&name) {
            self.out.layer.ignored.push(name);
        }
    }

    fn take_switch_value(&mut self, typed: &str, inline: Option<&str>) -> String {
        if let Some(value) = inline {
            return value.to_owned();
        }
        let is_bool = |word: &&String| ["true", "false"].contains(&&*word.to_ascii_lowercase());
        let Some(word) = self.words.next_if(is_bool) else {
            return "true".to_owned();
        };
        self.out.layer.warnings.push(format!("--{typed} {word}: read as --{typed}={word}"));
        word.to_ascii_lowercase()
    }

    /// Returns the value of a flag: the next argument, unless it starts with `--`.
    fn take_flag_value(
        &mut self,
        typed: &str,
        inline: Option<&'a str>,
    ) -> Result<&'a str, ConfigError> {
        let next = || self.words.next_if(|word| !word.starts_with("--")).map(String::as_str);
        inline.or_else(next).ok_or_else(|| invalid!("--{typed} needs a value"))
    }

    /// Returns the values of a list flag: the arguments up to the next flag. Empty values are
    /// dropped, so a list can be cleared.
    fn take_list_values(&mut self, inline: Option<&str>) -> Vec<String> {
        if let Some(value) = inline {
            return if value.is_empty() { Vec::new() } else { vec![value.to_owned()] };
        }
        let mut values = Vec::new();
        while let Some(word) = self.words.next_if(|word| !looks_like_flag(word)) {
            if !word.is_empty() {
                values.push(word.clone());
            }
        }
        values
    }

    fn handle_unknown_flag(&mut self, word: &str, base: &str) -> Result<(), ConfigError> {
        if self.unknown == UnknownFlagPolicy::Return {
            self.out.unknown.push(word.to_owned());
            return Ok(());
        }
        Err(ConfigError::Unknown {
            what: "flag".to_owned(),
            name: split_at_first(word, '=').0.to_owned(),
            nearest: nearest_flag_name(base).map(|name| format!("--{name}")),
        })
    }
}

/// Splits a text at the first `separator`; without one, the second part is `None`.
pub(super) fn split_at_first(text: &str, separator: char) -> (&str, Option<&str>) {
    match text.split_once(separator) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

fn find_long_flag(name: &str) -> Option<KnownFlag> {
    flags::find_long_flag(name).map(KnownFlag::Ours).or_else(|| {
        ignored::find_ignored_long_flag(name).map(|(name, arity)| KnownFlag::Ignored(name, arity))
    })
}

fn find_short(name: &str) -> Option<KnownFlag> {
    flags::find_short_flag(name).map(KnownFlag::Ours).or_else(|| {
        ignored::find_ignored_short_flag(name).map(|(name, arity)| KnownFlag::Ignored(name, arity))
    })
}

fn is_switch(known: KnownFlag) -> bool {
    match known {
        KnownFlag::Ours(flag) => flag.kind == FlagKind::Switch,
        KnownFlag::Ignored(_, arity) => arity == IgnoredFlagArity::Switch,
    }
}

fn known_name(known: KnownFlag) -> &'static str {
    match known {
        KnownFlag::Ours(flag) => flag.name,
        KnownFlag::Ignored(name, _) => name,
    }
}

/// Returns the flag of which `name` is a unique prefix, as argparse does.
fn find_by_unique_prefix(name: &str) -> Option<KnownFlag> {
    if name.len() < 3 {
        return None;
    }
    let mut fits = known_flag_names().filter(|full| full.starts_with(name));
    let first = fits.next()?;
    if fits.next().is_some() {
        return None;
    }
    find_long_flag(first)
}

fn looks_like_flag(word: &str) -> bool {
    if word.starts_with("--") {
        return true;
    }
    let Some(body) = word.strip_prefix('-') else {
        return false;
    };
    let (name, _) = split_at_first(body, '=');
    let (base, _) = split_at_first(name, '.');
    !is_number(word) && (body == "h" || find_short(base).is_some())
}

fn is_number(word: &str) -> bool {
    word.parse::<f64>().is_ok()
        || word.starts_with('-') && word[1..].starts_with(|c: char| c.is_ascii_digit())
}

pub(super) fn known_flag_names() -> impl Iterator<Item = &'static str> {
    all_effective_flags()
        .flat_map(|flag| std::iter::once(flag.name).chain(flag.aliases.iter().copied()))
        .chain(ignored::all_ignored_flags().map(|(name, _)| name))
}

pub(super) fn nearest_flag_name(typed: &str) -> Option<&'static str> {
    closest_known_name(typed, known_flag_names())
}
