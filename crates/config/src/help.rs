//! Help texts made of the registry.

use std::fmt::Write;

use clap::Command;

use super::registry::{self, Flag, Group, Kind};
use super::values::command;
use super::{CliMode, ignored};

const USAGE: &str = "\
vllm-sim --model MODEL [FLAGS]      serve, with llm-d-inference-sim's flags and defaults
       vllm-sim serve MODEL [FLAGS]        serve, with vLLM's command line and defaults
       vllm-sim config [serve] [FLAGS]     print the configuration and where it comes from
       vllm-sim replay|bench|sweep|calibrate|validate|explain|dataset|record|completions|man …";

const AFTER: &str = "\
Both command lines take all flags. Flags may also stand in a YAML file (--config), or in the \
environment as VLLM_SIM_<NAME>; the command line wins over the environment, that over the file. \
Flags of `vllm serve` that mean nothing to a simulator are accepted and ignored.
--help=WORD shows only the groups and flags that hold WORD; --help=all also the rare ones.";

/// The help text behind a cli_mode: all visible flags, or those that hold `topic` (`all`: every one).
pub fn help(cli_mode: CliMode, topic: &str) -> String {
    let topic = topic
        .trim_start_matches('-')
        .to_lowercase()
        .replace('_', "-");
    let wanted = move |flag: &Flag| match topic.as_str() {
        "" => !flag.hidden,
        "all" => true,
        word => flag.name.contains(word) || flag.group.title().to_lowercase() == word,
    };
    let mut command = clap_command(cli_mode).mut_args(|arg| {
        let flag = registry::long(arg.get_id().as_str());
        let shown = flag.is_some_and(&wanted);
        arg.hide(!shown)
    });
    command.render_help().to_string()
}

/// The command line behind a cli_mode as clap sees it, for help texts, completions and man pages.
pub fn clap_command(cli_mode: CliMode) -> Command {
    command()
        .about("A vLLM deployment seen from outside, with no GPU and no model.")
        .override_usage(USAGE)
        .after_help(AFTER)
        .mut_args(|arg| {
            let Some(flag) = registry::long(arg.get_id().as_str()) else {
                return arg;
            };
            let arg = arg.help(described(flag, cli_mode));
            // Names of two letters after one dash are ours to read; clap shows those of one.
            let letter: Option<char> = flag.shorts.first().and_then(|short| short.parse().ok());
            match letter {
                Some(letter) => arg.short(letter),
                None => arg,
            }
        })
}

fn described(flag: &Flag, cli_mode: CliMode) -> String {
    let mut text = flag.help.to_owned();
    if let Kind::Choice(words) = flag.kind {
        let _ = write!(text, " ({})", words.join(", "));
    }
    if let Some(default) = flag.default(cli_mode).filter(|d| *d != "false") {
        let _ = write!(text, " [default: {default}]");
    }
    for short in flag.shorts.iter().filter(|short| short.len() > 1) {
        let _ = write!(text, " [also -{short}]");
    }
    for env in flag.env {
        let _ = write!(text, " [env: {env}]");
    }
    text
}

/// `docs/flags.md`: every flag, group by group, and those that are ignored.
pub fn flags_markdown() -> String {
    let mut out = String::from(
        "# Flags\n\n\
         Made by `cargo test`, from `src/config/flags/`; edit there.\n\n\
         Every flag is a YAML key (`--config FILE`) and an environment variable \
         (`VLLM_SIM_` and the name in capitals). Dashes and underscores are the same. \
         The command line wins over the environment, that over the file. \
         Where two defaults are given, the second is that of `vllm-sim serve`.\n",
    );
    for group in Group::ALL {
        let _ = write!(
            out,
            "\n## {}\n\n| Flag | Takes | Default | What it does |\n|---|---|---|---|\n",
            group.title()
        );
        for flag in registry::flags().filter(|flag| flag.group == group) {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} |",
                names(flag),
                takes(flag.kind),
                defaults(flag),
                escape(flag.help)
            );
        }
    }
    out.push_str(
        "\n## Accepted and ignored\n\n\
         Flags of vLLM, llm-d-inference-sim, klog and Dynamo that mean nothing to a simulator. \
         They are named in one log line at start.\n\n",
    );
    let mut ignored: Vec<&str> = ignored::ignored_flags().map(|(name, _)| name).collect();
    ignored.sort_unstable();
    for name in ignored {
        let _ = writeln!(out, "- `--{name}`");
    }
    out
}

fn names(flag: &Flag) -> String {
    let mut text = format!("`--{}`", flag.name);
    for short in flag.shorts {
        let _ = write!(text, ", `-{short}`");
    }
    for alias in flag.aliases {
        let _ = write!(text, ", `--{alias}`");
    }
    for env in flag.env {
        let _ = write!(text, ", env `{env}`");
    }
    text
}

fn takes(kind: Kind) -> String {
    match kind {
        Kind::Switch => "switch".to_owned(),
        Kind::Int => "whole number".to_owned(),
        Kind::Count => "whole number, `32k`, `32K`".to_owned(),
        Kind::Float => "number".to_owned(),
        Kind::Duration => "duration; bare: ms".to_owned(),
        Kind::Seconds => "duration; bare: s".to_owned(),
        Kind::Text => "text".to_owned(),
        Kind::Path | Kind::Repeat => "path".to_owned(),
        Kind::Choice(words) => words
            .iter()
            .map(|word| format!("`{word}`"))
            .collect::<Vec<_>>()
            .join(" "),
        Kind::List => "list".to_owned(),
        Kind::Json => "JSON".to_owned(),
    }
}

fn defaults(flag: &Flag) -> String {
    let show = |text: &str| {
        if text.is_empty() {
            "–".to_owned()
        } else {
            format!("`{text}`")
        }
    };
    let (llmd, vllm) = flag.defaults;
    if llmd == vllm {
        show(llmd)
    } else {
        format!("{}; {}", show(llmd), show(vllm))
    }
}

fn escape(text: &str) -> String {
    text.replace('|', "\\|")
}
