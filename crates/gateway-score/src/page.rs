use std::fmt::Write as _;

use vllm_sim_replay::html::{
    escape_html, render_command_section, render_distribution_chart, render_document,
};

use super::report::ScoreReport;

pub(super) fn render_score_page(report: &ScoreReport) -> String {
    let mut body = String::from("<h1>vllm-sim gateway score</h1>");
    let score = report.score.map_or("-".to_owned(), |s| format!("{:.1}", s * 100.0));
    let routing = &report.live.routing;
    let retries = routing.retries.map_or("-".to_owned(), |n| n.to_string());
    body.push_str("<section class=\"tiles\" aria-label=\"Summary\">");
    for (label, value, note) in [
        ("Score", score, "of 100"),
        (
            "Misroutes",
            routing.misroutes.total().to_string(),
            "to pods that could not serve, or to none",
        ),
        ("Retries", retries, "attempts beyond the first"),
    ] {
        let _ = write!(
            body,
            "<div class=\"tile\"><span>{label}</span><strong>{value}</strong>\
             <small>{note}</small></div>"
        );
    }
    body.push_str(
        "</section><section><h2>Against known routers</h2><div class=\"wide\"><table><thead><tr>",
    );
    let (head, rows) = report.table_cells();
    for cell in &head {
        let _ = write!(body, "<th>{}</th>", escape_html(cell));
    }
    body.push_str("</tr></thead><tbody>");
    for row in &rows {
        body.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let tag = if column == 0 { "th" } else { "td" };
            let _ = write!(body, "<{tag}>{}</{tag}>", escape_html(cell));
        }
        body.push_str("</tr>");
    }
    body.push_str("</tbody></table></div>");
    for line in report.summary_lines() {
        let line = escape_html(&line);
        let _ = write!(body, "<p style=\"overflow-wrap:anywhere\">{line}</p>");
    }
    body.push_str("</section><section><h2>Latency distributions</h2><div class=\"charts\">");
    for (title, curves) in report.latency_curves() {
        body.push_str(&render_distribution_chart(title, &curves));
    }
    body.push_str("</div></section>");
    body.push_str(&render_command_section(&report.command));
    render_document("vllm-sim gateway score", &body)
}
