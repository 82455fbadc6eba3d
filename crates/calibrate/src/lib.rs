#![doc = include_str!("../README.md")]
//!
//! Fits the few numbers of the roofline to measured runs, with the real engine in the loop.
//!
//! What is measured are runs of load generators against one deployment, or recorded runs that each
//! describe their own (as `vllm-sim validate` reads them). Every guess of the numbers is judged by
//! replaying all runs through the vLLM scheduler; physics and kernel tables stay as they are.
//!
//! A number moves only if runs that are left out of the fit gain by it. Deployments differ in ways
//! that the model does not know, and runs of one deployment are off together: with runs of several,
//! each deployment has a front end and a step scale of its own.

mod case;
mod error;
mod fit;
mod linear;
mod machine;
mod options;
mod parameters;
mod plan;
mod text;
pub mod validate;

use std::path::{Path, PathBuf};

use serde_json::Value;

use vllm_sim_engine::latency::{Coefficients, Setup};
use vllm_sim_engine::sched::vllm::VllmConfig;
use vllm_sim_replay::load::{self, BenchRun, Format};

use crate::validate::ValidateError;
use case::CalibrationCase;

pub use error::CalibrateError;
pub use fit::{Deployment, Fitted};
pub use options::Options;
pub use parameters::{Parameter, parameter_names};
pub use text::{RunSet, yaml};

/// Fits to results of load generators, all of one deployment.
///
/// # Errors
/// [`CalibrateError`] names the file, or what is missing.
pub fn from_results(
    files: &[PathBuf],
    format: Format,
    deployment: (&VllmConfig, &Setup),
    options: &Options,
) -> Result<Fitted, CalibrateError> {
    let mut cases = Vec::new();
    for file in files {
        for run in load::bench_runs(file, format)? {
            cases.push(CalibrationCase::bench(&run, deployment, options)?);
        }
    }
    fit::fit(cases, options)
}

/// The same from runs that are in memory.
///
/// # Errors
/// [`CalibrateError::Other`] says what is missing.
pub fn from_runs(
    runs: &[BenchRun],
    deployment: (&VllmConfig, &Setup),
    options: &Options,
) -> Result<Fitted, CalibrateError> {
    let cases = runs
        .iter()
        .map(|run| CalibrationCase::bench(run, deployment, options));
    fit::fit(cases.collect::<Result<_, _>>()?, options)
}

/// Fits to recorded runs that describe their deployments: every `*.json` of a folder.
///
/// # Errors
/// [`CalibrateError`] names the file and the field.
pub fn from_recorded(folder: &Path, options: &Options) -> Result<Fitted, CalibrateError> {
    let io = |error| ValidateError::Io {
        path: folder.to_owned(),
        error,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|end| end == "json") {
            files.push(path);
        }
    }
    files.sort();
    let mut cases = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).map_err(|error| ValidateError::Io {
            path: path.clone(),
            error,
        })?;
        let json: Value = serde_json::from_str(&text).map_err(|error| ValidateError::Json {
            path: path.clone(),
            error,
        })?;
        cases.push(CalibrationCase::recorded(&json, options)?);
    }
    fit::fit(cases, options)
}

/// The fitted numbers on top of `base`, and the factor that all step times are multiplied by.
pub fn applied(fitted: &Fitted, base: &Coefficients) -> (Coefficients, f64) {
    let mut coefficients = *base;
    let mut scale = 1.0;
    let own = fitted.profile.iter().flat_map(|own| &own.parameters);
    for outcome in fitted.parameters.iter().chain(own) {
        outcome
            .parameter
            .set(outcome.value, &mut coefficients, &mut scale);
    }
    (coefficients, scale)
}
