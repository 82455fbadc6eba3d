//! `vllm-sim replies check` and `vllm-sim scenario check`: read files that a server would, without a
//! server.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use vllm_sim_command_line::{self as command_line, UsageError};
use vllm_sim_config::{LoadedConfig, ParsedCommand};
use vllm_sim_engine::duration;
use vllm_sim_service::scenario::{FaultScenario, ScenarioError, ScenarioPhaseLength};
use vllm_sim_service::scripted::ReplyRules;

/// Check files of scripted replies, as `--replies` takes them.
#[derive(Debug, Parser)]
#[command(name = "vllm-sim replies", no_binary_name = true, after_help = REPLIES_EXAMPLE)]
pub(super) struct RepliesCommandArgs {
    #[command(subcommand)]
    command: FileCommand,
}

/// Check files of scenarios, as `--scenario` takes them.
#[derive(Debug, Parser)]
#[command(name = "vllm-sim scenario", no_binary_name = true, after_help = SCENARIO_EXAMPLE)]
pub(super) struct ScenarioCommandArgs {
    #[command(subcommand)]
    command: FileCommand,
}

#[derive(Debug, Subcommand)]
enum FileCommand {
    /// Read the given YAML files, and print the rules or phases in them, or the first error.
    Check {
        /// YAML files to check.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
}

/// Checks files of scripted replies; returns a line for each rule.
///
/// # Errors
/// The first file that cannot be read or that has a wrong rule.
pub(super) fn check_scripted_reply_files(words: &[String]) -> Result<String> {
    let FileCommand::Check { files } =
        match command_line::parse_tool_args::<RepliesCommandArgs>(words)? {
            Ok(args) => args.command,
            Err(help) => return Ok(help),
        };
    check_files(&files, |text| {
        let rules = ReplyRules::from_yaml(text).map_err(|error| error.to_string())?;
        let mut lines = vec![format!("{} rules", rules.len())];
        lines.extend(
            (0..rules.len()).map(|index| format!("  [{index}] {}", rules.rule_json(index))),
        );
        Ok(lines.join("\n"))
    })
}

/// Checks files of scenarios, with the settings of their phases; returns a line for each phase.
///
/// # Errors
/// The first file that cannot be read or that has a wrong phase.
pub(super) fn check_scenario_files(words: &[String]) -> Result<String> {
    let FileCommand::Check { files } =
        match command_line::parse_tool_args::<ScenarioCommandArgs>(words)? {
            Ok(args) => args.command,
            Err(help) => return Ok(help),
        };
    let server = ["vllm-sim", "--model=demo"].map(str::to_owned);
    let ParsedCommand::Serve(server) = vllm_sim_config::load_config(&server, &|_| None)? else {
        return Err(UsageError("these flags start no server".to_owned()).into());
    };
    check_files(&files, |text| describe_scenario(text, &server))
}

fn describe_scenario(text: &str, server: &LoadedConfig) -> Result<String, String> {
    let scenario = FaultScenario::from_yaml(text).map_err(|error| error.to_string())?;
    let rounds = match scenario.repeat {
        0 => "for ever".to_owned(),
        1 => "once".to_owned(),
        times => format!("{times} times"),
    };
    let count = scenario.phases.len();
    let mut lines = vec![format!("scenario {}, {count} phases, {rounds}", scenario.name)];
    for (index, phase) in scenario.phases.iter().enumerate() {
        let parts = phase.replicas.values().map(|part| &part.set);
        for set in parts.chain([&phase.set]) {
            server.with_admin_update(set).map_err(|error| {
                ScenarioError::error_in_phase(index, &phase.name, error).to_string()
            })?;
        }
        let length = match phase.length {
            ScenarioPhaseLength::Time(time) => duration::format_go_duration(time),
            ScenarioPhaseLength::Requests(requests) => format!("{requests} requests"),
            ScenarioPhaseLength::Open => "until it is ended".to_owned(),
        };
        let set = serde_json::Value::from(phase.set.clone());
        let (actions, replicas) = (phase.actions.len(), phase.replicas.len());
        lines.push(format!(
            "  [{index}] {}: {length}, set {set}, {actions} actions, parts of {replicas} replicas",
            phase.name
        ));
    }
    Ok(lines.join("\n"))
}

/// Reads each given file, and returns a line with its name and the result of `check` for its text.
fn check_files(
    files: &[PathBuf],
    check: impl Fn(&str) -> Result<String, String>,
) -> Result<String> {
    let checked = files.iter().map(|file: &PathBuf| {
        let shown = Path::display(file);
        let text = std::fs::read_to_string(file).with_context(|| shown.to_string())?;
        let text = check(&text).map_err(|why| UsageError(format!("{shown}: {why}")))?;
        Ok(format!("{shown}: {text}"))
    });
    let checked: Result<Vec<String>> = checked.collect();
    Ok(checked?.join("\n"))
}

const REPLIES_EXAMPLE: &str = "\
Examples:\n\
\x20 vllm-sim replies check replies.yaml";

const SCENARIO_EXAMPLE: &str = "\
Examples:\n\
\x20 vllm-sim scenario check storm.yaml";
