//! Renders a plan as an HTML page with two charts of its runs.

use vllm_sim_replay::html::{
    ScatterChart, ScatterPoint, SummaryTile, ValueColour, format_latency, render_coloured_table,
    render_html_document, render_summary_tiles, render_table_notes,
};

use super::pareto::{BetterChartAxisEnd, pareto_chart_dots, pareto_front};
use super::report::{
    DeploymentCandidateRow, PlanReport, tokens_per_second_per_gpu, tokens_per_second_per_user,
};
use super::search::SimulatedDeploymentTrial;

/// Latency metrics, each with the key under which the summary of a run stores the latency bound of
/// requests.
const REQUEST_BOUNDS: [(&str, &str); 3] =
    [("TTFT", "slo_ttft_ms"), ("ITL", "slo_itl_ms"), ("E2E", "slo_e2e_ms")];

pub(super) fn plan_html_page(plan: &PlanReport) -> String {
    let notes = plan.candidate_table_notes();
    let mut body = render_summary_tiles(&answer_tiles(plan, &notes));
    push_charts(&mut body, plan);
    body.push_str("<section><h2>Deployments</h2>");
    let (mut head, mut rows) = plan.candidate_table_cells();
    head.insert(0, "#".to_owned());
    let answers = plan.order.len();
    for (at, row) in rows.iter_mut().enumerate() {
        let star = if at == 0 { " ★" } else { "" };
        let number = format!("{}{star}", at + 1);
        row.insert(0, if at < answers { number } else { "–".to_owned() });
    }
    body.push_str(&render_coloured_table(&head, &rows, |row, column| {
        if answers > 0 && row == 0 && column == 0 { ValueColour::Best } else { ValueColour::Plain }
    }));
    let notes = notes.iter().map(|note| note.replacen('*', "★", 1)).collect::<Vec<_>>();
    body.push_str(&render_table_notes(&notes));
    body.push_str("</section>");
    render_html_document("vllm-sim plan", &body, &plan.origin.provenance_rows(), &plan.command)
}

/// Draws the charts of a plan's completed runs; draws nothing if the plan has no such runs.
fn push_charts(body: &mut String, plan: &PlanReport) {
    if pareto_chart_dots(plan, |_, _| (0.0, 0.0)).is_empty() {
        return;
    }
    body.push_str("<section><h2>Runs</h2><div class=\"charts\">");
    let cost = format!("cost ({})", plan.cost_unit());
    let axes = ("Good requests against cost", cost.as_str(), "% good");
    draw_scatter_chart(body, plan, axes, BetterChartAxisEnd::Left, |row, trial| {
        (row.cost_per_hour(trial), 100.0 * trial.attainment)
    });
    let axes = ("Throughput against speed", "tokens/s of a user", "output tokens/s and GPU");
    draw_scatter_chart(body, plan, axes, BetterChartAxisEnd::Right, |_, trial| {
        (tokens_per_second_per_user(trial), tokens_per_second_per_gpu(trial))
    });
    body.push_str(
        "</div><p class=\"none\">Numbered points: the fewest workers that meet the bounds, by row \
         of the table. Small points: other completed runs, without those of prefill and \
         decode apart. The line joins the runs that no other run beats in both values.</p></section>",
    );
}

/// Returns the summary figures of the page: the plan's answer, its costs and its latencies.
fn answer_tiles(plan: &PlanReport, notes: &[String]) -> Vec<SummaryTile> {
    let (Some(answer), Some((row, found))) =
        (plan.best_deployment_summary_line(), plan.best_candidate_and_trial())
    else {
        let why = notes.iter().find(|note| note.starts_with("no deployment"));
        let why = why.map_or("no deployment meets the bounds", String::as_str);
        return vec![SummaryTile::new("Answer", "none", why).with_colour(ValueColour::Worse)];
    };
    let answer = answer.trim_start_matches("Answer: ");
    let answer = answer.split(';').next().unwrap_or(answer);
    let (gpus, place) = answer.split_once(" in ").unwrap_or((answer, ""));
    let mut tiles = vec![
        SummaryTile::new("Answer", gpus, &format!("in {place}")).with_colour(ValueColour::Better),
    ];
    if let Some(prices) = &plan.prices {
        let (cost, currency) = (row.cost_of_trial(found), &prices.currency);
        let hour = format!("{:.2} {currency}/h", cost.per_hour);
        tiles.push(SummaryTile::new(
            "Cost",
            &hour,
            &format!("{:.0} {currency} a month", cost.per_month),
        ));
        if let Some(price) = cost.per_million_output {
            let price = format!("{price:.3} {currency}");
            tiles.push(SummaryTile::new("Price of tokens", &price, "per million output tokens"));
        }
    }
    if found.has_latency_bounds() {
        let bounds = REQUEST_BOUNDS.iter().filter_map(|(name, key)| {
            let most = found.report_summary_number(key);
            (most > 0.0).then(|| format!("{name} at most {}", format_latency(most)))
        });
        let good = format!("{:.1} %", 100.0 * found.attainment);
        let bounds = bounds.collect::<Vec<_>>().join(", ");
        tiles.push(SummaryTile::new("Good requests", &good, &bounds));
    }
    for latency in plan.displayed_latencies(found) {
        let name = latency.split(' ').take(2).collect::<Vec<_>>().join(" ");
        tiles.push(SummaryTile::new(&name, latency[name.len()..].trim(), "of all requests"));
    }
    let (head, rows) = plan.candidate_table_cells();
    if let (Some(error), Some("known error")) =
        (rows.first().and_then(|row| row.last()), head.last().map(String::as_str))
    {
        let note = match error.starts_with('(') {
            true => "of the nearest recorded deployment",
            false => "of this deployment, recorded",
        };
        tiles.push(SummaryTile::new("Known error", error.trim_matches(['(', ')']), note));
    }
    tiles
}

/// Draws every simulated run as a point, and the Pareto front. The points of results have the
/// numbers of their table rows.
fn draw_scatter_chart(
    body: &mut String,
    plan: &PlanReport,
    (title, x, y): (&str, &str, &str),
    good: BetterChartAxisEnd,
    place: impl Fn(&DeploymentCandidateRow, &SimulatedDeploymentTrial) -> (f64, f64),
) {
    let dots = pareto_chart_dots(plan, place);
    let number = |label: &str| plan.order.iter().position(|&at| plan.rows[at].label == label);
    let points = dots.iter().map(|dot| ScatterPoint {
        x: dot.x,
        y: dot.y,
        name: dot.what.clone(),
        number: dot.label.and_then(number).map(|at| at + 1),
    });
    let points = points.collect();
    ScatterChart { title, x, y, points, best: Some(1), front: pareto_front(&dots, good) }
        .draw_scatter_chart(body);
}

/// Formats a number with about three digits.
pub(super) fn format_short_number(value: f64) -> String {
    match value {
        v if v >= 100.0 || v == 0.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
