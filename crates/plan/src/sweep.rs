//! Implements `vllm-sim sweep`: runs one workload against every point of a grid of flags.

mod page;

use std::ops::ControlFlow;

use anyhow::{Result, bail};
use clap::{CommandFactory, Parser};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::grid::{self, flag_combination_label};
use crate::shard::{self, FlagGridRun, FlagGridShardArgs};
use vllm_sim_command_line::progress::is_job_stop_requested;
use vllm_sim_command_line::{format_command_line, output_files, refuse, render_text_table};
use vllm_sim_replay_cli::{
    DeploymentFactory, PoolArgs, ReportArgs, ResultProvenance, ServeFlagSplitter,
    WeightsDoNotFitError, WorkerPools, WorkloadArgs, build_worker_pools, open_workload,
    parse_args_and_serve_flags, replay_pools, simulated_time_limit,
};

/// Run one workload against every combination of flags, and report the one with the most good
/// requests per GPU.
///
/// Takes the flags of `vllm-sim replay`, and those of `vllm-sim serve` that describe one engine.
#[derive(Debug, Parser)]
#[command(
    name = "vllm-sim sweep",
    after_help = SWEEP_HELP_EXAMPLES,
    no_binary_name = true,
    args_override_self = true
)]
struct Args {
    /// Flag with the values to try: NAME=VALUE,VALUE,… (repeat it for all combinations of several
    /// flags).
    #[arg(long, value_name = "NAME=VALUES", required = true)]
    grid: Vec<String>,
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    pools: PoolArgs,
    #[command(flatten)]
    report: ReportArgs,
    /// Minimum ratio of good to all requests for a point to be the best, above 0 up to 1.
    #[arg(long, default_value_t = 0.95, help_heading = "Report")]
    attainment: f64,
    /// Number of points to simulate in parallel; the results do not depend on it.
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[command(flatten)]
    shard: FlagGridShardArgs,
}

struct GridPoint {
    values: Vec<String>,
    args: Args,
    /// Engines of the deployment; `Err` if the model does not fit on the GPUs.
    pools: Result<WorkerPools, WeightsDoNotFitError>,
}

struct PointResult {
    values: Vec<String>,
    played: PlayedPoint,
    /// Minimum ratio of requests within their latency bounds to all requests that a grid point
    /// needs to count as the best.
    needed: f64,
}

impl PointResult {
    fn has_goodput(&self) -> bool {
        self.played.as_ref().is_ok_and(|played| played.goodput_rps() > 0.0)
    }

    /// Returns whether enough requests of the grid point are within their latency bounds; true
    /// without bounds.
    fn meets_attainment(&self) -> bool {
        let attained = self.played.as_ref().ok().and_then(PlayedSummary::attained_slo_ratio);
        attained.is_none_or(|attained| attained >= self.needed)
    }
}

/// Result of a grid point, or the reason why it was not run.
type PlayedPoint = Result<PlayedSummary, String>;

#[derive(Serialize, Deserialize)]
struct PlayedSummary {
    gpus: f64,
    summary: Map<String, Value>,
}

impl PlayedSummary {
    /// Returns the number of good requests per second and GPU; without latency bounds every
    /// completed request is good.
    fn goodput_per_gpu_rps(&self) -> f64 {
        self.goodput_rps() / self.gpus.max(1e-9)
    }

    fn goodput_rps(&self) -> f64 {
        match self.summary.get("goodput_request_throughput_rps") {
            Some(_) => self.summary_number("goodput_request_throughput_rps"),
            None => self.summary_number("request_throughput_rps"),
        }
    }

    /// Returns the ratio of requests within their latency bounds to all requests; `None` without
    /// bounds.
    fn attained_slo_ratio(&self) -> Option<f64> {
        self.summary.get("slo_attainment").and_then(Value::as_f64)
    }

    fn summary_number(&self, key: &str) -> f64 {
        self.summary.get(key).and_then(Value::as_f64).unwrap_or(0.0)
    }
}

/// Returns the clap command of `sweep`.
pub fn sweep_clap_command() -> clap::Command {
    Args::command()
}

/// Runs `vllm-sim sweep` with the arguments `args` and returns the text to print.
///
/// # Errors
/// Returns a message for the user, with the flags of the point that failed.
pub fn run_sweep_command(
    args: &[String],
    sort: ServeFlagSplitter<'_>,
    deploy: DeploymentFactory<'_>,
) -> Result<String> {
    let (base, _) = match parse_args_and_serve_flags::<Args>(args, sort)? {
        Ok(parsed) => parsed,
        Err(help) => return Ok(help),
    };
    for (flag, given) in base.report.single_run_file_flags() {
        if given {
            refuse!("{flag} cannot be used with sweep, whose points would share the file");
        }
    }
    if !base.report.require.is_empty() {
        refuse!("--require cannot be used with sweep, which has --attainment");
    }
    let needed = base.attainment;
    if !(needed > 0.0 && needed <= 1.0) {
        refuse!("--attainment is {needed}, must be above 0 and at most 1");
    }
    vllm_sim_replay_cli::warn_of_unmodelled_adapters(&base.workload);
    let axes = grid::parse_grid_axes("--grid", &base.grid)?;
    let names: Vec<&str> = axes.iter().map(|axis| axis.name.as_str()).collect();
    let points = grid::axis_value_combinations(&axes)
        .into_iter()
        .map(|values| {
            let build =
                |args: &Args, flags: &[String]| build_worker_pools(&args.pools, flags, deploy);
            let flags = grid::flags_of_grid_point(&axes, &values);
            let label = flag_combination_label(&names, &values);
            let (args, pools) = grid::parse_grid_point(args, &flags, &label, sort, build)?;
            Ok(GridPoint { values, args, pools })
        })
        .collect::<Result<Vec<_>>>()?;
    if let Some(Err(misfit)) = points.iter().map(|point| &point.pools).next()
        && points.iter().all(|point| point.pools.is_err())
    {
        bail!("no point of the grid fits: {}", misfit.why);
    }
    let run = FlagGridRun {
        tool: ("sweep", "points"),
        words: args,
        shard: &base.shard,
        threads: base.threads,
        report_json: base.report.report_json.as_deref(),
    };
    let interrupted = || Err("interrupted before its end".to_owned());
    let played = match run.run_grid_points(&points, simulate_point, interrupted)? {
        ControlFlow::Continue(played) => played,
        ControlFlow::Break(text) => return Ok(text),
    };
    let values = points.iter().map(|point| point.values.clone());
    let results = values.zip(played);
    let played: Vec<PointResult> =
        results.map(|(values, played)| PointResult { values, played, needed }).collect();
    let origin = ResultProvenance::combine_provenances(points.iter().map(|point| {
        point.pools.as_ref().map_or_else(|misfit| &misfit.provenance, |it| &it.provenance)
    }));
    let typed = format_command_line("sweep", &shard::command_without_shard_flags(args));
    if let Some(file) = &base.report.report_json {
        let json = to_json(&names, &played, origin.provenance_json(&typed));
        let text = serde_json::to_string_pretty(&json)?;
        if file == "-" {
            return Ok(text);
        }
        output_files::write_atomically(file.as_ref(), text)?;
    }
    if let Some(file) = &base.report.html {
        let page = page::sweep_html_page(&names, &played, (&origin, &typed));
        output_files::write_atomically(file, page)?;
    }
    let transfers = origin.kv_transfers.as_ref();
    let transfers = transfers.map(|time| format!("\nKV transfers take {time}"));
    Ok(text_table(&names, &played) + &transfers.unwrap_or_default())
}

fn simulate_point(point: &GridPoint) -> Result<PlayedPoint> {
    if is_job_stop_requested() {
        return Ok(Err("not simulated: interrupted".to_owned()));
    }
    let args = &point.args;
    let pools = match &point.pools {
        Ok(pools) => pools,
        Err(misfit) => return Ok(Err(misfit.why.clone())),
    };
    let block = pools.serving.engines[0].block_size();
    let (mut source, pace) = open_workload(&args.workload, block)?;
    let quiet =
        ReportArgs { report_json: None, per_request: None, html: None, ..args.report.clone() };
    let limit = simulated_time_limit(&args.workload)?;
    let report = replay_pools(pools, source.as_mut(), (pace, limit, 1), &quiet, None)?;
    let seconds = (report.summary_number("duration_ms") / 1e3).max(1e-9);
    Ok(Ok(PlayedSummary {
        gpus: report.summary_number("gpu_hours") * 3600.0 / seconds,
        summary: report.summary,
    }))
}

/// Titles and summary keys of the columns of the sweep's table; ITL is the mean gap between the
/// tokens of a request.
const SUMMARY_COLUMNS: [(&str, &str); 7] = [
    ("TTFT p50 ms", "median_ttft_ms"),
    ("TTFT p99 ms", "p99_ttft_ms"),
    ("ITL p50 ms", "median_tpot_ms"),
    ("ITL p99 ms", "p99_tpot_ms"),
    ("req/s", "request_throughput_rps"),
    ("out tok/s", "output_throughput_tok_s"),
    ("reused", "prefix_cache_reused_ratio"),
];

/// Returns the index of the grid point with the most good requests per second and GPU, among those
/// with enough good requests; `None` if there is none.
fn best_point_index(points: &[PointResult]) -> Option<usize> {
    let mut best = None;
    let mut most = 0.0;
    for (at, point) in points.iter().enumerate() {
        let good = point.played.as_ref().map_or(0.0, PlayedSummary::goodput_per_gpu_rps);
        // Of equal points, the first.
        if good > most && point.meets_attainment() {
            (best, most) = (Some(at), good);
        }
    }
    best
}

fn table_cells(names: &[&str], played: &[PointResult]) -> (Vec<String>, Vec<Vec<String>>) {
    let mut head: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    head.push("GPUs".to_owned());
    head.extend(SUMMARY_COLUMNS.iter().map(|(title, _)| (*title).to_owned()));
    let mut done = played.iter().filter_map(|point| point.played.as_ref().ok());
    let is_bounded = done.any(|played| played.attained_slo_ratio().is_some());
    head.extend(is_bounded.then(|| "good %".to_owned()));
    head.extend(["good/s", "good/s/GPU"].map(str::to_owned));
    let rows = played.iter().map(|point| {
        let mut row = point.values.clone();
        let Ok(played) = &point.played else {
            row.resize(head.len(), "–".to_owned());
            return row;
        };
        row.push(format!("{:.1}", played.gpus));
        row.extend(
            SUMMARY_COLUMNS.iter().map(|(_, key)| format!("{:.2}", played.summary_number(key))),
        );
        if is_bounded {
            let attained = played.attained_slo_ratio().unwrap_or_default();
            row.push(format!("{:.1}", 100.0 * attained));
        }
        row.push(format!("{:.3}", played.goodput_rps()));
        row.push(format!("{:.3}", played.goodput_per_gpu_rps()));
        row
    });
    let rows = rows.collect();
    (head, rows)
}

/// Minimum number of requests of which the 99th percentile is not simply the highest value.
const REQUESTS_FOR_P99: f64 = 100.0;

/// Returns the notes below the sweep's table: the meaning of the star, and the grid points that
/// were not run.
fn table_notes(names: &[&str], points: &[PointResult]) -> Vec<String> {
    let mut notes = vec![match best_point_index(points) {
        Some(_) => "* most good requests per second and GPU".to_owned(),
        None => {
            match points.iter().find(|point| !point.meets_attainment() && point.has_goodput()) {
                Some(point) => format!(
                    "no point has {} % of its requests good (--attainment), so none is the best",
                    100.0 * point.needed
                ),
                None => "no point has a good request, so none is the best".to_owned(),
            }
        }
    }];
    for point in points {
        let label = flag_combination_label(names, &point.values);
        match &point.played {
            Err(why) => notes.push(format!("{label}: {why}")),
            Ok(played) if played.summary_number("rejected_requests") > 0.0 => {
                let count = ["rejected_requests", "num_requests"];
                let [rejected, all] = count.map(|key| played.summary_number(key));
                notes.push(format!("{label}: {rejected} of {all} requests are rejected"));
            }
            Ok(_) => {}
        }
    }
    let completed = |point: &PointResult| {
        let played = point.played.as_ref().ok()?;
        Some(played.summary_number("completed_requests"))
    };
    let fewest = points.iter().filter_map(completed).fold(f64::INFINITY, f64::min);
    if fewest < REQUESTS_FOR_P99 {
        notes.push(format!(
            "p99 of {fewest} requests is their highest value: a p99 needs {REQUESTS_FOR_P99}"
        ));
    }
    notes
}

fn text_table(names: &[&str], played: &[PointResult]) -> String {
    let (head, rows) = table_cells(names, played);
    let mut lines = render_text_table(&head, &rows, names.len());
    if let Some(best) = best_point_index(played) {
        lines[1 + best].push_str("  *");
    }
    lines.extend(table_notes(names, played));
    lines.join("\n")
}

fn to_json(names: &[&str], played: &[PointResult], run: Value) -> Value {
    let points = played.iter().map(|point| {
        let flags = names.iter().zip(&point.values);
        let flags: Map<String, Value> =
            flags.map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        match &point.played {
            Ok(played) => json!({
                "flags": flags,
                "gpus": played.gpus,
                "goodput_rps": played.goodput_rps(),
                "goodput_per_gpu_rps": played.goodput_per_gpu_rps(),
                "summary": played.summary,
            }),
            Err(why) => json!({ "flags": flags, "error": why }),
        }
    });
    json!({
        "run": run,
        "grid": names,
        "best": best_point_index(played),
        "points": points.collect::<Vec<_>>(),
    })
}

/// Example commands below the help text of `vllm-sim sweep`.
const SWEEP_HELP_EXAMPLES: &str = "\
Examples:\n\
\x20 vllm-sim sweep --grid tensor-parallel-size=1,2,4 --workload \"20 req/s of 2k/300\" \\\n\
\x20     --model meta-llama/Llama-3.1-8B-Instruct --gpu H100";
