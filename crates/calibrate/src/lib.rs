#![doc = include_str!("../README.md")]
//!
//! Fits the parameters of the roofline model to measured runs, by simulating them with the real
//! scheduler.
//!
//! The runs are results of load generators against one deployment, or recorded runs that describe
//! their deployments (as `vllm-sim validate` reads them). Every set of parameters is judged by
//! replaying all runs; physics and kernel tables are not changed.
//!
//! A parameter moves only if this improves runs outside the fit. Errors of one deployment are
//! correlated, because deployments differ in ways that the model does not know. With several
//! deployments, each has a separate API server time and step scale.

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

use vllm_sim_engine::latency::{RooflineCoefficients, RooflineModelSetup};
use vllm_sim_engine::sched::vllm::VllmSchedulerConfig;
use vllm_sim_replay::load::{self, BenchRun, WorkloadFormat};

use case::CalibrationCase;

pub use error::CalibrateError;
pub use fit::{FittedDeployment, FittedRoofline};
pub use options::CalibrateOptions;
pub use parameters::{RooflineParameter, comma_separated_parameter_names};
pub use text::{FittedOrHeldOutRuns, fitted_config_yaml};

/// Fits roofline parameters to results of load generators, all of one deployment.
///
/// # Errors
/// Returns [`CalibrateError`] with the file or the missing value.
pub fn fit_roofline_to_result_files(
    files: &[PathBuf],
    format: WorkloadFormat,
    deployment: (&VllmSchedulerConfig, &RooflineModelSetup),
    options: &CalibrateOptions,
) -> Result<FittedRoofline, CalibrateError> {
    let mut runs = Vec::new();
    for file in files {
        runs.extend(load::read_bench_runs(file, format)?);
    }
    fit_roofline_to_bench_runs(&runs, deployment, options)
}

/// Fits roofline parameters to runs in memory, all of one deployment.
///
/// # Errors
/// Returns [`CalibrateError::Other`] with the missing value.
pub fn fit_roofline_to_bench_runs(
    runs: &[BenchRun],
    deployment: (&VllmSchedulerConfig, &RooflineModelSetup),
    options: &CalibrateOptions,
) -> Result<FittedRoofline, CalibrateError> {
    let cases = runs.iter().map(|run| CalibrationCase::from_bench_run(run, deployment, options));
    fit::fit_calibration_cases(cases.collect::<Result<_, _>>()?, options)
}

/// Fits roofline parameters to recorded runs that describe their deployments, read from all
/// `*.json` files of a folder.
///
/// # Errors
/// Returns [`CalibrateError`] with the file and the field.
pub fn fit_roofline_to_recorded_runs(
    folder: &Path,
    options: &CalibrateOptions,
) -> Result<FittedRoofline, CalibrateError> {
    let mut cases = Vec::new();
    for path in validate::recorded_run_files(folder)? {
        let json = validate::read_recorded_run(&path)?;
        cases.push(CalibrationCase::from_recorded_run(&json, options)?);
    }
    fit::fit_calibration_cases(cases, options)
}

/// Returns the coefficients `base` with the fitted parameters.
pub fn apply_fit_to_coefficients(
    fitted: &FittedRoofline,
    base: &RooflineCoefficients,
) -> RooflineCoefficients {
    let mut coefficients = *base;
    let own = fitted.profile.iter().flat_map(|own| &own.parameters);
    for outcome in fitted.parameters.iter().chain(own) {
        outcome.parameter.set_coefficient_value(outcome.value, &mut coefficients);
    }
    coefficients
}
