//! Renders a replay's report as one self-contained HTML file.
//!
//! Charts are static SVG. A small script adds tooltips and draws the timeline of requests.

mod axis;
mod blocks;
mod chart;
mod heatmap;
mod requests;
mod scatter;

use std::fmt::Write as _;

use serde_json::Value;

use super::report::{ReplayReport, ReportComparison, WorkerSampleTrack};
pub use blocks::{
    ChartBar, SummaryTile, ValueColour, escape_html, format_latency, format_short_number,
    render_bar_chart, render_coloured_table, render_html_document, render_summary_tiles,
    render_table, render_table_notes,
};
pub use chart::{ChartLine, LineChart, distribution_points};
pub use scatter::{ScatterChart, ScatterPoint};

/// Maximum number of workers drawn as separate lines of a chart.
const MAX_WORKER_LINES: usize = 6;

/// Renders the report of a replay as an HTML page.
///
/// `about` has pairs of name and value that describe the run; `typed` is the command line.
pub fn render_report_page(
    report: &ReplayReport,
    title: &str,
    about: &[(String, String)],
    typed: &str,
) -> String {
    let mut body = String::new();
    push_summary_tiles(&mut body, report);
    push_distributions(&mut body, report);
    push_request_timeline(&mut body, report);
    heatmap::draw_heat_maps(&mut body, &report.timeline.tracks);
    requests::draw_request_timeline(&mut body, &report.spans);
    push_metrics_table(&mut body, report);
    render_html_document(title, &body, about, typed)
}

/// Renders a comparison of replay reports as an HTML page; `command_line` is the command line.
pub fn render_comparison_page(compared: &ReportComparison, command_line: &str) -> String {
    let title = "vllm-sim replay --compare";
    let mut body = render_summary_tiles(&comparison_tiles(compared));
    if !compared.curves.is_empty() {
        body.push_str("<section><h2>Latency distributions</h2><div class=\"charts\">");
        for (title, curves) in &compared.curves {
            let lines: Vec<(&str, Vec<f64>)> =
                curves.iter().map(|(name, curve)| (name.as_str(), curve.clone())).collect();
            body.push_str(&render_distribution_chart(title, &lines));
        }
        body.push_str("</div></section>");
    }
    body.push_str("<section><h2>Numbers</h2>");
    let rows = &compared.rows;
    body.push_str(&render_coloured_table(&compared.heads, rows, |row, column| {
        ValueColour::from_comparison_verdict(&rows[row][column])
    }));
    body.push_str(match compared.is_repeated {
        true => {
            "<p>Means over the runs of each configuration; ± is half the 95 % confidence interval \
             of the difference (Welch), and = means that the interval contains 0.</p>"
        }
        false => "<p>One run of each configuration: a difference may be due to chance.</p>",
    });
    body.push_str("</section>");
    render_html_document(title, &body, &[], command_line)
}

/// Metrics in the summary figures of a comparison page.
const COMPARED_IN_TILES: [&str; 6] = [
    "TTFT median (ms)",
    "TTFT p99 (ms)",
    "ITL of a request mean (ms)",
    "E2E mean (ms)",
    "Output throughput (tok/s)",
    "Goodput (1/s)",
];

/// Returns the changes of the main metrics between two groups of reports; empty if there are more
/// than two groups.
fn comparison_tiles(compared: &ReportComparison) -> Vec<SummaryTile> {
    let Some(percent) = compared.heads.iter().position(|head| head == "Δ %") else {
        return Vec::new();
    };
    let shown = COMPARED_IN_TILES.into_iter().filter_map(|name| {
        let row = compared.rows.iter().find(|row| row[0] == name)?;
        let (change, verdict) = (&row[percent], &row[percent + 1]);
        let value = match verdict.as_str() {
            "" => return None,
            "=" => "equal".to_owned(),
            _ => match change.parse::<f64>() {
                Ok(percent) if percent >= 900.0 => {
                    format!("{} times", format_short_number(1.0 + percent / 100.0))
                }
                _ => format!("{change} %"),
            },
        };
        let note = format!("{} → {}", row[1], row[2]);
        Some(
            SummaryTile::new(name, &value, &note)
                .with_colour(ValueColour::from_comparison_verdict(verdict)),
        )
    });
    shown.collect()
}

/// Renders a chart of latency distributions: each line has a name and its evenly spaced quantiles,
/// in ms.
pub fn render_distribution_chart(title: &str, lines: &[(&str, Vec<f64>)]) -> String {
    let lines = lines.iter().enumerate();
    let lines =
        lines.map(|(at, (name, curve))| ChartLine::new(name, distribution_points(curve), at));
    let chart = LineChart::of_latencies(title, "% of all", lines.collect());
    let mut figure = String::new();
    chart.draw_line_chart(&mut figure);
    figure
}

fn push_summary_tiles(body: &mut String, report: &ReplayReport) {
    let n = |key: &str| report.summary_number(key);
    let short = format_short_number;
    let (done, all) = (n("completed_requests"), n("num_requests"));
    let requests =
        SummaryTile::new("Requests", &short(done), &format!("of {} completed", short(all)));
    let mut tiles = vec![
        requests.with_colour(if done < all { ValueColour::Worse } else { ValueColour::Plain }),
        SummaryTile::new(
            "Duration",
            &format!("{} s", short(n("duration_ms") / 1e3)),
            &format!("{} requests/s", short(n("request_throughput_rps"))),
        ),
        latency_tile(report, "TTFT p99", ("p99_ttft_ms", "mean_ttft_ms"), "slo_ttft_ms"),
        latency_tile(report, "ITL of a request p99", ("p99_tpot_ms", "mean_tpot_ms"), "slo_itl_ms"),
        latency_tile(
            report,
            "Latency p99",
            ("p99_e2e_latency_ms", "mean_e2e_latency_ms"),
            "slo_e2e_ms",
        ),
        SummaryTile::new(
            "Output",
            &format!("{} tok/s", short(n("output_throughput_tok_s"))),
            &format!("{} tokens", short(n("total_output_tokens"))),
        ),
        SummaryTile::new(
            "Prefix reuse",
            &format!("{} %", short(n("prefix_cache_reused_ratio") * 100.0)),
            &format!("{} preemptions", short(n("preemptions"))),
        ),
    ];
    if report.summary.contains_key("router_regret_tokens") {
        let (missed, all) = (n("router_regret_tokens"), n("total_input_tokens").max(1.0));
        tiles.push(SummaryTile::new(
            "Router regret",
            &format!("{} %", short(missed / all * 100.0)),
            &format!("{} tokens were cached on another worker", short(missed)),
        ));
    }
    if report.summary.contains_key("cost") {
        let hours = format!("{} GPU hours", short(n("gpu_hours")));
        tiles.push(SummaryTile::new("Cost", &short(n("cost")), &hours));
    }
    if report.summary.contains_key("slo_attainment") {
        let goodput = format!("{} /s", short(n("goodput_request_throughput_rps")));
        let note = format!("{} % within the SLO", short(n("slo_attainment") * 100.0));
        tiles.insert(0, SummaryTile::new("Goodput", &goodput, &note));
    }
    body.push_str(&render_summary_tiles(&tiles));
}

/// Returns the summary tile of a latency percentile; its colour shows whether the percentile is
/// within the latency bound.
fn latency_tile(
    report: &ReplayReport,
    label: &str,
    (percentile, mean): (&str, &str),
    bound: &str,
) -> SummaryTile {
    let n = |key: &str| report.summary_number(key);
    let (value, bound) = (n(percentile), n(bound));
    let mean = format!("mean {}", format_latency(n(mean)));
    match bound > 0.0 {
        true => SummaryTile::new(
            label,
            &format_latency(value),
            &format!("{mean}, bound {}", format_latency(bound)),
        )
        .with_colour(if value <= bound { ValueColour::Better } else { ValueColour::Worse }),
        false => SummaryTile::new(label, &format_latency(value), &mean),
    }
}

fn push_distributions(body: &mut String, report: &ReplayReport) {
    body.push_str("<section><h2>Latency distributions</h2><div class=\"charts\">");
    for (name, curve) in &report.curves {
        let mut points = distribution_points(curve);
        // A long tail would compress the rest of the chart.
        let last = curve.len().saturating_sub(1).max(1) as f64;
        let at = |share: f64| curve.get((share * last) as usize).copied().unwrap_or(0.0);
        let cut = at(1.0) > 2.0 * at(0.99);
        if cut {
            points.retain(|(_, share)| *share <= 99.5);
        }
        let mut lines = vec![ChartLine::new(name, points, 0)];
        // The bound on gaps applies to their mean per request, not to single gaps.
        let bound = match *name {
            "TTFT" => report.summary_number("slo_ttft_ms"),
            "ITL" => 0.0,
            "TPOT" => report.summary_number("slo_itl_ms"),
            _ => report.summary_number("slo_e2e_ms"),
        };
        if bound > 0.0 {
            let bounds = vec![(bound, 0.0), (bound, 100.0)];
            lines.push(ChartLine::new("bound", bounds, 1));
        }
        let title = match *name {
            "TTFT" => "Time to first token",
            "ITL" => "Single gaps between tokens",
            "TPOT" => "ITL of a request (its mean gap)",
            _ => "Request latency",
        };
        let y = if cut { "% of all, without the highest 0.5 %" } else { "% of all" };
        LineChart::of_latencies(title, y, lines).draw_line_chart(body);
    }
    body.push_str("</div></section>");
}

/// Returns charts of requests within the latency bounds, prefix reuse, workers and cost over time.
fn service_charts(report: &ReplayReport) -> Vec<LineChart<'static>> {
    let over = &report.over_time;
    let mut charts = Vec::new();
    let attained = over.slo_attainment_percent();
    if attained.len() > 1 {
        charts.push(LineChart::over_time(
            "Good requests",
            "% of the requests sent at that time",
            vec![ChartLine::new("good", attained, 0)],
        ));
    }
    let reused = over.prefix_reuse_percent();
    if reused.len() > 1 && reused.iter().any(|(_, share)| *share > 0.0) {
        charts.push(LineChart::over_time(
            "Prefix cache",
            "% of prompt tokens cached, by arrival time",
            vec![ChartLine::new("found", reused, 0)],
        ));
    }
    if over.has_worker_changes() {
        let end = report.summary_number("duration_ms") / 1e3;
        charts.push(LineChart::over_time(
            "Serving workers",
            "workers",
            vec![ChartLine::new("workers", over.worker_count_over_time(end), 0)],
        ));
        let cost = report.summary_number("cost");
        if cost > 0.0 {
            charts.push(LineChart::over_time(
                "Cumulative cost",
                "in the unit of the price",
                vec![ChartLine::new("cost", over.accumulated_cost(end, cost), 0)],
            ));
        }
    }
    charts
}

fn push_request_timeline(body: &mut String, report: &ReplayReport) {
    let tracks = &report.timeline.tracks;
    let service = service_charts(report);
    let is_sampled = tracks.iter().any(|track| track.points.len() > 1);
    if !is_sampled && service.is_empty() {
        return;
    }
    body.push_str("<section><h2>Over time</h2><div class=\"charts\">");
    service.iter().for_each(|chart| chart.draw_line_chart(body));
    if is_sampled {
        push_worker_charts(body, tracks);
    }
    body.push_str("</div></section>");
}

fn push_worker_charts(body: &mut String, tracks: &[WorkerSampleTrack]) {
    let over = |of: fn(&super::report::WorkerTimelinePoint) -> f64,
                mean: bool|
     -> Vec<(f64, f64)> { chart::combine_worker_gauges(tracks, of, mean) };
    let queue = LineChart::over_time(
        "Requests",
        "requests",
        vec![
            ChartLine::new("running", over(|p| p.running, false), 0),
            ChartLine::new("waiting", over(|p| p.waiting, false), 1),
        ],
    );
    queue.draw_line_chart(body);
    let mut lines = vec![ChartLine::new("mean", over(|p| p.kv_usage * 100.0, true), 0)];
    if tracks.len() > 1 && tracks.len() <= MAX_WORKER_LINES {
        lines.extend(tracks.iter().enumerate().map(|(i, track)| {
            let points = track.points.iter();
            let points = points.map(|p| (p.at, p.kv_usage * 100.0)).collect();
            ChartLine::new(&worker_track_name(track), points, i + 1)
        }));
    }
    let usage = LineChart::over_time("KV cache in use", "% of blocks", lines);
    usage.draw_line_chart(body);
    if tracks.iter().flat_map(|t| &t.points).any(|p| p.kv_blocks > 0.0) {
        let blocks = LineChart::over_time(
            "KV blocks in use",
            "blocks of all workers",
            vec![ChartLine::new("blocks", over(|p| p.kv_blocks, false), 0)],
        );
        blocks.draw_line_chart(body);
    }
    let preempted = over(|p| p.preemptions, false);
    if preempted.iter().any(|(_, count)| *count > 0.0) {
        let preempted = LineChart::over_time(
            "Preemptions",
            "since the start",
            vec![ChartLine::new("preemptions", preempted, 1)],
        );
        preempted.draw_line_chart(body);
    }
}

fn worker_track_name(track: &WorkerSampleTrack) -> String {
    format!("{} {}", track.pool.pool_role_page_label(), track.worker)
}

fn push_metrics_table(body: &mut String, report: &ReplayReport) {
    let kinds = ["mean", "min", "median", "p75", "p90", "p95", "p99", "max", "std"];
    let head: Vec<&str> = ["Metric"].into_iter().chain(kinds).collect();
    let rows = [
        ("TTFT, ms", "ttft_ms"),
        ("Second token, ms", "ttst_ms"),
        ("ITL of a request, ms", "tpot_ms"),
        ("Single gaps between tokens, ms", "itl_ms"),
        ("Latency, ms", "e2e_latency_ms"),
        ("Tokens/s per user", "output_token_throughput_per_user"),
    ]
    .map(|(label, key)| {
        let values = kinds.iter().map(|kind| report.summary_number(&format!("{kind}_{key}")));
        let values = values.map(super::report::grouped);
        [label.to_owned()].into_iter().chain(values).collect::<Vec<_>>()
    });
    let _ = write!(
        body,
        "<section><h2>Numbers</h2>{}<details><summary>All totals</summary><table class=\"plain\">",
        render_table(&head, &rows)
    );
    for (key, value) in &report.summary {
        let single = kinds.iter().all(|kind| !key.starts_with(&format!("{kind}_")));
        if single && !value.is_null() {
            let shown = match value {
                Value::String(text) => escape_html(text),
                other => other.to_string(),
            };
            let _ = write!(body, "<tr><th>{}</th><td>{shown}</td></tr>", escape_html(key));
        }
    }
    body.push_str("</table></details></section>");
}
