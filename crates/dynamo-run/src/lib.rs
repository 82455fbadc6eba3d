#![doc = include_str!("../README.md")]
//!
//! Plays a recorded run of NVIDIA Dynamo's offline replay and reports in its form.
//!
//! A folder holds `args.json` (function, positional and keyword arguments of `dynamo.replay`
//! 1.6.1) and the trace it names. Schedulers are set to the mocker's habits; what is not modelled
//! is refused by name.

mod args;
mod error;
mod host_offload;
mod json_args;
mod replay;
mod router;
mod tables;
mod typical;
mod workload;

use std::path::Path;

use vllm_sim_replay::report::Report;

pub use args::worker;
pub use error::DynamoError;
pub use router::config as router;
pub use tables::{Folders, environment_tables};

/// Plays the run in `dir`; of runs whose router draws, the one nearest to the middle of several.
/// NVIDIA's kernel tables are read from `kernel_tables`; without, the roofline stands in for them.
///
/// # Errors
/// [`DynamoError`] names the file or argument.
pub fn dynamo_run(dir: &Path, kernel_tables: Option<&Path>) -> Result<Report, DynamoError> {
    let path = dir.join("args.json");
    let text = std::fs::read_to_string(&path).map_err(|error| DynamoError::Io {
        path: path.clone(),
        error,
    })?;
    let args = serde_json::from_str(&text).map_err(|error| DynamoError::Json {
        place: path.display().to_string(),
        error,
    })?;
    let folders = Folders {
        run: dir,
        kernel_tables,
    };
    typical::play(&|| args::read(&args, folders))
}
