use std::fmt::Write as _;

use crate::replay::html::{document, escape};

use super::{Played, best, cells};

/// Height of a bar with the gap below it.
const ROW: usize = 28;
/// Where bars begin and how long the longest is.
const LEFT: usize = 10;
const LONGEST: f64 = 560.0;

/// The page of a sweep: good requests per second and GPU as bars, and the table.
pub(super) fn page(names: &[&str], played: &[Played]) -> String {
    let mut body = String::from("<h1>vllm-sim sweep</h1>");
    bars(&mut body, names, played);
    let (head, rows) = cells(names, played);
    let best = best(played);
    body.push_str("<section><h2>Points</h2><div class=\"wide\"><table><thead><tr>");
    for cell in &head {
        let _ = write!(body, "<th>{}</th>", escape(cell));
    }
    body.push_str("</tr></thead><tbody>");
    for (at, row) in rows.iter().enumerate() {
        body.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let mark = if Some(at) == best && column == 0 {
                " ★"
            } else {
                ""
            };
            let tag = if column == 0 { "th" } else { "td" };
            let _ = write!(body, "<{tag}>{}{mark}</{tag}>", escape(cell));
        }
        body.push_str("</tr>");
    }
    body.push_str("</tbody></table></div></section>");
    document("vllm-sim sweep", &body)
}

fn bars(body: &mut String, names: &[&str], played: &[Played]) {
    let most = played.iter().map(Played::per_gpu).fold(0.0, f64::max);
    let height = played.len() * (ROW + 20) + 10;
    let _ = write!(
        body,
        "<section><figure><figcaption>Good requests per second and GPU</figcaption>\
         <svg viewBox=\"0 0 640 {height}\" role=\"img\" \
         aria-label=\"Good requests per second and GPU, by point\">"
    );
    for (at, point) in played.iter().enumerate() {
        let top = at * (ROW + 20);
        let flags = names.iter().zip(&point.values);
        let label: Vec<String> = flags
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let share = if most > 0.0 {
            point.per_gpu() / most
        } else {
            0.0
        };
        let _ = write!(
            body,
            "<text x=\"{LEFT}\" y=\"{}\">{}: {:.3}</text>\
             <rect x=\"{LEFT}\" y=\"{}\" width=\"{:.1}\" height=\"{}\" rx=\"3\" \
             style=\"fill:var(--c{})\"/>",
            top + 16,
            escape(&label.join(", ")),
            point.per_gpu(),
            top + 22,
            (share * LONGEST).max(1.0),
            ROW - 8,
            usize::from(Some(at) != best(played)),
        );
    }
    body.push_str("</svg></figure></section>");
}
