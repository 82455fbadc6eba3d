//! Places the simulated runs of a plan in a chart, and finds those that no other run beats.

use super::report::{DeploymentCandidateRow, PlanReport};
use super::search::SimulatedDeploymentTrial;

/// Better end of a chart's horizontal axis; of the vertical axis, the upper end is always the
/// better one.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum BetterChartAxisEnd {
    Left,
    Right,
}

/// Point of a chart that represents one simulated run.
pub(super) struct ParetoChartDot<'a> {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) what: String,
    /// Label of the deployment, if the search selected this run as its result.
    pub(super) label: Option<&'a str>,
}

/// Returns the completed runs of a plan as chart points; the function `place` returns the
/// coordinates of a run.
pub(super) fn pareto_chart_dots<'a>(
    plan: &'a PlanReport,
    place: impl Fn(&DeploymentCandidateRow, &SimulatedDeploymentTrial) -> (f64, f64),
) -> Vec<ParetoChartDot<'a>> {
    let mut dots = Vec::new();
    for row in &plan.rows {
        let found = row.answer.found.as_ref();
        let is_answer = |trial: &SimulatedDeploymentTrial| {
            found.is_some_and(|found| {
                found.workers == trial.workers && found.traffic == trial.traffic
            })
        };
        // The search of a split also runs pools that are far larger than needed.
        let shown =
            |trial: &&SimulatedDeploymentTrial| !trial.stopped && (!row.split || is_answer(trial));
        for trial in row.answer.trials.iter().filter(shown) {
            let (x, y) = place(row, trial);
            let is_answer = is_answer(trial);
            dots.push(ParetoChartDot {
                x,
                y,
                what: format!(
                    "{} workers={}: {x:.2}, {y:.2}",
                    row.label,
                    trial.workers.worker_count_table_cell()
                ),
                label: is_answer.then_some(row.label.as_str()),
            });
        }
    }
    dots
}

/// Returns the Pareto front of the simulated runs, from left to right.
pub(super) fn pareto_front(
    dots: &[ParetoChartDot<'_>],
    good: BetterChartAxisEnd,
) -> Vec<(f64, f64)> {
    let mut sorted: Vec<(f64, f64)> = dots.iter().map(|dot| (dot.x, dot.y)).collect();
    // The better end first; of equal runs the higher ones.
    sorted.sort_by(|a, b| {
        let by_x = match good {
            BetterChartAxisEnd::Left => a.0.total_cmp(&b.0),
            BetterChartAxisEnd::Right => b.0.total_cmp(&a.0),
        };
        by_x.then(b.1.total_cmp(&a.1))
    });
    let mut highest = f64::NEG_INFINITY;
    sorted.retain(|(_, y)| {
        let is_front = *y > highest;
        highest = highest.max(*y);
        is_front
    });
    if good == BetterChartAxisEnd::Right {
        sorted.reverse();
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn front_is_pareto_optimal() {
        let dots = [(1.0, 5.0), (2.0, 9.0), (2.0, 4.0), (3.0, 7.0), (4.0, 1.0)]
            .map(|(x, y)| ParetoChartDot { x, y, what: String::new(), label: None });
        assert_eq!(pareto_front(&dots, BetterChartAxisEnd::Left), [(1.0, 5.0), (2.0, 9.0)]);
        assert_eq!(
            pareto_front(&dots, BetterChartAxisEnd::Right),
            [(2.0, 9.0), (3.0, 7.0), (4.0, 1.0)]
        );
    }
}
