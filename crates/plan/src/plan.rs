//! Implements `vllm-sim plan`: finds the cheapest deployment that serves a workload within its
//! bounds.

mod bound;
mod deploy;
mod idle_worker;
mod page;
mod prices;
mod report;
mod search;

use std::borrow::Borrow;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{CommandFactory, Parser};

use crate::grid::{self, GridAxis, combination_label};
use crate::shard::{self, GridTask, ShardArgs};
use bound::LatencyPercentileBound;
use prices::GpuPrices;
use report::PlanReport;
use search::{DeploymentCandidate, PlanRequirements, SearchResult};
use vllm_sim_command_line::progress::{Progress, is_stopped};
use vllm_sim_command_line::{RequirementFailed, format_command_line, outputs, refuse};
use vllm_sim_config::ConfigError;
use vllm_sim_replay_cli::{
    DeploymentFactory, FlagSplitter, PoolArgs, ReportArgs, WorkerPools, WorkloadArgs,
    build_worker_pools, open_workload,
};

/// Find the cheapest deployment that serves a workload within its latency bounds.
///
/// Takes the flags of `vllm-sim replay`, and those of `vllm-sim serve` that describe one engine.
/// For every combination of --vary it searches the fewest workers with which enough requests are
/// good. It assumes that more workers are no worse.
#[derive(Debug, Parser)]
#[command(
    name = "vllm-sim plan",
    after_help = PLAN_HELP_EXAMPLES,
    no_binary_name = true,
    args_override_self = true
)]
struct Args {
    /// Flag of the deployment with the values to try: NAME=VALUE,VALUE,… (repeat it for all
    /// combinations of several flags). With --gpu the tensor-parallel sizes 1, 2, 4 and 8 are tried
    /// where none is named.
    #[arg(long, value_name = "NAME=VALUES", help_heading = "Plan")]
    vary: Vec<String>,
    /// Fraction of all requests that must be good, above 0 up to 1.
    #[arg(long, default_value_t = 0.95, help_heading = "Plan")]
    attainment: f64,
    /// Maximum number of GPUs of a deployment.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Plan")]
    max_gpus: u32,
    /// YAML file of GPU prices: `date`, `currency` and `gpu_hour: {H100: 2.5}`. Without it every
    /// GPU costs 1.
    #[arg(long, value_name = "FILE", help_heading = "Plan")]
    prices: Option<PathBuf>,
    /// Maximum cost of a deployment per hour, in the currency of --prices.
    #[arg(long, value_name = "MONEY", requires = "prices", help_heading = "Plan")]
    max_cost: Option<f64>,
    /// Upper bound of a percentile: METRIC-pPERCENT=MS with METRIC ttft, itl (single gaps between
    /// tokens), tpot (the mean gap of a request) or e2e, such as ttft-p99=500. Rounded up to a
    /// quarter of a percent. Repeat it for several bounds.
    #[arg(long, value_name = "BOUND", help_heading = "Plan")]
    bound: Vec<LatencyPercentileBound>,
    /// Find the highest traffic that this number of workers serves, instead of the fewest workers.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Plan")]
    fixed_workers: Option<u32>,
    /// Write Helm values for this program's chart that simulate the cheapest deployment.
    #[arg(long, value_name = "FILE", conflicts_with = "fixed_workers", help_heading = "Plan")]
    helm_values: Option<PathBuf>,
    /// Number of combinations to simulate in parallel; the results do not depend on it.
    #[arg(long, default_value_t = 1, help_heading = "Plan")]
    threads: usize,
    #[command(flatten)]
    shard: ShardArgs,
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    pools: PoolArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// Returns the clap command of `plan`.
pub fn plan_command() -> clap::Command {
    Args::command()
}

/// Runs `vllm-sim plan` with the arguments `args` and returns the text to print.
///
/// # Errors
/// Returns a message for the user, with the flags of the combination that failed.
pub fn run_plan(
    args: &[String],
    sort: FlagSplitter<'_>,
    deploy: DeploymentFactory<'_>,
) -> Result<String> {
    let base: Args = match grid::parse_base_args(args, sort)? {
        Ok(base) => base,
        Err(help) => return Ok(help),
    };
    check_args(&base)?;
    let mut axes = grid::parse_grid_axes("--vary", &base.vary)?;
    if let Some(axis) = axes.iter().find(|axis| axis.name == "num-workers") {
        let name = &axis.name;
        refuse!(
            "--vary {name}: not allowed, because plan searches for the number of workers; see \
             --fixed-workers"
        );
    }
    let searched = tensor_parallel_axis(args, &base, &axes);
    let searches_tensor = searched.is_some();
    if searches_tensor && axes.is_empty() {
        // An error of the workload has nothing to do with the searched size.
        open_workload(&base.workload, 16)?;
    }
    axes.extend(searched);
    let prices = base.prices.as_deref().map(GpuPrices::read_file).transpose()?;
    let candidates = grid::axis_value_combinations(&axes)
        .into_iter()
        .map(|values| build_candidate(args, &axes, values, prices.as_ref(), sort, deploy))
        // vLLM refuses a searched size that does not divide the attention heads.
        .filter(|candidate| {
            !(searches_tensor && candidate.as_ref().is_err_and(is_head_divisibility_error))
        })
        .collect::<Result<Vec<_>>>()?;
    let question = PlanRequirements {
        attainment: base.attainment,
        max_gpus: base.max_gpus,
        max_cost: base.max_cost,
        bounds: base.bound.clone(),
        fixed_workers: base.fixed_workers,
    };
    let common = format_command_line("plan", &shard::command_common_to_shards(args));
    let answers = match base.shard.grid_task()? {
        GridTask::All => search_candidates(&candidates, base.threads, &question)?,
        GridTask::Merge(files) => shard::merge_shard_files(&common, &files, candidates.len())?,
        GridTask::Shard(shard) => {
            let mine: Vec<&DeploymentCandidate> = shard.points_of_shard(&candidates).collect();
            let answers = search_candidates(&mine, base.threads, &question)?;
            return shard.write_results(&common, &answers, base.report.report_json.as_deref());
        }
    };
    let names = axes.into_iter().map(|axis| axis.name).collect();
    let typed = format_command_line("plan", &shard::command_without_shards(args));
    let plan = PlanReport::new(names, question, prices, &candidates, answers, typed)?;
    let printed = write_plan(&plan, &base)?;
    match plan.has_answer() {
        true => Ok(printed),
        // The exit code tells scripts whether a deployment was found.
        false => {
            Err(RequirementFailed { printed, missed: "no deployment meets the bounds".to_owned() }
                .into())
        }
    }
}

fn search_candidates<C>(
    candidates: &[C],
    threads: usize,
    question: &PlanRequirements,
) -> Result<Vec<SearchResult>>
where
    C: Borrow<DeploymentCandidate> + Sync,
{
    let progress_bar = Progress::begin("plan", "combinations", Some(candidates.len() as u64));
    let answers = grid::map_in_parallel(candidates, threads, |candidate: &C| {
        let answer = search::search_candidate(candidate.borrow(), question);
        progress_bar.add_finished(1);
        // The result of an interrupted search means nothing.
        match is_stopped() {
            true => Ok(search::empty_result("stopped".to_owned())),
            false => answer,
        }
    });
    answers.into_iter().collect()
}

fn check_args(args: &Args) -> Result<()> {
    let share = args.attainment;
    if !(share > 0.0 && share <= 1.0) {
        refuse!("--attainment is {share}, must be above 0 and at most 1");
    }
    if !args.report.latency_slo()?.has_any_bound() && args.bound.is_empty() {
        refuse!("a plan needs a bound: --slo-ttft-ms, --slo-itl-ms or --slo-e2e-ms, or --bound");
    }
    if args.max_cost.is_some_and(|cost| !cost.is_finite() || cost <= 0.0) {
        refuse!("--max-cost must be a number above 0");
    }
    for (flag, given) in [
        ("--workers", args.pools.workers.is_some()),
        ("--scale", args.pools.scale.is_some()),
        ("--autoscale-max", args.pools.autoscale_max.is_some()),
        ("--lose-workers", args.pools.lose_workers.is_some()),
        ("--per-request", args.report.per_request.is_some()),
        ("--require", !args.report.require.is_empty()),
    ] {
        if given {
            refuse!("{flag} cannot be used with plan, which changes the number of workers");
        }
    }
    if args.report.gpu_hour_price.is_some() {
        refuse!("--gpu-hour-price cannot be used with plan; use --prices");
    }
    if args.pools.num_workers != 1 {
        refuse!(
            "--num-workers: not allowed, because plan searches for the number of workers; see \
             --fixed-workers"
        );
    }
    if args.fixed_workers.is_some() && args.workload.replay_concurrency.is_some() {
        refuse!(
            "--fixed-workers cannot be used with --replay-concurrency, whose traffic depends on \
             the workers"
        );
    }
    Ok(())
}

/// Returns the tensor-parallel sizes to search, if a GPU is given and the command line sets no
/// size.
fn tensor_parallel_axis(words: &[String], args: &Args, axes: &[GridAxis]) -> Option<GridAxis> {
    const FLAG: &str = "tensor-parallel-size";
    let is_typed = |name: &str, short: &str| {
        let long = format!("--{name}");
        let typed = words.iter().any(|word| {
            let flag = word.split('=').next().unwrap_or(word);
            flag.replace('_', "-") == long || (!short.is_empty() && flag == short)
        });
        typed || axes.iter().any(|axis| axis.name == name)
    };
    let is_searched = is_typed("gpu", "")
        && !is_typed(FLAG, "-tp")
        && args.fixed_workers.is_none()
        && args.pools.pool_flags.is_none();
    let sizes = [1, 2, 4, 8].into_iter().filter(|size| *size <= args.max_gpus);
    is_searched.then(|| GridAxis {
        name: FLAG.to_owned(),
        values: sizes.map(|size| size.to_string()).collect(),
    })
}

/// Returns whether a tensor-parallel size is refused because it does not divide the attention heads.
fn is_head_divisibility_error(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<ConfigError>();
    error
        .is_some_and(|error| matches!(error.without_warnings(), ConfigError::UndividedHeads { .. }))
}

fn build_candidate(
    args: &[String],
    axes: &[GridAxis],
    values: Vec<String>,
    prices: Option<&GpuPrices>,
    sort: FlagSplitter<'_>,
    deploy: DeploymentFactory<'_>,
) -> Result<DeploymentCandidate> {
    let names: Vec<&str> = axes.iter().map(|axis| axis.name.as_str()).collect();
    let place = || combination_label(&names, &values);
    let build = |args: &Args, flags: &[String]| build_worker_pools(&args.pools, flags, deploy);
    let (args, pools) = grid::parse_grid_point(args, axes, &values, sort, build)?;
    // Report errors of the workload before any run, also if the model does not fit.
    let block_size = match &pools {
        Ok(pools) => pools.serving.engines[0].block_size(),
        Err(_) => 16,
    };
    open_workload(&args.workload, block_size)
        .map_err(|error| grid::with_point_label(&place(), error))?;
    let price = match (&pools, prices) {
        (Ok(pools), Some(prices)) => {
            let price = prices.hourly_price_of(gpu_name(pools));
            price.map_err(|error| grid::with_point_label(&place(), error))?
        }
        _ => 1.0,
    };
    Ok(DeploymentCandidate {
        workload: args.workload,
        report: ReportArgs {
            report_json: None,
            html: None,
            no_per_request: Some(true),
            ..args.report
        },
        pools,
        price,
        values,
    })
}

fn gpu_name(pools: &WorkerPools) -> Option<&str> {
    let about = pools.about.iter();
    about.rev().find(|(name, _)| name == "--gpu").map(|(_, gpu)| gpu.as_str())
}

fn write_plan(plan: &PlanReport, args: &Args) -> Result<String> {
    if let Some(file) = &args.helm_values {
        match plan.helm_values() {
            Some(values) => outputs::write_atomically(file, values)?,
            None => bail!(
                "--helm-values: no deployment meets the bounds, so there are no values to write"
            ),
        }
    }
    if let Some(file) = &args.report.html {
        outputs::write_atomically(file, page::html_page(plan))?;
    }
    if let Some(file) = &args.report.report_json {
        let text = serde_json::to_string_pretty(&plan.to_json())?;
        if file == "-" {
            return Ok(text);
        }
        outputs::write_atomically(file.as_ref(), text)?;
    }
    Ok(plan.text_table())
}

/// Commands to begin with, below the help text.
const PLAN_HELP_EXAMPLES: &str = "\
Examples:\n\
\x20 vllm-sim plan --model meta-llama/Llama-3.1-8B-Instruct --gpu H100 \\\n\
\x20     --workload \"20 req/s of 2k/300\" --slo-ttft-ms 500\n\
\x20 vllm-sim plan --model meta-llama/Llama-3.1-70B-Instruct --vary gpu=H100,H200 \\\n\
\x20     --prices prices.yaml --workload \"20 req/s of 2k/300\" --bound ttft-p95=500";
