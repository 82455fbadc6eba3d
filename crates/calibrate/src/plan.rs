//! Chooses the parameters to fit and their ridge penalties, from simple to complex plans.

use super::case::{CalibrationCase, CalibrationRunProperties};
use super::linear::{LinearizedResiduals, RidgeFitPlan};
use super::machine::FitParameterColumn;
use super::parameters::{PARAMETER_FIT_ORDER, RooflineParameter, comma_separated_parameter_names};
use super::{CalibrateError, CalibrateOptions};

const RIDGE_PENALTIES: [f64; 6] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3];
/// Ridge penalty for a single run, which cannot be cross-validated.
const SINGLE_RUN_RIDGE_PENALTY: f64 = 0.001;
/// Relative improvement of the cross-validated cost that a more complex plan must reach.
///
/// A narrow win among dozens of candidates does not generalize.
const MIN_COST_REDUCTION: f64 = 0.05;
/// The roofline parameters that may have a different value for each deployment: the API server time
/// and the factor for all step times.
const DEPLOYMENT_PARAMETERS: [RooflineParameter; 2] =
    [RooflineParameter::FrontEnd, RooflineParameter::StepScale];
/// Parameters of the fit plan that fits only the factor for all step times, which does not depend
/// on the server's host.
///
/// The factor for step times may move alone, so that differences of hosts distort neither
/// inter-token latency nor TTFT.
const STEP_SCALE_PARAMETER: [RooflineParameter; 1] = [RooflineParameter::StepScale];

/// Text of the reason why a measured API server time is not fitted.
pub(super) const FRONT_END_TIME_NOT_FITTED_REASON: &str = "given by --front-end-ms";

/// The roofline parameters that the measured runs determine, best determined first, and the reasons
/// why the other parameters are not fitted.
pub(super) struct FittedParameterChoice {
    pub(super) chosen: Vec<RooflineParameter>,
    pub(super) left: Vec<(RooflineParameter, &'static str)>,
    /// Whether the user named the parameters to fit, which are then always fitted.
    pub(super) named: bool,
    own: &'static [RooflineParameter],
}

pub(super) fn choose_fitted_parameters(
    cases: &[CalibrationCase],
    options: &CalibrateOptions,
) -> Result<FittedParameterChoice, CalibrateError> {
    let fitted: Vec<CalibrationRunProperties> = cases
        .iter()
        .filter(|case| !case.held_out)
        .map(CalibrationCase::calibration_run_properties)
        .collect();
    if fitted.is_empty() {
        let problem = "no run to fit: all runs are held out, or none was given";
        return Err(CalibrateError::Other(problem.to_owned()));
    }
    if !options.fit.is_empty() {
        return choose_named_parameters(options);
    }
    let ratio = |of: fn(&CalibrationRunProperties) -> f64| {
        let values = || fitted.iter().map(of);
        values().fold(0.0, f64::max) / values().fold(f64::INFINITY, f64::min).max(1e-9)
    };
    let points: usize = fitted.iter().map(|traits| traits.stages).sum();
    let loads = points > 1 && ratio(|t| t.load) >= 1.5 || fitted.iter().any(|t| t.stages > 1);
    let models = fitted.windows(2).any(|pair| pair[0].hidden != pair[1].hidden);
    let why_not = |parameter: RooflineParameter| -> Option<&'static str> {
        let no = |chosen: bool, why| (!chosen).then_some(why);
        match parameter {
            RooflineParameter::FrontEnd => {
                no(options.front_end_us.is_none(), FRONT_END_TIME_NOT_FITTED_REASON)
            }
            RooflineParameter::StepScale => no(!loads, "replaced by the separate numbers below"),
            RooflineParameter::Step | RooflineParameter::Sequence => {
                no(loads, "needs two different loads")
            }
            RooflineParameter::Compute => {
                no(ratio(|t| t.prompt) >= 1.5, "needs two prompt lengths")
            }
            RooflineParameter::Attention => {
                no(ratio(|t| t.context) >= 2.0, "needs two context lengths")
            }
            RooflineParameter::Memory => no(models, "needs two models"),
            RooflineParameter::Mixed => {
                no(loads && points >= 8, "needs eight runs at different loads")
            }
            RooflineParameter::AllReduce => {
                no(fitted.iter().any(|t| t.tp > 1), "needs tensor parallelism")
            }
            RooflineParameter::Moe => {
                no(fitted.iter().any(|t| t.moe), "needs a mixture of experts")
            }
        }
    };
    let most = (points / 2).max(2);
    let (mut chosen, mut left) = (Vec::new(), Vec::new());
    for parameter in PARAMETER_FIT_ORDER {
        match why_not(parameter) {
            None if chosen.len() < most => chosen.push(parameter),
            None => left.push((parameter, "too few runs to fit another number")),
            Some(why) => left.push((parameter, why)),
        }
    }
    Ok(FittedParameterChoice {
        chosen,
        left,
        named: false,
        own: match options.front_end_us {
            None => &DEPLOYMENT_PARAMETERS,
            Some(_) => &STEP_SCALE_PARAMETER,
        },
    })
}

fn choose_named_parameters(
    options: &CalibrateOptions,
) -> Result<FittedParameterChoice, CalibrateError> {
    let mut chosen = Vec::new();
    for name in &options.fit {
        let parameter = RooflineParameter::from_coefficient_name(name.trim()).ok_or_else(|| {
            let names = comma_separated_parameter_names();
            CalibrateError::Other(format!("--fit: unknown number {name:?}; allowed are {names}"))
        })?;
        if parameter == RooflineParameter::FrontEnd && options.front_end_us.is_some() {
            let problem = "--fit front_end_us and --front-end-ms cannot be used together";
            return Err(CalibrateError::Other(problem.to_owned()));
        }
        if !chosen.contains(&parameter) {
            chosen.push(parameter);
        }
    }
    Ok(FittedParameterChoice { chosen, left: Vec::new(), named: true, own: &[] })
}

impl FittedParameterChoice {
    /// Returns a column for every parameter that the fit may change: one for all deployments, and
    /// one per deployment if there are several.
    pub(super) fn fit_parameter_columns(&self, deployments: usize) -> Vec<FitParameterColumn> {
        let shared =
            |parameter: RooflineParameter| FitParameterColumn { parameter, deployment: None };
        let mut columns: Vec<FitParameterColumn> =
            self.chosen.iter().copied().map(shared).collect();
        if self.named {
            return columns;
        }
        if deployments > 1 {
            let own = (0..deployments).flat_map(|deployment| {
                self.own.iter().map(move |parameter| FitParameterColumn {
                    parameter: *parameter,
                    deployment: Some(deployment),
                })
            });
            columns.extend(own);
        } else {
            for parameter in self.own {
                if !columns.contains(&shared(*parameter)) {
                    columns.push(shared(*parameter));
                }
            }
        }
        columns
    }

    /// Returns candidate fit plans in stages, from simple to complex.
    fn candidate_plans_by_stage(&self, columns: &[FitParameterColumn]) -> Vec<Vec<RidgeFitPlan>> {
        let shared = |wanted: &[RooflineParameter]| shared_columns(columns, wanted);
        let own = deployment_columns(columns, &DEPLOYMENT_PARAMETERS);
        let held = |indices: &[usize], ridge: f64| -> Vec<(usize, f64)> {
            indices.iter().map(|j| (*j, ridge)).collect()
        };
        let ladder = |indices: &[usize]| -> Vec<RidgeFitPlan> {
            let plans = RIDGE_PENALTIES.map(|ridge| RidgeFitPlan { terms: held(indices, ridge) });
            plans.to_vec()
        };
        if self.named {
            return vec![ladder(&shared(&self.chosen))];
        }
        if own.is_empty() {
            let mut stages = vec![
                ladder(&shared(&STEP_SCALE_PARAMETER)),
                ladder(&shared(&DEPLOYMENT_PARAMETERS)),
            ];
            stages.extend((2..=self.chosen.len()).map(|n| ladder(&shared(&self.chosen[..n]))));
            return stages;
        }
        let all = shared(&self.chosen);
        let both = RIDGE_PENALTIES.iter().flat_map(|inner| {
            let plans = RIDGE_PENALTIES.map(|outer| RidgeFitPlan {
                terms: [held(&own, *inner), held(&all, outer)].concat(),
            });
            plans.to_vec()
        });
        vec![
            ladder(&deployment_columns(columns, &STEP_SCALE_PARAMETER)),
            ladder(&own),
            both.collect(),
        ]
    }

    /// Returns the fit plan with the lowest cross-validated cost, or an empty plan if the defaults
    /// are better.
    pub(super) fn best_cross_validated_plan(
        &self,
        columns: &[FitParameterColumn],
        lines: &LinearizedResiduals,
    ) -> RidgeFitPlan {
        if lines.cross_validation_units().len() < 2 {
            let wanted = if self.named { &self.chosen } else { &DEPLOYMENT_PARAMETERS[..] };
            let terms = shared_columns(columns, wanted);
            return RidgeFitPlan {
                terms: terms.into_iter().map(|j| (j, SINGLE_RUN_RIDGE_PENALTY)).collect(),
            };
        }
        let mut best = RidgeFitPlan::default();
        let mut least = match self.named {
            true => f64::INFINITY,
            false => lines.cross_validated_cost(&best),
        };
        for stage in self.candidate_plans_by_stage(columns) {
            let judged = stage.into_iter().map(|plan| {
                let cost = lines.cross_validated_cost(&plan);
                (plan, cost)
            });
            if let Some((plan, cost)) = judged.min_by(|a, b| a.1.total_cmp(&b.1))
                && cost < least * (1.0 - MIN_COST_REDUCTION)
            {
                (best, least) = (plan, cost);
            }
        }
        best
    }
}

/// Returns the indices of the columns of the `wanted` parameters for all deployments together.
fn shared_columns(columns: &[FitParameterColumn], wanted: &[RooflineParameter]) -> Vec<usize> {
    let is_match = |column: &FitParameterColumn| {
        column.deployment.is_none() && wanted.contains(&column.parameter)
    };
    (0..columns.len()).filter(|j| is_match(&columns[*j])).collect()
}

/// Returns the indices of the columns of the `wanted` parameters for single deployments.
fn deployment_columns(columns: &[FitParameterColumn], wanted: &[RooflineParameter]) -> Vec<usize> {
    let is_match = |column: &FitParameterColumn| {
        column.deployment.is_some() && wanted.contains(&column.parameter)
    };
    (0..columns.len()).filter(|j| is_match(&columns[*j])).collect()
}
