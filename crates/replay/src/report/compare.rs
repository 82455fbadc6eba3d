//! Compares replay reports in columns of a table.

use serde_json::Value;

use super::CURVE_POINTS;
use super::table::{format_with_thousands_separators, render_text_grid};

/// Metrics of a comparison: label, key of the report's summary, and whether a higher value is
/// better.
const COMPARED_METRICS: [(&str, &str, bool); 24] = [
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
    ("Single gap mean (ms)", "mean_itl_ms", false),
    ("Single gap median (ms)", "median_itl_ms", false),
    ("Single gap p99 (ms)", "p99_itl_ms", false),
    ("ITL of a request mean (ms)", "mean_tpot_ms", false),
    ("ITL of a request p99 (ms)", "p99_tpot_ms", false),
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

/// Relative change of a metric below which two values of the metric count as equal.
const EQUALITY_TOLERANCE: f64 = 1e-3;

/// Two-sided 95 % quantiles of Student's t, by degrees of freedom from 1; 1.96 beyond.
const STUDENT_T_QUANTILES_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Reports of one replay configuration, for example with different seeds.
#[derive(Debug, Clone)]
pub struct ReplayReportGroup {
    /// Heading of the group's column in the comparison.
    pub name: String,
    /// Replay reports of the group as JSON; instead of a whole report, only its summary may be
    /// given.
    pub reports: Vec<Value>,
}

/// Name of a report group, and the group's evenly spaced latency quantiles.
type NamedCurve = (String, Vec<f64>);

/// Comparison of replay reports: a table of differences, and latency distributions.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportComparison {
    pub(crate) heads: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    pub(crate) curves: Vec<(&'static str, Vec<NamedCurve>)>,
    pub(crate) is_repeated: bool,
}

impl ReportComparison {
    /// Renders the differences between the compared replay reports as a text table.
    pub fn render_comparison_table(&self) -> String {
        render_text_grid("Comparison", &self.heads, &self.rows)
    }
}

/// Compares each group of replay reports with the first group.
///
/// If all groups have several reports, differences have 95 % confidence intervals (Welch's t-test).
///
/// # Errors
/// Returns a message if a report has no summary.
pub fn compare_report_groups(groups: &[ReplayReportGroup]) -> Result<ReportComparison, String> {
    for group in groups {
        for report in &group.reports {
            if !COMPARED_METRICS.iter().any(|(_, key, _)| metric_value(report, key).is_some()) {
                return Err(format!("{} is not a report: it has no summary", group.name));
            }
        }
    }
    let is_repeated = groups.iter().all(|group| group.reports.len() > 1);
    let names = || groups.iter().map(|group| group.name.clone());
    let mut heads = vec!["Metric".to_owned()];
    heads.extend(names());
    for name in names().skip(1) {
        let of = match groups.len() {
            2 => String::new(),
            _ => format!(" {name}"),
        };
        heads.push(format!("Δ{of}"));
        heads.extend(is_repeated.then(|| format!("± 95 %{of}")));
        heads.extend([format!("Δ %{of}"), String::new()]);
    }
    let rows = COMPARED_METRICS.iter().filter_map(|key| comparison_row(groups, key, is_repeated));
    Ok(ReportComparison {
        heads,
        rows: rows.collect(),
        curves: latency_curves(groups),
        is_repeated,
    })
}

fn metric_value(report: &Value, key: &str) -> Option<f64> {
    report.get("summary").unwrap_or(report).get(key)?.as_f64()
}

#[derive(Clone, Copy)]
struct MetricMean {
    mean: f64,
    error: f64,
    n: f64,
}

impl MetricMean {
    fn over_group(group: &ReplayReportGroup, key: &str) -> Option<Self> {
        let values: Option<Vec<f64>> = group.reports.iter().map(|r| metric_value(r, key)).collect();
        let values = values.filter(|values| !values.is_empty())?;
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let error = if n > 1.0 { squares / (n - 1.0) / n } else { 0.0 };
        Some(Self { mean, error, n })
    }

    /// Returns half the width of the 95 % confidence interval of the difference of two means.
    fn confidence_half_width(self, other: Self) -> f64 {
        let both = self.error + other.error;
        let part = |one: Self| one.error.powi(2) / (one.n - 1.0).max(1.0);
        let freedom = both.powi(2) / (part(self) + part(other)).max(f64::MIN_POSITIVE);
        let quantile = STUDENT_T_QUANTILES_95.get((freedom.max(1.0) as usize).saturating_sub(1));
        quantile.copied().unwrap_or(1.96) * both.sqrt()
    }
}

fn comparison_row(
    groups: &[ReplayReportGroup],
    (label, key, more_is_better): &(&str, &str, bool),
    is_repeated: bool,
) -> Option<Vec<String>> {
    let means: Vec<Option<MetricMean>> =
        groups.iter().map(|group| MetricMean::over_group(group, key)).collect();
    if means.iter().all(Option::is_none) {
        return None;
    }
    let none = || "N/A".to_owned();
    let mut cells = vec![(*label).to_owned()];
    let shown = means.iter().map(|mean| mean.map_or_else(none, |m| format_precise(m.mean)));
    cells.extend(shown);
    for other in &means[1..] {
        let (Some(a), Some(b)) = (means[0], *other) else {
            cells.push(none());
            cells.extend(is_repeated.then(none));
            cells.extend([none(), String::new()]);
            continue;
        };
        let interval = is_repeated.then(|| a.confidence_half_width(b));
        let (delta, percent, mut verdict) = describe_change(a.mean, b.mean, *more_is_better);
        if interval.is_some_and(|interval| (b.mean - a.mean).abs() <= interval) {
            verdict = "=";
        }
        cells.push(delta);
        cells.extend(interval.map(format_precise));
        cells.extend([percent, verdict.to_owned()]);
    }
    Some(cells)
}

/// Returns the latency distributions of each group whose reports have request records.
fn latency_curves(groups: &[ReplayReportGroup]) -> Vec<(&'static str, Vec<NamedCurve>)> {
    let all = [
        ("Time to first token", "ttft_ms"),
        ("ITL of a request (its mean gap)", "itl_ms"),
        ("Request latency", "e2e_latency_ms"),
    ];
    let all = all.map(|(title, key)| {
        let curves = groups.iter().filter_map(|group| {
            let kept = group.reports.iter().map(|report| &report["per_request"]);
            let requests = kept.filter_map(Value::as_array).flatten();
            let mut values: Vec<f64> = requests.filter_map(|r| r[key].as_f64()).collect();
            values.sort_by(f64::total_cmp);
            let last = values.len().checked_sub(1)?;
            let at = |n: usize| values[n * last / (CURVE_POINTS - 1)];
            Some((group.name.clone(), (0..CURVE_POINTS).map(at).collect()))
        });
        (title, curves.collect::<Vec<_>>())
    });
    all.into_iter().filter(|(_, curves)| !curves.is_empty()).collect()
}

fn format_precise(value: f64) -> String {
    if value != 0.0 && value.abs() < 1.0 {
        return format!("{value:.4}");
    }
    format_with_thousands_separators(value)
}

fn describe_change(a: f64, b: f64, more_is_better: bool) -> (String, String, &'static str) {
    let delta = b - a;
    let share = if a == 0.0 { None } else { Some(delta / a.abs()) };
    let percent = match share {
        Some(share) => format!("{:+.1}", share * 100.0),
        None if delta == 0.0 => "+0.0".to_owned(),
        None => "N/A".to_owned(),
    };
    let verdict = if delta == 0.0 || share.is_some_and(|share| share.abs() < EQUALITY_TOLERANCE) {
        "="
    } else if (delta > 0.0) == more_is_better {
        "better"
    } else {
        "worse"
    };
    let sign = if delta > 0.0 { "+" } else { "" };
    (format!("{sign}{}", format_precise(delta)), percent, verdict)
}
