//! Gauss-Newton with a ridge towards the defaults and a loss that forgives outliers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::case::{Case, Traits};
use super::parameters::{ORDER, Parameter, parameter_names};
use super::{CalibrateError, Options};
use crate::tools::validate::Prediction;

/// Residuals beyond this (6 %) count less and less (soft L1).
const SOFT: f64 = 0.06;
/// Most steps of one round.
const STEPS: usize = 12;
/// Rounds, in which the weight of the defaults follows the noise that is left.
const ROUNDS: usize = 5;
/// Half the distance of finite differences, in scales of the prior.
const DIFFERENCE: f64 = 0.25;
/// A residual whose slope changes by this within a difference counts half: where a handful of
/// requests catches an earlier step or misses it, curves have jumps that tell nothing.
const ROUGH: f64 = 0.01;
/// A parameter that ends within this share of its range from a bound is at it.
const AT_BOUND: f64 = 1e-3;

/// What came of a fit.
#[derive(Debug, Clone)]
pub struct Fitted {
    /// Every parameter that was fitted.
    pub parameters: Vec<Outcome>,
    /// Every run, before and after.
    pub runs: Vec<RunOutcome>,
    /// Parameters that the runs could not tell, and why.
    pub left: Vec<(Parameter, &'static str)>,
}

/// One fitted number.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Which.
    pub parameter: Parameter,
    /// Where it began.
    pub default: f64,
    /// Where it ended.
    pub value: f64,
    /// Standard error from finite differences.
    pub error: f64,
    /// It ended at a bound.
    pub at_bound: bool,
}

/// One run: per cent off in TTFT, ITL, E2E, before and after.
#[derive(Debug, Clone)]
pub struct RunOutcome {
    /// Its name.
    pub name: String,
    /// It was judged only.
    pub held_out: bool,
    /// What speaks against its numbers.
    pub warning: Option<&'static str>,
    /// With the defaults.
    pub before: [Option<f64>; 3],
    /// With the fitted numbers.
    pub after: [Option<f64>; 3],
}

/// Which parameters runs can tell, best first.
fn choose(cases: &[Case], options: &Options) -> Result<Choice, CalibrateError> {
    let fitted: Vec<Traits> = cases
        .iter()
        .filter(|case| !case.held_out)
        .map(Case::traits)
        .collect();
    if fitted.is_empty() {
        let problem = "no run is left to fit: all are held out, or none was named";
        return Err(CalibrateError::Other(problem.to_owned()));
    }
    if !options.fit.is_empty() {
        let mut chosen = Vec::new();
        for name in &options.fit {
            let parameter = Parameter::named(name.trim()).ok_or_else(|| {
                let names = parameter_names();
                CalibrateError::Other(format!("--fit {name:?} is not known; there are {names}"))
            })?;
            chosen.push(parameter);
        }
        return Ok((chosen, Vec::new()));
    }
    let ratio = |of: fn(&Traits) -> f64| {
        let values = || fitted.iter().map(of);
        values().fold(0.0, f64::max) / values().fold(f64::INFINITY, f64::min).max(1e-9)
    };
    let points: usize = fitted.iter().map(|traits| traits.stages).sum();
    let loads = points > 1 && ratio(|t| t.load) >= 1.5 || fitted.iter().any(|t| t.stages > 1);
    let models = fitted
        .windows(2)
        .any(|pair| pair[0].hidden != pair[1].hidden);
    let told = |parameter: Parameter| -> Option<&'static str> {
        let no = |told: bool, why| (!told).then_some(why);
        match parameter {
            Parameter::FrontEnd => None,
            Parameter::StepScale => no(!loads, "told apart into the parts below"),
            Parameter::Step | Parameter::Sequence => no(loads, "needs two different loads"),
            Parameter::Compute => no(ratio(|t| t.prompt) >= 1.5, "needs two prompt lengths"),
            Parameter::Attention => no(ratio(|t| t.context) >= 2.0, "needs two context lengths"),
            Parameter::Memory => no(models, "needs two models"),
            Parameter::Mixed => no(loads && points >= 8, "needs eight runs at different loads"),
            Parameter::AllReduce => no(fitted.iter().any(|t| t.tp > 1), "needs tensor parallelism"),
            Parameter::Moe => no(fitted.iter().any(|t| t.moe), "needs a mixture of experts"),
        }
    };
    let most = (points / 2).max(2);
    let (mut chosen, mut left) = (Vec::new(), Vec::new());
    for parameter in ORDER {
        match told(parameter) {
            None if chosen.len() < most => chosen.push(parameter),
            None => left.push((parameter, "too few runs for one more")),
            Some(why) => left.push((parameter, why)),
        }
    }
    Ok((chosen, left))
}

type Choice = (Vec<Parameter>, Vec<(Parameter, &'static str)>);

/// Fits.
pub(super) fn fit(cases: Vec<Case>, options: &Options) -> Result<Fitted, CalibrateError> {
    let (parameters, left) = choose(&cases, options)?;
    let machine = Machine {
        cases: &cases,
        parameters: &parameters,
        threads: match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        },
    };
    let mut at = vec![0.0; parameters.len()];
    let mut noise = 0.02;
    let mut variance = vec![0.0; parameters.len()];
    for _ in 0..ROUNDS {
        let round = machine.round(&mut at, noise)?;
        variance = round.variance;
        let next = round.noise.clamp(5e-4, 0.05);
        let settled = (next / noise - 1.0).abs() < 0.2;
        noise = next;
        if settled {
            break;
        }
    }
    let everywhere: Vec<usize> = (0..cases.len()).collect();
    let before = machine.play(&[Vec::new()], &everywhere)?;
    let after = machine.play(&[machine.values(&at)], &everywhere)?;
    let runs = cases.iter().enumerate().map(|(i, case)| RunOutcome {
        name: case.name.clone(),
        held_out: case.held_out,
        warning: case.warning,
        before: case.errors(&before[0][i]),
        after: case.errors(&after[0][i]),
    });
    let outcomes = parameters.iter().enumerate().map(|(j, &parameter)| {
        let prior = parameter.prior();
        let value = prior.centre + at[j] * prior.scale;
        let (low, high) = prior.bounds;
        let near = AT_BOUND * (high - low);
        Outcome {
            parameter,
            default: prior.centre,
            value,
            error: noise * variance[j].max(0.0).sqrt() * prior.scale,
            at_bound: value - low < near || high - value < near,
        }
    });
    Ok(Fitted {
        parameters: outcomes.collect(),
        runs: runs.collect(),
        left,
    })
}

struct Machine<'a> {
    cases: &'a [Case],
    parameters: &'a [Parameter],
    threads: usize,
}

struct Round {
    noise: f64,
    variance: Vec<f64>,
}

impl Machine<'_> {
    /// Values for a place in scales of the priors.
    fn values(&self, at: &[f64]) -> Vec<(Parameter, f64)> {
        let values = self.parameters.iter().zip(at).map(|(&parameter, u)| {
            let prior = parameter.prior();
            let value = prior.centre + u * prior.scale;
            (parameter, value.clamp(prior.bounds.0, prior.bounds.1))
        });
        values.collect()
    }

    /// Plays every case with every list of values, on all threads; `[values][case]`.
    fn play(
        &self,
        values: &[Vec<(Parameter, f64)>],
        cases: &[usize],
    ) -> Result<Vec<Vec<Prediction>>, CalibrateError> {
        let jobs = values.len() * cases.len();
        let next = AtomicUsize::new(0);
        let done: Mutex<Vec<Option<Result<Prediction, CalibrateError>>>> =
            Mutex::new((0..jobs).map(|_| None).collect());
        std::thread::scope(|scope| {
            for _ in 0..self.threads.min(jobs).max(1) {
                scope.spawn(|| {
                    loop {
                        let job = next.fetch_add(1, Ordering::Relaxed);
                        if job >= jobs {
                            return;
                        }
                        let (v, c) = (job / cases.len(), job % cases.len());
                        let played = self.cases[cases[c]].play(&values[v]);
                        if let Ok(mut done) = done.lock() {
                            done[job] = Some(played);
                        }
                    }
                });
            }
        });
        let done = done.into_inner().unwrap_or_default();
        let lost = || CalibrateError::Other("a run was not played to its end".to_owned());
        let mut played = done
            .into_iter()
            .map(|one| one.unwrap_or_else(|| Err(lost())));
        let mut all = Vec::with_capacity(values.len());
        for _ in values {
            all.push(
                played
                    .by_ref()
                    .take(cases.len())
                    .collect::<Result<_, _>>()?,
            );
        }
        Ok(all)
    }

    /// Residuals of the fitted cases at several places at once.
    fn residuals(&self, places: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, CalibrateError> {
        let cases: Vec<usize> = (0..self.cases.len())
            .filter(|i| !self.cases[*i].held_out)
            .collect();
        let values: Vec<_> = places.iter().map(|at| self.values(at)).collect();
        let played = self.play(&values, &cases)?;
        let all = played.iter().map(|predictions| {
            let each = cases.iter().zip(predictions);
            each.flat_map(|(i, p)| self.cases[*i].residuals(p))
                .collect()
        });
        Ok(all.collect())
    }

    /// One descent with the given weight of the defaults.
    fn round(&self, at: &mut Vec<f64>, ridge: f64) -> Result<Round, CalibrateError> {
        let n = at.len();
        let cost = |residuals: &[f64], trust: &[f64], at: &[f64]| {
            let loss = |r: &f64| 2.0 * SOFT * SOFT * ((1.0 + (r / SOFT).powi(2)).sqrt() - 1.0);
            let data: f64 = residuals.iter().zip(trust).map(|(r, t)| t * loss(r)).sum();
            data + at.iter().map(|u| (ridge * u).powi(2)).sum::<f64>()
        };
        let mut damping = 1e-3;
        let mut current = self.residuals(std::slice::from_ref(at))?.remove(0);
        let (mut jacobian, mut trust) = self.jacobian(at, &current)?;
        let mut normal = vec![vec![0.0; n]; n];
        for _ in 0..STEPS {
            let gradient;
            (normal, gradient) = system(&jacobian, &current, &trust, at, ridge);
            let mut moved = false;
            for _ in 0..6 {
                let mut damped = normal.clone();
                for (j, row) in damped.iter_mut().enumerate() {
                    row[j] *= 1.0 + damping;
                }
                let Some(step) = solve(damped, &gradient) else {
                    damping *= 10.0;
                    continue;
                };
                let trial = self.bounded(at, &step);
                let length = trial.iter().zip(at.iter()).map(|(a, b)| (a - b).abs());
                if length.fold(0.0, f64::max) < 1e-3 {
                    break;
                }
                let found = self.residuals(std::slice::from_ref(&trial))?.remove(0);
                if cost(&found, &trust, &trial) < cost(&current, &trust, at) {
                    (*at, current) = (trial, found);
                    damping = (damping / 10.0).max(1e-6);
                    moved = true;
                    break;
                }
                damping *= 10.0;
            }
            if !moved {
                break;
            }
            (jacobian, trust) = self.jacobian(at, &current)?;
        }
        let weighed = || current.iter().zip(&trust).filter(|(r, _)| **r != 0.0);
        let seen: f64 = weighed().map(|(_, t)| t).sum();
        let free = (seen - n as f64).max(1.0);
        let squares: f64 = weighed().map(|(r, t)| t * weight(*r) * r * r).sum();
        let unit = |j: usize| {
            (0..n)
                .map(|i| if i == j { 1.0 } else { 0.0 })
                .collect::<Vec<_>>()
        };
        let variance = (0..n).map(|j| solve(normal.clone(), &unit(j)).map_or(0.0, |x| x[j]));
        Ok(Round {
            noise: (squares / free).sqrt(),
            variance: variance.collect(),
        })
    }

    fn bounded(&self, at: &[f64], step: &[f64]) -> Vec<f64> {
        let moved = self.parameters.iter().zip(at.iter().zip(step));
        let moved = moved.map(|(parameter, (u, du))| {
            let prior = parameter.prior();
            let bound = |value: f64| (value - prior.centre) / prior.scale;
            (u - du.clamp(-3.0, 3.0)).clamp(bound(prior.bounds.0), bound(prior.bounds.1))
        });
        moved.collect()
    }

    /// Central differences: `[parameter][residual]`, and how far each residual can be trusted.
    fn jacobian(&self, at: &[f64], here: &[f64]) -> Result<Slopes, CalibrateError> {
        let mut places = Vec::with_capacity(2 * at.len());
        for j in 0..at.len() {
            for side in [DIFFERENCE, -DIFFERENCE] {
                let mut place = at.to_vec();
                place[j] += side;
                places.push(self.bounded(&place, &vec![0.0; at.len()]));
            }
        }
        let found = self.residuals(&places)?;
        let columns = (0..at.len()).map(|j| {
            let apart = places[2 * j][j] - places[2 * j + 1][j];
            let pairs = found[2 * j].iter().zip(&found[2 * j + 1]);
            pairs.map(|(a, b)| (a - b) / apart.max(1e-9)).collect()
        });
        let trust = here.iter().enumerate().map(|(i, middle)| {
            // A curve bends a little over a difference; a jump is all bend.
            let bend = |j: usize| {
                let (up, down) = (found[2 * j][i], found[2 * j + 1][i]);
                let bend = (up - 2.0 * middle + down).abs();
                bend * (bend / (up - down).abs().max(1e-9)).min(1.0)
            };
            let rough = (0..at.len()).map(bend).fold(0.0, f64::max);
            1.0 / (1.0 + (rough / ROUGH).powi(2))
        });
        Ok((columns.collect(), trust.collect()))
    }
}

/// Slopes by parameter and residual, and the trust in each residual.
type Slopes = (Vec<Vec<f64>>, Vec<f64>);

/// Weight of a residual under the soft L1 loss.
fn weight(residual: f64) -> f64 {
    1.0 / (1.0 + (residual / SOFT).powi(2)).sqrt()
}

/// The normal equations, defaults included.
fn system(
    jacobian: &[Vec<f64>],
    residuals: &[f64],
    trust: &[f64],
    at: &[f64],
    ridge: f64,
) -> (Vec<Vec<f64>>, Vec<f64>) {
    let weights = residuals.iter().zip(trust).map(|(r, t)| t * weight(*r));
    let weights: Vec<f64> = weights.collect();
    let product = |a: &[f64], b: &[f64]| -> f64 {
        let terms = a.iter().zip(b).zip(&weights);
        terms.map(|((a, b), w)| w * a * b).sum()
    };
    let normal = jacobian.iter().enumerate().map(|(i, a)| {
        let row = jacobian.iter().enumerate().map(|(j, b)| {
            let own = if i == j { ridge * ridge } else { 0.0 };
            product(a, b) + own
        });
        row.collect()
    });
    let gradient = jacobian
        .iter()
        .zip(at)
        .map(|(column, u)| product(column, residuals) + ridge * ridge * u);
    (normal.collect(), gradient.collect())
}

/// Solves a small system by elimination with pivots; `None` when it has no one solution.
fn solve(mut a: Vec<Vec<f64>>, b: &[f64]) -> Option<Vec<f64>> {
    let n = b.len();
    let mut b = b.to_vec();
    for column in 0..n {
        let pivot =
            (column..n).max_by(|i, j| a[*i][column].abs().total_cmp(&a[*j][column].abs()))?;
        if a[pivot][column].abs() < 1e-300 {
            return None;
        }
        a.swap(column, pivot);
        b.swap(column, pivot);
        let lead = a[column].clone();
        for row in column + 1..n {
            let factor = a[row][column] / lead[column];
            for (value, top) in a[row].iter_mut().zip(&lead) {
                *value -= factor * top;
            }
            b[row] -= factor * b[column];
        }
    }
    for row in (0..n).rev() {
        let known: f64 = (row + 1..n).map(|k| a[row][k] * b[k]).sum();
        b[row] = (b[row] - known) / a[row][row];
    }
    Some(b)
}

#[cfg(test)]
mod tests {
    use super::solve;

    #[test]
    fn small_systems_are_solved() {
        let x = solve(vec![vec![0.0, 2.0], vec![4.0, 1.0]], &[6.0, 7.0]).expect("has a solution");
        assert_eq!(x, [1.0, 3.0]);
        assert_eq!(
            solve(vec![vec![1.0, 1.0], vec![1.0, 1.0]], &[1.0, 2.0]),
            None
        );
    }
}
