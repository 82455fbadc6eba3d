//! Renders a sweep as an HTML page with a bar for each point.

use std::fmt::Write as _;

use vllm_sim_replay::html::{
    escape_html, render_command_section, render_document, render_run_section, render_table,
};

use vllm_sim_replay_cli::Provenance;

use super::{PlayedSummary, PointResult, best_point_index, table_cells, table_notes};

pub(super) fn html_page(
    names: &[&str],
    played: &[PointResult],
    (origin, typed): (&Provenance, &str),
) -> String {
    let mut body = String::from("<h1>vllm-sim sweep</h1>");
    write_bar_chart(&mut body, names, played);
    let (head, mut rows) = table_cells(names, played);
    let best = best_point_index(played);
    body.push_str("<section><h2>Points</h2>");
    for (at, row) in rows.iter_mut().enumerate() {
        if let Some(first) = row.first_mut().filter(|_| Some(at) == best) {
            first.push_str(" ★");
        }
    }
    body.push_str(&render_table(&head, &rows));
    for note in table_notes(names, played) {
        let _ = write!(body, "<p>{}</p>", escape_html(&note.replacen('*', "★", 1)));
    }
    body.push_str("</section>");
    body.push_str(&render_run_section(&origin.rows()));
    body.push_str(&render_command_section(typed));
    render_document("vllm-sim sweep", &body)
}

/// Renders a bar chart as HTML boxes, so that long labels wrap and the text size is fixed.
fn write_bar_chart(body: &mut String, names: &[&str], played: &[PointResult]) {
    let done =
        |point: &PointResult| point.played.as_ref().map_or(0.0, PlayedSummary::goodput_per_gpu_rps);
    let most = played.iter().map(done).fold(0.0, f64::max);
    body.push_str(
        "<section><figure><figcaption>Good requests per second and GPU</figcaption>\
         <div style=\"max-width:44rem\">",
    );
    for (at, point) in played.iter().enumerate() {
        let flags = names.iter().zip(&point.values);
        let label: Vec<String> = flags.map(|(name, value)| format!("{name} {value}")).collect();
        let per_gpu = done(point);
        let share = if most > 0.0 { per_gpu / most } else { 0.0 };
        let _ = write!(
            body,
            "<div style=\"color:var(--soft);overflow-wrap:anywhere;margin-top:8px\">{}: {:.3}</div>\
             <div style=\"width:max(1px,{:.1}%);height:14px;border-radius:3px;\
             background:var(--c{})\"></div>",
            escape_html(&label.join(", ")),
            per_gpu,
            share * 100.0,
            usize::from(Some(at) != best_point_index(played)),
        );
    }
    body.push_str("</div></figure></section>");
}
