//! Writes metric families in the text format of Python's prometheus_client.
//!
//! The encoder of `prometheus` formats numbers as Rust does, and counts after sums.

use prometheus::proto::{Histogram, LabelPair, Metric, MetricFamily, MetricType};

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
    number: RenderedNumber,
    /// Buffer for the series of a family, in their order on the page; empty between families.
    in_order: Vec<&'f Metric>,
    /// Lines of the creation times of a family, which follow its samples.
    created: String,
    creation_time: RenderedNumber,
}

impl<'f, 'o> PrometheusTextWriter<'f, 'o> {
    pub(super) fn new(out: &'o mut String, api_servers: ApiServerCount) -> Self {
        let mut writer = Self {
            out,
            api_servers,
            rendered: &[],
            labels: String::new(),
            around_le: Default::default(),
            number: RenderedNumber::default(),
            in_order: Vec::new(),
            created: String::new(),
            creation_time: RenderedNumber::default(),
        };
        writer.render_labels();
        writer
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

    /// Writes the samples of a metric family, in the order of their timestamps, which are their
    /// positions. `le` has the label of each histogram bucket, and `created` the name of the family
    /// of creation times. If that name is given, [`Self::write_creation_times`] must follow.
    pub(super) fn write_samples(
        &mut self,
        family: &'f MetricFamily,
        le: &[String],
        created: Option<&str>,
    ) {
        let name = family.name();
        let mut metrics = std::mem::take(&mut self.in_order);
        metrics.extend(family.get_metric());
        metrics.sort_unstable_by_key(|metric| metric.timestamp_ms());
        for metric in metrics.drain(..) {
            self.set_labels(metric.get_label());
            self.write_metric(name, family.get_field_type(), metric, le);
            if let Some(name) = created {
                self.created.extend([name, &self.labels]);
                self.creation_time.push(&mut self.created, metric.get_gauge().get_value());
            }
        }
        self.in_order = metrics;
    }

    /// Writes the creation times of the series of the family whose samples were written last.
    pub(super) fn write_creation_times(&mut self) {
        self.out.push_str(&self.created);
        self.created.clear();
    }

    fn write_metric(&mut self, name: &str, kind: MetricType, metric: &Metric, le: &[String]) {
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

    /// Writes a histogram: buckets, count and sum, or with several API servers sum, buckets and
    /// count.
    fn histogram(&mut self, name: &str, histogram: &Histogram, le: &[String]) {
        if self.api_servers == ApiServerCount::Several {
            self.line(name, "_sum", histogram.get_sample_sum());
        }
        // Histograms of `prometheus` lack the bucket of all values.
        let (buckets, all) = (histogram.get_bucket(), histogram.get_sample_count());
        let [before, after] = &self.around_le;
        let [before, after] = [[name, "_bucket{", before].concat(), [after, "} "].concat()];
        for (index, le) in le.iter().enumerate() {
            self.out.extend([before.as_str(), le, &after]);
            let count = buckets.get(index).map_or(all, |bucket| bucket.cumulative_count());
            self.number.push(self.out, count as f64);
        }
        self.line(name, "_count", all as f64);
        if self.api_servers == ApiServerCount::One {
            self.line(name, "_sum", histogram.get_sample_sum());
        }
    }

    fn line(&mut self, name: &str, suffix: &str, value: f64) {
        self.out.extend([name, suffix, &self.labels]);
        self.number.push(self.out, value);
    }

    fn set_labels(&mut self, labels: &'f [LabelPair]) {
        if labels != self.rendered {
            self.rendered = labels;
            self.render_labels();
        }
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

/// The number that was rendered last, with its text for reuse.
#[derive(Default)]
struct RenderedNumber {
    bits: u64,
    text: String,
}

impl RenderedNumber {
    /// Appends the value of a sample, and ends the line.
    fn push(&mut self, out: &mut String, value: f64) {
        if value.to_bits() != self.bits || self.text.is_empty() {
            self.bits = value.to_bits();
            self.text.clear();
            push_prometheus_float(&mut self.text, value);
            self.text.push('\n');
        }
        out.push_str(&self.text);
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
            let mut writer = PrometheusTextWriter::new(&mut text, api_servers);
            writer.write_header(family.name(), family.help(), family.get_field_type());
            writer.write_samples(family, &le, None);
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
