//! Draws the runs of a plan as characters, for a terminal.

use super::page::format_short_number;
use super::pareto::{BetterChartAxisEnd, ParetoChartDot, pareto_chart_dots, pareto_front};
use super::report::{PlanReport, tokens_per_second_per_gpu, tokens_per_second_per_user};

const COLUMNS: usize = 60;
const ROWS: usize = 12;

/// Returns a text chart of output tokens per second and GPU against output tokens per second and
/// user; `None` with fewer than two runs.
pub(super) fn pareto_text_chart(plan: &PlanReport) -> Option<String> {
    let dots = pareto_chart_dots(plan, |_, trial| {
        (tokens_per_second_per_user(trial), tokens_per_second_per_gpu(trial))
    });
    if dots.len() < 2 {
        return None;
    }
    let (best, found) = plan.best_candidate_and_trial()?;
    let cheapest = (tokens_per_second_per_user(found), tokens_per_second_per_gpu(found));
    let legend = format!("* {}", if best.label.is_empty() { "cheapest" } else { &best.label });
    Some(render_chart(&dots, cheapest, &legend))
}

fn render_chart(dots: &[ParetoChartDot<'_>], cheapest: (f64, f64), legend: &str) -> String {
    let most =
        |of: fn(&ParetoChartDot<'_>) -> f64| dots.iter().map(of).fold(f64::MIN_POSITIVE, f64::max);
    let (right, top) = (most(|dot| dot.x), most(|dot| dot.y));
    let cell = |value: f64, most: f64, cells: usize| {
        let last = cells - 1;
        // The cast saturates.
        ((value / most * last as f64).round() as usize).min(last)
    };
    let mut grid = vec![vec![' '; COLUMNS]; ROWS];
    let mut mark = |(x, y): (f64, f64), sign: char| {
        grid[ROWS - 1 - cell(y, top, ROWS)][cell(x, right, COLUMNS)] = sign;
    };
    // Later marks cover earlier ones.
    let others = dots.iter().filter(|dot| dot.label.is_none());
    others.for_each(|dot| mark((dot.x, dot.y), '·'));
    let found = dots.iter().filter(|dot| dot.label.is_some());
    found.for_each(|dot| mark((dot.x, dot.y), 'o'));
    pareto_front(dots, BetterChartAxisEnd::Right).into_iter().for_each(|at| mark(at, '+'));
    mark(cheapest, '*');
    let labels = [format_short_number(top), format_short_number(0.0)];
    let width = labels[0].chars().count();
    let mut lines = vec!["Output tokens/s per GPU (up) against tokens/s of one user".to_owned()];
    for (index, row) in grid.iter().enumerate() {
        let label = match index {
            0 => labels[0].as_str(),
            _ if index == ROWS - 1 => labels[1].as_str(),
            _ => "",
        };
        let row: String = row.iter().collect();
        lines.push(format!("{label:>width$} |{}", row.trim_end()));
    }
    let end = format_short_number(right);
    lines.push(format!("{:>width$} +{}", "", "-".repeat(COLUMNS)));
    let room = COLUMNS - 1;
    lines.push(format!("{:>width$}  0{end:>room$}", ""));
    lines.push(format!("{legend}   + no run is better in both   o meets the bounds   · other run"));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_a_mark_and_the_axes_have_their_ends() {
        let dot = |x, y, label| ParetoChartDot { x, y, what: String::new(), label };
        let dots =
            [dot(10.0, 400.0, Some("a")), dot(20.0, 100.0, Some("b")), dot(40.0, 200.0, None)];
        let text = render_chart(&dots, (10.0, 400.0), "* a");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), ROWS + 4);
        assert_eq!(lines[1], format!("400 |{}*", " ".repeat(15)));
        assert!(lines[ROWS - 3].ends_with('o'), "{text}");
        assert!(text.contains('+') && lines[ROWS + 2].ends_with("40.0"), "{text}");
    }
}
