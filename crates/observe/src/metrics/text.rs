//! Writes metric families in the text format of Python's prometheus_client.
//!
//! The encoder of `prometheus` formats numbers as Rust does, and counts after sums.

use prometheus::proto::MetricType;

use super::number::push_prometheus_float;
use super::settings::ApiServerCount;

/// Labels of a metric series as text.
#[derive(Debug)]
pub(super) struct RenderedLabels {
    /// All labels in braces and a space; without labels, only the space.
    all: String,
    /// Beginning and end of a bucket's labels, before and after the label `le`.
    around_le: [String; 2],
}

impl RenderedLabels {
    /// Renders pairs of name and value, which are sorted by name.
    pub(super) fn new<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let (mut all, mut before, mut after) = (String::new(), "{".to_owned(), String::new());
        for (name, value) in labels {
            all.push(if all.is_empty() { '{' } else { ',' });
            let start = all.len();
            push_label(&mut all, name, value);
            match name < "le" {
                true => before.extend([&all[start..], ","]),
                false => after.extend([",", &all[start..]]),
            }
        }
        all.push_str(if all.is_empty() { " " } else { "} " });
        after.push_str("} ");
        Self { all, around_le: [before, after] }
    }
}

/// Writes metric families in Prometheus' text format.
pub(super) struct PrometheusTextWriter<'o> {
    out: &'o mut String,
    api_servers: ApiServerCount,
    /// Last rendered numbers below and from a million on, and their texts, because consecutive lines
    /// often have equal ones: the large ones are mostly creation times.
    numbers: [(f64, String); 2],
}

impl<'o> PrometheusTextWriter<'o> {
    pub(super) fn new(out: &'o mut String, api_servers: ApiServerCount) -> Self {
        let numbers = [(0.0, "0.0\n".to_owned()), (1e6, "1e+06\n".to_owned())];
        Self { out, api_servers, numbers }
    }

    /// Writes the HELP and TYPE lines of a metric family. The HELP texts in the lists have no
    /// characters to escape.
    pub(super) fn write_header(&mut self, name: &str, help: &str, kind: MetricType) {
        let kind = match kind {
            MetricType::COUNTER => "counter",
            MetricType::HISTOGRAM => "histogram",
            MetricType::SUMMARY => "summary",
            _ => "gauge",
        };
        self.out.extend(["# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n"]);
    }

    /// Writes a histogram: buckets, count and sum, or with several API servers sum, buckets and
    /// count. `buckets` have the labels `le`, and the numbers of observations.
    pub(super) fn write_histogram<'a>(
        &mut self,
        name: &str,
        labels: &RenderedLabels,
        buckets: impl Iterator<Item = (&'a String, u64)>,
        sum: f64,
    ) {
        if self.api_servers == ApiServerCount::Several {
            self.write_sample(name, "_sum", labels, sum);
        }
        let [before, after] = &labels.around_le;
        let mut total = 0;
        for (le, count) in buckets {
            total += count;
            self.out.extend([name, "_bucket", before, le, after]);
            self.end_line(total as f64);
        }
        self.write_sample(name, "_count", labels, total as f64);
        if self.api_servers == ApiServerCount::One {
            self.write_sample(name, "_sum", labels, sum);
        }
    }

    /// Writes the line of one sample; `suffix` follows the name of the family.
    pub(super) fn write_sample(
        &mut self,
        name: &str,
        suffix: &str,
        labels: &RenderedLabels,
        value: f64,
    ) {
        self.out.extend([name, suffix, &labels.all]);
        self.end_line(value);
    }

    /// Appends the value of a sample, and ends the line.
    fn end_line(&mut self, value: f64) {
        let (number, text) = &mut self.numbers[usize::from(value >= 1e6)];
        if value.to_bits() != number.to_bits() {
            *number = value;
            text.clear();
            push_prometheus_float(text, value);
            text.push('\n');
        }
        self.out.push_str(text);
    }
}

/// Appends a label, with the value escaped.
///
/// Control characters in names of adapters and scenarios, which readers reject, are escaped as
/// `\\u{…}`.
fn push_label(out: &mut String, name: &str, value: &str) {
    out.extend([name, "=\""]);
    let is_plain = |c: u8| matches!(c, b' '..=b'~') && c != b'"' && c != b'\\';
    if value.bytes().all(is_plain) {
        out.push_str(value);
    } else {
        for c in value.chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '"' => out.push_str("\\\""),
                c if c.is_control() => {
                    out.push('\\');
                    out.extend(c.escape_unicode());
                }
                c => out.push(c),
            }
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(api_servers: ApiServerCount) -> String {
        let mut text = String::new();
        let mut writer = PrometheusTextWriter::new(&mut text, api_servers);
        writer.write_header("delay_seconds", "A delay.", MetricType::HISTOGRAM);
        let labels = RenderedLabels::new([("a", "x"), ("model", "m")].into_iter());
        let le = ["0.5", "1.0", "+Inf"].map(|bound| format!("le=\"{bound}\""));
        writer.write_histogram("delay_seconds", &labels, le.iter().zip([0, 1, 1]), 9.7);
        writer.write_header("events_total", "Some events.", MetricType::COUNTER);
        let labels = RenderedLabels::new([("k", "a\"\\\n\r\u{85}é")].into_iter());
        writer.write_sample("events_total", "", &labels, 3.0);
        text
    }

    const EVENTS: &str = r#"# HELP events_total Some events.
# TYPE events_total counter
events_total{k="a\"\\\n\\u{d}\\u{85}é"} 3.0
"#;

    #[test]
    fn one_process_shows_the_sum_last() {
        let expected = r#"# HELP delay_seconds A delay.
# TYPE delay_seconds histogram
delay_seconds_bucket{a="x",le="0.5",model="m"} 0.0
delay_seconds_bucket{a="x",le="1.0",model="m"} 1.0
delay_seconds_bucket{a="x",le="+Inf",model="m"} 2.0
delay_seconds_count{a="x",model="m"} 2.0
delay_seconds_sum{a="x",model="m"} 9.7
"#;
        assert_eq!(text(ApiServerCount::One), format!("{expected}{EVENTS}"));
    }

    #[test]
    fn several_processes_show_the_sum_first() {
        let expected = r#"# HELP delay_seconds A delay.
# TYPE delay_seconds histogram
delay_seconds_sum{a="x",model="m"} 9.7
delay_seconds_bucket{a="x",le="0.5",model="m"} 0.0
delay_seconds_bucket{a="x",le="1.0",model="m"} 1.0
delay_seconds_bucket{a="x",le="+Inf",model="m"} 2.0
delay_seconds_count{a="x",model="m"} 2.0
"#;
        assert_eq!(text(ApiServerCount::Several), format!("{expected}{EVENTS}"));
    }
}
