//! Runs the subcommands that start no server, such as `explain` and `validate`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Parser;
use parking_lot::Mutex;

use super::{check, healthcheck, shell};
use crate::server::{self, ServerFleet, StartError};
use vllm_sim_calibrate::validate;
use vllm_sim_command_line::{
    self as command_line, MissedMetricRequirementsError, UsageError, output_files, refuse,
};
use vllm_sim_config::{
    CliMode, FlagSpec, FlagValueSource, LoadedConfig, ParsedCommand, SchedulerKind,
    StepLatencySource, TOOL_COMMANDS, all_effective_flags, load_config_and_unknown_args,
    load_single_engine_config, mask_url_passwords, nearest_engine_flag_name,
};
use vllm_sim_engine::latency::RooflineCoefficients;
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_explain as explain;
use vllm_sim_gateway_score::{StartPodsFuture, StopPodsFuture};
use vllm_sim_plan::{plan, sweep};
use vllm_sim_replay_cli::{
    self as replay, EngineDeployment, ResultProvenance, StepTimeSettingSource, WeightsDoNotFitError,
};

/// Tools with a log on standard error.
const LOGGING_TOOLS: [&str; 8] =
    ["validate", "replay", "bench", "sweep", "plan", "gateway", "explain", "record"];

/// Runs the tool `name` of vllm-sim with its arguments; returns the text for standard output.
///
/// # Errors
/// An error in the arguments, or an error of the tool.
pub(super) fn run_tool_command(
    name: &'static str,
    words: &[String],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<String> {
    // The other tools render their own help.
    let plain = ["explain", "completions", "man"].contains(&name);
    let asks = |word: &String| matches!(word.as_str(), "-h" | "--help");
    if plain && words.iter().any(asks) {
        return Ok(shell::tool_help_text(name));
    }
    // These two do not overwrite files.
    if !["record", "dataset"].contains(&name) && !words.iter().any(asks) {
        output_files::check_output_file_conflicts(words, env)?;
    }
    // Simulations in virtual time stop early with their partial result.
    let online = words.iter().any(|word| word.starts_with("--target"));
    if ["replay", "sweep", "plan", "validate"].contains(&name) && !online {
        super::signals::finish_tool_early_on_interrupt();
    }
    let sort = |words: &[String]| split_serve_flags(name, words, env);
    let build = |words: &[String]| build_deployment(words, env);
    if LOGGING_TOOLS.contains(&name) {
        super::log::start_default_log();
    }
    match name {
        #[cfg(feature = "sqlite")]
        "dataset" => vllm_sim_record::dataset::run_dataset_command(words, env),
        #[cfg(not(feature = "sqlite"))]
        "dataset" | "record" => bail!("{name}: {}", server::feature_not_built_message("sqlite")),
        "calibrate" => super::calibrate::run_calibrate(words, env),
        "validate" => run_validate(words),
        // The same tool replays a workload on simulated engines or against real servers.
        "bench" if !words.iter().any(|word| word.starts_with("--target") || asks(word)) => {
            refuse!(
                "--target URL is needed: `bench` is `replay --target URL`, with its workload flags"
            )
        }
        "replay" | "bench" => replay::run_replay_command(words, &sort, &build),
        "sweep" => sweep::run_sweep_command(words, &sort, &build),
        "plan" => plan::run_plan_command(words, &sort, &build),
        "gateway" => {
            let serve = |words: &[String]| load_server_config(words, env).map(start_fleet);
            vllm_sim_gateway_score::run_gateway_command(words, &sort, &build, &serve)
        }
        "explain" => run_explain(words, env),
        #[cfg(feature = "sqlite")]
        "record" => vllm_sim_record::run_record_command(
            words,
            env,
            super::signals::wait_for_termination_signal(),
        ),
        "completions" => shell::shell_completion_script(words),
        "replies" => check::check_scripted_reply_files(words),
        "scenario" => check::check_scenario_files(words),
        "healthcheck" => healthcheck::run_healthcheck(words, env),
        "man" => shell::tool_manual_page(words),
        _ => bail!("there is no tool `{name}`; known are {}", TOOL_COMMANDS.join(", ")),
    }
}

/// Predict recorded runs, and say how far off the predictions are.
#[derive(Debug, Parser)]
#[command(name = "vllm-sim validate", no_binary_name = true, after_help = TOOL_HELP_EXAMPLES)]
pub(super) struct ValidatePredictionsArgs {
    /// A folder of recorded runs.
    #[arg(long, value_name = "DIR")]
    runs: PathBuf,
    /// Folder for a JSON file of each prediction.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Constants of the roofline, in YAML or JSON, as `serve` takes them.
    #[arg(long, value_name = "FILE")]
    latency_coefficients: Option<PathBuf>,
    /// Take kernel times from NVIDIA's tables in this folder (an installed aiconfigurator-core or
    /// aisimulate) and the overheads from the roofline; runs that are not in them are left out.
    #[arg(long, value_name = "DIR")]
    aic_data: Option<PathBuf>,
    /// Write runs, predictions and errors as JSON; -: to standard output, instead of the table.
    #[arg(long, value_name = "FILE", alias = "report-json")]
    json: Option<PathBuf>,
    /// Write a page: predicted and measured latencies, errors by group, other simulators' errors.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn run_validate(words: &[String]) -> Result<String> {
    match command_line::parse_tool_args::<ValidatePredictionsArgs>(words)? {
        Ok(args) => {
            let file = args.latency_coefficients.as_deref();
            let coefficients = file
                .map_or(Ok(RooflineCoefficients::default()), server::read_latency_coefficients)?;
            if let Some(folder) = &args.out {
                let shown = folder.display();
                std::fs::create_dir_all(folder).with_context(|| format!("cannot write {shown}"))?;
            }
            let validation = validate::validate_recorded_runs(
                &args.runs,
                &coefficients,
                args.aic_data.as_deref(),
            )?;
            if let Some(folder) = &args.out {
                for run in &validation.runs {
                    let file = folder.join(format!("{}.json", run.id));
                    let text = serde_json::to_string_pretty(&run.predicted)? + "\n";
                    output_files::write_atomically(&file, text)?;
                }
            }
            if let Some(file) = &args.html {
                let typed = command_line::format_command_line("validate", words);
                output_files::write_atomically(file, validation.render_validation_page(&typed))?;
            }
            if let Some(file) = &args.json {
                let text =
                    serde_json::to_string_pretty(&validation.validation_report_json())? + "\n";
                if file.as_os_str() == "-" {
                    return Ok(text);
                }
                output_files::write_atomically(file, text)?;
            }
            let printed = validation.render_prediction_error_table();
            if validation.runs.is_empty() {
                let missed = "no run can be predicted".to_owned();
                return Err(MissedMetricRequirementsError { printed, missed }.into());
            }
            Ok(printed)
        }
        Err(help) => Ok(help),
    }
}

/// Separates the flags of `serve` from the positional arguments of a tool.
fn split_serve_flags(
    tool: &'static str,
    words: &[String],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(Vec<String>, Vec<String>)> {
    let (_, rest) = load_single_engine_config(words, CliMode::Vllm, env)?;
    if let Some(word) = rest.iter().find(|word| word.starts_with('-')) {
        return Err(unknown_flag_error(tool, word).into());
    }
    Ok((words.to_vec(), rest))
}

/// Returns the error for a flag that neither the tool nor `serve` accepts.
pub(super) fn unknown_flag_error(tool: &'static str, word: &str) -> UsageError {
    let typed = word.split('=').next().unwrap_or(word);
    let typed = typed.trim_start_matches('-').replace('_', "-");
    let hint = match nearest_engine_flag_name(&typed, &shell::long_flag_names_of_tool(tool)) {
        Some(name) => format!("; did you mean --{name}?"),
        None => String::new(),
    };
    UsageError(format!(
        "{word:?} is neither a flag of {tool} (see --help) nor of `vllm-sim serve`{hint}"
    ))
}

/// Returns the explicitly set flags of `serve` that are not secret, with their values.
pub(super) fn explicitly_set_engine_flags(
    loaded: &LoadedConfig,
) -> impl Iterator<Item = (&'static FlagSpec, &[String])> {
    let typed = all_effective_flags().zip(&loaded.resolved_flags).filter(|(flag, value)| {
        !flag.secret && !matches!(value.source, FlagValueSource::Default | FlagValueSource::Derived)
    });
    typed.map(|(flag, value)| (flag, &value.values[..]))
}

/// Returns the deployment that flags of `serve` describe.
///
/// Without configured step times the deployment uses Dynamo's polynomial, because zero latency
/// gives no result.
fn build_deployment(
    words: &[String],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<EngineDeployment> {
    let mut flags = words.to_vec();
    let (mut loaded, _) = load_single_engine_config(&flags, CliMode::Vllm, env)?;
    let engine = &loaded.config.engine;
    let timeless = engine.timing.latency_source == StepLatencySource::Delays
        && engine.scheduler != SchedulerKind::Pool
        && engine.timing.delays.ttft.0.is_zero()
        && engine.timing.delays.itl.0.is_zero()
        && engine.timing.delays.prefill_overhead.is_zero()
        && engine.timing.delays.prefill_per_token.is_zero();
    if timeless {
        flags.push("--latency-model=polynomial".to_owned());
        (loaded, _) = load_single_engine_config(&flags, CliMode::Vllm, env)?;
    }
    warn_once(&loaded.without_effect);
    let config = &loaded.config;
    let parallel = &config.engine.parallel;
    let typed = explicitly_set_engine_flags(&loaded).map(|(flag, values)| {
        let values = mask_url_passwords(&values.join(" "));
        (format!("--{}", flag.name), values)
    });
    let mut about: Vec<(String, String)> = typed.collect();
    // `auto` that shortens the context counts as derived, but the deployment needs the flag.
    let mut resolved = loaded.resolved_flags.iter();
    if resolved.any(|flag| flag.name == "max-model-len" && flag.rule.is_some()) {
        about.push(("--max-model-len".to_owned(), "auto".to_owned()));
    }
    let step_times = match timeless {
        true => StepTimeSettingSource::Default,
        false => StepTimeSettingSource::Configured,
    };
    let provenance = provenance(config, step_times);
    let engine = server::engine_spec(config).map_err(|error| match error {
        StartError::DoesNotFit(why) => {
            WeightsDoNotFitError { why, about: about.clone(), provenance: provenance.clone() }
                .into()
        }
        other => anyhow::Error::from(other),
    })?;
    Ok(EngineDeployment {
        engine,
        gpus: parallel.world_size(),
        ranks: match config.engine.lock_step || parallel.expert {
            true => parallel.data.max(1),
            false => 1,
        },
        kv_transfer: server::kv_fetch_times(config),
        evidence: deployment_evidence(config),
        step_times,
        seed: config.content.seed.unwrap_or(0),
        about,
        warnings: loaded.without_effect.clone(),
        provenance,
        flags,
    })
}

/// Returns model, GPU and source of the step times of a configuration.
fn provenance(config: &vllm_sim_config::Config, origin: StepTimeSettingSource) -> ResultProvenance {
    let engine = &config.engine;
    let gpu = engine.gpu.clone();
    let shown = gpu.as_deref().unwrap_or("the default GPU");
    let fitted = |file: &Option<PathBuf>| match file {
        Some(file) => format!("coefficients of {}", file.display()),
        None => "built-in coefficients".to_owned(),
    };
    let polynomial = "the polynomial of Dynamo's mocker";
    let step_times = match &engine.timing.latency_source {
        StepLatencySource::Delays => "delays of the flags".to_owned(),
        StepLatencySource::Polynomial if origin == StepTimeSettingSource::Default => {
            format!("{polynomial}, because no flag sets step times")
        }
        StepLatencySource::Polynomial => polynomial.to_owned(),
        StepLatencySource::Profile(file) => format!("measured times in {}", file.display()),
        StepLatencySource::Roofline { coefficients } => {
            format!("roofline of {shown}, {}", fitted(coefficients))
        }
        StepLatencySource::Aic(tables) => {
            let folder = tables.folder.as_ref();
            let folder = folder.map_or_else(
                || "the Python environment".to_owned(),
                |folder| folder.display().to_string(),
            );
            format!("NVIDIA's kernel tables for {shown} in {folder}")
        }
    };
    ResultProvenance {
        model: Some(config.model.name.clone()),
        gpu,
        step_times,
        vllm_version: Some(config.model.vllm_version.as_str().to_owned()),
        kv_transfers: None,
    }
}

/// Logs each warning about a setting without effect, unless it was logged before.
///
/// A search describes many engines with the same flags.
fn warn_once(without_effect: &[String]) {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    for text in without_effect {
        if WARNED.lock().insert(text.clone()) {
            tracing::warn!("{text}");
        }
    }
}

fn start_fleet(loaded: LoadedConfig) -> StartPodsFuture {
    Box::pin(async move {
        let fleet = ServerFleet::start_all_servers(loaded).await?;
        Ok(Box::pin(fleet.shut_down_all_servers()) as StopPodsFuture)
    })
}

/// Returns the prediction errors known from measured deployments like that of `config`, or the
/// reason why none are known.
fn deployment_evidence(
    config: &vllm_sim_config::Config,
) -> Result<explain::DeploymentPredictionEvidence, &'static str> {
    match config.engine.scheduler {
        SchedulerKind::Vllm => {}
        SchedulerKind::Sglang => return Err("it simulates SGLang, and vLLM was recorded"),
        SchedulerKind::Pool => return Err(explain::NO_ROOFLINE_REASON),
    }
    let built = server::batching_engine_config(config);
    let (engine, setup) = built.map_err(|_| "its engine does not start")?;
    let weights = setup.as_ref().map(|setup| setup.shape.quantization.scheme);
    let flags = explain::unmeasured_setting_flags(&config.engine, weights.unwrap_or_default());
    explain::prediction_evidence_for_engine(&engine, setup.as_ref())
        .map(|known| known.with_unmeasured_settings(&flags))
}

/// Returns the configuration of the servers that `serve` would start with the flags `words`.
fn load_server_config(
    words: &[String],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<LoadedConfig> {
    let typed = ["vllm-sim", "serve"].map(str::to_owned);
    match vllm_sim_config::load_config(&[&typed[..], words].concat(), env)? {
        ParsedCommand::Serve(loaded) => Ok(*loaded),
        _ => bail!("these flags start no server"),
    }
}

fn run_explain(words: &[String], env: &dyn Fn(&str) -> Option<String>) -> Result<String> {
    if words.iter().any(|word| word == "--list") {
        return Ok(shell::list_builtin_models_and_gpus());
    }
    let typed = command_line::format_command_line("explain", words);
    // The first positional argument is the model, as in `serve`.
    let mut words = words.to_vec();
    if words.first().is_some_and(|word| !word.starts_with('-')) {
        words.insert(0, "--model".to_owned());
    }
    let (loaded, rest) = load_config_and_unknown_args(&words, CliMode::Vllm, env)?;
    if let Some(word) = rest.first() {
        return Err(unknown_flag_error("explain", word).into());
    }
    let model = loaded.resolved_flags.iter().find(|flag| flag.name == "model");
    let is_named = model.is_some_and(|model| model.source != FlagValueSource::Derived);
    if !is_named && loaded.config.model.hf_config.is_none() {
        let hint = "such as `vllm-sim explain meta-llama/Llama-3.1-8B-Instruct --gpu H100`";
        return Err(UsageError(format!("which model? Name one, {hint}")).into());
    }
    warn_once(&loaded.without_effect);
    let (mut engine, setup) = server::batching_engine_config(&loaded.config)?;
    // `explain` does not wait for ranks of other processes.
    engine.lock_step &= loaded.config.engine.parallel.local_ranks.1 > 1;
    let sampling = server::default_sampling(&loaded.config).because;
    let utilization = loaded.config.engine.memory.gpu_memory_utilization;
    let evidence = deployment_evidence(&loaded.config);
    let setup =
        setup.as_ref().map(|setup| (setup, utilization, evidence.as_ref().map_err(|why| *why)));
    let derived = loaded.resolved_flags.iter().filter_map(|setting| {
        Some(explain::DerivedEngineSetting {
            flag: setting.name,
            value: setting.values.first()?,
            rule: setting.rule.as_deref()?,
        })
    });
    let derived: Vec<_> = derived.collect();
    let name = &loaded.config.model.name;
    let caches = explain::EngineCacheSizes {
        kv: loaded.config.engine.kv_cache.as_ref(),
        host: loaded.config.engine.kv_offload.as_ref(),
        encoder: loaded.config.engine.encoder.as_ref(),
    };
    let is_sglang = loaded.config.engine.scheduler == SchedulerKind::Sglang;
    let spec = is_sglang.then(|| server::engine_spec(&loaded.config)).transpose()?;
    let sglang = match &spec {
        Some(SchedulerSpec::Sglang(sglang)) => Some(&**sglang),
        _ => None,
    };
    let caches = (caches, sglang);
    let text = explain::explain_engine_as_text(name, &engine, setup, &sampling, &derived, caches);
    Ok(text + &explained_run(&loaded.config, &typed))
}

/// Returns the last section of `explain`: GPU, source of the step times, versions and command line.
fn explained_run(config: &vllm_sim_config::Config, typed: &str) -> String {
    let mut rows = provenance(config, StepTimeSettingSource::Configured).provenance_rows();
    rows.push(("Command".to_owned(), typed.to_owned()));
    let shown = |(name, _): &(String, String)| name != "Model";
    let lines = rows.iter().filter(|row| shown(row));
    let lines = lines.map(|(name, value)| format!("{name:<14}  {value}\n"));
    format!("\nRun\n\n{}", lines.collect::<String>())
}

/// Example commands below the help text of a tool.
const TOOL_HELP_EXAMPLES: &str = "\
Examples:\n\
\x20 vllm-sim validate --runs recorded --html accuracy.html";
