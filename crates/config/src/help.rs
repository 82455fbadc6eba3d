//! Builds help texts from the tables of flags.

use std::fmt::Write;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, ValueHint};

use super::cli_mode::CliMode;
use super::flag::{FlagKind, FlagSpec, Range};
use super::flags::{self, flags};
use super::group::FlagGroup;
use super::ignored;

const USAGE: &str = "\
vllm-sim --model MODEL [FLAGS]      serve, with llm-d-inference-sim's flags and defaults
       vllm-sim serve MODEL [FLAGS]        serve, with vLLM's command line and defaults
       vllm-sim config [serve] [FLAGS]     print the configuration and where it comes from
       vllm-sim replay|bench|sweep|plan|gateway|calibrate|validate|explain|dataset|record|completions|man …";

pub(super) const LAUNCH: &str = "\
Serve a part of the API

Usage: vllm-sim launch render [MODEL] [FLAGS]

Commands:
  render  Serve tokenising and rendering only; takes the flags of `vllm-sim serve`";

const EXAMPLE: &str = "  vllm-sim --model demo               serve a model called demo on port 8000
  curl http://localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"model\": \"demo\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'
  vllm-sim --help                     the most important flags, and the groups of all others";

/// Returns the usage text, printed when the command line is empty.
pub fn usage() -> String {
    format!("Usage: {USAGE}\n\n{EXAMPLE}")
}

const AFTER: &str = "\
Both command lines accept all flags. Flags can also be set in a YAML file (--config), or in the \
environment as VLLM_SIM_<NAME>; the command line overrides the environment, which overrides the file. \
Flags of `vllm serve` without effect in a simulator are accepted and ignored.
--help=WORD shows the group WORD and the flags whose names contain WORD; --help=all shows every flag.";

const FIRST: [&str; 17] = [
    "config",
    "model",
    "served-model-name",
    "port",
    "ready-file",
    "log-level",
    "mode",
    "seed",
    "max-model-len",
    "max-num-seqs",
    "time-to-first-token",
    "inter-token-latency",
    "gpu",
    "failure-injection-rate",
    "scenario",
    "replies",
    "request-history",
];

/// Returns the help text of a command line.
///
/// `topic` selects the flags: empty for the first page, a group's name, a part of a flag's name, or
/// `all`.
pub fn help(cli_mode: CliMode, topic: &str) -> String {
    let topic = topic
        .trim_start_matches('-')
        .to_lowercase()
        .replace(['_', ' '], "-");
    let after = match topic.as_str() {
        "" => format!("{}\n\n{AFTER}", groups()),
        _ => AFTER.to_owned(),
    };
    let wanted = move |flag: &FlagSpec| match topic.as_str() {
        "" => FIRST.contains(&flag.name),
        "all" => true,
        word => flag.name.contains(word) || word_of(flag.group) == word,
    };
    let command = clap_command(cli_mode).after_help(after);
    let mut command = command.mut_args(|arg| {
        let flag = flags::long(arg.get_id().as_str());
        let shown = flag.is_some_and(&wanted);
        arg.hide(!shown)
    });
    command.render_help().to_string()
}

fn word_of(group: FlagGroup) -> String {
    group.title().to_lowercase().replace(' ', "-")
}

fn groups() -> String {
    let mut out = String::from("More flags, by group:");
    for group in FlagGroup::ALL {
        let count = flags().filter(|flag| flag.group == group).count();
        let word = format!("--help={}", word_of(group));
        let _ = write!(out, "\n  {word:<28} {count:>3} flags");
    }
    out
}

/// Returns the clap command for help texts, completions and man pages.
pub fn clap_command(cli_mode: CliMode) -> Command {
    Command::new("vllm-sim")
        .about("A vLLM deployment seen from outside, with no GPU and no model.")
        .disable_help_flag(true)
        .disable_version_flag(true)
        .override_usage(USAGE)
        .after_help(AFTER)
        .args(flags().map(|flag| argument(flag, cli_mode)))
}

fn argument(flag: &'static FlagSpec, cli_mode: CliMode) -> Arg {
    let arg = Arg::new(flag.name)
        .long(flag.name)
        .action(ArgAction::Append)
        .num_args(1)
        .allow_hyphen_values(true)
        .hide(flag.hidden)
        .help_heading(flag.group.title())
        .help(described(flag, cli_mode));
    let one_of = |words: &'static [&'static str]| PossibleValuesParser::new(words);
    let arg = match flag.kind {
        FlagKind::Switch => {
            let arg = arg.num_args(0..=1).value_name("BOOL");
            arg.value_parser(one_of(&["true", "false"]))
        }
        kind => arg.value_name(kind.placeholder()),
    };
    let arg = match flag.kind {
        FlagKind::Choice(words) => arg.value_parser(one_of(words)),
        FlagKind::Path | FlagKind::Repeat => arg.value_hint(ValueHint::AnyPath),
        _ => arg,
    }
    .hide_possible_values(true);
    // clap supports short names of one letter only; longer ones are appended to the help text.
    match flag.shorts.first().and_then(|short| short.parse().ok()) {
        Some::<char>(letter) => arg.short(letter),
        None => arg,
    }
}

fn described(flag: &FlagSpec, cli_mode: CliMode) -> String {
    let mut text = flag.help.to_owned();
    if let FlagKind::Choice(words) = flag.kind {
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

/// Returns the text of `docs/flags.md`: every flag by group, then the ignored flags.
pub fn flags_markdown() -> String {
    let mut out = String::from(
        "# Flags\n\n\
         Generated by `cargo test` from `crates/config/src/flags/`; edit there.\n\n\
         Every flag is a YAML key (`--config FILE`) and an environment variable \
         (`VLLM_SIM_` and the name in capitals). Dashes and underscores are the same. \
         The command line overrides the environment, which overrides the file. \
         Where two defaults are given, the second is that of `vllm-sim serve`.\n",
    );
    for group in FlagGroup::ALL {
        let _ = write!(
            out,
            "\n## {}\n\n| Flag | Takes | Default | What it does |\n|---|---|---|---|\n",
            group.title()
        );
        for flag in flags().filter(|flag| flag.group == group) {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} |",
                names(flag),
                takes(flag),
                defaults(flag),
                escape(flag.help)
            );
        }
    }
    out.push_str(
        "\n## Accepted and ignored\n\n\
         Flags of vLLM, llm-d-inference-sim, klog and Dynamo without effect in a simulator. \
         They are listed in one log line at start; those marked * have an effect in vLLM and are \
         listed in a warning. With `serve`, a flag that vLLM has removed is rejected, as in vLLM, \
         unless `--vllm-version` is a release that has it.\n\n",
    );
    for (name, remark) in ignored::remarks() {
        let _ = writeln!(out, "- `--{name}`{remark}");
    }
    out
}

fn names(flag: &FlagSpec) -> String {
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

fn takes(flag: &FlagSpec) -> String {
    let what = match flag.kind {
        FlagKind::Switch => "switch".to_owned(),
        FlagKind::Int => "whole number".to_owned(),
        FlagKind::Count => "whole number, `32k`, `32K`".to_owned(),
        FlagKind::Float => "number".to_owned(),
        FlagKind::Duration => "duration; bare: ms".to_owned(),
        FlagKind::Seconds => "duration; bare: s".to_owned(),
        FlagKind::Text => "text".to_owned(),
        FlagKind::Path | FlagKind::Repeat => "path".to_owned(),
        FlagKind::Choice(words) => words
            .iter()
            .map(|word| format!("`{word}`"))
            .collect::<Vec<_>>()
            .join(" "),
        FlagKind::List => "list".to_owned(),
        FlagKind::Json => "JSON".to_owned(),
    };
    match flag.ranges.map(|(llmd, vllm)| (bounds(llmd), bounds(vllm))) {
        None => what,
        Some((llmd, vllm)) if llmd == vllm => format!("{what}, {llmd}"),
        Some((llmd, vllm)) => format!("{what}, {llmd}; {vllm}"),
    }
}

/// Describes bounds in words; an upper bound at the maximum of the type is omitted.
fn bounds(range: Range) -> String {
    match range {
        Range::Whole(least, most) if most >= u32::MAX.into() => format!("at least {least}"),
        Range::Whole(least, most) => format!("{least} to {most}"),
        Range::Number(least, most) if most >= 1e9 => format!("at least {least}"),
        Range::Number(f64::MIN_POSITIVE, most) => format!("more than 0, at most {most}"),
        Range::Number(least, most) => format!("{least} to {most}"),
    }
}

fn defaults(flag: &FlagSpec) -> String {
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
