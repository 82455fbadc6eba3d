//! `vllm-sim calibrate`: fits a latency profile for `--config` to measured runs.

use std::path::PathBuf;

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};

use super::tool::{explicitly_set_engine_flags, unknown_flag_error};
use crate::server;
use vllm_sim_calibrate::{self as calibrate, CalibrateOptions};
use vllm_sim_command_line::{UsageError, output_files, refuse};
use vllm_sim_config::{
    CliMode, EngineConfig, LoadedConfig, SchedulerKind, load_single_engine_config,
};
use vllm_sim_engine::latency::RooflineCoefficients;
use vllm_sim_replay::load::WorkloadFormat;

const CALIBRATE_HELP: &str = "\
Usage: vllm-sim calibrate --data FILE… [--out FILE] [options] [flags of `vllm-sim serve`]
       vllm-sim calibrate --runs DIR [--out FILE] [options]

Fits the coefficients of the roofline to measured runs, by replaying the runs through the
simulated scheduler, and writes a profile for --config.

  --data FILE…        Results of vllm bench serve, guidellm, inference-perf or aiperf, points of
                      InferenceX, reports of vllm-sim, or a CSV with a row per request. All must be
                      runs of the deployment that the flags of `serve` describe: give --model, --gpu
                      and all other flags that the server had.
  --format NAME       Format of the files [auto]
  --runs DIR          Recorded runs that each describe their deployment (as for `validate`)
  --front-end-ms MS   Time that a single request spends outside the engine (HTTP, tokenizer,
                      response): its TTFT less one step. Without this flag the time is fitted from
                      first tokens, which also include the queue and the step.
  --hold-out NAME,…   Runs to predict but not to fit
  --fit NAME,…        Coefficients to fit [those that the runs determine]
  --profile-of NAME   With runs of several deployments: write the profile of this run's deployment
  --max-requests N    Maximum number of requests to simulate per stage [all]
  --threads N         Number of threads [one per core]; results do not depend on it
  --out FILE          File of the profile [standard output, after the report]
";

/// Maximum value of `--front-end-ms` of `vllm-sim calibrate`, in milliseconds.
const MAX_FRONT_END_MS: f64 = 10_000.0;

pub(super) fn calibrate_clap_command() -> Command {
    let options = CALIBRATE_HELP.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("  --")?.split_once(' ')?;
        let (value, help) = rest.split_once("  ")?;
        let arg = Arg::new(name).long(name).value_name(value.trim());
        let arg = match name {
            "format" => {
                let names = WorkloadFormat::NAMED_WORKLOAD_FORMATS.map(|(name, _)| name);
                arg.value_parser(PossibleValuesParser::new(names)).hide_possible_values(true)
            }
            _ => arg,
        };
        Some(arg.help(help.trim()))
    });
    Command::new("calibrate")
        .about("Fit the coefficients of the roofline to measured runs")
        .args(options)
}

#[derive(Default)]
struct CalibrateArgs {
    data: Vec<PathBuf>,
    format: WorkloadFormat,
    runs: Option<PathBuf>,
    out: Option<PathBuf>,
    options: CalibrateOptions,
    help: bool,
    rest: Vec<String>,
}

fn parse_front_end_ms_as_us(text: &str) -> Result<f64, UsageError> {
    let ms: Option<f64> = text.parse().ok();
    let ms = ms.filter(|ms| (0.0..=MAX_FRONT_END_MS).contains(ms));
    ms.map(|ms| ms * 1e3).ok_or_else(|| {
        let allowed = format!("a number from 0 to {MAX_FRONT_END_MS}");
        UsageError(format!("--front-end-ms is {text:?}, must be {allowed}"))
    })
}

fn parse_calibrate_args(words: &[String]) -> Result<CalibrateArgs> {
    let mut typed = CalibrateArgs::default();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let (flag, joined) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        let mut value = || {
            let next = joined.clone().or_else(|| words.next().cloned());
            next.ok_or_else(|| UsageError(format!("{flag} needs a value")))
        };
        let list = |text: String| text.split(',').map(str::to_owned).collect();
        let count = |text: String| -> Result<usize> {
            let n: Option<usize> = text.parse().ok().filter(|n| *n > 0);
            Ok(n.ok_or_else(|| {
                UsageError(format!("{flag} is {text:?}, must be a whole number above 0"))
            })?)
        };
        match flag {
            "--data" => {
                typed.data.push(value()?.into());
                while let Some(more) = words.next_if(|word| !word.starts_with('-')) {
                    typed.data.push(more.into());
                }
            }
            "--format" => {
                let read = value()?.parse();
                typed.format = read.map_err(|text| UsageError(format!("--format: {text}")))?;
            }
            "--runs" => typed.runs = Some(value()?.into()),
            "--out" => typed.out = Some(value()?.into()),
            "--front-end-ms" => {
                typed.options.front_end_us = Some(parse_front_end_ms_as_us(&value()?)?);
            }
            "--fit" => typed.options.fit = list(value()?),
            "--hold-out" => typed.options.hold_out = list(value()?),
            "--profile-of" => typed.options.profile_of = Some(value()?),
            "--max-requests" => typed.options.max_requests = Some(count(value()?)?),
            "--threads" => typed.options.threads = count(value()?)?,
            "--help" | "-h" => typed.help = true,
            _ => typed.rest.push(word.clone()),
        }
    }
    Ok(typed)
}

pub(super) fn run_calibrate(
    words: &[String],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<String> {
    let typed = parse_calibrate_args(words)?;
    if typed.help {
        return Ok(CALIBRATE_HELP.to_owned());
    }
    let (fitted, base, deployment) = match (&typed.runs, typed.data.is_empty()) {
        (Some(_), false) => refuse!("--data and --runs cannot be used together"),
        (None, true) => refuse!("--data FILE… or --runs DIR is needed; see --help"),
        (Some(folder), true) => {
            if let Some(word) = typed.rest.first() {
                refuse!(
                    "unknown argument {word:?}: with --runs, the recorded runs describe their \
                     deployments"
                );
            }
            let fitted = calibrate::fit_roofline_to_recorded_runs(folder, &typed.options)?;
            (fitted, with_measured_front_end(RooflineCoefficients::default(), &typed), Vec::new())
        }
        (None, false) => {
            let (loaded, rest) = load_single_engine_config(&typed.rest, CliMode::Vllm, env)?;
            if let Some(word) = rest.first() {
                return Err(unknown_flag_error("calibrate", word).into());
            }
            check_fitted_engine(&loaded.config.engine)?;
            let (engine, setup) = server::batching_engine_config(&loaded.config)?;
            let Some(setup) = setup else {
                refuse!(
                    "calibrate fits the roofline: name --gpu, and a --model whose config.json is \
                     known"
                );
            };
            let fitted = calibrate::fit_roofline_to_result_files(
                &typed.data,
                typed.format,
                (&engine, &setup),
                &typed.options,
            )?;
            let base = with_measured_front_end(setup.coefficients, &typed);
            (fitted, base, deployment_description(&loaded))
        }
    };
    let profile = calibrate::fitted_config_yaml(&fitted, &base, &deployment);
    let Some(file) = &typed.out else {
        return Ok(format!("{fitted}\n{profile}"));
    };
    output_files::write_atomically(file, profile)?;
    Ok(format!("{fitted}\nprofile in {}", file.display()))
}

/// Refuses settings that the fit would replace, or that it does not simulate.
fn check_fitted_engine(engine: &EngineConfig) -> Result<()> {
    if engine.scheduler != SchedulerKind::Vllm {
        refuse!("--scheduler must be vllm, because calibrate replays the runs through vLLM's");
    }
    for (flag, ratio) in [
        ("--speedup-ratio", engine.speedup.speedup_ratio),
        ("--decode-speedup-ratio", engine.speedup.decode_speedup_ratio),
    ] {
        if ratio != 1.0 {
            refuse!(
                "{flag} is {ratio}, must be 1, because calibrate fits the times of a real server"
            );
        }
    }
    Ok(())
}

fn with_measured_front_end(
    mut base: RooflineCoefficients,
    typed: &CalibrateArgs,
) -> RooflineCoefficients {
    if let Some(us) = typed.options.front_end_us {
        base.front_end_us = us;
    }
    base
}

/// Returns the explicitly set flags by which a fitted latency profile describes its deployment, as
/// names and YAML values.
fn deployment_description(loaded: &LoadedConfig) -> Vec<(String, String)> {
    let own = ["config", "latency-coefficients", "port", "host"];
    let typed = explicitly_set_engine_flags(loaded)
        .filter(|(flag, values)| !values.is_empty() && !own.contains(&flag.name));
    let quoted = |text: &String| serde_json::Value::String(text.clone()).to_string();
    let pairs = typed.map(|(flag, values)| {
        let value = match values {
            [one] => quoted(one),
            many => format!("[{}]", many.iter().map(quoted).collect::<Vec<_>>().join(", ")),
        };
        (flag.name.to_owned(), value)
    });
    pairs.collect()
}
