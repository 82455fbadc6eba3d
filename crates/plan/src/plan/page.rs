use std::fmt::Write as _;

use vllm_sim_replay::html::{command, document, escape, run, table};

use super::pareto::{Good, dots, front};
use super::report::{Plan, Row, per_gpu, per_user};
use super::search::Trial;

pub(super) fn page(plan: &Plan) -> String {
    let mut body = String::from("<h1>vllm-sim plan</h1>");
    if let Some(answer) = plan.answer() {
        let _ = write!(
            body,
            "<section><p><strong>{}</strong></p></section>",
            escape(&answer)
        );
    }
    let unit = plan.unit();
    let cost_title = format!("Good requests (%) against cost ({unit})");
    scatter(&mut body, plan, (&cost_title, Good::Left), |row, trial| {
        (row.cost(trial), 100.0 * trial.attainment)
    });
    let speed_title = "Output tokens/s and GPU against tokens/s of a user";
    scatter(&mut body, plan, (speed_title, Good::Right), |_, trial| {
        (per_user(trial), per_gpu(trial))
    });
    let (head, mut rows) = plan.cells();
    body.push_str("<section><h2>Deployments</h2>");
    for (at, row) in rows.iter_mut().enumerate() {
        if let Some(first) = row
            .first_mut()
            .filter(|_| at == 0 && !plan.order.is_empty())
        {
            first.push_str(" ★");
        }
    }
    body.push_str(&table(&head, &rows));
    for note in plan.notes() {
        let note = escape(&note.replacen('*', "★", 1));
        let _ = write!(body, "<p style=\"overflow-wrap:anywhere\">{note}</p>");
    }
    body.push_str("</section>");
    body.push_str(&run(&plan.origin.rows()));
    body.push_str(&command(&plan.command));
    document("vllm-sim plan", &body)
}

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 52.0;
const FOOT: f64 = 26.0;
const MOST_LABELS: usize = 8;

/// Draws every simulated run as a dot (larger for results) and the Pareto front as a line.
fn scatter(
    body: &mut String,
    plan: &Plan,
    (title, good): (&str, Good),
    place: impl Fn(&Row, &Trial) -> (f64, f64),
) {
    let dots = dots(plan, place);
    let most = |of: fn(&super::pareto::Dot<'_>) -> f64| {
        let most = dots.iter().map(of).fold(0.0, f64::max);
        if most > 0.0 { most } else { 1.0 }
    };
    let (right, top) = (most(|dot| dot.x), most(|dot| dot.y));
    let at_x = |x: f64| LEFT + (WIDTH - LEFT - 24.0) * x / right;
    let at_y = |y: f64| 10.0 + (HEIGHT - FOOT - 10.0) * (1.0 - y / top);
    let title = escape(title);
    let _ = write!(
        body,
        "<section><figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         style=\"max-width:42rem;width:100%\" role=\"img\" aria-label=\"{title}\">",
    );
    axes(body, (right, top), &at_x, &at_y);
    let points = front(&dots, good).into_iter();
    let points: Vec<String> = points
        .map(|(x, y)| format!("{:.1},{:.1}", at_x(x), at_y(y)))
        .collect();
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
            escape(&dot.what),
        );
        // In the other chart, results have equal heights, so their labels would overlap.
        if let Some(label) = dot
            .label
            .filter(|_| good == Good::Right && answers <= MOST_LABELS)
        {
            let (shift, anchor) = match x > WIDTH / 2.0 {
                true => (-9.0, "end"),
                false => (9.0, "start"),
            };
            let _ = write!(
                body,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" \
                 style=\"font-size:10px;fill:var(--ink)\">{}</text>",
                x + shift,
                y + 3.0,
                escape(label),
            );
        }
    }
    body.push_str(
        "</svg></figure><p>Large points: the fewest workers that meet the bounds, for each \
         deployment. Small points: all other completed runs. The line joins the runs that no \
         other run beats in both values.</p></section>",
    );
}

fn axes(
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
            HEIGHT - 8.0,
            short(x),
            LEFT - 5.0,
            at_y(y) + 4.0,
            short(y),
        );
    }
}

/// Formats a number with about three digits.
pub(super) fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 || v == 0.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
