//! Writes metric families in the text format of Python's prometheus_client.
//!
//! The encoder of `prometheus` formats numbers as Rust does, and counts after sums.

use prometheus::proto::{Histogram, LabelPair, Metric, MetricType};

use super::number::push_prometheus_float;
use super::settings::ApiServerCount;

/// Writes metric families in Prometheus' text format.
///
/// The writer keeps the labels and numbers that it rendered last, because consecutive lines often
/// have equal ones.
pub(super) struct PrometheusTextWriter<'f, 'o> {
    out: &'o mut String,
    api_servers: ApiServerCount,
    rendered: &'f [LabelPair],
    labels: String,
    /// Labels of a bucket that are sorted before and after the label `le`.
    around_le: [String; 2],
    /// Last rendered numbers below and from a million on, and their texts: the large ones are mostly
    /// creation times.
    numbers: [(f64, String); 2],
}

impl<'f, 'o> PrometheusTextWriter<'f, 'o> {
    pub(super) fn new(out: &'o mut String, api_servers: ApiServerCount) -> Self {
        let numbers = [(0.0, "0.0\n".to_owned()), (1e6, "1e+06\n".to_owned())];
        let (labels, around_le) = (" ".to_owned(), Default::default());
        Self { out, api_servers, rendered: &[], labels, around_le, numbers }
    }

    /// Writes the HELP and TYPE lines of a metric family, and its series; `le` has the label of each
    /// histogram bucket. The HELP texts in the lists have no characters to escape.
    pub(super) fn write_family(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        metrics: &'f [Metric],
        le: &[String],
    ) {
        let type_name = match kind {
            MetricType::COUNTER => "counter",
            MetricType::HISTOGRAM => "histogram",
            MetricType::SUMMARY => "summary",
            _ => "gauge",
        };
        self.out.extend(["# HELP ", name, " ", help, "\n# TYPE ", name, " ", type_name, "\n"]);
        for metric in metrics {
            if metric.get_label() != self.rendered {
                self.rendered = metric.get_label();
                self.render_labels();
            }
            match kind {
                MetricType::COUNTER => self.line(name, "", metric.get_counter().get_value()),
                MetricType::HISTOGRAM => self.histogram(name, metric.get_histogram(), le),
                MetricType::SUMMARY => {
                    let summary = metric.get_summary();
                    self.line(name, "_count", summary.sample_count() as f64);
                    self.line(name, "_sum", summary.sample_sum());
                }
                _ => self.line(name, "", metric.get_gauge().get_value()),
            }
        }
    }

    /// Writes a histogram: buckets, count and sum, or with several API servers sum, buckets and
    /// count.
    fn histogram(&mut self, name: &str, histogram: &Histogram, le: &[String]) {
        if self.api_servers == ApiServerCount::Several {
            self.line(name, "_sum", histogram.get_sample_sum());
        }
        let [before, after] = &self.around_le;
        let [before, after] = [[name, "_bucket{", before].concat(), [after, "} "].concat()];
        for (le, bucket) in le.iter().zip(histogram.get_bucket()) {
            self.out.extend([before.as_str(), le, &after]);
            self.end_line(bucket.cumulative_count() as f64);
        }
        self.line(name, "_count", histogram.get_sample_count() as f64);
        if self.api_servers == ApiServerCount::One {
            self.line(name, "_sum", histogram.get_sample_sum());
        }
    }

    fn line(&mut self, name: &str, suffix: &str, value: f64) {
        self.out.extend([name, suffix, &self.labels]);
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

    fn render_labels(&mut self) {
        let [before, after] = &mut self.around_le;
        [&mut self.labels, before, after].into_iter().for_each(String::clear);
        for pair in self.rendered {
            self.labels.push(if self.labels.is_empty() { '{' } else { ',' });
            let start = self.labels.len();
            push_label(&mut self.labels, pair);
            let label = &self.labels[start..];
            match pair.name() < "le" {
                true => before.extend([label, ","]),
                false => after.extend([",", label]),
            }
        }
        self.labels.push_str(if self.labels.is_empty() { " " } else { "} " });
    }
}

/// Appends a label, with the value escaped.
///
/// Control characters in names of adapters and scenarios, which readers reject, are escaped as
/// `\\u{…}`.
fn push_label(out: &mut String, pair: &LabelPair) {
    out.extend([pair.name(), "=\""]);
    let is_plain = |c: u8| matches!(c, b' '..=b'~') && c != b'"' && c != b'\\';
    if pair.value().bytes().all(is_plain) {
        out.push_str(pair.value());
    } else {
        for c in pair.value().chars() {
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
    use prometheus::core::Collector;
    use prometheus::{Histogram, HistogramOpts, IntCounterVec, Opts};

    use super::*;

    fn text(api_servers: ApiServerCount) -> String {
        let delay = HistogramOpts::new("delay_seconds", "A delay.").buckets(vec![0.5, 1.0]);
        let delay = Histogram::with_opts(delay.const_label("model", "m").const_label("a", "x"));
        let delay = delay.unwrap();
        delay.observe(0.7);
        delay.observe(9.0);
        let events = Opts::new("events_total", "Some events.");
        let events = IntCounterVec::new(events, &["k"]).unwrap();
        events.with_label_values(&["a\"\\\n\r\u{85}é"]).inc_by(3);
        let le = [r#"le="0.5""#, r#"le="1.0""#].map(str::to_owned);
        let mut text = String::new();
        for family in delay.collect().iter().chain(&events.collect()) {
            let (name, help, kind) = (family.name(), family.help(), family.get_field_type());
            let mut writer = PrometheusTextWriter::new(&mut text, api_servers);
            writer.write_family(name, help, kind, family.get_metric(), &le);
        }
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
delay_seconds_count{a="x",model="m"} 2.0
"#;
        assert_eq!(text(ApiServerCount::Several), format!("{expected}{EVENTS}"));
    }
}
