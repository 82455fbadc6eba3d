//! The subcommands that run offline: words in, a text out.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::shell;
use crate::server;
use crate::tools::replay::Deployment;
#[cfg(feature = "sqlite")]
use crate::tools::{dataset, record};
use crate::tools::{explain, replay, sweep, validate};
use vllm_sim_config::{CliMode, LatencySource, SchedulerKind, Source, TOOLS, load_known};

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
        #[cfg(feature = "sqlite")]
        "dataset" => dataset::run(words, env),
        #[cfg(not(feature = "sqlite"))]
        "dataset" | "record" => bail!("{name}: {}", server::without("sqlite")),
        "calibrate" => super::calibrate::run(words, env),
        "validate" => run_validate(words),
        // One workload player: against engines of its own, or as a client of real servers.
        "bench" if !words.iter().any(|word| word.starts_with("--target")) => {
            bail!(
                "--target URL is needed: `bench` is `replay --target URL`, with its workload flags"
            )
        }
        "replay" | "bench" => {
            super::start_plain_log();
            let sort = |words: &[String]| sort(words, env);
            replay::run(words, &sort, &|words| deploy(words, env))
        }
        "sweep" => {
            super::start_plain_log();
            let sort = |words: &[String]| sort(words, env);
            sweep::run(words, &sort, &|words| deploy(words, env))
        }
        "explain" => run_explain(words, env),
        #[cfg(feature = "sqlite")]
        "record" => {
            super::start_plain_log();
            record::run(words, env, super::signalled())
        }
        "completions" => shell::completions(words),
        "man" => shell::man(words),
        _ => bail!("there is no tool `{name}`; there are {}", TOOLS.join(", ")),
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

/// Separates flags of `serve` from loose words.
fn sort(
    words: &[String],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(Vec<String>, Vec<String>)> {
    let (_, rest) = load_known(words, CliMode::Vllm, env)?;
    if let Some(word) = rest.iter().find(|word| word.starts_with('-')) {
        bail!("{word:?} is neither a flag of this command (see --help) nor of `vllm-sim serve`");
    }
    Ok((words.to_vec(), rest))
}

/// The engine that flags of `serve` describe. Without any step times it takes Dynamo's polynomial:
/// virtual time that stands still tells nothing.
fn deploy(words: &[String], env: &dyn Fn(&str) -> Option<String>) -> Result<Deployment> {
    let (mut loaded, _) = load_known(words, CliMode::Vllm, env)?;
    let engine = &loaded.config.engine;
    let timeless = engine.latency_source == LatencySource::Delays
        && engine.scheduler != SchedulerKind::Pool
        && engine.delays.ttft.0.is_zero()
        && engine.delays.itl.0.is_zero()
        && engine.delays.prefill_overhead.is_zero()
        && engine.delays.prefill_per_token.is_zero();
    if timeless {
        let mut words = words.to_vec();
        words.push("--latency-model=polynomial".to_owned());
        (loaded, _) = load_known(&words, CliMode::Vllm, env)?;
    }
    let config = &loaded.config;
    let parallel = &config.engine.parallel;
    let typed = loaded.effective.iter();
    let typed = typed.filter(|flag| !matches!(flag.source, Source::Default | Source::Derived));
    let about = typed.map(|flag| (format!("--{}", flag.name), flag.values.join(" ")));
    Ok(Deployment {
        engine: server::engine_spec(config)?,
        gpus: parallel.tensor * parallel.pipeline,
        seed: config.content.seed.unwrap_or(0),
        about: about.collect(),
    })
}

fn run_explain(words: &[String], env: &dyn Fn(&str) -> Option<String>) -> Result<String> {
    // As behind `serve`, the first loose word names the model.
    let mut words = words.to_vec();
    if words.first().is_some_and(|word| !word.starts_with('-')) {
        words.insert(0, "--model".to_owned());
    }
    let (loaded, rest) = load_known(&words, CliMode::Vllm, env)?;
    if let Some(word) = rest.first() {
        bail!("{word:?} is not known here; explain takes the flags of `vllm-sim serve`");
    }
    let (engine, setup) = server::modelled(&loaded.config)?;
    let utilization = loaded.config.engine.gpu_memory_utilization;
    let setup = setup.as_ref().map(|setup| (setup, utilization));
    Ok(explain::explain(&loaded.config.model.name, &engine, setup))
}
