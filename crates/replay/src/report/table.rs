//! Renders the table of metrics in the layout of AIPerf, whose inter-token latency is the mean gap
//! of a request.

use std::fmt::Write as _;

use serde_json::{Map, Value};

const LATENCY_ROWS: [(&str, &str, bool); 12] = [
    ("Time to First Token (ms)", "ttft_ms", false),
    ("Time to Second Token (ms)", "ttst_ms", false),
    ("Request Latency (ms)", "e2e_latency_ms", false),
    ("Inter Token Latency (ms)", "tpot_ms", false),
    (
        "Output Token Throughput Per User (tokens/sec/user)",
        "output_token_throughput_per_user",
        false,
    ),
    ("Single gaps between tokens (ms)", "itl_ms", false),
    ("Output Token Throughput (tokens/sec)", "output_throughput_tok_s", true),
    ("Request Throughput (requests/sec)", "request_throughput_rps", true),
    ("Request Count (requests)", "completed_requests", true),
    ("TTFT after the send time (ms)", "ttft_from_send_ms", false),
    ("Request Latency after the send time (ms)", "e2e_latency_from_send_ms", false),
    ("Sent behind schedule (ms)", "schedule_lateness_ms", false),
];
const STATISTIC_COLUMNS: [(&str, &str); 8] = [
    ("avg", "mean"),
    ("min", "min"),
    ("max", "max"),
    ("p99", "p99"),
    ("p90", "p90"),
    ("p75", "p75"),
    ("p50", "median"),
    ("std", "std"),
];

/// Formats a number with thousands separators and two decimals.
pub(crate) fn format_with_thousands_separators(value: f64) -> String {
    let text = format!("{:.2}", value.abs());
    let (whole, places) = text.split_once('.').unwrap_or((&text, "00"));
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{}.{places}", group_thousands(whole))
}

/// Returns the digits of a whole number with commas between thousands.
pub fn group_thousands(digits: &str) -> String {
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

pub(super) fn render_latency_table(summary: &Map<String, Value>) -> String {
    let value = |key: &str| summary.get(key).and_then(Value::as_f64);
    // Only requests over HTTP have send times.
    let is_known = |key: &str| !key.contains("_send_") && !key.starts_with("schedule_");
    let rows: Vec<Vec<String>> = LATENCY_ROWS
        .iter()
        .filter(|(_, key, _)| is_known(key) || value(&format!("mean_{key}")).is_some())
        .map(|(label, key, single)| {
            let cells = STATISTIC_COLUMNS.iter().enumerate().map(|(i, (_, kind))| {
                let found = match single {
                    true if i == 0 => value(key),
                    true => None,
                    false => value(&format!("{kind}_{key}")),
                };
                found.map_or_else(|| "N/A".to_owned(), format_with_thousands_separators)
            });
            std::iter::once((*label).to_owned()).chain(cells).collect()
        })
        .collect();
    let heads: Vec<String> = std::iter::once("Metric")
        .chain(STATISTIC_COLUMNS.iter().map(|(head, _)| *head))
        .map(str::to_owned)
        .collect();
    let mut text = render_text_grid("vllm-sim | LLM Metrics", &heads, &rows);
    let mut line = |label: &str, shown: String| {
        let _ = writeln!(text, "{label}: {shown}");
    };
    let seconds = value("duration_ms").unwrap_or(0.0) / 1e3;
    line("Duration (s)", format_with_thousands_separators(seconds));
    let ratio = |key: &str| format!("{:.4}", value(key).unwrap_or(0.0));
    line("Prefix cache reused ratio", ratio("prefix_cache_reused_ratio"));
    line(
        "First admission prefix cache reused ratio",
        ratio("first_admission_prefix_cache_reused_ratio"),
    );
    if let Some(cost) = value("cost") {
        line("Cost", format_with_thousands_separators(cost));
    }
    if let (Some(good), Some(share)) =
        (value("goodput_request_throughput_rps"), value("slo_attainment"))
    {
        line("Goodput (requests/sec)", format_with_thousands_separators(good));
        line("Requests within the SLO (%)", format_with_thousands_separators(share * 100.0));
    }
    for (label, key) in [
        ("Preemptions", "preemptions"),
        ("Rejected requests", "rejected_requests"),
        ("Failed requests", "failed_requests"),
        ("Incomplete requests", "incomplete_requests"),
        ("Sessions held up by --target-max-in-flight", "sessions_held_up"),
    ] {
        if let Some(n) = value(key).filter(|n| *n > 0.0) {
            line(label, format!("{n}"));
        }
    }
    text
}

pub(super) fn render_text_grid(title: &str, heads: &[String], rows: &[Vec<String>]) -> String {
    let wide = |i: usize| {
        let cells = rows.iter().map(|row| &row[i]).chain([&heads[i]]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(wide).collect();
    let total: usize = widths.iter().sum::<usize>() + 3 * widths.len() + 1;
    let mut text = format!("{title:^total$}\n");
    let rule = |left: &str, middle: &str, right: &str| {
        let bars: Vec<String> = widths.iter().map(|w| "─".repeat(w + 2)).collect();
        format!("{left}{}{right}\n", bars.join(middle))
    };
    let row = |cells: &[String]| {
        let cells = cells.iter().zip(&widths).enumerate();
        let cells = cells.map(|(i, (cell, width))| match i {
            0 => format!(" {cell:<width$} "),
            _ => format!(" {cell:>width$} "),
        });
        format!("│{}│\n", cells.collect::<Vec<_>>().join("│"))
    };
    text.push_str(&rule("┌", "┬", "┐"));
    text.push_str(&row(heads));
    text.push_str(&rule("├", "┼", "┤"));
    rows.iter().for_each(|cells| text.push_str(&row(cells)));
    text.push_str(&rule("└", "┴", "┘"));
    // Removes the spaces behind a title that is shorter than the table.
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::{format_with_thousands_separators, group_thousands};

    #[test]
    fn thousands_are_grouped() {
        let shown = ["0", "999", "1000", "43800", "1234567"].map(group_thousands);
        assert_eq!(shown, ["0", "999", "1,000", "43,800", "1,234,567"]);
    }

    #[test]
    fn thousands_have_separators() {
        let shown = [0.0, 999.999, 1234.5, -1_234_567.891].map(format_with_thousands_separators);
        assert_eq!(shown, ["0.00", "1,000.00", "1,234.50", "-1,234,567.89"]);
    }
}
