//! Formats the configuration as YAML and JSON.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::cli_mode::CliMode;
use super::flag::{FlagKind, FlagSpec};
use super::flags::{all_effective_flags, model};
use super::group::FlagHelpGroup;
use super::layers::FlagValueSource;
use super::loaded::{LoadedConfig, ResolvedFlag, format_go_duration};
use super::read::expand_json_lists;

const YAML_RESERVED_WORDS: [&str; 12] =
    ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "~", "nan", "inf"];

impl LoadedConfig {
    /// Returns the configuration as a YAML file for `--config`.
    ///
    /// Each set flag has a comment with its source; defaults are commented out.
    pub fn to_config_yaml(&self) -> String {
        let cli_mode = match self.config.model.cli_mode {
            CliMode::Llmd => "llm-d",
            CliMode::Vllm => "vllm",
        };
        let mut out = String::from(
            "# Configuration of vllm-sim, to use with `vllm-sim --config FILE`.\n# Default values are \
             comments; they depend on `cli-mode`.\n",
        );
        for group in FlagHelpGroup::ALL_FLAG_GROUPS {
            let mut lines = String::new();
            if group == FlagHelpGroup::General {
                // The mode comes first because all defaults depend on it.
                let _ = writeln!(lines, "{}: {cli_mode}", model::CLI_MODE.name);
            }
            for (flag, entry) in shown_flags_of_group(self, group) {
                push_yaml_line(&mut lines, flag, entry);
            }
            if !lines.is_empty() {
                let _ = write!(out, "\n# {}\n{lines}", group.help_text_heading());
            }
        }
        mask_url_passwords(&out)
    }

    /// Returns the configuration as llm-d's `/admin/config` shows it: flag names, durations as
    /// text.
    pub fn to_admin_json(&self) -> Map<String, Value> {
        all_effective_flags()
            .zip(&self.resolved_flags)
            .filter(|(flag, _)| !flag.secret && flag.name != model::CONFIG.name)
            .map(|(flag, entry)| (flag.name.to_owned(), json_value(flag, &entry.values)))
            .collect()
    }

    /// Returns the flags of [`Self::to_admin_json`] that a file, variable, flag or admin API call
    /// sets.
    pub fn explicit_settings_to_admin_json(&self) -> Map<String, Value> {
        self.filtered_admin_json(|source| {
            !matches!(source, FlagValueSource::Default | FlagValueSource::Derived)
        })
    }

    /// Returns the flags of [`Self::to_admin_json`] that were changed at run time.
    pub fn runtime_changes_to_admin_json(&self) -> Map<String, Value> {
        self.filtered_admin_json(|source| *source == FlagValueSource::Operator)
    }

    fn filtered_admin_json(&self, wanted: impl Fn(&FlagValueSource) -> bool) -> Map<String, Value> {
        let mut all = self.to_admin_json();
        let entries = self.resolved_flags.iter().filter(|entry| wanted(&entry.source));
        entries
            .filter_map(|entry| Some((entry.name.to_owned(), all.swap_remove(entry.name)?)))
            .collect()
    }
}

/// Replaces credentials in URLs by `***`: `user:password` or a token before the `@`.
pub fn mask_url_passwords(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let ends = |c: char| c.is_whitespace() || "/?#\"'`,<>\\".contains(c);
        let authority = &after[..after.find(ends).unwrap_or(after.len())];
        rest = after;
        if let Some((user, _)) = authority.rsplit_once('@') {
            rest = &after[user.len()..];
            if let Some((name, _)) = user.split_once(':') {
                out.push_str(name);
                out.push(':');
            }
            out.push_str("***");
        }
    }
    out + rest
}

fn shown_flags_of_group(
    loaded: &LoadedConfig,
    group: FlagHelpGroup,
) -> impl Iterator<Item = (&'static FlagSpec, &ResolvedFlag)> {
    all_effective_flags().zip(&loaded.resolved_flags).filter(move |(flag, _)| {
        flag.group == group && flag.name != model::CLI_MODE.name && flag.name != model::CONFIG.name
    })
}

impl LoadedConfig {
    /// Returns a warning with the names of set flags whose values the YAML file does not show;
    /// `None` without such flags.
    pub fn hidden_secrets_warning(&self) -> Option<String> {
        let flags = all_effective_flags().zip(&self.resolved_flags);
        let hidden = flags.filter(|(flag, entry)| flag.secret && entry.is_set_by_user());
        let hidden: Vec<&str> = hidden.map(|(flag, _)| flag.name).collect();
        (!hidden.is_empty()).then(|| {
            let names = hidden.join(", ");
            format!(
                "Not shown: {names}. A server with this file has no such values unless you add them."
            )
        })
    }
}

fn push_yaml_line(out: &mut String, flag: &FlagSpec, entry: &ResolvedFlag) {
    let typed = entry.is_set_by_user();
    if flag.secret {
        if typed {
            let _ = writeln!(out, "# {}: (not shown)  # {}", flag.name, entry.source);
        }
        return;
    }
    if entry.values.is_empty() && !(typed && flag.kind == FlagKind::List) {
        return;
    }
    let value = match flag.kind {
        FlagKind::List => {
            let items: Vec<String> = expand_json_lists(&entry.values)
                .iter()
                .map(|item| format_yaml_string(item))
                .collect();
            format!("[{}]", items.join(", "))
        }
        FlagKind::Json => entry.values.concat(),
        FlagKind::Text | FlagKind::Path | FlagKind::Choice(_) => {
            format_yaml_string(&entry.values.concat())
        }
        _ => quote_unless_plain(&entry.values.concat()),
    };
    let mark = if typed { "" } else { "# " };
    let rule = entry.rule.as_ref();
    let rule = rule.map_or_else(String::new, |rule| format!(": {rule}"));
    let _ = writeln!(out, "{mark}{}: {value}  # {}{rule}", flag.name, entry.source);
}

/// Formats a YAML string, quoted if YAML would parse it as something else.
fn format_yaml_string(text: &str) -> String {
    let simple = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_./-@".contains(c))
        && !YAML_RESERVED_WORDS.contains(&text.to_ascii_lowercase().as_str());
    if simple { text.to_owned() } else { Value::from(text).to_string() }
}

fn quote_unless_plain(text: &str) -> String {
    let simple =
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || ".-+".contains(c));
    if simple { text.to_owned() } else { Value::from(text).to_string() }
}

fn json_value(flag: &FlagSpec, values: &[String]) -> Value {
    let values: Vec<String> = values.iter().map(|text| mask_url_passwords(text)).collect();
    let read = |text: &String| serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into());
    if flag.kind == FlagKind::List {
        let items = values.iter().flat_map(|text| match read(text) {
            Value::Array(items) => items,
            other => vec![other],
        });
        return items.collect();
    }
    let Some(text) = values.last().filter(|text| !text.is_empty()) else {
        return Value::Null;
    };
    match flag.kind {
        FlagKind::Text | FlagKind::Path | FlagKind::Choice(_) => text.as_str().into(),
        FlagKind::Duration | FlagKind::Seconds => {
            format_go_duration(flag, text).map_or(Value::Null, Value::from)
        }
        _ if text == "none" => Value::Null,
        _ => read(text),
    }
}
