//! Renders a sweep as an HTML page with a bar for each point.

use vllm_sim_replay::html::{
    ChartBar, ScatterChart, ScatterPoint, SummaryTile, ValueColour, format_latency,
    format_short_number, render_bar_chart, render_coloured_table, render_html_document,
    render_summary_tiles, render_table_notes,
};

use vllm_sim_replay_cli::ResultProvenance;

use super::{PlayedSummary, PointResult, best_point_index, table_cells, table_notes};

pub(super) fn sweep_html_page(
    names: &[&str],
    played: &[PointResult],
    (origin, typed): (&ResultProvenance, &str),
) -> String {
    let best = best_point_index(played);
    let notes = table_notes(names, played);
    let mut body = render_summary_tiles(&best_point_tiles(names, played, &notes));
    body.push_str("<section><h2>Points compared</h2><div class=\"charts\">");
    body.push_str(&render_bar_chart("Good requests per second and GPU", &bars(names, played)));
    draw_scatter_chart(&mut body, names, played);
    body.push_str("</div></section><section><h2>Points</h2>");
    let (mut head, mut rows) = table_cells(names, played);
    head.insert(0, "#".to_owned());
    for (at, row) in rows.iter_mut().enumerate() {
        let star = if Some(at) == best { " ★" } else { "" };
        row.insert(0, format!("{}{star}", at + 1));
    }
    body.push_str(&render_coloured_table(&head, &rows, |row, column| {
        if Some(row) == best && column == 0 { ValueColour::Best } else { ValueColour::Plain }
    }));
    let notes = notes.iter().map(|note| note.replacen('*', "★", 1)).collect::<Vec<_>>();
    body.push_str(&render_table_notes(&notes));
    body.push_str("</section>");
    render_html_document("vllm-sim sweep", &body, &origin.provenance_rows(), typed)
}

fn point_label(names: &[&str], point: &PointResult) -> String {
    let flags = names.iter().zip(&point.values);
    flags.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

/// Returns the summary figures of the page: the best grid point and its latencies.
fn best_point_tiles(names: &[&str], played: &[PointResult], notes: &[String]) -> Vec<SummaryTile> {
    let count =
        format!("{} of {}", played.iter().filter(|p| p.played.is_ok()).count(), played.len());
    let simulated = SummaryTile::new("Points", &count, "simulated");
    let point = best_point_index(played).map(|at| &played[at]);
    let Some((point, best)) = point.and_then(|point| Some((point, point.played.as_ref().ok()?)))
    else {
        let why = notes.first().map_or("", String::as_str);
        return vec![
            SummaryTile::new("Best point", "none", why).with_colour(ValueColour::Worse),
            simulated,
        ];
    };
    let latency = |key: &str| format_latency(best.summary_number(key));
    let best_tile = SummaryTile::new("Best point", &point_label(names, point), "★ in the table");
    let mut tiles = vec![
        best_tile.with_colour(ValueColour::Better),
        SummaryTile::new(
            "Good requests",
            &format!("{} /s", format_short_number(best.goodput_per_gpu_rps())),
            &format!("and GPU; {} /s in all", format_short_number(best.goodput_rps())),
        ),
    ];
    for (label, percentile, median, bound) in [
        ("TTFT p99", "p99_ttft_ms", "median_ttft_ms", "slo_ttft_ms"),
        ("ITL p99", "p99_tpot_ms", "median_tpot_ms", "slo_itl_ms"),
    ] {
        let bound = match best.summary_number(bound) {
            most if most > 0.0 => format!(", bound {}", format_latency(most)),
            _ => String::new(),
        };
        let note = format!("median {}{bound}", latency(median));
        tiles.push(SummaryTile::new(label, &latency(percentile), &note));
    }
    tiles.push(simulated);
    tiles
}

fn bars(names: &[&str], played: &[PointResult]) -> Vec<ChartBar> {
    let best = best_point_index(played);
    let goodput =
        |point: &PointResult| point.played.as_ref().map_or(0.0, PlayedSummary::goodput_per_gpu_rps);
    let most = played.iter().map(goodput).fold(0.0, f64::max);
    let bars = played.iter().enumerate().map(|(at, point)| ChartBar {
        label: format!("{}: {}", at + 1, point_label(names, point)),
        value: match &point.played {
            Ok(_) => format!("{} /s", format_short_number(goodput(point))),
            Err(_) => "not simulated".to_owned(),
        },
        ratio: if most > 0.0 { goodput(point) / most } else { 0.0 },
        tone: if Some(at) == best { ValueColour::Best } else { ValueColour::Plain },
    });
    bars.collect()
}

/// Draws a scatter chart of the sweep's grid points: the latency of each against its throughput.
fn draw_scatter_chart(body: &mut String, names: &[&str], played: &[PointResult]) {
    let points = played.iter().enumerate().filter_map(|(at, point)| {
        let summary = point.played.as_ref().ok()?;
        let rate = summary.summary_number("output_throughput_tok_s") / summary.gpus.max(1e-9);
        Some(ScatterPoint {
            x: rate,
            y: summary.summary_number("p99_ttft_ms") / 1e3,
            name: format!("{}: {}", at + 1, point_label(names, point)),
            number: Some(at + 1),
        })
    });
    let chart = ScatterChart {
        title: "Latency against load",
        x: "output tokens/s and GPU",
        y: "TTFT p99, s",
        points: points.collect(),
        best: best_point_index(played).map(|at| at + 1),
        front: Vec::new(),
    };
    chart.draw_scatter_chart(body);
}
