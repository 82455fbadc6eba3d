//! Selects the command and the command-line mode from the program's name and its first argument.

use std::path::Path;

use super::cli_mode::CliMode;
use super::did_you_mean::closest_known_name;
use super::error::{ConfigError, bail};
use super::imitated_engine::{ImitatedEngineCommandLine, OTHER_COMMAND_LINES, select_command_line};
use vllm_sim_observe::metrics::MetricsCompat;

/// Names of the commands of vllm-sim that parse their own arguments.
pub const TOOL_COMMANDS: [&str; 15] = [
    "replay",
    "bench",
    "calibrate",
    "dataset",
    "record",
    "validate",
    "explain",
    "sweep",
    "plan",
    "gateway",
    "replies",
    "scenario",
    "completions",
    "healthcheck",
    "man",
];

/// Names of the commands that take this crate's flags as arguments.
const FLAG_COMMANDS: [&str; 5] = ["serve", "launch", "config", "version", "help"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CliCommandAction {
    Serve,
    Config,
    Version,
    Help,
    LaunchHelp,
    Tool(&'static str),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct CliCommandInvocation<'a> {
    pub(super) action: CliCommandAction,
    /// Command-line mode; `None`: taken from the configuration.
    pub(super) cli_mode: Option<CliMode>,
    pub(super) compat: Option<MetricsCompat>,
    pub(super) takes_model: bool,
    pub(super) render: bool,
    /// Whether the command `version` prints only the version, as `vllm --version` does.
    pub(super) called_vllm: bool,
    pub(super) words: &'a [String],
}

/// Name of the environment variable whose value replaces the program's name, for container images
/// without a command.
const PROGRAM_NAME_VARIABLE: &str = "VLLM_SIM_PROGRAM";
const PROGRAM_NAMES: [&str; 4] = ["vllm-sim", "vllm", "llm-d-inference-sim", "dataset-tool"];

/// Returns the program name in the environment variable [`PROGRAM_NAME_VARIABLE`], if any.
///
/// # Errors
/// [`ConfigError::Value`] for a program name that is not in [`PROGRAM_NAMES`].
pub(super) fn program_name_from_env(
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<String>, ConfigError> {
    match env(PROGRAM_NAME_VARIABLE).filter(|name| !name.is_empty()) {
        Some(name) if !PROGRAM_NAMES.contains(&name.as_str()) => Err(ConfigError::Value {
            flag: PROGRAM_NAME_VARIABLE.to_owned(),
            value: name,
            expected: format!("one of {}", PROGRAM_NAMES.join(", ")),
            origin: "environment".to_owned(),
        }),
        name => Ok(name),
    }
}

/// Selects the command and the command-line mode from the program's name and first argument; if the
/// program's name is `vllm-sim`, `named` replaces it.
///
/// # Errors
/// [`ConfigError::Unknown`] for a command that does not exist.
pub(super) fn parse_command_invocation<'a>(
    args: &'a [String],
    named: Option<&str>,
) -> Result<CliCommandInvocation<'a>, ConfigError> {
    let (program, words) = match args {
        [] => ("vllm-sim", args),
        [program, words @ ..] => (file_name_of_program(program), words),
    };
    parse_command_word(named.filter(|_| program == "vllm-sim").unwrap_or(program), words)
}

fn parse_command_word<'a>(
    program: &str,
    words: &'a [String],
) -> Result<CliCommandInvocation<'a>, ConfigError> {
    let called_vllm = program == "vllm";
    let compat = (program == "llm-d-inference-sim").then_some(MetricsCompat::Llmd);
    let entry = |action, cli_mode, words| CliCommandInvocation {
        action,
        cli_mode,
        compat,
        takes_model: cli_mode == Some(CliMode::Vllm),
        render: false,
        called_vllm,
        words,
    };
    if program == "dataset-tool" {
        return Ok(entry(CliCommandAction::Tool("dataset"), None, words));
    }
    let serve = |words| entry(CliCommandAction::Serve, Some(CliMode::Vllm), words);
    let other = |action, (own, words): (&ImitatedEngineCommandLine, _)| CliCommandInvocation {
        action,
        compat: Some(own.compat),
        takes_model: false,
        ..serve(words)
    };
    let Some((first, rest)) = words.split_first() else {
        let action = if called_vllm { CliCommandAction::Help } else { CliCommandAction::Serve };
        return Ok(entry(action, None, words));
    };
    if let Some(tool) = TOOL_COMMANDS.into_iter().find(|tool| tool == first) {
        return Ok(entry(CliCommandAction::Tool(tool), None, rest));
    }
    if let Some(selected) = select_command_line(words) {
        return Ok(other(CliCommandAction::Serve, selected));
    }
    match (first.as_str(), rest) {
        ("serve", _) => Ok(serve(rest)),
        ("launch", _) => parse_launch(rest, serve),
        // `python3 -m vllm.entrypoints.cli.main serve …`: how `vllm-rs` starts its engine.
        ("-m", [module, rest @ ..]) if module == "vllm.entrypoints.cli.main" => {
            parse_command_word("vllm", rest)
        }
        // `python3 -m vllm.entrypoints.openai.api_server …`, where `python3` is this program.
        ("-m", [module, rest @ ..]) if module.starts_with("vllm.") => Ok(serve(rest)),
        ("config", [serve, rest @ ..]) if serve == "serve" => {
            Ok(entry(CliCommandAction::Config, Some(CliMode::Vllm), rest))
        }
        ("config", _) => Ok(match select_command_line(rest) {
            Some(selected) => other(CliCommandAction::Config, selected),
            None => entry(CliCommandAction::Config, None, rest),
        }),
        ("version", _) => Ok(entry(CliCommandAction::Version, None, rest)),
        ("help", [what, ..]) if matches!(what.as_str(), "-V" | "--version") => {
            Ok(entry(CliCommandAction::Version, None, &[]))
        }
        ("help", [what, ..]) if what == "launch" => {
            Ok(entry(CliCommandAction::LaunchHelp, None, &[]))
        }
        ("help", [what, ..]) if what == "serve" => {
            Ok(entry(CliCommandAction::Help, Some(CliMode::Vllm), &[]))
        }
        ("help", _) => Ok(entry(CliCommandAction::Help, None, rest)),
        ("-v" | "-V", []) if called_vllm => Ok(entry(CliCommandAction::Version, None, rest)),
        (word, _) if word.starts_with('-') && called_vllm => Ok(serve(words)),
        (word, _) if word.starts_with('-') => Ok(entry(CliCommandAction::Serve, None, words)),
        // llm-d-inference-sim ignores positional words.
        _ if compat.is_some() => Ok(entry(CliCommandAction::Serve, None, words)),
        (word, _) => {
            let others = OTHER_COMMAND_LINES.into_iter().map(|own| own.command);
            let names = FLAG_COMMANDS.into_iter().chain(others).chain(TOOL_COMMANDS);
            Err(ConfigError::Unknown {
                what: "command".to_owned(),
                name: word.to_owned(),
                nearest: closest_known_name(word, names).map(str::to_owned),
            })
        }
    }
}

/// Parses the arguments after the command `launch`; the function `serve` parses arguments of `vllm
/// serve`.
fn parse_launch<'a>(
    words: &'a [String],
    serve: impl Fn(&'a [String]) -> CliCommandInvocation<'a>,
) -> Result<CliCommandInvocation<'a>, ConfigError> {
    let show =
        |action| CliCommandInvocation { action, cli_mode: None, takes_model: false, ..serve(&[]) };
    let [what, rest @ ..] = words else {
        bail!("launch needs the part of the API to serve: launch render");
    };
    match what.as_str() {
        "render" => Ok(CliCommandInvocation { render: true, ..serve(rest) }),
        "-V" | "--version" => Ok(show(CliCommandAction::Version)),
        "-h" | "--help" => Ok(show(CliCommandAction::LaunchHelp)),
        _ => Err(ConfigError::Unknown {
            what: "part of the API".to_owned(),
            name: what.clone(),
            nearest: Some("launch render".to_owned()),
        }),
    }
}

fn file_name_of_program(program: &str) -> &str {
    Path::new(program)
        .file_name()
        .and_then(|name| name.to_str())
        .map_or(program, |name| name.strip_suffix(".exe").unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter_words(line: &str) -> (CliCommandAction, Option<CliMode>, Vec<String>) {
        let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let entry = parse_command_invocation(&args, None).unwrap();
        (entry.action, entry.cli_mode, entry.words.to_vec())
    }

    #[test]
    fn the_first_argument_and_the_program_name_select_the_mode() {
        let vllm = Some(CliMode::Vllm);
        for (line, action, cli_mode, rest) in [
            ("vllm-sim --model x", CliCommandAction::Serve, None, "--model x"),
            ("/usr/bin/vllm-sim serve x", CliCommandAction::Serve, vllm, "x"),
            ("vllm serve x --port 1", CliCommandAction::Serve, vllm, "x --port 1"),
            ("vllm launch render x", CliCommandAction::Serve, vllm, "x"),
            ("vllm --version", CliCommandAction::Serve, vllm, "--version"),
            ("vllm-sim config --port 1", CliCommandAction::Config, None, "--port 1"),
            ("vllm-sim config serve x", CliCommandAction::Config, vllm, "x"),
            ("vllm bench serve", CliCommandAction::Tool("bench"), None, "serve"),
            ("llm-d-inference-sim --model x", CliCommandAction::Serve, None, "--model x"),
            (
                "vllm-sim -m vllm.entrypoints.openai.api_server --model x",
                CliCommandAction::Serve,
                vllm,
                "--model x",
            ),
            (
                "vllm-sim -m vllm.entrypoints.cli.main serve x --headless",
                CliCommandAction::Serve,
                vllm,
                "x --headless",
            ),
        ] {
            let (got, got_mode, words) = enter_words(line);
            assert_eq!((got, got_mode), (action, cli_mode), "{line}");
            assert_eq!(words.join(" "), rest, "{line}");
        }
    }

    #[test]
    fn an_unknown_command_suggests_the_nearest_one() {
        let args = ["vllm-sim", "sevre", "x"].map(str::to_owned);
        let error = parse_command_invocation(&args, None).unwrap_err().to_string();
        assert_eq!(error, "unknown command sevre; did you mean serve?");
    }
}
