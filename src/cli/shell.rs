//! Shell completions, manual pages and help texts.

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, Command, CommandFactory, value_parser};
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use super::tool::ValidatePredictionsArgs;
use super::{calibrate, check, healthcheck};
use vllm_sim_command_line::{UsageError, refuse};
use vllm_sim_config::{CliMode, TOOL_COMMANDS, clap_command, closest_known_name};
use vllm_sim_engine::latency;
use vllm_sim_plan::{plan, sweep};

/// Subcommands of vllm-sim other than its tools, for completion scripts.
const SERVER_COMMANDS: [&str; 4] = ["serve", "config", "launch", "version"];

const SUPPORTED_SHELLS: &str = "bash, elvish, fish, powershell, zsh";

/// Runs `completions SHELL`: returns the completion script of the shell.
///
/// # Errors
/// An unknown shell.
pub(super) fn shell_completion_script(words: &[String]) -> Result<String> {
    let [shell] = words else {
        refuse!("completions needs the name of a shell: {SUPPORTED_SHELLS}");
    };
    let Ok(shell) = shell.parse::<Shell>() else {
        let hint = closest_known_name(shell, SUPPORTED_SHELLS.split(", "));
        let hint = hint.map_or_else(String::new, |name| format!("; did you mean {name}?"));
        refuse!("unknown shell {shell:?}; supported are {SUPPORTED_SHELLS}{hint}");
    };
    let mut script = Vec::new();
    generate(shell, &mut program_clap_command(), "vllm-sim", &mut script);
    let script = String::from_utf8(script).context("the completion script")?;
    Ok(match shell {
        Shell::Bash => fix_bash_completion_script(&script),
        _ => script,
    })
}

/// Corrects the bash completion script that clap_complete wrote, and makes it offer commands before
/// flags.
///
/// The generator writes the program's hyphen in two ways, so that no branch of a command matches.
fn fix_bash_completion_script(script: &str) -> String {
    let script = script.replace("vllm__subcmd__sim", "vllm__sim");
    let commands: Vec<&str> = SERVER_COMMANDS.into_iter().chain(TOOL_COMMANDS).collect();
    let branch = "        vllm__sim)\n";
    let first = format!(
        "{branch}            if [[ ${{COMP_CWORD}} -eq 1 && ${{cur}} != -* ]] ; then\n\
         {0:16}COMPREPLY=( $(compgen -W \"{1}\" -- \"${{cur}}\") )\n\
         {0:16}return 0\n\
         {0:12}fi\n",
        "",
        commands.join(" "),
    );
    script.replacen(branch, &first, 1)
}

/// Runs `man [COMMAND…]`: returns the manual page of the program or of a command, as roff.
///
/// # Errors
/// An unknown command.
pub(super) fn tool_manual_page(words: &[String]) -> Result<String> {
    let mut command = program_clap_command();
    let mut name = "vllm-sim".to_owned();
    for word in words {
        let found = command.find_subcommand(word).cloned();
        command = found.ok_or_else(|| {
            UsageError(format!(
                "{word:?}: man takes the name of a command; try `vllm-sim man | man -l -`"
            ))
        })?;
        name = format!("{name}-{word}");
    }
    let mut page = Vec::new();
    let title = name.to_uppercase();
    Man::new(command.display_name(name)).title(title).section("1").render(&mut page)?;
    String::from_utf8(page).context("the manual page")
}

/// Flags on the help page of `explain`, a selection of all flags of `serve`.
const EXPLAIN_HELP_FLAGS: [&str; 14] = [
    "config",
    "gpu",
    "hf-config-path",
    "quantization",
    "kv-cache-dtype",
    "gpu-memory-utilization",
    "max-model-len",
    "max-num-seqs",
    "max-num-batched-tokens",
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "data-parallel-size",
    "enable-expert-parallel",
    "speculative-config",
];

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  vllm-sim explain meta-llama/Llama-3.1-70B-Instruct --gpu H100 --tensor-parallel-size 4
  vllm-sim explain --list

Every flag of `vllm-sim serve` is taken: `vllm-sim serve --help=all` lists them.";

/// Returns the help text of a tool that does not render its own help.
pub(super) fn tool_help_text(name: &'static str) -> String {
    let command = tool_clap_command(name).bin_name(format!("vllm-sim {name}"));
    let mut command = match name {
        "explain" => command
            .override_usage("vllm-sim explain [MODEL] [FLAGS]")
            .after_help(EXPLAIN_EXAMPLES)
            .mut_args(|arg| {
                let own = arg.get_help_heading().is_none();
                let shown = own || EXPLAIN_HELP_FLAGS.contains(&arg.get_id().as_str());
                arg.hide(!shown)
            }),
        "completions" => command.override_usage("vllm-sim completions SHELL"),
        _ => command.override_usage("vllm-sim man [COMMAND…]"),
    };
    command.render_help().to_string()
}

/// Returns the list of built-in models and GPUs that `explain --list` prints.
pub(super) fn list_builtin_models_and_gpus() -> String {
    let models: Vec<&str> = latency::known_model_names().collect();
    let gpus: Vec<String> = latency::KNOWN_GPUS
        .iter()
        .map(|gpu| format!("  {:<12} {:>6.1} GiB", gpu.name, gpu.memory_gib))
        .collect();
    format!(
        "Models (a repository is found by the part of its name, with FP8, AWQ and the like behind it):\n  {}\n\n\
         GPUs (--gpu):\n{}",
        models.join("\n  "),
        gpus.join("\n")
    )
}

/// Returns the long flag names of a tool of vllm-sim, without the flags of `serve`.
pub(super) fn long_flag_names_of_tool(name: &'static str) -> Vec<String> {
    let command = tool_clap_command(name);
    let commands = std::iter::once(&command).chain(command.get_subcommands());
    let names = commands.flat_map(Command::get_arguments).flat_map(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long().into_iter().chain(aliases)
    });
    names.map(str::to_owned).collect()
}

/// Returns the complete command line of vllm-sim: both modes of `serve`, and the tools.
fn program_clap_command() -> Command {
    let models = PossibleValuesParser::new(latency::known_model_names());
    let model =
        Arg::new("model_tag").value_name("MODEL").value_parser(models).hide_possible_values(true);
    let serve = |name: &'static str| {
        let flags = clap_command(CliMode::Vllm).name(name);
        flags.arg(model.clone())
    };
    let config = clap_command(CliMode::Llmd)
        .name("config")
        .about("Print the configuration and where it comes from")
        .subcommand(serve("serve"));
    let launch = Command::new("launch")
        .about("Serve a part of the API")
        .subcommand(serve("render").about("Serve tokenising and rendering only"));
    clap_command(CliMode::Llmd)
        .name("vllm-sim")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand(serve("serve"))
        .subcommand(config)
        .subcommand(launch)
        .subcommand(Command::new("version").about("Print the version"))
        .subcommands(TOOL_COMMANDS.map(tool_clap_command))
}

fn tool_clap_command(name: &'static str) -> Command {
    let command = match name {
        "replay" | "bench" => add_flags_of_serve(vllm_sim_replay_cli::replay_clap_command()),
        "sweep" => add_flags_of_serve(sweep::sweep_clap_command()),
        "plan" => add_flags_of_serve(plan::plan_clap_command()),
        "gateway" => vllm_sim_gateway_score::gateway_clap_command()
            .mut_subcommand("score", add_flags_of_serve),
        "calibrate" => add_flags_of_serve(calibrate::calibrate_clap_command()),
        "explain" => clap_command(CliMode::Vllm)
            .about("Explain the step times of a deployment")
            .arg(
                Arg::new("model_tag")
                    .value_name("MODEL")
                    .help("Model: a name that is built in, or a folder with config.json"),
            )
            .arg(
                Arg::new("list")
                    .long("list")
                    .action(ArgAction::SetTrue)
                    .help("List the models and GPUs that are built in"),
            ),
        "validate" => ValidatePredictionsArgs::command(),
        "healthcheck" => healthcheck::HealthcheckArgs::command(),
        "replies" => check::RepliesCommandArgs::command(),
        "scenario" => check::ScenarioCommandArgs::command(),
        #[cfg(feature = "sqlite")]
        "dataset" => vllm_sim_record::dataset::dataset_clap_command(),
        #[cfg(feature = "sqlite")]
        "record" => vllm_sim_record::record_clap_command(),
        "completions" => Command::new(name)
            .about("Print a script that completes the command line in a shell")
            .arg(Arg::new("shell").value_parser(value_parser!(Shell))),
        "man" => {
            Command::new(name).about("Print the manual page of the program or of a command").arg(
                Arg::new("command")
                    .num_args(0..)
                    .value_parser(PossibleValuesParser::new(
                        SERVER_COMMANDS.into_iter().chain(TOOL_COMMANDS),
                    ))
                    .hide_possible_values(true),
            )
        }
        _ => Command::new(name),
    };
    command.name(name)
}

/// Adds the flags of `serve` to a tool, except those with the name of a flag that the tool already
/// has.
fn add_flags_of_serve(own: Command) -> Command {
    let names: Vec<String> = own
        .get_arguments()
        .flat_map(|arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long().into_iter().chain(aliases)
        })
        .map(str::to_owned)
        .collect();
    let flags = clap_command(CliMode::Vllm);
    let free = |arg: &&Arg| {
        let name = arg.get_id().as_str();
        !names.iter().any(|known| known == name)
    };
    own.args(flags.get_arguments().filter(free).cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_completions() {
        program_clap_command().debug_assert();
        for (command, flag) in [
            ("serve", "max-num-seqs"),
            ("config", "max-num-seqs"),
            ("launch render", "max-num-seqs"),
            ("replay", "request-rate"),
            ("bench", "target"),
            ("sweep", "grid"),
            ("plan", "attainment"),
            ("gateway score", "replicas"),
            ("calibrate", "hold-out"),
            ("validate", "runs"),
            ("explain", "gpu"),
            ("record", "upstream"),
            ("dataset build", "hf-repo"),
            ("dataset inspect", "table-name"),
        ] {
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            let page = tool_manual_page(&words).unwrap();
            let shown = flag.replace('-', "\\-");
            assert!(page.contains(&shown), "{command}: --{flag}");
        }
        for tool in TOOL_COMMANDS {
            let page = tool_manual_page(&[tool.to_owned()]).unwrap();
            assert!(page.contains("DESCRIPTION"), "{tool}");
        }
        let script = shell_completion_script(&["bash".to_owned()]).unwrap();
        for flag in ["--hold-out", "--request-rate", "--grid", "--upstream", "--hf-repo"] {
            assert!(script.contains(flag), "{flag}");
        }
        assert!(tool_manual_page(&["nothing".to_owned()]).is_err());
    }

    #[test]
    fn completions_contain_the_values_of_every_choice() {
        use vllm_sim_config::{FlagKind, all_effective_flags};
        use vllm_sim_replay::load::WorkloadFormat;
        let script = shell_completion_script(&["zsh".to_owned()]).unwrap();
        let choices = all_effective_flags().filter_map(|flag| match flag.kind {
            FlagKind::Choice(words) => Some((flag.name, words.join(" "))),
            _ => None,
        });
        let formats = WorkloadFormat::NAMED_WORKLOAD_FORMATS.map(|(name, _)| name).join(" ");
        for (flag, words) in choices.chain([("format", formats)]) {
            let found = script
                .lines()
                .any(|line| line.contains(&format!("--{flag}=")) && line.contains(&words));
            assert!(found, "--{flag}: {words}");
        }
        for command in SERVER_COMMANDS.into_iter().chain(TOOL_COMMANDS) {
            assert!(script.contains(&format!("({command})")), "{command}");
        }
    }
}
