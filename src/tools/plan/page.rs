use std::fmt::Write as _;

use vllm_sim_replay::html::{command, document, escape, table};

use super::report::{Plan, Row, per_gpu, per_user};
use super::search::Trial;

/// The page of a plan: what each run costs and gives, and the table.
pub(super) fn page(plan: &Plan) -> String {
    let mut body = String::from("<h1>vllm-sim plan</h1>");
    let unit = plan.unit();
    let cost_title = format!("Good requests (%) against cost ({unit})");
    scatter(&mut body, plan, &cost_title, |row, trial| {
        (row.cost(trial), 100.0 * trial.attainment)
    });
    let speed_title = "Output tokens/s and GPU against tokens/s of a user";
    scatter(&mut body, plan, speed_title, |_, trial| {
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
    body.push_str(&command(&plan.command));
    document("vllm-sim plan", &body)
}

/// Every run as a dot: filled where enough requests were good, large where it is an answer.
fn scatter(
    body: &mut String,
    plan: &Plan,
    title: &str,
    place: impl Fn(&Row, &Trial) -> (f64, f64),
) {
    const WIDTH: f64 = 420.0;
    const HEIGHT: f64 = 250.0;
    const LEFT: f64 = 52.0;
    const FOOT: f64 = 26.0;
    let dots: Vec<(f64, f64, String, bool)> = plan
        .rows
        .iter()
        .flat_map(|row| {
            let place = &place;
            row.answer.trials.iter().map(move |trial| {
                let (x, y) = place(row, trial);
                let found = row.answer.found.as_ref();
                let is_answer = found.is_some_and(|found| {
                    found.workers == trial.workers && found.traffic == trial.traffic
                });
                let what = format!("{} workers={}: {x:.2}, {y:.2}", row.label, trial.workers);
                (x, y, what, is_answer)
            })
        })
        .collect();
    let most = |of: fn(&(f64, f64, String, bool)) -> f64| {
        let most = dots.iter().map(of).fold(0.0, f64::max);
        if most > 0.0 { most } else { 1.0 }
    };
    let (right, top) = (most(|dot| dot.0), most(|dot| dot.1));
    let at_x = |x: f64| LEFT + (WIDTH - LEFT - 24.0) * x / right;
    let at_y = |y: f64| 10.0 + (HEIGHT - FOOT - 10.0) * (1.0 - y / top);
    let _ = write!(
        body,
        "<section><figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         style=\"max-width:42rem;width:100%\" role=\"img\" aria-label=\"{}\">",
        escape(title),
        escape(title),
    );
    let (x0, x1, y0, y1) = (at_x(0.0), at_x(right), at_y(0.0), at_y(top));
    let _ = write!(
        body,
        "<path d=\"M{x0:.1},{y1:.1}V{y0:.1}H{x1:.1}\" fill=\"none\" stroke=\"var(--soft)\"/>"
    );
    for (value, share) in [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)] {
        let _ = write!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" style=\"font-size:12px\" \
             fill=\"var(--soft)\">{}</text><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" \
             style=\"font-size:12px\" fill=\"var(--soft)\">{}</text>",
            at_x(right * share),
            HEIGHT - 8.0,
            short(right * value),
            LEFT - 5.0,
            at_y(top * share) + 4.0,
            short(top * value),
        );
    }
    for (x, y, what, is_answer) in &dots {
        let (radius, fill) = match is_answer {
            true => (6, "var(--c0)"),
            false => (3, "var(--soft)"),
        };
        let _ = write!(
            body,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\" fill=\"{fill}\" \
             fill-opacity=\"0.75\"><title>{}</title></circle>",
            at_x(*x),
            at_y(*y),
            escape(what),
        );
    }
    body.push_str(
        "</svg></figure><p>Large: the fewest workers that suffice, of each deployment; small: \
         what else was tried.</p></section>",
    );
}

/// A number in few characters.
fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 || v == 0.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}
