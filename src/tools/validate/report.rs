use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::client::ClientTiming;
use super::spec::RecordedRun;

/// What a run is predicted to show, in milliseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Prediction {
    /// The run's name.
    #[serde(skip)]
    pub id: String,
    /// All completed requests.
    pub summary: Latencies,
    /// The same per stage.
    pub stages: Vec<Latencies>,
}

/// Latencies of completed requests, milliseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Latencies {
    /// Time to the first token.
    pub ttft_mean: f64,
    /// Its median.
    pub ttft_p50: f64,
    /// Its 90th percentile.
    pub ttft_p90: f64,
    /// Its 99th percentile.
    pub ttft_p99: f64,
    /// Mean gap between tokens of a request, averaged over requests.
    pub itl_mean: f64,
    /// Time to the last token.
    pub e2e_mean: f64,
    /// Its median.
    pub e2e_p50: f64,
    /// Its 90th percentile.
    pub e2e_p90: f64,
    /// Its 99th percentile.
    pub e2e_p99: f64,
    /// Requests with all their tokens.
    pub completed: usize,
    /// Requests that the client gave up.
    pub failed: usize,
}

impl Prediction {
    pub(in crate::tools) fn new(run: &RecordedRun, done: &[ClientTiming]) -> Self {
        let stage = |stage: usize| {
            let of_stage = run
                .requests
                .iter()
                .zip(done)
                .filter(|(r, _)| r.stage == stage);
            Latencies::new(of_stage.map(|(r, d)| (r.output, d)))
        };
        Self {
            id: run.id.clone(),
            summary: Latencies::new(run.requests.iter().zip(done).map(|(r, d)| (r.output, d))),
            stages: (0..run.stages).map(stage).collect(),
        }
    }
}

impl Latencies {
    fn new<'a>(requests: impl Iterator<Item = (u32, &'a ClientTiming)>) -> Self {
        let (mut ttft, mut itl, mut e2e) = (Vec::new(), Vec::new(), Vec::new());
        let mut failed = 0;
        for (output, done) in requests {
            if !done.complete {
                failed += 1;
                continue;
            }
            let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
            ttft.push(ms(done.first - done.sent));
            e2e.push(ms(done.last - done.sent));
            if output > 1 {
                itl.push(ms(done.last - done.first) / f64::from(output - 1));
            }
        }
        ttft.sort_by(f64::total_cmp);
        e2e.sort_by(f64::total_cmp);
        Self {
            ttft_mean: mean(&ttft),
            ttft_p50: percentile(&ttft, 0.50),
            ttft_p90: percentile(&ttft, 0.90),
            ttft_p99: percentile(&ttft, 0.99),
            itl_mean: mean(&itl),
            e2e_mean: mean(&e2e),
            e2e_p50: percentile(&e2e, 0.50),
            e2e_p90: percentile(&e2e, 0.90),
            e2e_p99: percentile(&e2e, 0.99),
            completed: e2e.len(),
            failed,
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Between the two nearest of the sorted values.
fn percentile(sorted: &[f64], p: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    let at = p * last as f64;
    let low = sorted[at as usize];
    let high = sorted[(at as usize + 1).min(last)];
    low + (high - low) * at.fract()
}

/// One line of the table.
pub(in crate::tools) struct Row {
    id: String,
    regime: String,
    /// Percent off: TTFT, ITL, E2E (means); averaged over stages where runs are judged so.
    errors: [f64; 3],
}

impl Row {
    pub(in crate::tools) fn new(run: &Value, prediction: &Prediction) -> Self {
        let by_stage = run["score_level"].as_str() == Some("stages");
        let actual = &run["actual"];
        let pairs: Vec<(&Latencies, &Value)> = match actual["stages"].as_array() {
            Some(stages) if by_stage => prediction.stages.iter().zip(stages).collect(),
            _ => vec![(&prediction.summary, &actual["summary"])],
        };
        let error = |key: &str, predicted: &dyn Fn(&Latencies) -> f64| {
            let errors: Vec<f64> = pairs
                .iter()
                .filter_map(|(p, a)| Some((predicted(p), a[key].as_f64().filter(|a| *a != 0.0)?)))
                .map(|(p, a)| (p / a - 1.0) * 100.0)
                .collect();
            match errors[..] {
                [one] => one,
                _ => mean(&errors.iter().map(|e| e.abs()).collect::<Vec<_>>()),
            }
        };
        let regime = run["regime"].as_str().unwrap_or_default();
        Self {
            id: prediction.id.clone(),
            regime: regime
                .split([' ', ':'])
                .next()
                .unwrap_or_default()
                .to_owned(),
            errors: [
                error("ttft_mean", &|l| l.ttft_mean),
                error("itl_mean", &|l| l.itl_mean),
                error("e2e_mean", &|l| l.e2e_mean),
            ],
        }
    }
}

/// Errors per run, and their medians over the stable runs and over all.
pub(in crate::tools) fn table(rows: &[Row]) -> String {
    let width = rows
        .iter()
        .map(|row| row.id.len())
        .max()
        .unwrap_or(0)
        .max(24);
    let mut text = String::new();
    let mut line = |name: &str, regime: &str, [ttft, itl, e2e]: [f64; 3]| {
        let _ = writeln!(
            text,
            "{name:<width$}  {regime:<9} {ttft:>8.1} {itl:>8.1} {e2e:>8.1}"
        );
    };
    for row in rows {
        line(&row.id, &row.regime, row.errors);
    }
    let mut sum_up = |name: &str, rows: &[&Row]| {
        let columns = [0, 1, 2].map(|i| {
            let mut errors: Vec<f64> = rows.iter().map(|row| row.errors[i].abs()).collect();
            errors.sort_by(f64::total_cmp);
            (percentile(&errors, 0.5), mean(&errors))
        });
        line(
            &format!("median of {} {name}", rows.len()),
            "",
            columns.map(|c| c.0),
        );
        line(
            &format!("mean of {} {name}", rows.len()),
            "",
            columns.map(|c| c.1),
        );
    };
    let stable: Vec<&Row> = rows.iter().filter(|row| row.regime == "stable").collect();
    if !stable.is_empty() {
        sum_up("stable runs", &stable);
    }
    sum_up("runs", &rows.iter().collect::<Vec<_>>());
    let head = format!(
        "{:<width$}  {:<9} {:>8} {:>8} {:>8}\n",
        "run (errors in percent)", "regime", "TTFT", "ITL", "E2E"
    );
    head + &text
}
