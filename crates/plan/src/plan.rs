//! Implements `vllm-sim plan`: finds the cheapest deployment that serves a workload within its
//! bounds.

mod answer;
mod bound;
mod context;
mod deploy;
mod idle_worker;
mod layout;
mod manifests;
mod page;
mod pareto;
mod picture;
mod prices;
mod reliability;
mod report;
mod search;
mod trial_reasons;
mod warnings;
mod worker_count;

use std::ops::ControlFlow;
use std::path::PathBuf;

use anyhow::Result;
use clap::{CommandFactory, Parser};

use crate::grid::{self, FlagGridAxis, flag_combination_label};
use crate::shard::{self, FlagGridRun, FlagGridShardArgs};
use layout::{ParallelLayout, ParallelLayoutSearch};
use manifests::DeploymentFiles;
use prices::{GpuPrices, HourlyGpuPrices};
use report::PlanReport;
use search::{DeploymentCandidate, PlanRequirements};
use vllm_sim_command_line::{
    MissedMetricRequirementsError, format_command_line, output_files, refuse,
};
use vllm_sim_replay_cli::{
    DeploymentFactory, PoolArgs, ReportArgs, ServeFlagSplitter, StepTimeSettingSource,
    WeightsDoNotFitError, WorkloadArgs, build_worker_pools, open_workload,
    parse_args_and_serve_flags, split_known_args,
};

/// Find the cheapest deployment that serves a workload within its latency bounds.
///
/// Takes the flags of `vllm-sim replay`, and those of `vllm-sim serve` that describe one engine.
/// With --gpu, no flag of parallelism and no --fixed-workers it tries tensor-parallel sizes, data and
/// expert parallelism of models with experts, and workers of their own for prefill and decode. For
/// each it searches the fewest workers with which enough requests are good. It assumes that more
/// workers are no worse.
#[derive(Debug, Parser)]
#[command(
    name = "vllm-sim plan",
    after_help = PLAN_HELP_EXAMPLES,
    no_binary_name = true,
    args_override_self = true
)]
struct Args {
    /// Flag of the deployment with the values to try: NAME=VALUE,VALUE,… (repeat it for all
    /// combinations of several flags). A flag of parallelism here or elsewhere replaces the search
    /// for the best one.
    #[arg(long, value_name = "NAME=VALUES", help_heading = "Plan")]
    vary: Vec<String>,
    #[command(flatten)]
    question: PlanRequirements,
    /// Write Helm values for this program's chart that simulate the cheapest deployment.
    #[arg(long, value_name = "FILE", conflicts_with = "fixed_workers", help_heading = "Plan")]
    helm_values: Option<PathBuf>,
    /// Write files into this folder with which Kubernetes, the vLLM production stack, llm-d and
    /// KServe run the cheapest deployment with vLLM. The folder is made if it does not exist. Files of
    /// an earlier plan are replaced; other files of these names are refused.
    #[arg(
        long,
        value_name = "FOLDER",
        conflicts_with_all = ["fixed_workers", "shard"],
        help_heading = "Plan"
    )]
    deploy_dir: Option<PathBuf>,
    /// Number of combinations to simulate in parallel; the results do not depend on it.
    #[arg(long, default_value_t = 1, help_heading = "Plan")]
    threads: usize,
    #[command(flatten)]
    shard: FlagGridShardArgs,
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    pools: PoolArgs,
    #[command(flatten)]
    report: ReportArgs,
}

/// Returns the clap command of `plan`.
pub fn plan_clap_command() -> clap::Command {
    Args::command()
}

/// Runs `vllm-sim plan` with the arguments `args` and returns the text to print.
///
/// # Errors
/// Returns a message for the user, with the flags of the combination that failed.
pub fn run_plan_command(
    args: &[String],
    sort: ServeFlagSplitter<'_>,
    deploy: DeploymentFactory<'_>,
) -> Result<String> {
    let (base, flags) = match parse_args_and_serve_flags::<Args>(args, sort)? {
        Ok(parsed) => parsed,
        Err(help) => return Ok(help),
    };
    check_args(&base)?;
    let axes = grid::parse_grid_axes("--vary", &base.vary)?;
    if let Some(axis) = axes.iter().find(|axis| axis.name == "num-workers") {
        let name = &axis.name;
        refuse!(
            "--vary {name}: not allowed, because plan searches for the number of workers; see \
             --fixed-workers"
        );
    }
    check_worker_kinds(&base, &axes)?;
    let prices =
        base.question.prices.as_deref().map(GpuPrices::read_gpu_prices_file).transpose()?;
    let builder = CandidateBuilder { args, axes: &axes, prices: prices.as_ref(), sort, deploy };
    let (names, candidates, notes) = builder.candidates(&base, &flags)?;
    check_step_times(&candidates)?;
    check_deployment_outputs(&base, &candidates)?;
    let question = base.question.clone();
    let run = FlagGridRun {
        tool: ("plan", "combinations"),
        words: args,
        shard: &base.shard,
        threads: base.threads,
        report_json: base.report.report_json.as_deref(),
    };
    let search =
        |candidate: &DeploymentCandidate| search::search_deployment_candidate(candidate, &question);
    let stopped = || search::empty_search_result("stopped".to_owned());
    let answers = match run.run_grid_points(&candidates, search, stopped)? {
        ControlFlow::Continue(answers) => answers,
        ControlFlow::Break(text) => return Ok(text),
    };
    let typed = format_command_line("plan", &shard::command_without_shard_flags(args));
    let answers = candidates.iter().zip(answers);
    let plan = PlanReport::new(names, question, prices, answers, notes, typed)?;
    let printed = write_plan(&plan, &base)?;
    match plan.best_candidate_and_trial() {
        Some(_) => Ok(printed),
        // The exit code tells scripts whether a deployment was found.
        None => Err(MissedMetricRequirementsError {
            printed,
            missed: "no deployment meets the bounds".to_owned(),
        }
        .into()),
    }
}

fn check_args(args: &Args) -> Result<()> {
    let share = args.question.attainment;
    if !(share > 0.0 && share <= 1.0) {
        refuse!("--attainment is {share}, must be above 0 and at most 1");
    }
    if !args.report.latency_slo()?.has_any_latency_bound() && args.question.bounds.is_empty() {
        refuse!("a plan needs a bound: --slo-ttft-ms, --slo-itl-ms or --slo-e2e-ms, or --bound");
    }
    if args.question.max_cost.is_some_and(|cost| !cost.is_finite() || cost <= 0.0) {
        refuse!("--max-cost must be a number above 0");
    }
    for (flag, given) in [
        ("--workers", args.pools.workers.is_some()),
        ("--scale", args.pools.scale.is_some()),
        ("--autoscale-max", args.pools.autoscale_max.is_some()),
        ("--lose-workers", args.pools.lose_workers.is_some()),
    ]
    .into_iter()
    .chain(args.report.single_run_file_flags())
    .chain([("--require", !args.report.require.is_empty())])
    {
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
    if args.question.fixed_workers.is_some() && args.workload.replay_concurrency.is_some() {
        refuse!(
            "--fixed-workers cannot be used with --replay-concurrency, whose traffic depends on \
             the workers"
        );
    }
    Ok(())
}

/// Returns the flags on the command line that request deployment files, such as `--helm-values`.
fn deployment_outputs(args: &Args) -> impl Iterator<Item = &'static str> {
    let outputs = [
        ("--deploy-dir", args.deploy_dir.is_some()),
        ("--helm-values", args.helm_values.is_some()),
    ];
    outputs.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag)
}

/// Refuses to write deployment files for workers of different kinds, which the files cannot
/// describe.
fn check_worker_kinds(args: &Args, axes: &[FlagGridAxis]) -> Result<()> {
    let is_varied = |flag: &str| axes.iter().any(|axis| flag.trim_start_matches("--") == axis.name);
    let mut own = args.pools.worker_specific_engine_flags().into_iter();
    let Some((own, _)) = own.find(|(flag, given)| *given || is_varied(flag)) else {
        return Ok(());
    };
    match deployment_outputs(args).next() {
        Some(output) => refuse!(
            "{output} cannot be used with {own}, because its files describe workers of one kind"
        ),
        None => Ok(()),
    }
}

/// Refuses a plan with neither a GPU, a latency model nor delays, because the plan would count GPUs
/// of unknown speed.
fn check_step_times(candidates: &[DeploymentCandidate]) -> Result<()> {
    let pools = candidates.iter().filter_map(|candidate| candidate.pools.as_ref().ok());
    match pools
        .map(|pools| pools.step_times)
        .find(|origin| *origin == StepTimeSettingSource::Default)
    {
        Some(_) => refuse!(
            "a plan needs step times: name the GPU with --gpu, such as --gpu H100, or set a latency \
             model or delays"
        ),
        None => Ok(()),
    }
}

/// Refuses a search whose deployment files could not be written at its end.
fn check_deployment_outputs(args: &Args, candidates: &[DeploymentCandidate]) -> Result<()> {
    let lacks_model = |candidate: &DeploymentCandidate| {
        let about = candidate.pools.as_ref().map_or_else(|misfit| &misfit.about, |it| &it.about);
        about.iter().all(|(name, _)| name != "--model")
    };
    if let Some(output) = deployment_outputs(args).next()
        && candidates.iter().any(lacks_model)
    {
        refuse!("{output} needs --model, because its files name the model that vLLM serves");
    }
    let Some(folder) = &args.deploy_dir else {
        return Ok(());
    };
    let mut fitting = candidates.iter().filter_map(|candidate| candidate.pools.as_ref().ok());
    if fitting.any(deploy::simulates_sglang) {
        refuse!(
            "--deploy-dir cannot be used with --scheduler sglang, because its files start vLLM"
        );
    }
    DeploymentFiles::check_output_folder(folder)
}

/// Builds the candidate deployments of a plan from its command line.
struct CandidateBuilder<'a> {
    args: &'a [String],
    axes: &'a [FlagGridAxis],
    prices: Option<&'a GpuPrices>,
    sort: ServeFlagSplitter<'a>,
    deploy: DeploymentFactory<'a>,
}

impl CandidateBuilder<'_> {
    /// Returns the names of the flags that differ between candidate deployments, all candidate
    /// deployments, and notes about parallel layouts that were not tried. `flags` are those of
    /// `serve` on the command line.
    fn candidates(
        &self,
        base: &Args,
        flags: &[String],
    ) -> Result<(Vec<String>, Vec<DeploymentCandidate>, Vec<String>)> {
        let mut names: Vec<String> = self.axes.iter().map(|axis| axis.name.clone()).collect();
        let combinations = grid::axis_value_combinations(self.axes).into_iter();
        let search = ParallelLayoutSearch::new(
            &base.pools,
            base.question.max_gpus,
            self.axes,
            &self.explicit_flags(flags),
        );
        let Some(search) = search.filter(|_| base.question.fixed_workers.is_none()) else {
            let all = combinations.map(|values| self.build_candidate(values, None, &[]));
            return Ok((names, all.collect::<Result<_>>()?, Vec::new()));
        };
        if self.axes.is_empty() {
            // An error of the workload has nothing to do with one of the layouts.
            open_workload(&base.workload, 16)?;
        }
        let (mut candidates, mut notes) = (Vec::new(), Vec::new());
        for values in combinations {
            let mut search = search;
            search.has_experts = self.has_experts(&values);
            let build = |layout, flags: &[String]| {
                self.build_candidate(values.clone(), Some(layout), flags)
            };
            let searched = search.build_layout_candidates(&build)?;
            candidates.extend(searched.candidates);
            notes.extend(searched.notes);
        }
        let layouts = candidates.iter().filter_map(|candidate| candidate.layout);
        // Only models with experts have columns for data and expert parallelism.
        let columns = match layouts.clone().any(|layout| layout.data > 1) {
            true => layout::LAYOUT_FLAG_NAMES.len(),
            false => 1,
        };
        names.extend(layout::LAYOUT_FLAG_NAMES[..columns].iter().map(|name| (*name).to_owned()));
        for candidate in &mut candidates {
            if let Some(layout) = candidate.layout {
                candidate.values.extend(layout.layout_flag_values().into_iter().take(columns));
            }
        }
        Ok((names, candidates, notes))
    }

    /// Returns the flags of `serve` that the command line, files and variables set.
    fn explicit_flags(&self, flags: &[String]) -> Vec<(String, String)> {
        match (self.deploy)(flags) {
            Ok(deployment) => deployment.about,
            // Flags that only a combination completes are reported with that combination.
            Err(error) => error
                .downcast::<WeightsDoNotFitError>()
                .map_or_else(|_| Vec::new(), |misfit| misfit.about),
        }
    }

    /// Returns whether the model of a flag combination has experts, which data-parallel ranks
    /// share.
    fn has_experts(&self, values: &[String]) -> bool {
        let ranks = format!("--{}=2", layout::LAYOUT_FLAG_NAMES[1]);
        let all = [self.args, &grid::flags_of_grid_point(self.axes, values), &[ranks]].concat();
        let Ok((flags, _)) = (self.sort)(&split_known_args::<Args>(&all).1) else {
            return false;
        };
        match (self.deploy)(&flags) {
            Ok(_) => true,
            Err(error) => error.is::<WeightsDoNotFitError>(),
        }
    }

    fn build_candidate(
        &self,
        values: Vec<String>,
        layout: Option<ParallelLayout>,
        searched: &[String],
    ) -> Result<DeploymentCandidate> {
        let names: Vec<&str> = self.axes.iter().map(|axis| axis.name.as_str()).collect();
        let varied = grid::flags_of_grid_point(self.axes, &values);
        let chosen = searched.iter().map(|flag| flag.trim_start_matches("--"));
        let place: Vec<String> = std::iter::once(flag_combination_label(&names, &values))
            .chain(chosen.map(str::to_owned))
            .filter(|part| !part.is_empty())
            .collect();
        let place = &place.join(" ");
        let flags = [&varied[..], searched].concat();
        let build =
            |args: &Args, flags: &[String]| build_worker_pools(&args.pools, flags, self.deploy);
        let parse =
            |flags: &[String]| grid::parse_grid_point(self.args, flags, place, self.sort, build);
        let (args, pools) = match parse(&flags)? {
            (args, Err(misfit)) if context::may_shorten_context(&misfit) => {
                let shorter = [&flags[..], &[context::FITTING_CONTEXT_FLAG.to_owned()]].concat();
                let (_, pools) = parse(&shorter)?;
                (args, pools.map_err(|_| misfit))
            }
            parsed => parsed,
        };
        // Report errors of the workload before any run, also if the model does not fit.
        let block_size = match &pools {
            Ok(pools) => pools.serving.engines[0].block_size(),
            Err(_) => 16,
        };
        open_workload(&args.workload, block_size)
            .map_err(|error| grid::with_grid_point_label(place, error))?;
        let prices = match (&pools, self.prices) {
            (Ok(pools), Some(prices)) => {
                let prices = prices.hourly_prices_of(pools);
                prices.map_err(|error| grid::with_grid_point_label(place, error))?
            }
            _ => HourlyGpuPrices::COUNTED,
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
            prices,
            values,
            layout,
        })
    }
}

/// Writes the report and deployment files of a plan, and returns the text to print. Deployment
/// files are written only if the plan has an answer.
fn write_plan(plan: &PlanReport, args: &Args) -> Result<String> {
    if let Some(file) = &args.report.html {
        output_files::write_atomically(file, page::plan_html_page(plan))?;
    }
    let mut json = None;
    if let Some(file) = &args.report.report_json {
        let text = serde_json::to_string_pretty(&plan.plan_report_json())?;
        match file.as_str() {
            "-" => json = Some(text),
            file => output_files::write_atomically(file.as_ref(), text)?,
        }
    }
    if let (Some(file), Some(values)) = (&args.helm_values, plan.simulator_chart_helm_values()) {
        output_files::write_atomically(file, values)?;
    }
    let mut deployed = None;
    if let (Some(folder), Some(manifests)) = (&args.deploy_dir, DeploymentFiles::from_plan(plan)) {
        manifests.write_to_folder(folder)?;
        deployed = Some(folder);
    }
    if let Some(json) = json {
        return Ok(json);
    }
    let mut text = plan.render_plan_table();
    if let Some(chart) = picture::pareto_text_chart(plan) {
        text.push_str(&format!("\n\n{chart}"));
    }
    if let Some(folder) = deployed {
        text.push_str(&format!("\n\nfiles to deploy: {}", folder.display()));
    }
    Ok(text)
}

/// Example commands below the help text of `vllm-sim plan`.
const PLAN_HELP_EXAMPLES: &str = "\
Examples:\n\
\x20 vllm-sim plan --model meta-llama/Llama-3.1-8B-Instruct --gpu H100 \\\n\
\x20     --workload \"20 req/s of 2k/300\" --slo-ttft-ms 500\n\
\x20 vllm-sim plan --model meta-llama/Llama-3.1-70B-Instruct --vary gpu=H100,H200 \\\n\
\x20     --prices prices.yaml --workload \"20 req/s of 2k/300\" --bound ttft-p95=500\n\
\x20 vllm-sim plan --model Qwen/Qwen3-30B-A3B --gpu H100 --slo-ttft-ms 300 \\\n\
\x20     --workload \"20 req/s of 2k/300\" --deploy-dir deploy";
