//! Simulates the runs with many parameter sets in parallel, and computes derivatives of their
//! residuals.

use super::CalibrateError;
use super::case::{CalibrationCase, RunPartToSimulate};
use super::linear::LinearizedResiduals;
use super::parameters::RooflineParameter;
use crate::validate::LatencyPrediction;
use vllm_sim_command_line::map_in_parallel;
use vllm_sim_command_line::progress::JobProgress;

/// Step of the central differences for derivatives, in scales of the prior.
const FINITE_DIFFERENCE_STEP: f64 = 0.25;
/// Curvature of a residual above which the weight of the residual is less than half.
///
/// A few requests that catch or miss a step cause jumps, which carry no information.
const CURVATURE_HALF_WEIGHT: f64 = 0.01;

/// Column of the fit: the value of a parameter for all runs, or its shift for the runs of one
/// deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FitParameterColumn {
    pub(super) parameter: RooflineParameter,
    pub(super) deployment: Option<usize>,
}

pub(super) struct CalibrationCaseRunner<'a> {
    pub(super) cases: &'a [CalibrationCase],
    pub(super) deployments: Vec<usize>,
    pub(super) columns: Vec<FitParameterColumn>,
    pub(super) threads: usize,
    pub(super) progress_bar: JobProgress,
}

type ParameterValues = Vec<(RooflineParameter, f64)>;

impl CalibrationCaseRunner<'_> {
    pub(super) fn fitted_case_indices(&self) -> Vec<usize> {
        let all = 0..self.cases.len();
        all.filter(|i| !self.cases[*i].held_out).collect()
    }

    fn column_affects_case(&self, column: FitParameterColumn, case: usize) -> bool {
        let own = self.deployments[case];
        column.deployment.is_none_or(|deployment| deployment == own)
    }

    /// Converts a point of the fit to the values of the roofline parameters for the run `case`.
    fn parameter_values(&self, place: &[f64], case: usize) -> ParameterValues {
        let mut values: ParameterValues = Vec::new();
        for (column, u) in self.columns.iter().zip(place) {
            if !self.column_affects_case(*column, case) || *u == 0.0 {
                continue;
            }
            let prior = column.parameter.parameter_prior();
            let by = u * prior.scale;
            match values.iter_mut().find(|(p, _)| *p == column.parameter) {
                Some((_, value)) => *value += by,
                None => values.push((column.parameter, prior.centre + by)),
            }
        }
        for (parameter, value) in &mut values {
            let (low, high) = parameter.parameter_prior().bounds;
            *value = value.clamp(low, high);
        }
        values
    }

    /// Simulates each run of `cases` at each of the points, on all threads; returns the predicted
    /// latencies as `[point][case]`.
    pub(super) fn predict_case_latencies(
        &self,
        places: &[Vec<f64>],
        cases: &[usize],
        length: RunPartToSimulate,
    ) -> Result<Vec<Vec<LatencyPrediction>>, CalibrateError> {
        let jobs: Vec<(&Vec<f64>, usize)> =
            places.iter().flat_map(|place| cases.iter().map(move |case| (place, *case))).collect();
        let played = map_in_parallel(&jobs, self.threads, |&(place, case)| {
            let values = self.parameter_values(place, case);
            let played = self.cases[case].predict_latencies(&values, length);
            self.progress_bar.add_finished_work_units(1);
            played
        });
        let mut played = played.into_iter();
        places.iter().map(|_| played.by_ref().take(cases.len()).collect()).collect()
    }

    /// Returns the residuals of the fitted cases at one point, from simulations of whole runs.
    pub(super) fn residuals_at(&self, place: &[f64]) -> Result<Vec<f64>, CalibrateError> {
        let mut all =
            self.residuals_of_fitted_cases(&[place.to_vec()], RunPartToSimulate::Whole)?;
        Ok(all.remove(0))
    }

    fn residuals_of_fitted_cases(
        &self,
        places: &[Vec<f64>],
        length: RunPartToSimulate,
    ) -> Result<Vec<Vec<f64>>, CalibrateError> {
        let cases = self.fitted_case_indices();
        let played = self.predict_case_latencies(places, &cases, length)?;
        let all = played.iter().map(|predictions| {
            let each = cases.iter().zip(predictions);
            each.flat_map(|(i, p)| self.cases[*i].log_latency_residuals(p)).collect()
        });
        Ok(all.collect())
    }

    /// Approximates the simulated residuals linearly around the point `at`, in the directions of
    /// the `open` columns.
    ///
    /// Columns of one parameter for different deployments move together, as no run belongs to two.
    pub(super) fn linearize_residuals(
        &self,
        at: &[f64],
        here: &[f64],
        open: &[usize],
    ) -> Result<LinearizedResiduals, CalibrateError> {
        let probes = self.independent_column_groups(open);
        let mut places = Vec::with_capacity(2 * probes.len());
        for probe in &probes {
            for side in [FINITE_DIFFERENCE_STEP, -FINITE_DIFFERENCE_STEP] {
                let mut place = at.to_vec();
                for &column in probe {
                    place[column] = self.clamp_to_parameter_bounds(column, place[column] + side);
                }
                places.push(place);
            }
        }
        places.push(at.to_vec());
        let found = self.residuals_of_fitted_cases(&places, RunPartToSimulate::Start)?;
        let middle = &found[2 * probes.len()];
        let owners = self.case_of_residuals();
        let mut slopes = vec![vec![0.0; here.len()]; self.columns.len()];
        let mut rough = vec![0.0_f64; here.len()];
        for (n, probe) in probes.iter().enumerate() {
            let (up, down) = (&found[2 * n], &found[2 * n + 1]);
            for &column in probe {
                let apart = (places[2 * n][column] - places[2 * n + 1][column]).max(1e-9);
                for (i, owner) in owners.iter().enumerate() {
                    if self.column_affects_case(self.columns[column], *owner) {
                        slopes[column][i] = (up[i] - down[i]) / apart;
                    }
                }
            }
            for (i, rough) in rough.iter_mut().enumerate() {
                // Smooth curves bend little over a difference; a jump is all curvature.
                let bend = (up[i] - 2.0 * middle[i] + down[i]).abs();
                let bend = bend * (bend / (up[i] - down[i]).abs().max(1e-9)).min(1.0);
                *rough = rough.max(bend);
            }
        }
        let fitted = self.fitted_case_indices();
        for &column in open {
            let known =
                |i: &usize| self.cases[*i].analytic_latency_slopes(self.columns[column].parameter);
            for (i, slope) in fitted.iter().flat_map(known).enumerate() {
                if let Some(slope) = slope
                    && self.column_affects_case(self.columns[column], owners[i])
                {
                    slopes[column][i] = slope;
                }
            }
        }
        let weights = self.target_weights(&fitted).zip(&rough);
        Ok(LinearizedResiduals {
            at: at.to_vec(),
            here: here.to_vec(),
            slopes,
            weights: weights
                .map(|(weight, rough)| weight / (1.0 + (rough / CURVATURE_HALF_WEIGHT).powi(2)))
                .collect(),
            units: self.validation_units(&owners),
        })
    }

    /// Groups the parameter columns so that one simulation yields all derivatives of a group. The
    /// derivatives with respect to the API server time need no simulation.
    fn independent_column_groups(&self, open: &[usize]) -> Vec<Vec<usize>> {
        let mut probes: Vec<Vec<usize>> = Vec::new();
        let front_end =
            |column: usize| self.columns[column].parameter == RooflineParameter::FrontEnd;
        for &column in open.iter().filter(|column| !front_end(**column)) {
            let key = |j: usize| {
                let column = self.columns[j];
                (column.parameter, column.deployment.is_some())
            };
            match probes.iter_mut().find(|probe| key(probe[0]) == key(column)) {
                Some(probe) => probe.push(column),
                None => probes.push(vec![column]),
            }
        }
        probes
    }

    fn target_weights<'b>(&'b self, fitted: &'b [usize]) -> impl Iterator<Item = f64> + 'b {
        fitted.iter().flat_map(move |i| {
            let case = &self.cases[*i];
            // Stages share the weight of a run, unless it is the only one.
            let share = if fitted.len() == 1 { case.measured_stage_count() as f64 } else { 1.0 };
            let targets = case.targets.iter();
            targets.map(move |target| target.weight * share)
        })
    }

    /// Returns the index of the run to which each residual belongs.
    fn case_of_residuals(&self) -> Vec<usize> {
        let cases = self.fitted_case_indices().into_iter();
        cases.flat_map(|i| std::iter::repeat_n(i, self.cases[i].targets.len())).collect()
    }

    /// Returns the cross-validation unit of each residual: its run, or for a single run its stage.
    fn validation_units(&self, owners: &[usize]) -> Vec<usize> {
        match self.fitted_case_indices()[..] {
            [one] => {
                let targets = self.cases[one].targets.iter();
                targets.map(|target| target.stage.unwrap_or(0)).collect()
            }
            _ => owners.to_vec(),
        }
    }

    /// Clamps the coordinate of a fit column to the bounds of the column's roofline parameter.
    pub(super) fn clamp_to_parameter_bounds(&self, column: usize, coordinate: f64) -> f64 {
        let prior = self.columns[column].parameter.parameter_prior();
        let bound = |value: f64| (value - prior.centre) / prior.scale;
        coordinate.clamp(bound(prior.bounds.0), bound(prior.bounds.1))
    }
}
