//! Predicts recorded runs of real servers, and reports the errors of the predictions.
//!
//! A run is one JSON file: model, GPU, engine arguments, workload and measurements. Its workload is
//! replayed through the vLLM scheduler with the roofline model, in virtual time.

mod client;
mod error;
mod factors;
mod page;
mod report;
mod spec;
mod validation;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use vllm_sim_engine::latency::{
    AiConfiguratorSetup, AiConfiguratorStepTimes, LatencyModel, RooflineCoefficients, RooflineModel,
};
use vllm_sim_engine::sched::vllm::VllmScheduler;

use client::ClientRequestTiming;
pub(crate) use client::SimulatedBenchClient;
pub use error::RecordedRunValidationError;
pub use report::{LatencyPrediction, RunLatencySummary};
pub(crate) use report::{error_over_stages, measured_summaries};
pub(crate) use spec::{RecordedRequest, RecordedRun};
pub use validation::{VALIDATION_REPORT_SCHEMA, ValidatedRun, ValidationReport};
use vllm_sim_command_line::progress::{JobProgress, is_job_stop_requested};

/// Predicts the latencies of every recorded run in the folder `runs` (`*.json`).
///
/// With `kernel_tables`, step times come from these tables, with the overheads of the roofline
/// model. Deployments missing in the tables are skipped, and deployments without memory for a KV
/// cache.
///
/// # Errors
/// Returns [`RecordedRunValidationError`] with the file or field.
pub fn validate_recorded_runs(
    runs: &Path,
    coefficients: &RooflineCoefficients,
    kernel_tables: Option<&Path>,
) -> Result<ValidationReport, RecordedRunValidationError> {
    let files = recorded_run_files(runs)?;
    if files.is_empty() {
        return Err(RecordedRunValidationError::Empty(runs.to_owned()));
    }
    let (mut validated, mut left_out) = (Vec::new(), Vec::new());
    let progress_bar = JobProgress::begin_job("validate", "runs", Some(files.len() as u64));
    for path in files {
        if is_job_stop_requested() && !validated.is_empty() {
            break;
        }
        let json = read_recorded_run(&path)?;
        for problem in questionable_fields(&json) {
            tracing::warn!("{}: {problem}", path.display());
        }
        match simulate_run(&json, coefficients, kernel_tables) {
            Ok(replays) => validated.push(ValidatedRun::new(&json, &replays)),
            Err(RecordedRunValidationError::Tables { run, error }) => {
                left_out.push((run, error.to_string()))
            }
            Err(RecordedRunValidationError::Engine { run, error }) => {
                left_out.push((run, error.to_string()))
            }
            Err(error) => return Err(error),
        }
        progress_bar.add_finished_work_units(1);
    }
    Ok(ValidationReport { runs: validated, left_out })
}

/// Fields of a recorded run, apart from those of `vllm` and `workload`.
const RUN_FIELDS: [&str; 20] = [
    "actual",
    "assumptions",
    "dp",
    "ep",
    "experiment",
    "group",
    "hardware",
    "id",
    "model",
    "model_config",
    "peers",
    "regime",
    "roofline_factors",
    "sampling",
    "score_level",
    "source",
    "split",
    "tp",
    "vllm",
    "workload",
];

/// Describes the fields of a recorded run that are missing, unknown or unreadable although the run
/// can be predicted.
fn questionable_fields(run: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for key in run.as_object().into_iter().flat_map(Map::keys) {
        if !RUN_FIELDS.contains(&key.as_str()) {
            problems.push(format!("{key} is not a field of a recorded run, and is ignored"));
        }
    }
    if !run["id"].is_string() {
        problems.push("id must be a string: the run has no name in the report".to_owned());
    }
    let regime = run["regime"].as_str().unwrap_or_default();
    let word = regime.split([' ', ':']).next().unwrap_or_default();
    if !["stable", "overload", "mixed"].contains(&word) {
        problems.push(format!(
            "regime is {regime:?}, must begin with stable, overload or mixed: the run counts in no \
             median by regime"
        ));
    }
    if run["actual"]["summary"].is_null() && run["actual"]["stages"].is_null() {
        problems.push("actual.summary is missing: the run is only predicted".to_owned());
    }
    problems
}

/// Returns the `*.json` files of a folder, sorted by name.
pub(crate) fn recorded_run_files(
    folder: &Path,
) -> Result<Vec<PathBuf>, RecordedRunValidationError> {
    let io = |error| RecordedRunValidationError::Io { path: folder.to_owned(), error };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|end| end == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

pub(crate) fn read_recorded_run(path: &Path) -> Result<Value, RecordedRunValidationError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| RecordedRunValidationError::Io { path: path.to_owned(), error })?;
    serde_json::from_str(&text)
        .map_err(|error| RecordedRunValidationError::Json { path: path.to_owned(), error })
}

/// Predicts the latencies of one recorded run.
///
/// # Errors
/// Returns [`RecordedRunValidationError`] with the missing or invalid field.
pub fn predict_recorded_run(
    run: &Value,
    coefficients: &RooflineCoefficients,
) -> Result<LatencyPrediction, RecordedRunValidationError> {
    Ok(LatencyPrediction::median_over_replays(&simulate_run(run, coefficients, None)?))
}

/// Number of replays of a run with random arrival times; the replays have the seeds 0, 1 and so on.
const SEEDS: u64 = 5;

/// A replay of a recorded run, with the client's view of each request.
pub(crate) type RecordedRunReplay = (RecordedRun, Vec<ClientRequestTiming>);

/// Replays a recorded run: once, or with [`SEEDS`] seeds if its arrival times are random.
fn simulate_run(
    run: &Value,
    coefficients: &RooflineCoefficients,
    kernel_tables: Option<&Path>,
) -> Result<Vec<RecordedRunReplay>, RecordedRunValidationError> {
    let first = RecordedRun::parse_recorded_run(run, coefficients, 0)?;
    let roofline = RooflineModel::new(&first.setup)?;
    let latency = latency_model(&first, &roofline, kernel_tables)?;
    let seeds = if first.random_arrivals { 1..SEEDS } else { 0..0 };
    let mut replays = vec![replay_run(first, &roofline, &latency)?];
    for seed in seeds {
        let run = RecordedRun::parse_recorded_run(run, coefficients, seed)?;
        replays.push(replay_run(run, &roofline, &latency)?);
    }
    Ok(replays)
}

fn latency_model(
    run: &RecordedRun,
    roofline: &RooflineModel,
    kernel_tables: Option<&Path>,
) -> Result<LatencyModel, RecordedRunValidationError> {
    Ok(match kernel_tables {
        None => LatencyModel::Roofline(Box::new(roofline.clone())),
        Some(folder) => {
            let asked = AiConfiguratorSetup::new(&run.setup, roofline.step_overhead());
            let aic =
                asked.and_then(|asked| AiConfiguratorStepTimes::load_kernel_times(folder, &asked));
            let aic = aic.map_err(|error| RecordedRunValidationError::Tables {
                run: run.id.clone(),
                error,
            })?;
            LatencyModel::Aic(Box::new(aic))
        }
    })
}

fn replay_run(
    run: RecordedRun,
    roofline: &RooflineModel,
    latency: &LatencyModel,
) -> Result<RecordedRunReplay, RecordedRunValidationError> {
    let mut engines = Vec::new();
    for _ in 0..run.ranks {
        let mut config = run.engine.clone();
        config.latency = latency.clone();
        config.lock_step = run.ranks > 1 && run.setup.shape.moe.is_some();
        engines.push(
            VllmScheduler::new(config).map_err(|error| RecordedRunValidationError::Engine {
                run: run.id.clone(),
                error,
            })?,
        );
    }
    let done = SimulatedBenchClient::new(&run, engines, roofline).simulate_to_end();
    Ok((run, done))
}
