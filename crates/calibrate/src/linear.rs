//! Approximates the dependence of simulated latencies on the parameters linearly around one point.
//!
//! Computes ridge fits and their cross-validation without further simulations.

use std::collections::BTreeSet;

/// Residual of a fit (6 %) above which the loss grows linearly (soft L1).
const SOFT_L1_WIDTH: f64 = 0.06;
/// Number of reweighting rounds of a soft L1 fit, after which it has converged.
const REWEIGHT_ROUNDS: usize = 8;

/// Fit plan: the parameter columns that the fit may change, each with its ridge penalty.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct RidgeFitPlan {
    pub(super) terms: Vec<(usize, f64)>,
}

/// Linear approximation of the residuals (logarithms of predicted / measured latency) around a
/// point.
///
/// Coordinates are differences from the defaults, in scales of the priors.
pub(super) struct LinearizedResiduals {
    pub(super) at: Vec<f64>,
    /// Values of the residuals at `at`, the point of the linear approximation.
    pub(super) here: Vec<f64>,
    /// Derivatives of the residuals with respect to the fitted parameters, as `[column][residual]`.
    pub(super) slopes: Vec<Vec<f64>>,
    pub(super) weights: Vec<f64>,
    /// Cross-validation unit (run or stage) of each residual; a unit is left out as a whole.
    pub(super) units: Vec<usize>,
}

impl LinearizedResiduals {
    pub(super) fn cross_validation_units(&self) -> BTreeSet<usize> {
        self.units.iter().copied().collect()
    }

    /// Returns the linear approximation of residual `i` at the coordinates `x`. Only the columns in
    /// `terms` have these coordinates; all others have their defaults.
    fn residual_at(&self, i: usize, terms: &[(usize, f64)], x: &[f64]) -> f64 {
        self.residual_at_defaults(i) + self.residual_change(i, terms, x)
    }

    /// Extrapolates residual `i` linearly to the default values of all parameters.
    fn residual_at_defaults(&self, i: usize) -> f64 {
        let columns = self.slopes.iter().zip(&self.at);
        self.here[i] - columns.map(|(slope, u)| slope[i] * u).sum::<f64>()
    }

    fn residual_change(&self, i: usize, terms: &[(usize, f64)], x: &[f64]) -> f64 {
        let terms = terms.iter().zip(x);
        terms.map(|((j, _), u)| self.slopes[*j][i] * u).sum()
    }

    /// Returns the coordinates that minimize the cost of `plan` over all residuals except those of
    /// the cross-validation unit `left_out`.
    fn minimize_cost_without_unit(&self, plan: &RidgeFitPlan, left_out: Option<usize>) -> Vec<f64> {
        let terms = &plan.terms;
        let kept: Vec<usize> = (0..self.here.len())
            .filter(|i| self.weights[*i] > 0.0 && Some(self.units[*i]) != left_out)
            .collect();
        let mut x = vec![0.0; terms.len()];
        for _ in 0..REWEIGHT_ROUNDS {
            let (normal, gradient) = self.normal_equations(terms, &x, &kept);
            let Some(next) = solve_linear_system(normal, &gradient) else {
                break;
            };
            x = next;
        }
        x
    }

    /// Returns the normal equations of the fit, in which the residuals have the weights that follow
    /// from their values at `x`.
    fn normal_equations(
        &self,
        terms: &[(usize, f64)],
        x: &[f64],
        kept: &[usize],
    ) -> (Vec<Vec<f64>>, Vec<f64>) {
        let n = terms.len();
        let mut normal = vec![vec![0.0; n]; n];
        let mut gradient = vec![0.0; n];
        for &i in kept {
            let weight = self.weights[i] * soft_l1_weight(self.residual_at(i, terms, x));
            let origin = self.residual_at_defaults(i);
            for (a, (column, _)) in terms.iter().enumerate() {
                let slope = self.slopes[*column][i];
                if slope == 0.0 {
                    continue;
                }
                gradient[a] -= weight * slope * origin;
                for (b, (other, _)) in terms.iter().enumerate() {
                    normal[a][b] += weight * slope * self.slopes[*other][i];
                }
            }
        }
        for (a, (_, ridge)) in terms.iter().enumerate() {
            normal[a][a] += ridge * ridge;
        }
        (normal, gradient)
    }

    /// Returns the fit point with the lowest cost of `plan`; columns outside the plan are at their
    /// defaults.
    pub(super) fn lowest_cost_parameter_point(&self, plan: &RidgeFitPlan) -> Vec<f64> {
        let mut place = vec![0.0; self.at.len()];
        for ((column, _), u) in plan.terms.iter().zip(self.minimize_cost_without_unit(plan, None)) {
            place[*column] = u;
        }
        place
    }

    /// Returns the cross-validated cost of a fit plan: the sum, over all units, of the cost of a
    /// unit's residuals in a fit to the other units.
    pub(super) fn cross_validated_cost(&self, plan: &RidgeFitPlan) -> f64 {
        let cost = self.cross_validation_units().into_iter().map(|unit| {
            let x = self.minimize_cost_without_unit(plan, Some(unit));
            let own = (0..self.here.len()).filter(|i| self.units[*i] == unit);
            own.map(|i| self.weights[i] * soft_l1_loss(self.residual_at(i, &plan.terms, &x)))
                .sum::<f64>()
        });
        cost.sum()
    }

    /// Returns the cost of a fit plan for residuals simulated at the fit point `place`.
    pub(super) fn fit_plan_cost(
        &self,
        plan: &RidgeFitPlan,
        residuals: &[f64],
        place: &[f64],
    ) -> f64 {
        let data = residuals.iter().zip(&self.weights);
        let held = plan.terms.iter();
        data.map(|(r, w)| w * soft_l1_loss(*r)).sum::<f64>()
            + held.map(|(j, ridge)| (ridge * place[*j]).powi(2)).sum::<f64>()
    }

    /// Returns the standard errors of the columns of `plan`, in scales of the priors.
    pub(super) fn fit_parameter_standard_errors(&self, plan: &RidgeFitPlan) -> Vec<f64> {
        let terms = &plan.terms;
        let x: Vec<f64> = terms.iter().map(|(j, _)| self.at[*j]).collect();
        let all: Vec<usize> = (0..self.here.len()).collect();
        let (normal, _) = self.normal_equations(terms, &x, &all);
        let seen: f64 = self.weights.iter().sum();
        let squares: f64 = all
            .iter()
            .map(|&i| self.weights[i] * soft_l1_weight(self.here[i]) * self.here[i].powi(2))
            .sum();
        let noise = (squares / (seen - terms.len() as f64).max(1.0)).sqrt();
        let errors = (0..terms.len()).map(|j| {
            let unit = (0..terms.len()).map(|i| if i == j { 1.0 } else { 0.0 });
            let column = solve_linear_system(normal.clone(), &unit.collect::<Vec<_>>());
            noise * column.map_or(0.0, |column| column[j].max(0.0).sqrt())
        });
        errors.collect()
    }
}

/// Returns the soft L1 loss of a residual.
fn soft_l1_loss(residual: f64) -> f64 {
    2.0 * SOFT_L1_WIDTH * SOFT_L1_WIDTH * ((1.0 + (residual / SOFT_L1_WIDTH).powi(2)).sqrt() - 1.0)
}

/// Returns the weight of a residual in the reweighted least squares that minimize [`soft_l1_loss`].
fn soft_l1_weight(residual: f64) -> f64 {
    1.0 / (1.0 + (residual / SOFT_L1_WIDTH).powi(2)).sqrt()
}

/// Solves the linear system `a x = b` by pivoted elimination; `None` if it is singular.
fn solve_linear_system(mut a: Vec<Vec<f64>>, b: &[f64]) -> Option<Vec<f64>> {
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
            for (value, top) in a[row].iter_mut().zip(&lead).skip(column) {
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
    use super::*;

    #[test]
    fn linear_system_solver_solves_small_systems() {
        let x = solve_linear_system(vec![vec![0.0, 2.0], vec![4.0, 1.0]], &[6.0, 7.0])
            .expect("has a solution");
        assert_eq!(x, [1.0, 3.0]);
        assert_eq!(solve_linear_system(vec![vec![1.0, 1.0], vec![1.0, 1.0]], &[1.0, 2.0]), None);
    }

    /// Residuals `offset` that column 0 shifts by `slope`, plus noise that column 1 could fit only
    /// within one unit.
    fn noisy_linear_residuals(offsets: &[f64], noise: f64) -> LinearizedResiduals {
        let n = offsets.len();
        let here =
            offsets.iter().enumerate().map(|(i, o)| o + if i % 2 == 0 { noise } else { -noise });
        LinearizedResiduals {
            at: vec![0.0; 2],
            here: here.collect(),
            slopes: vec![vec![0.1; n], (0..n).map(|i| [0.1, -0.1, 0.0][i % 3]).collect()],
            weights: vec![1.0; n],
            units: (0..n).collect(),
        }
    }

    #[test]
    fn effect_shared_by_runs_lowers_cross_validated_cost() {
        let line = noisy_linear_residuals(&[0.05; 6], 0.0);
        let plan = RidgeFitPlan { terms: vec![(0, 0.001)] };
        let place = line.lowest_cost_parameter_point(&plan);
        assert!((place[0] + 0.5).abs() < 1e-3, "{place:?}");
        assert!(
            line.cross_validated_cost(&plan)
                < 0.01 * line.cross_validated_cost(&RidgeFitPlan::default())
        );
    }

    #[test]
    fn parameter_fitted_to_noise_raises_validated_cost() {
        let line = noisy_linear_residuals(&[0.0; 6], 0.02);
        let plan = RidgeFitPlan { terms: vec![(1, 0.001)] };
        assert!(
            line.cross_validated_cost(&plan) > line.cross_validated_cost(&RidgeFitPlan::default())
        );
    }
}
