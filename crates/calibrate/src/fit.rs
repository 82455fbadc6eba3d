//! Fits roofline parameters to measured runs by Gauss-Newton with ridge penalties towards the
//! defaults.
//!
//! Cross-validation selects the parameters and the strength of the penalties.

use super::case::{self, CalibrationCase, RunPartToSimulate};
use super::linear::{LinearizedResiduals, RidgeFitPlan};
use super::machine::{CalibrationCaseRunner, FitParameterColumn};
use super::parameters::RooflineParameter;
use super::plan::{self, FittedParameterChoice};
use super::{CalibrateError, CalibrateOptions};
use vllm_sim_command_line::progress::JobProgress;

const MAX_GAUSS_NEWTON_STEPS: usize = 12;
const MAX_STEP_HALVINGS: usize = 6;
/// Maximum length of a Gauss-Newton step, in scales of the priors.
const MAX_STEP_LENGTH: f64 = 3.0;
/// Minimum length of a Gauss-Newton step, in scales of the priors; after a shorter step the fit
/// counts as converged.
const CONVERGED_STEP: f64 = 1e-2;
/// Relative improvement of the fit's cost below which a Gauss-Newton step is the last one.
const MIN_IMPROVEMENT: f64 = 2e-3;
/// Maximum number of fit plans to try; each is chosen at the point to which the fit of the previous
/// plan converged.
const MAX_RIDGE_PLANS: usize = 4;
/// Distance from a bound, as a fraction of the parameter's range, below which a parameter counts as
/// at its bound.
const AT_BOUND_FRACTION: f64 = 1e-3;

/// Result of fitting roofline parameters to measured runs.
#[derive(Debug, Clone)]
pub struct FittedRoofline {
    /// Roofline parameters fitted to all runs together.
    pub parameters: Vec<FittedParameter>,
    /// Parameters fitted per deployment, if the runs cover several.
    pub deployments: Vec<FittedDeployment>,
    /// Prediction errors of all runs, before and after the fit.
    pub runs: Vec<RunPredictionErrors>,
    /// Roofline parameters left at their defaults, each with the reason.
    pub left: Vec<(RooflineParameter, &'static str)>,
    /// Name and fitted parameters of the deployment for which the profile is written; `None` unless
    /// the runs cover several deployments.
    pub profile: Option<FittedDeployment>,
}

/// Fitted parameters of one deployment among several.
#[derive(Debug, Clone)]
pub struct FittedDeployment {
    /// Model, GPU and tensor-parallel size of the deployment.
    pub name: String,
    /// Number of fitted runs of the deployment.
    pub runs: usize,
    /// Parameters fitted for the deployment; each value is the sum of the value common to all runs
    /// and the shift of this deployment.
    pub parameters: Vec<FittedParameter>,
}

/// Roofline parameter with its fitted value.
#[derive(Debug, Clone, Copy)]
pub struct FittedParameter {
    /// The fitted roofline parameter.
    pub parameter: RooflineParameter,
    /// Value of the roofline parameter before the fit.
    pub default: f64,
    /// Value of the roofline parameter after the fit.
    pub value: f64,
    /// Standard error of the parameter's fitted value, from finite differences.
    pub error: f64,
    /// Whether the fitted value is at a bound of its range.
    pub at_bound: bool,
}

/// Prediction errors of one run in percent (TTFT, ITL, E2E latency), before and after the fit.
#[derive(Debug, Clone)]
pub struct RunPredictionErrors {
    /// Name of the measured run.
    pub name: String,
    /// Index of the measured run's deployment.
    pub deployment: usize,
    /// Whether the run was only used for validation, not in the fit.
    pub held_out: bool,
    /// Reason to doubt the measurements of the run.
    pub warning: Option<&'static str>,
    /// Prediction errors in percent with the default parameters (TTFT, ITL, E2E latency).
    pub before: [Option<f64>; 3],
    /// Prediction errors in percent with the fitted parameters (TTFT, ITL, E2E latency).
    pub after: [Option<f64>; 3],
}

pub(super) fn fit_calibration_cases(
    cases: Vec<CalibrationCase>,
    options: &CalibrateOptions,
) -> Result<FittedRoofline, CalibrateError> {
    case::check_hold_out_names(&cases, options)?;
    let choice = plan::choose_fitted_parameters(&cases, options)?;
    let (first, deployments) = group_by_deployment(&cases);
    let wanted = match &options.profile_of {
        Some(name) => Some(deployments[find_case(&cases, name)?]),
        None => None,
    };
    let machine = CalibrationCaseRunner {
        cases: &cases,
        deployments,
        columns: choice.fit_parameter_columns(first.len()),
        threads: match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        },
        progress_bar: JobProgress::begin_job("calibrate", "runs simulated", None),
    };
    let (lines, plan) = alternate_plan_and_descent(&machine, &choice)?;
    let everywhere: Vec<usize> = (0..cases.len()).collect();
    let origin = vec![0.0; machine.columns.len()];
    let played = machine.predict_case_latencies(
        &[origin, lines.at.clone()],
        &everywhere,
        RunPartToSimulate::Whole,
    )?;
    let runs = cases.iter().enumerate().map(|(i, case)| RunPredictionErrors {
        name: case.name.clone(),
        deployment: machine.deployments[i],
        held_out: case.held_out,
        warning: case.warning,
        before: case.latency_error_percentages(&played[0][i]),
        after: case.latency_error_percentages(&played[1][i]),
    });
    let runs: Vec<RunPredictionErrors> = runs.collect();
    let parameters = fitted_parameters(&machine, &lines, &plan, None);
    let own = first.iter().enumerate().map(|(n, case)| FittedDeployment {
        name: case.label.clone(),
        runs: runs.iter().filter(|run| run.deployment == n && !run.held_out).count(),
        parameters: fitted_deployment_parameters(&machine, &lines, &plan, (n, case)),
    });
    let own: Vec<FittedDeployment> = own.collect();
    let fitted = |parameter: RooflineParameter| {
        let own = own.iter().flat_map(|own| &own.parameters);
        parameters.iter().chain(own).any(|o| o.parameter == parameter)
    };
    let mut left = Vec::new();
    for parameter in super::parameters::PARAMETER_FIT_ORDER {
        let why = choice.left.iter().find(|(p, _)| *p == parameter);
        let why = match why {
            _ if fitted(parameter) => continue,
            Some((_, why)) => why,
            None if choice.named && !choice.chosen.contains(&parameter) => continue,
            None => "does not improve predictions of runs that were not fitted",
        };
        left.push((parameter, why));
    }
    Ok(FittedRoofline {
        profile: wanted.map(|n| own[n].clone()),
        deployments: own.into_iter().filter(|own| own.runs > 0).collect(),
        parameters,
        runs,
        left,
    })
}

/// Returns the first run of every deployment, and the deployment's index for each run.
fn group_by_deployment(cases: &[CalibrationCase]) -> (Vec<&CalibrationCase>, Vec<usize>) {
    let mut known: Vec<&CalibrationCase> = Vec::new();
    let mut of = Vec::with_capacity(cases.len());
    for case in cases {
        let place = known.iter().position(|other| other.run.setup == case.run.setup);
        of.push(place.unwrap_or_else(|| {
            known.push(case);
            known.len() - 1
        }));
    }
    (known, of)
}

fn find_case(cases: &[CalibrationCase], name: &str) -> Result<usize, CalibrateError> {
    let found = cases.iter().position(|case| case.name == name);
    found.ok_or_else(|| case::unknown_run_error("--profile-of", name, cases))
}

/// Alternates between choosing a fit plan and minimizing its cost, until the plan does not change.
fn alternate_plan_and_descent(
    machine: &CalibrationCaseRunner<'_>,
    choice: &FittedParameterChoice,
) -> Result<(LinearizedResiduals, RidgeFitPlan), CalibrateError> {
    let origin = vec![0.0; machine.columns.len()];
    let mut here = machine.residuals_at(&origin)?;
    let all: Vec<usize> = (0..machine.columns.len()).collect();
    let mut lines = machine.linearize_residuals(&origin, &here, &all)?;
    let mut plan = choice.best_cross_validated_plan(&machine.columns, &lines);
    for look in 1..=MAX_RIDGE_PLANS {
        let planned: Vec<usize> = plan.terms.iter().map(|(column, _)| *column).collect();
        (here, lines) = minimize_plan_cost(machine, &plan, here, lines, &planned)?;
        // With many runs of several deployments, the plan is not chosen again.
        let pooled = machine.columns.iter().any(|c| c.deployment.is_some());
        if pooled || look == MAX_RIDGE_PLANS {
            break;
        }
        if planned.len() < all.len() && !planned.is_empty() {
            lines = machine.linearize_residuals(&lines.at, &here, &all)?;
        }
        let next = choice.best_cross_validated_plan(&machine.columns, &lines);
        if next == plan {
            break;
        }
        plan = next;
        // Parameters outside the plan return to their defaults, whatever the cost.
        let goal = lines.lowest_cost_parameter_point(&plan).into_iter().enumerate();
        let at: Vec<f64> = goal.map(|(j, u)| machine.clamp_to_parameter_bounds(j, u)).collect();
        here = machine.residuals_at(&at)?;
        lines = machine.linearize_residuals(&at, &here, &all)?;
    }
    Ok((lines, plan))
}

/// Minimizes the cost of a fit plan by Gauss-Newton with step halving.
fn minimize_plan_cost(
    machine: &CalibrationCaseRunner<'_>,
    plan: &RidgeFitPlan,
    mut here: Vec<f64>,
    mut lines: LinearizedResiduals,
    planned: &[usize],
) -> Result<(Vec<f64>, LinearizedResiduals), CalibrateError> {
    for _ in 0..MAX_GAUSS_NEWTON_STEPS {
        let goal = lines.lowest_cost_parameter_point(plan);
        let step: Vec<f64> = goal.iter().zip(&lines.at).map(|(a, b)| a - b).collect();
        if step.iter().all(|by| by.abs() < CONVERGED_STEP) {
            break;
        }
        let cost = lines.fit_plan_cost(plan, &here, &lines.at);
        let mut length = 1.0;
        let mut found = None;
        for _ in 0..MAX_STEP_HALVINGS {
            let moved = lines.at.iter().zip(&step).enumerate();
            let trial = moved.map(|(j, (u, by))| {
                machine.clamp_to_parameter_bounds(
                    j,
                    u + length * by.clamp(-MAX_STEP_LENGTH, MAX_STEP_LENGTH),
                )
            });
            let trial: Vec<f64> = trial.collect();
            let residuals = machine.residuals_at(&trial)?;
            if lines.fit_plan_cost(plan, &residuals, &trial) < cost {
                found = Some((trial, residuals));
                break;
            }
            length /= 2.0;
        }
        let Some((at, residuals)) = found else {
            break;
        };
        let saved = cost - lines.fit_plan_cost(plan, &residuals, &at);
        here = residuals;
        lines = machine.linearize_residuals(&at, &here, planned)?;
        if saved < MIN_IMPROVEMENT * cost {
            break;
        }
    }
    Ok((here, lines))
}

/// Returns the fitted parameters that are common to all runs or, with an index in `deployment`,
/// those of that deployment.
fn fitted_parameters(
    machine: &CalibrationCaseRunner<'_>,
    lines: &LinearizedResiduals,
    plan: &RidgeFitPlan,
    deployment: Option<usize>,
) -> Vec<FittedParameter> {
    let errors = lines.fit_parameter_standard_errors(plan);
    let terms = plan.terms.iter().zip(errors);
    let own = terms.filter(|((j, _), _)| machine.columns[*j].deployment == deployment);
    let outcomes = own.map(|((j, _), error)| {
        let FitParameterColumn { parameter, .. } = machine.columns[*j];
        let prior = parameter.parameter_prior();
        let shared = machine.columns.iter().zip(&lines.at).filter(|(column, _)| {
            deployment.is_some() && column.deployment.is_none() && column.parameter == parameter
        });
        let u = lines.at[*j] + shared.map(|(_, u)| *u).sum::<f64>();
        let (low, high) = prior.bounds;
        let value = (prior.centre + u * prior.scale).clamp(low, high);
        let near = AT_BOUND_FRACTION * (high - low);
        FittedParameter {
            parameter,
            default: prior.centre,
            value,
            error: error * prior.scale,
            at_bound: value - low < near || high - value < near,
        }
    });
    outcomes.collect()
}

/// Returns the fitted parameters of one deployment, including its API server time.
fn fitted_deployment_parameters(
    machine: &CalibrationCaseRunner<'_>,
    lines: &LinearizedResiduals,
    plan: &RidgeFitPlan,
    (deployment, case): (usize, &CalibrationCase),
) -> Vec<FittedParameter> {
    let mut outcomes = fitted_parameters(machine, lines, plan, Some(deployment));
    outcomes.retain_mut(|outcome| {
        if outcome.parameter != RooflineParameter::FrontEnd {
            return true;
        }
        let Some(front_end) = case.front_end_time_before_fit_us() else {
            return false;
        };
        outcome.value = (outcome.value + front_end - outcome.default).max(0.0);
        outcome.default = front_end;
        true
    });
    outcomes
}
