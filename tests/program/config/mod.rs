//! Configuration: what was typed → what is served. No server starts here.

#![expect(clippy::unwrap_used, reason = "helpers of tests: what cannot be unwrapped is a failure")]

mod chart;
mod cli_modes;
mod devices;
mod flags;
mod layers;
mod llmd_table;
mod messages;
mod offload;
mod printed;
mod shapes;
mod sources;
mod warnings;

use vllm_sim_config::{Config, ConfigError, LoadedConfig, ParsedCommand, load_config};

/// An environment of these variables.
fn env<'a>(vars: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
    move |name| {
        let found = vars.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    }
}

fn try_words(words: &[&str], vars: &[(&str, &str)]) -> Result<LoadedConfig, ConfigError> {
    let args: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    match load_config(&args, &env(vars))? {
        ParsedCommand::Serve(loaded) | ParsedCommand::Config(loaded) => Ok(*loaded),
        other => panic!("a configuration was expected, not {other:?}"),
    }
}

/// `vllm-sim --model m` with these words.
fn sim(words: &[&str]) -> Config {
    let words = [&["vllm-sim", "--model", "m"], words].concat();
    try_words(&words, &[]).unwrap().config
}

/// `vllm-sim serve m` with these words.
fn serve(words: &[&str]) -> Config {
    let words = [&["vllm-sim", "serve", "m"], words].concat();
    try_words(&words, &[]).unwrap().config
}

/// Why `vllm-sim --model m` with these words is refused.
fn refusal(words: &[&str]) -> String {
    let words = [&["vllm-sim", "--model", "m"], words].concat();
    try_words(&words, &[]).unwrap_err().to_string()
}

/// Cuts a command line as a shell would, single quotes only.
fn shell(line: &str) -> Vec<String> {
    let mut words = vec![];
    let mut word = None::<String>;
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '\'' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            c if c.is_whitespace() && !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}
