//! Renders a plan as an HTML page with two charts of its runs.

use std::fmt::Write as _;

use vllm_sim_replay::html::{
    escape_html, render_command_section, render_document, render_run_section, render_table,
};

use super::pareto::{BetterEnd, chart_dots, pareto_front};
use super::report::{
    CandidateRow, PlanReport, tokens_per_second_per_gpu, tokens_per_second_per_user,
};
use super::search::SimulatedTrial;

pub(super) fn html_page(plan: &PlanReport) -> String {
    let mut body = String::from("<h1>vllm-sim plan</h1>");
    if let Some(answer) = plan.answer() {
        let _ = write!(body, "<section><p><strong>{}</strong></p></section>", escape_html(&answer));
    }
    let unit = plan.cost_unit();
    let cost_title = format!("Good requests (%) against cost ({unit})");
    write_scatter_chart(&mut body, plan, (&cost_title, BetterEnd::Left), |row, trial| {
        (row.cost_per_hour(trial), 100.0 * trial.attainment)
    });
    let speed_title = "Output tokens/s and GPU against tokens/s of a user";
    write_scatter_chart(&mut body, plan, (speed_title, BetterEnd::Right), |_, trial| {
        (tokens_per_second_per_user(trial), tokens_per_second_per_gpu(trial))
    });
    let (head, mut rows) = plan.table_cells();
    body.push_str("<section><h2>Deployments</h2>");
    for (at, row) in rows.iter_mut().enumerate() {
        if let Some(first) = row.first_mut().filter(|_| at == 0 && !plan.order.is_empty()) {
            first.push_str(" ★");
        }
    }
    body.push_str(&render_table(&head, &rows));
    for note in plan.table_notes() {
        let note = escape_html(&note.replacen('*', "★", 1));
        let _ = write!(body, "<p style=\"overflow-wrap:anywhere\">{note}</p>");
    }
    body.push_str("</section>");
    body.push_str(&render_run_section(&plan.origin.rows()));
    body.push_str(&render_command_section(&plan.command));
    render_document("vllm-sim plan", &body)
}

const CHART_WIDTH: f64 = 420.0;
const CHART_HEIGHT: f64 = 250.0;
const CHART_LEFT_MARGIN: f64 = 52.0;
const CHART_BOTTOM_MARGIN: f64 = 26.0;
const MAX_DOT_LABELS: usize = 8;

/// Draws every simulated run as a dot (larger for results) and the Pareto front as a line.
fn write_scatter_chart(
    body: &mut String,
    plan: &PlanReport,
    (title, good): (&str, BetterEnd),
    place: impl Fn(&CandidateRow, &SimulatedTrial) -> (f64, f64),
) {
    let dots = chart_dots(plan, place);
    let most = |of: fn(&super::pareto::ChartDot<'_>) -> f64| {
        let most = dots.iter().map(of).fold(0.0, f64::max);
        if most > 0.0 { most } else { 1.0 }
    };
    let (right, top) = (most(|dot| dot.x), most(|dot| dot.y));
    let at_x = |x: f64| CHART_LEFT_MARGIN + (CHART_WIDTH - CHART_LEFT_MARGIN - 24.0) * x / right;
    let at_y = |y: f64| 10.0 + (CHART_HEIGHT - CHART_BOTTOM_MARGIN - 10.0) * (1.0 - y / top);
    let title = escape_html(title);
    let _ = write!(
        body,
        "<section><figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {CHART_WIDTH} {CHART_HEIGHT}\" \
         style=\"max-width:42rem;width:100%\" role=\"img\" aria-label=\"{title}\">",
    );
    write_axes(body, (right, top), &at_x, &at_y);
    let points = pareto_front(&dots, good).into_iter();
    let points: Vec<String> =
        points.map(|(x, y)| format!("{:.1},{:.1}", at_x(x), at_y(y))).collect();
    let _ = write!(
        body,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"var(--c1)\"/>",
        points.join(" ")
    );
    let answers = dots.iter().filter(|dot| dot.label.is_some()).count();
    for dot in &dots {
        let (radius, fill) = match dot.label {
            Some(_) => (6, "var(--c0)"),
            None => (3, "var(--soft)"),
        };
        let (x, y) = (at_x(dot.x), at_y(dot.y));
        let _ = write!(
            body,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{fill}\" \
             fill-opacity=\"0.75\"><title>{}</title></circle>",
            escape_html(&dot.what),
        );
        // In the other chart, results have equal heights, so their labels would overlap.
        if let Some(label) =
            dot.label.filter(|_| good == BetterEnd::Right && answers <= MAX_DOT_LABELS)
        {
            let (shift, anchor) = match x > CHART_WIDTH / 2.0 {
                true => (-9.0, "end"),
                false => (9.0, "start"),
            };
            let _ = write!(
                body,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" \
                 style=\"font-size:10px;fill:var(--ink)\">{}</text>",
                x + shift,
                y + 3.0,
                escape_html(label),
            );
        }
    }
    body.push_str(
        "</svg></figure><p>Large points: the fewest workers that meet the bounds, for each \
         deployment. Small points: other completed runs, without those of prefill and decode apart. \
         The line joins the runs that no other run beats in both values.</p></section>",
    );
}

fn write_axes(
    body: &mut String,
    (right, top): (f64, f64),
    at_x: &dyn Fn(f64) -> f64,
    at_y: &dyn Fn(f64) -> f64,
) {
    let (x0, x1, y0, y1) = (at_x(0.0), at_x(right), at_y(0.0), at_y(top));
    let _ = write!(
        body,
        "<path d=\"M{x0:.1},{y1:.1}V{y0:.1}H{x1:.1}\" fill=\"none\" stroke=\"var(--soft)\"/>"
    );
    for share in [0.0, 0.5, 1.0] {
        let (x, y) = (right * share, top * share);
        let _ = write!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" style=\"font-size:12px\" \
             fill=\"var(--soft)\">{}</text><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" \
             style=\"font-size:12px\" fill=\"var(--soft)\">{}</text>",
            at_x(x),
            CHART_HEIGHT - 8.0,
            short_number(x),
            CHART_LEFT_MARGIN - 5.0,
            at_y(y) + 4.0,
            short_number(y),
        );
    }
}

/// Formats a number with about three digits.
pub(super) fn short_number(value: f64) -> String {
    match value {
        v if v >= 100.0 || v == 0.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
