use std::fmt::Write as _;

use vllm_sim_replay::html::{document, escape};

use super::{Played, PointResult, best, cells, notes};

/// The page of a sweep: good requests per second and GPU as bars, and the table.
pub(super) fn page(names: &[&str], played: &[PointResult]) -> String {
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
    body.push_str("</tbody></table></div>");
    for note in notes(names, played) {
        let _ = write!(body, "<p>{}</p>", escape(&note.replacen('*', "★", 1)));
    }
    body.push_str("</section>");
    document("vllm-sim sweep", &body)
}

/// Boxes of the page and not a drawing: labels of many flags wrap, and text keeps its size on a
/// screen of any width.
fn bars(body: &mut String, names: &[&str], played: &[PointResult]) {
    let done = |point: &PointResult| point.played.as_ref().map_or(0.0, Played::per_gpu);
    let most = played.iter().map(done).fold(0.0, f64::max);
    body.push_str(
        "<section><figure><figcaption>Good requests per second and GPU</figcaption>\
         <div style=\"max-width:44rem\">",
    );
    for (at, point) in played.iter().enumerate() {
        let flags = names.iter().zip(&point.values);
        let label: Vec<String> = flags
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let per_gpu = done(point);
        let share = if most > 0.0 { per_gpu / most } else { 0.0 };
        let _ = write!(
            body,
            "<div style=\"color:var(--soft);overflow-wrap:anywhere;margin-top:8px\">{}: {:.3}</div>\
             <div style=\"width:max(1px,{:.1}%);height:14px;border-radius:3px;\
             background:var(--c{})\"></div>",
            escape(&label.join(", ")),
            per_gpu,
            share * 100.0,
            usize::from(Some(at) != best(played)),
        );
    }
    body.push_str("</div></figure></section>");
}
