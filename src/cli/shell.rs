//! What a shell and `man` want to know of the command line.

use anyhow::{Context, Result, bail};
use clap::Command;
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use vllm_sim_config::{CliMode, TOOLS, clap_command};

const SHELLS: &str = "bash, elvish, fish, powershell, zsh";

/// `completions SHELL`: a script that the shell reads.
///
/// # Errors
/// A shell that is not known.
pub(super) fn completions(words: &[String]) -> Result<String> {
    let [shell] = words else {
        bail!("completions needs the name of a shell: {SHELLS}");
    };
    let Ok(shell) = shell.parse::<Shell>() else {
        bail!("{shell:?} is no shell that is known here; there are {SHELLS}");
    };
    let mut script = Vec::new();
    generate(shell, &mut program(), "vllm-sim", &mut script);
    String::from_utf8(script).context("the completion script")
}

/// `man`: the manual page, as roff.
///
/// # Errors
/// Words behind it.
pub(super) fn man(words: &[String]) -> Result<String> {
    if let Some(word) = words.first() {
        bail!("{word:?}: man takes nothing; try `vllm-sim man | man -l -`");
    }
    let mut page = Vec::new();
    Man::new(program())
        .title("VLLM-SIM")
        .section("1")
        .render(&mut page)?;
    String::from_utf8(page).context("the manual page")
}

/// The whole command line: both doors and the tools.
fn program() -> Command {
    let tools = TOOLS.into_iter().map(Command::new);
    clap_command(CliMode::Llmd)
        .name("vllm-sim")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand(clap_command(CliMode::Vllm).name("serve"))
        .subcommand(clap_command(CliMode::Llmd).name("config"))
        .subcommands(tools)
}
