#![doc = include_str!("../README.md")]
//!
//! Implements `vllm-sim replay`: runs a workload against workers behind a router, in virtual time.

mod conflicts;
mod deploy;
mod online;
mod options;
mod pools;
mod scaling;
mod sink;
mod without_effect;
mod workload;

use std::io::Write;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::CommandFactory;
use serde_json::Value;

use vllm_sim_engine::SimTime;
use vllm_sim_replay::html;
use vllm_sim_replay::outcome::RequestOutcome;
use vllm_sim_replay::report::{self, ReplayReport, ReplayReportGroup};
use vllm_sim_replay::workload::WorkloadSource;
use vllm_sim_replay::{ArrivalPacing, PoolSpec, ReplaySettings};

pub use deploy::{
    DeploymentFactory, EngineDeployment, ResultProvenance, ServeFlagSplitter,
    StepTimeSettingSource, WeightsDoNotFitError,
};
pub use online::online_options_of_workload;
pub use options::{
    AdapterArgs, GenerationApiName, PoolArgs, ReportArgs, SyntheticArgs, WorkloadArgs,
    parse_args_and_serve_flags, split_known_args,
};
use options::{ReplayArgs, ReplayMode};
pub use pools::{WorkerPools, build_worker_pools};
pub use sink::OutcomeWatcher;
use sink::{create_report_sink, replay_run_totals};
use vllm_sim_command_line::metric_requirement::{self, MetricRequirement};
use vllm_sim_command_line::output_files::{self, AtomicFile};
use vllm_sim_command_line::progress::{JobProgress, is_job_stop_requested};
use vllm_sim_command_line::{MissedMetricRequirementsError, format_command_line, refuse};
use vllm_sim_dynamo_run as dynamo_run;
pub use without_effect::{UNMODELLED_ADAPTER_PARTS, warn_of_unmodelled_adapters};
pub use workload::{open_workload, parse_workload_text, simulated_time_limit};

/// Returns the clap command of `vllm-sim replay`.
pub fn replay_clap_command() -> clap::Command {
    ReplayArgs::command()
}

/// Runs `vllm-sim replay` with `args` and returns the text to print.
///
/// # Errors
/// Returns a message for the user if an argument is invalid or the replay fails.
pub fn run_replay_command(
    args: &[String],
    sort: ServeFlagSplitter<'_>,
    deploy: DeploymentFactory<'_>,
) -> Result<String> {
    let typed = format_command_line("replay", args);
    let (args, flags) = match parse_args_and_serve_flags::<ReplayArgs>(args, sort)? {
        Ok(parsed) => parsed,
        Err(help) => return Ok(help),
    };
    // Invalid requirements are refused before the run.
    parse_report_requirements(&args.report)?;
    let served = !args.online.target.is_empty();
    refuse_flags_without_effect(&args, &flags)?;
    if let Some(files) = &args.compare {
        return compare_report_files(files, &args.report, &typed);
    }
    match args.replay_mode {
        Some(ReplayMode::Online) if !served => refuse!("--replay-mode online needs --target URL"),
        Some(ReplayMode::Offline) if served => {
            refuse!("--replay-mode offline cannot be used with --target")
        }
        _ => {}
    }
    if served {
        let report = online::run_online_replay(&args.online, &args.workload, &args.report)?;
        let targets = ("--target".to_owned(), args.online.target.join(", "));
        let origin = ResultProvenance::from_step_time_source("measured on the servers of --target");
        return write_report(report, &args.report, (&[targets], &origin), &typed);
    }
    if args.dynamo_or_aisimulate_flag().is_some() {
        let (report, origin) = replay_run_of_others(&args)?;
        return write_report(report, &args.report, (&[], &origin), &typed);
    }
    let pools = build_worker_pools(&args.pools, &flags, deploy)?;
    let (mut source, pace) = open_workload(&args.workload, pools.serving.engines[0].block_size())?;
    let limit = simulated_time_limit(&args.workload)?;
    warn_of_unmodelled_adapters(&args.workload);
    let threads = args.threads.unwrap_or_else(available_cpu_cores);
    let progress_bar = JobProgress::begin_job("replay", "requests", source.facts().max_requests);
    let mut count_finished = |_: &RequestOutcome<'_>| {
        progress_bar.add_finished_work_units(1);
        ControlFlow::Continue(())
    };
    let mut report = replay_pools(
        &pools,
        source.as_mut(),
        (pace, limit, threads),
        &args.report,
        Some(&mut count_finished),
    )?;
    drop(progress_bar);
    workload::add_unused_trace_parts(&mut report, source.as_ref());
    write_report(report, &args.report, (&pools.about, &pools.provenance), &typed)
}

/// Refuses flags, such as `--target`, that have no effect in the kind of replay that the other
/// flags select.
fn refuse_flags_without_effect(args: &ReplayArgs, flags: &[String]) -> Result<()> {
    let served = !args.online.target.is_empty();
    for (flag, given) in [
        ("--compare", args.compare.is_some()),
        ("--dynamo-run", args.dynamo_run.is_some()),
        ("--aisimulate", args.aisimulate.is_some()),
        ("--target", served),
    ] {
        if given && let Some(word) = flags.iter().find(|word| word.starts_with('-')) {
            refuse!("{word}: no effect with {flag}, whose workers do not have these flags");
        }
    }
    for (flag, given) in args.report.single_run_file_flags() {
        if given && let Some(run) = args.dynamo_or_aisimulate_flag() {
            refuse!("{flag}: no effect with {run}, which writes a report only");
        }
    }
    if served && args.report.step_log.is_some() {
        refuse!("--step-log: no effect with --target; real servers do not report their steps");
    }
    if args.kernel_tables.is_some() && args.dynamo_or_aisimulate_flag().is_none() {
        refuse!("--kernel-tables: no effect without --dynamo-run or --aisimulate");
    }
    if args.report.gpu_hour_price.is_some()
        && (served || args.dynamo_or_aisimulate_flag().is_some())
    {
        refuse!("--gpu-hour-price: no effect because the number of GPUs is unknown");
    }
    Ok(())
}

/// Replays a run that another program describes: a folder of Dynamo's or a file of AISimulate's.
fn replay_run_of_others(args: &ReplayArgs) -> Result<(ReplayReport, ResultProvenance)> {
    let tables = args.kernel_tables.clone();
    let tables = tables.or_else(dynamo_run::python_env_kernel_table_folder);
    let (report, origin) = match (&args.dynamo_run, &args.aisimulate) {
        (Some(dir), _) => (
            dynamo_run::replay_dynamo_run(dir, tables.as_deref())?,
            "those of the recorded Dynamo run (--dynamo-run)",
        ),
        (None, Some(file)) => {
            let mut report = dynamo_run::replay_aisimulate_prediction(file, tables.as_deref())?;
            report.summary_at_top = true;
            (report, "those of the file of AISimulate (--aisimulate)")
        }
        (None, None) => bail!("no run is given"),
    };
    Ok((report, ResultProvenance::from_step_time_source(origin)))
}

fn available_cpu_cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Replays a workload against pools of workers on up to `threads` threads.
///
/// `watch` receives every finished request and may end the replay.
pub fn replay_pools<'a>(
    pools: &WorkerPools,
    source: &mut dyn WorkloadSource,
    (pace, limit, threads): (ArrivalPacing, Option<SimTime>, usize),
    args: &ReportArgs,
    watch: Option<&'a mut OutcomeWatcher<'a>>,
) -> Result<ReplayReport> {
    let interval = args.sample_interval_ms;
    if !interval.is_finite() || interval <= 0.0 {
        refuse!("--sample-interval-ms is {interval}, must be a number above 0");
    }
    if args.gpu_hour_price.is_some_and(|price| !price.is_finite() || price <= 0.0) {
        refuse!("--gpu-hour-price must be a number above 0");
    }
    let (mut serving, mut prefill) = (pools.serving.clone(), pools.prefill.clone());
    if args.step_log.is_some() {
        for pool in [Some(&mut serving), prefill.as_mut()].into_iter().flatten() {
            keep_step_logs(pool)?;
        }
    }
    let settings = ReplaySettings {
        prefill,
        pace,
        limit,
        seed: pools.seed,
        sample_every: (args.html.is_some()).then(|| Duration::from_secs_f64(interval / 1e3)),
        threads,
        ..ReplaySettings::new(serving)
    };
    let mut sink = create_report_sink(args, args.report_json.is_some(), watch)?;
    let totals = vllm_sim_replay::run_replay(&settings, source, &mut sink)?;
    if let Some(first) = totals.stuck.first()
        && !sink.ended
        && !is_job_stop_requested()
    {
        bail!(
            "{} sessions wait for a session that never ends; the first is {first}",
            totals.stuck.len()
        );
    }
    let mut report = sink.finish_report(&replay_run_totals(&settings, pools.gpus, &totals))?;
    if let Some(price) = args.gpu_hour_price {
        report.add_gpu_cost(price);
    }
    Ok(report)
}

/// Makes the engines of a worker pool record every step in step logs.
fn keep_step_logs(pool: &mut PoolSpec) -> Result<()> {
    for engine in &mut pool.engines {
        let Some(logging) = engine.clone().with_step_log() else {
            refuse!("--step-log: only the vLLM scheduler has a step log; use --scheduler vllm");
        };
        *engine = logging;
    }
    Ok(())
}

fn parse_report_requirements(args: &ReportArgs) -> Result<Vec<MetricRequirement>> {
    let read =
        |text: &String| MetricRequirement::parse_metric_requirement(text, "p99_ttft_ms<=500");
    args.require.iter().map(read).collect()
}

fn write_report(
    mut report: ReplayReport,
    args: &ReportArgs,
    (about, origin): (&[(String, String)], &ResultProvenance),
    typed: &str,
) -> Result<String> {
    report.run = Some(origin.provenance_json(typed));
    let mut json = Vec::new();
    if let Some(file) = &args.report_json {
        if file == "-" {
            report.write_report_json(&mut json)?;
        } else {
            let written = AtomicFile::open_for_atomic_write(file.as_ref()).and_then(|draft| {
                let mut out = std::io::BufWriter::new(draft.clone_temporary_file_handle()?);
                report.write_report_json(&mut out)?;
                out.flush()?;
                draft.rename_temporary_to_target()
            });
            written.with_context(|| format!("cannot write {file}"))?;
        }
    }
    if let Some(file) = &args.html {
        // The origin has the model and the GPU.
        let others = about.iter().filter(|(flag, _)| !["--model", "--gpu"].contains(&&**flag));
        let about: Vec<_> = origin.provenance_rows().into_iter().chain(others.cloned()).collect();
        output_files::write_atomically(
            file,
            html::render_report_page(&report, "vllm-sim replay", &about, typed),
        )?;
    }
    let printed = match args.report_json.as_deref() {
        Some("-") => String::from_utf8(json)?,
        _ => {
            let transfers = origin.kv_transfers.as_ref();
            let transfers = transfers.map(|time| format!("KV transfers take {time}\n"));
            report.render_report_table() + &transfers.unwrap_or_default()
        }
    };
    let is_empty = report.summary_number("completed_requests") == 0.0 && !is_job_stop_requested();
    let missed = match is_empty {
        true => Some("no request was completed".to_owned()),
        false => {
            let value = |required: &MetricRequirement| report.summary.get(&required.name)?.as_f64();
            metric_requirement::describe_missed_metric_requirements(
                &parse_report_requirements(args)?,
                value,
            )
        }
    };
    match missed {
        Some(missed) => Err(MissedMetricRequirementsError { printed, missed }.into()),
        None => Ok(printed),
    }
}

fn compare_report_files(words: &[String], args: &ReportArgs, typed: &str) -> Result<String> {
    let read = |path: &str| -> Result<Value> {
        let text = std::fs::read_to_string(path).with_context(|| format!("--compare: {path}"))?;
        serde_json::from_str(&text).with_context(|| format!("--compare: {path}"))
    };
    let groups = words.iter().map(|word| {
        let reports = word.split(',').map(read).collect::<Result<_>>()?;
        let name = word.clone();
        Ok(ReplayReportGroup { name, reports })
    });
    let groups: Vec<ReplayReportGroup> = groups.collect::<Result<_>>()?;
    let compared = report::compare_report_groups(&groups).map_err(anyhow::Error::msg)?;
    if let Some(file) = &args.html {
        output_files::write_atomically(file, html::render_comparison_page(&compared, typed))?;
    }
    Ok(compared.render_comparison_table())
}
