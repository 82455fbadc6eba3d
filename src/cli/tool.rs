//! The subcommands that run offline: words in, a text out.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::shell;
use crate::config::{Door, TOOLS, load_known};
use crate::server;
use crate::tools::{dataset, dynamo_run, explain, record, validate};

/// Runs the tool `name` with the words behind it; the text is for standard output.
///
/// # Errors
/// What is wrong with the words, or what the tool says.
pub(super) fn run(
    name: &str,
    words: &[String],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<String> {
    match name {
        "dataset" => dataset::run(words, env),
        "validate" => run_validate(words),
        "replay" => run_replay(words),
        "explain" => run_explain(words, env),
        "record" => {
            super::start_plain_log();
            record::run(words, env, super::signalled())
        }
        "completions" => shell::completions(words),
        "man" => shell::man(words),
        _ => bail!(
            "`{name}` is not built yet; there are completions, dataset, explain, man, record, replay --dynamo-run, validate (of {})",
            TOOLS.join(", ")
        ),
    }
}

/// `--name value` or `--name=value` pairs, all of them known and needed once at most.
fn pairs(words: &[String], known: &[&str]) -> Result<Vec<Option<String>>> {
    let mut found: Vec<Option<String>> = vec![None; known.len()];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (flag, joined) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        let Some(place) = known.iter().position(|name| *name == flag) else {
            bail!("{word:?} is not known here; there are {}", known.join(", "));
        };
        let value = match joined {
            Some(value) => value,
            None => words
                .next()
                .cloned()
                .with_context(|| format!("{flag} needs a value"))?,
        };
        if found[place].replace(value).is_some() {
            bail!("{flag} is given twice");
        }
    }
    Ok(found)
}

fn run_validate(words: &[String]) -> Result<String> {
    let found = pairs(words, &["--runs", "--out"])?;
    let runs = found[0]
        .as_ref()
        .context("--runs DIR is needed: a folder of recorded runs")?;
    let out = found[1].as_ref().map(PathBuf::from);
    Ok(validate::validate(&PathBuf::from(runs), out.as_deref())?)
}

fn run_replay(words: &[String]) -> Result<String> {
    let found = pairs(words, &["--dynamo-run", "--report-json"])?;
    let dir = found[0]
        .as_ref()
        .context("--dynamo-run DIR is needed: a folder with args.json and its trace")?;
    let report = dynamo_run::dynamo_run(&PathBuf::from(dir))?;
    let json = serde_json::to_string_pretty(&report)?;
    match &found[1] {
        Some(file) => {
            std::fs::write(file, json).with_context(|| format!("cannot write {file}"))?;
            Ok(format!(
                "{} requests; report in {file}",
                report.per_request.len()
            ))
        }
        None => Ok(json),
    }
}

fn run_explain(words: &[String], env: &dyn Fn(&str) -> Option<String>) -> Result<String> {
    // As behind `serve`, the first loose word names the model.
    let mut words = words.to_vec();
    if words.first().is_some_and(|word| !word.starts_with('-')) {
        words.insert(0, "--model".to_owned());
    }
    let (loaded, rest) = load_known(&words, Door::Vllm, env)?;
    if let Some(word) = rest.first() {
        bail!("{word:?} is not known here; explain takes the flags of `vllm-sim serve`");
    }
    let (engine, setup) = server::modelled(&loaded.config)?;
    let utilization = loaded.config.engine.gpu_memory_utilization;
    let setup = setup.as_ref().map(|setup| (setup, utilization));
    Ok(explain::explain(&loaded.config.model.name, &engine, setup))
}
