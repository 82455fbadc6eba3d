//! Fits roofline parameters to measured runs by Gauss-Newton with ridge penalties towards the
//! defaults.
//!
//! Cross-validation selects the parameters and the strength of the penalties.

use super::case::CalibrationCase;
use super::linear::{LinearFit, RidgePlan};
use super::machine::{CaseRunner, FitColumn, SimulatedPart};
use super::parameters::Parameter;
use super::plan::{self, ParameterChoice};
use super::{CalibrateError, Options};
use vllm_sim_command_line::progress::Progress;

const STEPS: usize = 12;
const HALVINGS: usize = 6;
/// Maximum length of a Gauss-Newton step, in scales of the priors.
const LONGEST: f64 = 3.0;
/// Minimum length of a Gauss-Newton step, in scales of the priors; a shorter one counts as
/// converged.
const CONVERGED_STEP: f64 = 1e-2;
/// Relative improvement of the fit's cost below which a Gauss-Newton step is the last one.
const MIN_IMPROVEMENT: f64 = 2e-3;
/// Maximum number of fit plans, each chosen where the previous one converged.
const MAX_PLANS: usize = 4;
/// Distance from a bound, as a fraction of the parameter's range, below which a parameter counts as
/// at its bound.
const AT_BOUND: f64 = 1e-3;

/// Result of fitting roofline parameters to measured runs.
#[derive(Debug, Clone)]
pub struct Fitted {
    /// Parameters fitted to all runs together.
    pub parameters: Vec<FittedParameter>,
    /// Parameters fitted per deployment, if the runs cover several.
    pub deployments: Vec<Deployment>,
    /// Prediction errors of all runs, before and after the fit.
    pub runs: Vec<RunOutcome>,
    /// Parameters left at their defaults, each with the reason.
    pub left: Vec<(Parameter, &'static str)>,
    /// Deployment of the written profile, with its parameters, if the runs cover several
    /// deployments.
    pub profile: Option<Deployment>,
}

/// Fitted parameters of one deployment among several.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// Model, GPU and tensor-parallel size of the deployment.
    pub name: String,
    /// Number of the deployment's fitted runs.
    pub runs: usize,
    /// Parameters fitted to the deployment's runs, including the shift common to all runs.
    pub parameters: Vec<FittedParameter>,
}

/// Roofline parameter with its fitted value.
#[derive(Debug, Clone, Copy)]
pub struct FittedParameter {
    /// Roofline parameter of this result.
    pub parameter: Parameter,
    /// Parameter value before the fit.
    pub default: f64,
    /// Parameter value after the fit.
    pub value: f64,
    /// Standard error of the fitted value, from finite differences.
    pub error: f64,
    /// Whether the fitted value is at a bound of its range.
    pub at_bound: bool,
}

/// Prediction errors of one run in percent (TTFT, ITL, E2E latency), before and after the fit.
#[derive(Debug, Clone)]
pub struct RunOutcome {
    /// Name of the measured run.
    pub name: String,
    /// Index of the run's deployment.
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

pub(super) fn fit(
    cases: Vec<CalibrationCase>,
    options: &Options,
) -> Result<Fitted, CalibrateError> {
    let choice = plan::choose(&cases, options)?;
    let (first, deployments) = deployments(&cases);
    let wanted = match &options.profile_of {
        Some(name) => Some(deployments[find(&cases, name)?]),
        None => None,
    };
    let machine = CaseRunner {
        cases: &cases,
        deployments,
        columns: choice.columns(first.len()),
        threads: match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        },
        progress_bar: Progress::begin("calibrate", "runs simulated", None),
    };
    let (lines, plan) = descend(&machine, &choice)?;
    let everywhere: Vec<usize> = (0..cases.len()).collect();
    let origin = vec![0.0; machine.columns.len()];
    let played = machine.play(
        &[origin, lines.at.clone()],
        &everywhere,
        SimulatedPart::Whole,
    )?;
    let runs = cases.iter().enumerate().map(|(i, case)| RunOutcome {
        name: case.name.clone(),
        deployment: machine.deployments[i],
        held_out: case.held_out,
        warning: case.warning,
        before: case.errors(&played[0][i]),
        after: case.errors(&played[1][i]),
    });
    let runs: Vec<RunOutcome> = runs.collect();
    let parameters = outcomes(&machine, &lines, &plan, None);
    let own = first.iter().enumerate().map(|(n, case)| Deployment {
        name: case.label.clone(),
        runs: runs
            .iter()
            .filter(|run| run.deployment == n && !run.held_out)
            .count(),
        parameters: own_outcomes(&machine, &lines, &plan, (n, case)),
    });
    let own: Vec<Deployment> = own.collect();
    let fitted = |parameter: Parameter| {
        let own = own.iter().flat_map(|own| &own.parameters);
        parameters
            .iter()
            .chain(own)
            .any(|o| o.parameter == parameter)
    };
    let mut left = Vec::new();
    for parameter in super::parameters::ORDER {
        let why = choice.left.iter().find(|(p, _)| *p == parameter);
        let why = match why {
            _ if fitted(parameter) => continue,
            Some((_, why)) => why,
            None if choice.named && !choice.chosen.contains(&parameter) => continue,
            None => "does not improve predictions of runs that were not fitted",
        };
        left.push((parameter, why));
    }
    Ok(Fitted {
        profile: wanted.map(|n| own[n].clone()),
        deployments: own.into_iter().filter(|own| own.runs > 0).collect(),
        parameters,
        runs,
        left,
    })
}

/// Returns the first run of every deployment, and the deployment's index for each run.
fn deployments(cases: &[CalibrationCase]) -> (Vec<&CalibrationCase>, Vec<usize>) {
    let mut known: Vec<&CalibrationCase> = Vec::new();
    let mut of = Vec::with_capacity(cases.len());
    for case in cases {
        let place = known.iter().position(|other| other.setup() == case.setup());
        of.push(place.unwrap_or_else(|| {
            known.push(case);
            known.len() - 1
        }));
    }
    (known, of)
}

fn find(cases: &[CalibrationCase], name: &str) -> Result<usize, CalibrateError> {
    cases
        .iter()
        .position(|case| case.name == name)
        .ok_or_else(|| {
            let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
            let names = names.join(", ");
            CalibrateError::Other(format!(
                "--profile-of: no run has the name {name:?}; the runs are {names}"
            ))
        })
}

/// Alternates between choosing a fit plan and minimizing its cost, until the plan does not change.
fn descend(
    machine: &CaseRunner<'_>,
    choice: &ParameterChoice,
) -> Result<(LinearFit, RidgePlan), CalibrateError> {
    let origin = vec![0.0; machine.columns.len()];
    let mut here = machine
        .residuals(std::slice::from_ref(&origin), SimulatedPart::Whole)?
        .remove(0);
    let all: Vec<usize> = (0..machine.columns.len()).collect();
    let mut lines = machine.lines(&origin, &here, &all)?;
    let mut plan = choice.best(&machine.columns, &lines);
    for look in 1..=MAX_PLANS {
        let planned: Vec<usize> = plan.terms.iter().map(|(column, _)| *column).collect();
        (here, lines) = walk(machine, &plan, here, lines, &planned)?;
        // With many runs of several deployments, the plan is not chosen again.
        let pooled = machine.columns.iter().any(|c| c.deployment.is_some());
        if pooled || look == MAX_PLANS {
            break;
        }
        if planned.len() < all.len() && !planned.is_empty() {
            lines = machine.lines(&lines.at, &here, &all)?;
        }
        let next = choice.best(&machine.columns, &lines);
        if next == plan {
            break;
        }
        plan = next;
        // Parameters outside the plan return to their defaults, whatever the cost.
        let goal = lines.best(&plan).into_iter().enumerate();
        let at: Vec<f64> = goal.map(|(j, u)| machine.bounded(j, u)).collect();
        here = machine
            .residuals(std::slice::from_ref(&at), SimulatedPart::Whole)?
            .remove(0);
        lines = machine.lines(&at, &here, &all)?;
    }
    Ok((lines, plan))
}

/// Minimizes the cost of a fit plan by Gauss-Newton with step halving.
fn walk(
    machine: &CaseRunner<'_>,
    plan: &RidgePlan,
    mut here: Vec<f64>,
    mut lines: LinearFit,
    planned: &[usize],
) -> Result<(Vec<f64>, LinearFit), CalibrateError> {
    for _ in 0..STEPS {
        let goal = lines.best(plan);
        let step: Vec<f64> = goal.iter().zip(&lines.at).map(|(a, b)| a - b).collect();
        if step.iter().all(|by| by.abs() < CONVERGED_STEP) {
            break;
        }
        let cost = lines.cost(plan, &here, &lines.at);
        let mut length = 1.0;
        let mut found = None;
        for _ in 0..HALVINGS {
            let moved = lines.at.iter().zip(&step).enumerate();
            let trial = moved
                .map(|(j, (u, by))| machine.bounded(j, u + length * by.clamp(-LONGEST, LONGEST)));
            let trial: Vec<f64> = trial.collect();
            let residuals = machine
                .residuals(std::slice::from_ref(&trial), SimulatedPart::Whole)?
                .remove(0);
            if lines.cost(plan, &residuals, &trial) < cost {
                found = Some((trial, residuals));
                break;
            }
            length /= 2.0;
        }
        let Some((at, residuals)) = found else {
            break;
        };
        let saved = cost - lines.cost(plan, &residuals, &at);
        here = residuals;
        lines = machine.lines(&at, &here, planned)?;
        if saved < MIN_IMPROVEMENT * cost {
            break;
        }
    }
    Ok((here, lines))
}

/// Returns the fitted parameters common to all runs, or those of the deployment with this index.
fn outcomes(
    machine: &CaseRunner<'_>,
    lines: &LinearFit,
    plan: &RidgePlan,
    deployment: Option<usize>,
) -> Vec<FittedParameter> {
    let errors = lines.errors(plan);
    let terms = plan.terms.iter().zip(errors);
    let own = terms.filter(|((j, _), _)| machine.columns[*j].deployment == deployment);
    let outcomes = own.map(|((j, _), error)| {
        let FitColumn { parameter, .. } = machine.columns[*j];
        let prior = parameter.prior();
        let shared = machine.columns.iter().zip(&lines.at).filter(|(column, _)| {
            deployment.is_some() && column.deployment.is_none() && column.parameter == parameter
        });
        let u = lines.at[*j] + shared.map(|(_, u)| *u).sum::<f64>();
        let (low, high) = prior.bounds;
        let value = (prior.centre + u * prior.scale).clamp(low, high);
        let near = AT_BOUND * (high - low);
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
fn own_outcomes(
    machine: &CaseRunner<'_>,
    lines: &LinearFit,
    plan: &RidgePlan,
    (deployment, case): (usize, &CalibrationCase),
) -> Vec<FittedParameter> {
    let mut outcomes = outcomes(machine, lines, plan, Some(deployment));
    outcomes.retain_mut(|outcome| {
        if outcome.parameter != Parameter::FrontEnd {
            return true;
        }
        let Some(front_end) = case.front_end_us() else {
            return false;
        };
        outcome.value = (outcome.value + front_end - outcome.default).max(0.0);
        outcome.default = front_end;
        true
    });
    outcomes
}
