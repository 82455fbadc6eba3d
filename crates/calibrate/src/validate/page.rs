use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use vllm_sim_replay::html::{
    ChartLine, LineChart, SummaryTile, ValueColour, distribution_points, escape_html,
    format_short_number, render_coloured_table, render_html_document, render_summary_tiles,
    render_table,
};

use super::report::quantile_curve;
use super::validation::{AbsoluteErrorSummary, LATENCY_METRICS, ValidatedRun, ValidationReport};

/// Largest prediction error that the charts show, in percent.
const MAX_SHOWN_ERROR_PERCENT: f64 = 60.0;
const MAX_PEERS_SHOWN: usize = 6;
/// Number of runs below which the distribution of their errors has too few values for a chart.
const MIN_RUNS_OF_CURVE: usize = 10;
const PERCENTILES: [(&str, f64); 4] = [("p50", 50.0), ("p90", 90.0), ("p95", 95.0), ("p99", 99.0)];
const TITLE: &str = "vllm-sim validate";

impl ValidationReport {
    /// Renders the validation as an HTML page; `command` is the command line that made it.
    pub fn render_validation_page(&self, command: &str) -> String {
        let mut body = self.summary_tiles();
        self.write_error_charts(&mut body);
        self.write_peer_table(&mut body);
        self.write_group_table(&mut body);
        self.write_run_table(&mut body);
        self.write_run_charts(&mut body);
        render_html_document(TITLE, &body, &[], command)
    }

    fn summary_tiles(&self) -> String {
        let is_stable = |run: &ValidatedRun| run.regime == "stable";
        let count = self.runs.iter().filter(|run| is_stable(run)).count();
        let mut tiles = vec![SummaryTile::new(
            "Runs",
            &self.runs.len().to_string(),
            &format!("{count} stable"),
        )];
        let stable = self.error_summary_of_runs(is_stable);
        let all = self.error_summary_of_runs(|_| true);
        for (key, name, _) in LATENCY_METRICS {
            let (value, of) = match (stable.get(key), all.get(key)) {
                (Some(spread), _) => (spread, "stable runs"),
                (None, Some(spread)) => (spread, "runs"),
                (None, None) => continue,
            };
            tiles.push(SummaryTile::new(
                &format!("{name}, median error"),
                &format!("{:.1} %", value.median),
                &format!("of {} {of}; mean {:.1} %", value.runs, value.mean),
            ));
        }
        render_summary_tiles(&tiles)
    }

    fn write_error_charts(&self, body: &mut String) {
        if self.runs.len() < MIN_RUNS_OF_CURVE {
            let _ = write!(
                body,
                "<p class=\"none\">Distributions of errors are drawn from {MIN_RUNS_OF_CURVE} runs \
                 on.</p>"
            );
            return;
        }
        let peers = self.peer_simulator_errors();
        body.push_str("<section><h2>Absolute errors</h2><div class=\"charts\">");
        for (key, name, _) in LATENCY_METRICS {
            let ours = self.runs.iter().filter_map(|run| run.error_percent.get(key));
            let mut lines = vec![error_distribution_line("vllm-sim", ours.copied(), 0)];
            let shown = peers.iter().filter(|peer| peer.runs > 1);
            lines.extend(shown.take(MAX_PEERS_SHOWN).enumerate().map(|(i, peer)| {
                let of =
                    |run: &ValidatedRun| run.peer_error_percent.get(&peer.name)?.get(key).copied();
                let name = format!("{} ({} runs)", peer.name, peer.runs);
                error_distribution_line(&name, self.runs.iter().filter_map(of), i + 1)
            }));
            let title = format!("{name}: error of the mean");
            LineChart { title: &title, x: "%", y: "% of the runs", lines, follows_y: true }
                .draw_line_chart(body);
        }
        let _ = write!(
            body,
            "</div><p class=\"none\">Errors above {MAX_SHOWN_ERROR_PERCENT} % are not drawn; lines with such \
             errors end below 100 %.</p></section>"
        );
    }

    fn write_peer_table(&self, body: &mut String) {
        let peers = self.peer_simulator_errors();
        if peers.is_empty() {
            return;
        }
        let mut head = vec!["Simulator".to_owned(), "runs".to_owned()];
        for (_, name, _) in LATENCY_METRICS {
            head.extend([format!("{name}, %"), "vllm-sim on these runs".to_owned()]);
        }
        let rows: Vec<Vec<String>> = peers
            .iter()
            .map(|peer| {
                let mut row = vec![peer.name.clone(), peer.runs.to_string()];
                for (key, ..) in LATENCY_METRICS {
                    row.extend([
                        error_cell(&peer.error_percent, key, |spread| spread.median),
                        error_cell(&peer.ours_on_these, key, |spread| spread.median),
                    ]);
                }
                row
            })
            .collect();
        let _ = write!(
            body,
            "<section><h2>Other simulators</h2>{}<p class=\"none\">Median absolute error of the \
             published predictions of other simulators, and of vllm-sim on the same \
             runs.</p></section>",
            render_coloured_table(&head, &rows, |row, column| peer_tone(&rows[row], column))
        );
    }

    fn write_group_table(&self, body: &mut String) {
        let mut head = vec!["Runs".to_owned(), "by".to_owned(), "runs".to_owned()];
        for (_, name, _) in LATENCY_METRICS {
            head.extend([format!("{name}, %"), "mean".to_owned()]);
        }
        let rows: Vec<Vec<String>> = self
            .validated_run_groups()
            .iter()
            .map(|group| {
                let runs = group.runs.to_string();
                let mut row = vec![group.name.clone(), group.by.to_owned(), runs];
                for (key, ..) in LATENCY_METRICS {
                    row.extend([
                        error_cell(&group.error_percent, key, |spread| spread.median),
                        error_cell(&group.error_percent, key, |spread| spread.mean),
                    ]);
                }
                row
            })
            .collect();
        let table = render_table(&head, &rows);
        let _ = write!(
            body,
            "<section class=\"words\"><h2>By group</h2>{table}<p class=\"none\">Medians and means \
             of the absolute errors.</p></section>"
        );
    }

    fn write_run_table(&self, body: &mut String) {
        let mut head: Vec<String> = ["Run", "model", "GPU", "regime"].map(str::to_owned).to_vec();
        for (_, name, _) in LATENCY_METRICS {
            head.extend([format!("{name}, ms"), "predicted".to_owned(), "%".to_owned()]);
        }
        let row = |run: &ValidatedRun| {
            let model = run.model.rsplit('/').next().unwrap_or_default();
            let mut row = vec![
                run.id.clone(),
                model.to_owned(),
                format!("{} x {}, {}", run.tp * run.dp, run.gpu, run.weights),
                run.regime.clone(),
            ];
            for (key, _, of) in LATENCY_METRICS {
                let measured = run.measured["summary"][key].as_f64();
                let error = run.error_percent.get(key);
                row.extend([
                    measured.map_or("-".to_owned(), format_short_number),
                    format_short_number(of(&run.predicted.summary)),
                    error.map_or("-".to_owned(), |error| format!("{error:+.1}")),
                ]);
            }
            row
        };
        let rows: Vec<Vec<String>> = self.runs.iter().map(row).collect();
        let _ = write!(
            body,
            "<section class=\"words several\"><h2>Runs</h2>{}<p class=\"none\">Measured and \
             predicted latencies, and the error of each prediction. A run with several loads is \
             judged stage by stage: its error is the mean absolute error over the \
             stages.</p></section>",
            render_table(&head, &rows)
        );
    }

    fn write_run_charts(&self, body: &mut String) {
        body.push_str(
            "<section><h2>Distributions, run by run</h2><p class=\"none\">Measured: all requests \
             if the run has them, else the published percentiles, joined by lines.</p>",
        );
        for run in &self.runs {
            let (id, model) = (escape_html(&run.id), escape_html(&run.model));
            let gpus = run.tp * run.dp;
            let _ = write!(
                body,
                "<details><summary>{id}: {model} on {gpus} x {}</summary><div class=\"charts\">",
                escape_html(run.gpu)
            );
            let metrics = [
                ("Time to first token", "ttft"),
                ("ITL of a request (its mean gap)", "itl"),
                ("Request latency", "e2e"),
            ];
            for ((title, key), predicted) in metrics.into_iter().zip(&run.curves) {
                let measured = measured_distribution(&run.measured, key);
                write_distribution_chart(body, title, predicted, &measured);
            }
            body.push_str("</div></details>");
        }
        body.push_str("</section>");
    }
}

/// Returns the colour of a table cell that shows a prediction error of vllm-sim. The colour shows
/// whether the error is smaller or larger than that of another simulator in the cell to the left.
fn peer_tone(row: &[String], column: usize) -> ValueColour {
    if column < 3 || column.is_multiple_of(2) {
        return ValueColour::Plain;
    }
    match (row[column].parse::<f64>(), row[column - 1].parse::<f64>()) {
        (Ok(ours), Ok(theirs)) if ours < theirs => ValueColour::Better,
        (Ok(ours), Ok(theirs)) if ours > theirs => ValueColour::Worse,
        _ => ValueColour::Plain,
    }
}

fn error_cell(
    errors: &BTreeMap<&'static str, AbsoluteErrorSummary>,
    key: &str,
    of: fn(&AbsoluteErrorSummary) -> f64,
) -> String {
    errors.get(key).map_or("-".to_owned(), |spread| format!("{:.1}", of(spread)))
}

/// Returns a chart line with the cumulative distribution of absolute prediction errors.
fn error_distribution_line(
    name: &str,
    errors: impl Iterator<Item = f64>,
    colour: usize,
) -> ChartLine {
    let mut sizes: Vec<f64> = errors.map(f64::abs).collect();
    sizes.sort_by(f64::total_cmp);
    let all = sizes.len() as f64;
    let points = sizes.iter().zip(1u32..);
    let points = points.map(|(size, place)| (*size, f64::from(place) * 100.0 / all));
    let shown = points.take_while(|(size, _)| *size <= MAX_SHOWN_ERROR_PERCENT);
    ChartLine::new(name, [(0.0, 0.0)].into_iter().chain(shown).collect(), colour)
}

/// Returns the measured latency distribution of a run as points (latency in ms, percent of the
/// requests up to that latency).
///
/// Gaps need records of every request: published percentiles may count tokens, requests or
/// re-tokenized text.
fn measured_distribution(actual: &Value, key: &str) -> Vec<(f64, f64)> {
    let requests = actual["requests"].as_array().into_iter().flatten();
    let each = requests.filter_map(|request| request[format!("{key}_ms")].as_f64());
    let each = quantile_curve(each.collect());
    if !each.is_empty() {
        return distribution_points(&each);
    }
    let summary = &actual["summary"];
    let known = PERCENTILES.into_iter().filter(|_| key != "itl");
    known
        .filter_map(|(name, share)| Some((summary[format!("{key}_{name}")].as_f64()?, share)))
        .collect()
}

fn write_distribution_chart(
    body: &mut String,
    title: &str,
    predicted: &[f64],
    measured: &[(f64, f64)],
) {
    if measured.is_empty() {
        return;
    }
    let mut points = distribution_points(predicted);
    // A long tail would compress the rest of the chart; the measurements determine the width.
    let most = measured.iter().map(|point| point.0).fold(0.0, f64::max);
    points.retain(|(ms, share)| *share <= 98.0 || *ms <= most * 1.2);
    let lines = vec![
        ChartLine::new("predicted", points, 0),
        ChartLine::new("measured", measured.to_vec(), 1),
    ];
    LineChart::of_latencies(title, "% of the requests", lines).draw_line_chart(body);
}
