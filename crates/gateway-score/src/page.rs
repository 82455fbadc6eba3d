use vllm_sim_replay::html::{
    SummaryTile, ValueColour, render_distribution_chart, render_html_document,
    render_summary_tiles, render_table, render_table_notes,
};

use super::fault_schedule::FAULT_PROBLEM_PREFIX;
use super::report::ScoreReport;

pub(super) fn render_score_page(report: &ScoreReport) -> String {
    let mut body = render_summary_tiles(&score_tiles(report));
    body.push_str("<section><h2>Against known routers</h2>");
    let (head, rows) = report.score_table_cells();
    body.push_str(&render_table(&head, &rows));
    body.push_str(&render_table_notes(&report.score_summary_lines()));
    body.push_str("</section><section><h2>Latency distributions</h2><div class=\"charts\">");
    for (title, curves) in report.latency_curves() {
        body.push_str(&render_distribution_chart(title, &curves));
    }
    body.push_str("</div></section>");
    render_html_document("vllm-sim gateway score", &body, &[], &report.command)
}

fn score_tiles(report: &ScoreReport) -> Vec<SummaryTile> {
    let routing = &report.live.routing;
    let score = match report.score {
        Some(score) => SummaryTile::new("Score", &format!("{:.1}", score * 100.0), "of 100"),
        None => SummaryTile::new("Score", "unknown", "see the notes below the table")
            .with_colour(ValueColour::Worse),
    };
    let misroutes = routing.misroutes.total_misroutes();
    let tone = |is_good: bool| if is_good { ValueColour::Better } else { ValueColour::Worse };
    let retries = routing.retries.map_or_else(|| "unknown".to_owned(), |n| n.to_string());
    let mut tiles = vec![
        score,
        SummaryTile::new(
            "Misroutes",
            &misroutes.to_string(),
            "to pods that could not serve, or to none",
        )
        .with_colour(tone(misroutes == 0)),
        SummaryTile::new("Retries", &retries, "attempts beyond the first"),
    ];
    // A fault that was not injected makes the score one of an undisturbed run.
    let lost = report.live.notes.iter().find(|note| note.starts_with(FAULT_PROBLEM_PREFIX));
    if let Some(lost) = lost {
        tiles.insert(
            0,
            SummaryTile::new("Disturbance", "lost", lost).with_colour(ValueColour::Worse),
        );
    }
    for line in report.score_summary_lines() {
        let Some((requirement, verdict)) =
            line.strip_prefix("Required ").and_then(|line| line.split_once(": "))
        else {
            continue;
        };
        let (verdict, value) = verdict.split_once(", ").unwrap_or((verdict, ""));
        let tile = SummaryTile::new(requirement, verdict, value);
        tiles.push(tile.with_colour(tone(verdict == "met")));
    }
    tiles
}
