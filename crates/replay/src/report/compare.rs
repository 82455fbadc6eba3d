//! Two reports side by side.

use serde_json::Value;

use super::table::{grid, number};

/// What is compared: the label, the key in the summary, and whether more is better.
const KEYS: [(&str, &str, bool); 24] = [
    ("Requests completed", "completed_requests", true),
    ("Duration (ms)", "duration_ms", false),
    ("Request throughput (1/s)", "request_throughput_rps", true),
    ("Output throughput (tok/s)", "output_throughput_tok_s", true),
    ("Goodput (1/s)", "goodput_request_throughput_rps", true),
    ("Goodput per GPU (1/s)", "goodput_per_gpu_rps", true),
    ("TTFT mean (ms)", "mean_ttft_ms", false),
    ("TTFT median (ms)", "median_ttft_ms", false),
    ("TTFT p90 (ms)", "p90_ttft_ms", false),
    ("TTFT p99 (ms)", "p99_ttft_ms", false),
    ("ITL mean (ms)", "mean_itl_ms", false),
    ("ITL median (ms)", "median_itl_ms", false),
    ("ITL p99 (ms)", "p99_itl_ms", false),
    ("TPOT mean (ms)", "mean_tpot_ms", false),
    ("TPOT p99 (ms)", "p99_tpot_ms", false),
    ("E2E mean (ms)", "mean_e2e_latency_ms", false),
    ("E2E median (ms)", "median_e2e_latency_ms", false),
    ("E2E p90 (ms)", "p90_e2e_latency_ms", false),
    ("E2E p99 (ms)", "p99_e2e_latency_ms", false),
    ("Prefix reuse", "prefix_cache_reused_ratio", true),
    ("Preemptions", "preemptions", false),
    ("Rejected requests", "rejected_requests", false),
    ("Failed requests", "failed_requests", false),
    ("GPU hours", "gpu_hours", false),
];

/// Changes smaller than this share are neither better nor worse.
const NOISE: f64 = 1e-3;

/// Two reports side by side: cells, and what stands above them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    pub(crate) heads: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Comparison {
    /// As a text.
    pub fn table(&self) -> String {
        grid("Comparison", &self.heads, &self.rows)
    }
}

/// Two reports (or only their summaries) with differences; `names` head the columns.
///
/// # Errors
/// A sentence when one of them has no summary.
pub fn compare(a: &Value, b: &Value, names: (&str, &str)) -> Result<Comparison, String> {
    let summary = |value: &'_ Value, name: &str| {
        let inner = value.get("summary").unwrap_or(value).clone();
        let known = KEYS.iter().any(|(_, key, _)| inner.get(key).is_some());
        known
            .then_some(inner)
            .ok_or_else(|| format!("{name} is no report: it has no summary"))
    };
    let (a, b) = (summary(a, names.0)?, summary(b, names.1)?);
    let rows: Vec<Vec<String>> = KEYS
        .iter()
        .filter_map(|(label, key, more_is_better)| {
            let number_of = |summary: &Value| summary.get(key).and_then(Value::as_f64);
            let (a, b) = match (number_of(&a), number_of(&b)) {
                (None, None) => return None,
                (a, b) => (a, b),
            };
            let show = |value: Option<f64>| value.map_or_else(|| "N/A".to_owned(), precise);
            let (delta, percent, verdict) = match (a, b) {
                (Some(a), Some(b)) => change(a, b, *more_is_better),
                _ => ("N/A".to_owned(), "N/A".to_owned(), ""),
            };
            Some(vec![
                (*label).to_owned(),
                show(a),
                show(b),
                delta,
                percent,
                verdict.to_owned(),
            ])
        })
        .collect();
    let heads = ["Metric", names.0, names.1, "Δ", "Δ %", ""];
    let heads = heads.map(str::to_owned).to_vec();
    Ok(Comparison { heads, rows })
}

/// Small numbers need more places.
fn precise(value: f64) -> String {
    if value != 0.0 && value.abs() < 1.0 {
        return format!("{value:.4}");
    }
    number(value)
}

fn change(a: f64, b: f64, more_is_better: bool) -> (String, String, &'static str) {
    let delta = b - a;
    let share = if a == 0.0 {
        None
    } else {
        Some(delta / a.abs())
    };
    let percent = match share {
        Some(share) => format!("{:+.1}", share * 100.0),
        None if delta == 0.0 => "+0.0".to_owned(),
        None => "N/A".to_owned(),
    };
    let verdict = if delta == 0.0 || share.is_some_and(|share| share.abs() < NOISE) {
        "="
    } else if (delta > 0.0) == more_is_better {
        "better"
    } else {
        "worse"
    };
    let sign = if delta > 0.0 { "+" } else { "" };
    (format!("{sign}{}", precise(delta)), percent, verdict)
}
