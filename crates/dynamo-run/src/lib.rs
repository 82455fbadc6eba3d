#![doc = include_str!("../README.md")]
//!
//! Replays a recorded run of NVIDIA Dynamo's offline replay, and reports in the form of Dynamo.
//!
//! The folder of a run has `args.json` (function, positional and keyword arguments of
//! `dynamo.replay` 1.6.1) and the trace that it names. Schedulers follow Dynamo's mocker.
//! Unsupported arguments are rejected by name.

mod args;
mod error;
mod host_offload;
mod json_args;
mod prediction;
mod replay;
mod router;
mod tables;
mod typical;
mod workload;

use std::path::Path;

use vllm_sim_replay::report::ReplayReport;

pub use args::parse_dynamo_worker;
pub use error::DynamoRunError;
pub use router::parse_kv_router_config as router;
pub use tables::{DynamoRunFolders, python_env_kernel_table_folder};

/// Replays the recorded Dynamo run in the folder `dir`.
///
/// If its router breaks ties randomly, several seeds run, and the report is that of the run nearest
/// to their mean. `kernel_tables` is the folder of NVIDIA's kernel tables; without it, step times
/// come from the roofline model.
///
/// # Errors
/// Returns [`DynamoRunError`] with the name of the file or argument.
pub fn replay_dynamo_run(
    dir: &Path,
    kernel_tables: Option<&Path>,
) -> Result<ReplayReport, DynamoRunError> {
    let args = json_args::read_json_file(&dir.join("args.json"))?;
    let folders = DynamoRunFolders { run: dir, kernel_tables };
    typical::replay_run_of_typical_seed(&|| args::parse_dynamo_run_args(&args, folders))
}

/// Replays the deployment and traffic of a YAML file of AISimulate's `predict`.
///
/// Relative paths in the file start at the working directory, as in AISimulate. `kernel_tables` is
/// the folder of NVIDIA's kernel tables; without it, step times come from the roofline model.
///
/// # Errors
/// Returns [`DynamoRunError`] with the field of the file.
pub fn replay_aisimulate_prediction(
    path: &Path,
    kernel_tables: Option<&Path>,
) -> Result<ReplayReport, DynamoRunError> {
    let args = prediction::read_aisimulate_prediction_file(path)?;
    let folders = DynamoRunFolders { run: Path::new(""), kernel_tables };
    typical::replay_run_of_typical_seed(&|| args::parse_dynamo_run_args(&args, folders))
}
