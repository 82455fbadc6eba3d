//! Builds help texts from the tables of flags.

use std::fmt::Write;

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, ValueHint};

use super::cli_mode::CliMode;
use super::command_line::HelpRequest;
use super::flag::{FlagKind, FlagSpec, FlagValueBounds};
use super::flags::engine::GPU;
use super::flags::{self, all_effective_flags};
use super::group::FlagHelpGroup;
use super::ignored;
use super::imitated_engine::OTHER_COMMAND_LINES;
use vllm_sim_engine::latency;

const USAGE_LINE: &str = "vllm-sim --model MODEL [FLAGS]
       vllm-sim serve MODEL [FLAGS]";

/// Help page of the program: its commands, its most important flags and examples.
const PROGRAM_HELP_PAGE: &str = "\
A vLLM server without GPU and model: its API, errors, metrics and timing.

Usage: vllm-sim --model MODEL [FLAGS]
       vllm-sim COMMAND [ARGUMENTS]

Serve:
  --model MODEL  Serve with the flags and defaults of llm-d-inference-sim
  serve          Serve with the command line and defaults of `vllm serve`
{OTHER_COMMANDS}  launch         Serve a part of the API: `launch render`
  config         Print the configuration, and the source of each value
  healthcheck    Exit with 0 when a server is healthy, else with 1

Plan capacity:
  explain        Explain the memory and the step times of a model on a GPU
  plan           Find the cheapest deployment that serves a workload
  sweep          Compare deployments over a grid of settings
  replay         Run a trace or a synthetic workload in virtual time
  calibrate      Fit step times to a recorded run
  validate       Predict recorded runs, and report the errors

Test clients and gateways:
  bench          Send a workload to a running server and measure it
  gateway        Score the routing of a gateway in front of simulated pods
  record         Record the responses of a server, to replay them
  dataset        Build or inspect a dataset of replies
  replies        Check files of scripted replies: `replies check FILE`
  scenario       Check files of scenarios: `scenario check FILE`

Shell: completions, man, version

Flags used most:
  --port N                        Port to listen on; 0 takes a free one
  --gpu NAME                      Imitate the step times of a GPU, such as H100
  --time-to-first-token DURATION  Delay before the first token, such as 200ms
  --inter-token-latency DURATION  Delay before each further token
  --failure-injection-rate N      Percentage of requests that fail

Examples:
  vllm-sim --model demo
  vllm-sim serve meta-llama/Llama-3.1-8B-Instruct --gpu H100
  vllm-sim plan --model meta-llama/Llama-3.1-8B-Instruct --gpu H100 \\
      --workload \"20 req/s of 2k/300\" --slo-ttft-ms 500

`COMMAND --help` explains a command, `serve --help` the server's first flags.
`--help=all` lists every flag, `--help=WORD` those with WORD in their names or
one group:";

/// Examples in the help text of the server.
const SERVER_HELP_EXAMPLES: &str = "\
Examples:
  vllm-sim serve demo --port 0 --ready-file ready.json
  vllm-sim serve meta-llama/Llama-3.1-8B-Instruct --gpu H100 --tensor-parallel-size 2
  vllm-sim serve demo --time-to-first-token 200ms --inter-token-latency 20ms
  vllm-sim serve demo --failure-injection-rate 10 --failure-types rate_limit";

/// Returns the help page of the program: its commands, its most important flags and examples.
pub fn program_help_page() -> String {
    let groups: Vec<String> =
        FlagHelpGroup::ALL_FLAG_GROUPS.into_iter().map(help_word_of_group).collect();
    let others: String = OTHER_COMMAND_LINES
        .iter()
        .map(|own| format!("  {:<15}{}\n", own.command, own.summary))
        .collect();
    let mut page = PROGRAM_HELP_PAGE.replace("{OTHER_COMMANDS}", &others);
    let mut room = 0;
    for (place, group) in groups.iter().enumerate() {
        let comma = if place + 1 < groups.len() { "," } else { "." };
        if room < group.len() + 2 {
            page.push_str("\n ");
            room = 78;
        }
        room -= group.len() + 2;
        let _ = write!(page, " {group}{comma}");
    }
    page
}

pub(super) const LAUNCH_HELP_PAGE: &str = "\
Serve a part of the API

Usage: vllm-sim launch render [MODEL] [FLAGS]

Commands:
  render  Serve tokenising and rendering only; takes the flags of `vllm-sim serve`";

const SERVER_HELP_FOOTER: &str = "\
Both command lines accept all flags. Flags can also be set in a YAML file (--config), or in the \
environment as VLLM_SIM_<NAME>; the command line overrides the environment, which overrides the file. \
Flags of `vllm serve` without effect in a simulator are accepted and ignored.
--help=WORD shows the group WORD and the flags whose names contain WORD; --help=all shows every flag.";

const FIRST_HELP_FLAGS: [&str; 17] = [
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

/// Returns a help text about the server's flags: the most important ones, those of a group, those
/// whose names contain a word, or all (`all`).
pub(super) fn server_help_text(cli_mode: CliMode, request: &HelpRequest) -> String {
    let topic = match request {
        HelpRequest::Topic(topic) => topic.trim_start_matches('-').to_lowercase(),
        HelpRequest::Short | HelpRequest::Long => String::new(),
    };
    let topic = topic.replace(['_', ' '], "-");
    let after = match request {
        HelpRequest::Short => "`--help` shows more, `--help=all` every flag.".to_owned(),
        HelpRequest::Long => {
            format!("{SERVER_HELP_EXAMPLES}\n\n{}\n\n{SERVER_HELP_FOOTER}", list_flag_groups())
        }
        HelpRequest::Topic(_) => SERVER_HELP_FOOTER.to_owned(),
    };
    let wanted = move |flag: &FlagSpec| match topic.as_str() {
        "" => FIRST_HELP_FLAGS.contains(&flag.name),
        "all" => true,
        word => flag.name.contains(word) || help_word_of_group(flag.group) == word,
    };
    let command = clap_command(cli_mode).after_help(after);
    let mut command = command.mut_args(|arg| {
        let flag = flags::find_long_flag(arg.get_id().as_str());
        let shown = flag.is_some_and(&wanted);
        arg.hide(!shown)
    });
    command.render_help().to_string()
}

fn help_word_of_group(group: FlagHelpGroup) -> String {
    group.help_text_heading().to_lowercase().replace(' ', "-")
}

fn list_flag_groups() -> String {
    let mut out = String::from("More flags, by group:");
    for group in FlagHelpGroup::ALL_FLAG_GROUPS {
        let count = all_effective_flags().filter(|flag| flag.group == group).count();
        let word = format!("--help={}", help_word_of_group(group));
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
        .override_usage(USAGE_LINE)
        .after_help(SERVER_HELP_FOOTER)
        .args(all_effective_flags().map(|flag| clap_argument(flag, cli_mode)))
}

fn clap_argument(flag: &'static FlagSpec, cli_mode: CliMode) -> Arg {
    let arg = Arg::new(flag.name)
        .long(flag.name)
        .action(ArgAction::Append)
        .num_args(1)
        .allow_hyphen_values(true)
        .hide(flag.hidden)
        .help_heading(flag.group.help_text_heading())
        .help(describe_flag(flag, cli_mode));
    let one_of = |words: &'static [&'static str]| PossibleValuesParser::new(words);
    let arg = match flag.kind {
        FlagKind::Switch => {
            let arg = arg.num_args(0..=1).value_name("BOOL");
            arg.value_parser(one_of(&["true", "false"]))
        }
        kind => arg.value_name(kind.value_placeholder()),
    };
    let gpus = latency::KNOWN_GPUS.iter().map(|gpu| gpu.name);
    let arg = match flag.kind {
        FlagKind::Choice(words) => arg.value_parser(one_of(words)),
        _ if flag.name == GPU.name => arg.value_parser(PossibleValuesParser::new(gpus)),
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

fn describe_flag(flag: &FlagSpec, cli_mode: CliMode) -> String {
    let mut text = flag.help.to_owned();
    if let FlagKind::Choice(words) = flag.kind {
        let _ = write!(text, " ({})", words.join(", "));
    }
    if let Some(default) = flag.default_for_mode(cli_mode).filter(|d| *d != "false") {
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
    for group in FlagHelpGroup::ALL_FLAG_GROUPS {
        let _ = write!(
            out,
            "\n## {}\n\n| Flag | Takes | Default | What it does |\n|---|---|---|---|\n",
            group.help_text_heading()
        );
        for flag in all_effective_flags().filter(|flag| flag.group == group) {
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} |",
                markdown_flag_names(flag),
                markdown_value_kind(flag),
                markdown_flag_defaults(flag),
                escape_markdown(flag.help)
            );
        }
    }
    out.push_str(
        "\n## Accepted and ignored\n\n\
         Flags of vLLM, llm-d-inference-sim, klog and Dynamo without effect in a simulator. \
         They are listed in one log line at start; those marked * have an effect in vLLM and are \
         listed in a warning. With `serve`, a flag that the release of `--vllm-version` does not have \
         is rejected, as in vLLM.\n\n",
    );
    for (name, remark) in ignored::ignored_flags_for_docs() {
        let _ = writeln!(out, "- `--{name}`{remark}");
    }
    out
}

fn markdown_flag_names(flag: &FlagSpec) -> String {
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

fn markdown_value_kind(flag: &FlagSpec) -> String {
    let what = match flag.kind {
        FlagKind::Switch => "switch".to_owned(),
        FlagKind::Int => "whole number".to_owned(),
        FlagKind::Count => "whole number, `32k`, `32K`".to_owned(),
        FlagKind::Float => "number".to_owned(),
        FlagKind::Duration => "duration; bare: ms".to_owned(),
        FlagKind::Seconds => "duration; bare: s".to_owned(),
        FlagKind::Text => "text".to_owned(),
        FlagKind::Path | FlagKind::Repeat => "path".to_owned(),
        FlagKind::Choice(words) => {
            words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" ")
        }
        FlagKind::List => "list".to_owned(),
        FlagKind::Json => "JSON".to_owned(),
    };
    match flag.ranges.map(|(llmd, vllm)| (describe_bounds(llmd), describe_bounds(vllm))) {
        None => what,
        Some((llmd, vllm)) if llmd == vllm => format!("{what}, {llmd}"),
        Some((llmd, vllm)) => format!("{what}, {llmd}; {vllm}"),
    }
}

/// Describes the bounds of a flag in words; an upper bound at the maximum of the type is omitted.
fn describe_bounds(range: FlagValueBounds) -> String {
    match range {
        FlagValueBounds::Whole(least, most) if most >= u32::MAX.into() => {
            format!("at least {least}")
        }
        FlagValueBounds::Whole(least, most) => format!("{least} to {most}"),
        FlagValueBounds::Number(least, most) if most >= 1e9 => format!("at least {least}"),
        FlagValueBounds::Number(f64::MIN_POSITIVE, most) => format!("more than 0, at most {most}"),
        FlagValueBounds::Number(least, most) => format!("{least} to {most}"),
    }
}

fn markdown_flag_defaults(flag: &FlagSpec) -> String {
    let show = |text: &str| {
        if text.is_empty() { "–".to_owned() } else { format!("`{text}`") }
    };
    let (llmd, vllm) = flag.defaults;
    if llmd == vllm { show(llmd) } else { format!("{}; {}", show(llmd), show(vllm)) }
}

fn escape_markdown(text: &str) -> String {
    text.replace('|', "\\|")
}
