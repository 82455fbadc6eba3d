//! Text of `/metrics`: constant parts are rendered at start, and a scrape inserts the numbers.
//!
//! **Source:** prometheus_client 0.26, `exposition.py` (single process, with `_created` families)
//! and `multiprocess.py` (several API servers: no `_created`, families grouped by type, the sum of
//! a histogram first, no family without series).

use std::fmt::Write as _;
use std::sync::Arc;

use super::cell::{Counter, CreatedAt, Gauge, Histogram};
use super::number::{float, push_count, push_float};
use super::restart::Resettable;

/// Number of vLLM API server processes that the text of `/metrics` describes.
///
/// With several, there are no `_created`, `python_*` and `process_*` series and no families without
/// series. Families are grouped by type, and sums come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ApiServers {
    /// One API server process.
    #[default]
    One,
    /// More than one API server process.
    Several,
}

/// Name and HELP text of a metric family. Names of counters include `_total`.
#[derive(Debug, Clone, Copy)]
pub(super) struct FamilyDesc {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
}

/// Names and values of a series' labels, sorted by name as in the text.
#[derive(Debug, Clone, Default)]
pub(super) struct Labels(Vec<(String, String)>);

impl Labels {
    pub(super) fn new<N: Into<String>, V: Into<String>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let mut pairs: Vec<_> = pairs.into_iter().map(|(n, v)| (n.into(), v.into())).collect();
        pairs.sort();
        Self(pairs)
    }

    pub(super) fn with(&self, name: &str, value: &str) -> Self {
        let own = self.0.iter().cloned();
        Self::new(own.chain([(name.to_owned(), value.to_owned())]))
    }

    /// Renders the labels as `{a="x",b="y"}`, or as nothing if there are none.
    ///
    /// Control characters in names of adapters and scenarios, which readers reject, are escaped as
    /// `\\u{…}`.
    pub(super) fn render(&self) -> String {
        let mut out = String::new();
        for (i, (name, value)) in self.0.iter().enumerate() {
            out.push(if i == 0 { '{' } else { ',' });
            let _ = write!(out, "{name}=\"");
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
            out.push('"');
        }
        if !out.is_empty() {
            out.push('}');
        }
        out
    }
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    Count(Arc<Counter>),
    Gauge(Arc<Gauge>),
    /// Ratio of the first counter to the second; zero if the second is zero.
    Ratio(Arc<Counter>, Arc<Counter>),
}

impl Value {
    fn push(&self, out: &mut String) {
        match self {
            Self::Count(c) => push_count(out, c.get()),
            Self::Gauge(g) => push_float(out, g.get()),
            Self::Ratio(part, whole) => {
                let whole = whole.get();
                let share = part.get() as f64 / whole.max(1) as f64;
                push_float(out, share);
            }
        }
    }
}

impl From<&Arc<Counter>> for Value {
    fn from(c: &Arc<Counter>) -> Self {
        Self::Count(c.clone())
    }
}

impl From<&Arc<Gauge>> for Value {
    fn from(g: &Arc<Gauge>) -> Self {
        Self::Gauge(g.clone())
    }
}

#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) labels: Labels,
    pub(super) value: Value,
    pub(super) shown: Option<Arc<CreatedAt>>,
}

impl Series {
    pub(super) fn new(labels: Labels, value: impl Into<Value>) -> Self {
        Self { labels, value: value.into(), shown: None }
    }
}

pub(super) trait LiveFamily: Send + Sync {
    fn write(&self, out: &mut String, now_unix: f64);
    /// Resets the values of the family, as a process restart at this Unix time does.
    fn restart(&self, _now_unix: f64) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FamilyGroup {
    Counter,
    Gauge,
    Histogram,
    /// Gauges summed over processes; Prometheus' multiprocess files of them sort after those of
    /// histograms.
    SummedGauge,
    Summary,
}

enum PageSegment {
    Text(String),
    Number(Value),
    /// Lines of a histogram; `before[i]` is the text before the i-th number.
    Histogram {
        cell: Arc<Histogram>,
        before: Vec<String>,
        api_servers: ApiServers,
    },
    /// Line of a series that may be hidden; without `value` it shows the creation time.
    Hidden {
        shown: Arc<CreatedAt>,
        text: String,
        value: Option<Value>,
    },
    LiveFamily(Arc<dyn LiveFamily>),
}

pub(super) struct PageBuilder {
    families: Vec<(FamilyGroup, Vec<PageSegment>)>,
    api_servers: ApiServers,
    /// Creation time of the series in `_created` families, in Unix seconds.
    created_at: Arc<Gauge>,
    created: bool,
    /// Whether whole-number bucket bounds are formatted as in Go (`1`) and not as in Python
    /// (`1.0`).
    whole_bounds: bool,
    resettable: Vec<Resettable>,
}

impl PageBuilder {
    pub(super) fn new(api_servers: ApiServers, now_unix: f64) -> Self {
        Self {
            families: Vec::new(),
            api_servers,
            created_at: Arc::new(Gauge::new(now_unix)),
            created: api_servers == ApiServers::One,
            whole_bounds: false,
            resettable: Vec::new(),
        }
    }

    pub(super) fn with_whole_bounds(mut self) -> Self {
        self.whole_bounds = true;
        self
    }

    pub(super) fn without_created(&mut self) {
        self.created = false;
    }

    pub(super) fn api_servers(&self) -> ApiServers {
        self.api_servers
    }

    pub(super) fn counter(&mut self, desc: FamilyDesc, series: Vec<Series>) {
        self.resettable.extend(series.iter().flat_map(Resettable::of));
        let mut segments = vec![PageSegment::Text(header(desc.name, desc.help, "counter"))];
        for s in &series {
            let text = format!("{}{} ", desc.name, s.labels.render());
            push_line(&mut segments, text, &s.value, s.shown.as_ref());
        }
        if self.created {
            let name = created_name(desc.name);
            segments.push(PageSegment::Text(header(&name, desc.help, "gauge")));
            for s in &series {
                let text = format!("{name}{} ", s.labels.render());
                match &s.shown {
                    None => {
                        push_line(&mut segments, text, &Value::Gauge(self.created_at.clone()), None)
                    }
                    Some(shown) => segments.push(PageSegment::Hidden {
                        shown: shown.clone(),
                        text,
                        value: None,
                    }),
                }
            }
        }
        self.families.push((FamilyGroup::Counter, segments));
    }

    pub(super) fn gauge(&mut self, desc: FamilyDesc, series: &[Series]) {
        let mut segments = vec![PageSegment::Text(header(desc.name, desc.help, "gauge"))];
        for s in series {
            let text = format!("{}{} ", desc.name, s.labels.render());
            push_line(&mut segments, text, &s.value, s.shown.as_ref());
        }
        self.families.push((FamilyGroup::Gauge, segments));
    }

    pub(super) fn histogram(&mut self, desc: FamilyDesc, series: &[(Labels, Arc<Histogram>)]) {
        let mut segments = vec![PageSegment::Text(header(desc.name, desc.help, "histogram"))];
        for (labels, cell) in series {
            self.resettable.push(Resettable::Observed(cell.clone()));
            segments.push(PageSegment::Histogram {
                cell: cell.clone(),
                before: {
                    let bounds = (cell.bounds(), self.whole_bounds);
                    histogram_lines(desc.name, labels, bounds, self.api_servers)
                },
                api_servers: self.api_servers,
            });
        }
        if self.created {
            let name = format!("{}_created", desc.name);
            segments.push(PageSegment::Text(header(&name, desc.help, "gauge")));
            for (labels, _) in series {
                let text = format!("{name}{} ", labels.render());
                push_line(&mut segments, text, &Value::Gauge(self.created_at.clone()), None);
            }
        }
        self.families.push((FamilyGroup::Histogram, segments));
    }

    pub(super) fn live(&mut self, group: FamilyGroup, live: Arc<dyn LiveFamily>) {
        self.families.push((group, vec![PageSegment::LiveFamily(live)]));
    }

    pub(super) fn build(mut self) -> Page {
        if self.api_servers == ApiServers::Several {
            self.families.sort_by_key(|(group, _)| *group);
        }
        let mut segments: Vec<PageSegment> = Vec::new();
        for segment in self.families.into_iter().flat_map(|(_, segments)| segments) {
            match (segments.last_mut(), segment) {
                (Some(PageSegment::Text(before)), PageSegment::Text(text)) => {
                    before.push_str(&text)
                }
                (_, segment) => segments.push(segment),
            }
        }
        Page { segments, created_at: self.created_at, resettable: self.resettable }
    }
}

fn push_line(
    segments: &mut Vec<PageSegment>,
    text: String,
    value: &Value,
    shown: Option<&Arc<CreatedAt>>,
) {
    match shown {
        None => segments.extend([
            PageSegment::Text(text),
            PageSegment::Number(value.clone()),
            PageSegment::Text("\n".to_owned()),
        ]),
        Some(shown) => segments.push(PageSegment::Hidden {
            shown: shown.clone(),
            text,
            value: Some(value.clone()),
        }),
    }
}

pub(super) fn header(name: &str, help: &str, kind: &str) -> String {
    let help = help.replace('\\', "\\\\").replace('\n', "\\n");
    format!("# HELP {name} {help}\n# TYPE {name} {kind}\n")
}

/// Returns the name of the `_created` series: a counter loses its `_total`.
pub(super) fn created_name(counter: &str) -> String {
    format!("{}_created", counter.strip_suffix("_total").unwrap_or(counter))
}

/// Returns the text before each number of a histogram. The numbers are buckets, count, sum; with
/// several API servers sum, buckets, count.
///
/// The flag with `bounds` is whether whole-number bounds are formatted as in Go.
pub(super) fn histogram_lines(
    name: &str,
    labels: &Labels,
    (bounds, whole): (&[f64], bool),
    api_servers: ApiServers,
) -> Vec<String> {
    let buckets = bounds.iter().copied().chain([f64::INFINITY]).map(|le| {
        let text = float(le);
        let bound = text.strip_suffix(".0").filter(|_| whole);
        let labels = labels.with("le", bound.unwrap_or(&text)).render();
        format!("{name}_bucket{labels} ")
    });
    let own = labels.render();
    let count = format!("{name}_count{own} ");
    let sum = format!("{name}_sum{own} ");
    if api_servers == ApiServers::Several {
        [sum].into_iter().chain(buckets).chain([count]).collect()
    } else {
        buckets.chain([count, sum]).collect()
    }
}

/// Appends the lines of a histogram; `before` comes from [`histogram_lines`].
pub(super) fn write_histogram(
    out: &mut String,
    cell: &Histogram,
    before: &[String],
    api_servers: ApiServers,
) {
    let mut before = before.iter();
    let mut line = |out: &mut String, number: &dyn Fn(&mut String)| {
        if let Some(text) = before.next() {
            out.push_str(text);
            number(out);
            out.push('\n');
        }
    };
    let sum = cell.sum();
    if api_servers == ApiServers::Several {
        line(out, &|out| push_float(out, sum));
    }
    let mut total = 0;
    for n in cell.buckets() {
        total += n;
        line(out, &|out| push_count(out, total));
    }
    line(out, &|out| push_count(out, total));
    if api_servers == ApiServers::One {
        line(out, &|out| push_float(out, sum));
    }
}

pub(super) struct Page {
    segments: Vec<PageSegment>,
    created_at: Arc<Gauge>,
    resettable: Vec<Resettable>,
}

impl Page {
    /// Resets the counters on the page, as a process restart at this Unix time does.
    pub(super) fn restart(&self, now_unix: f64) {
        self.created_at.set(now_unix);
        self.resettable.iter().for_each(Resettable::reset);
        for segment in &self.segments {
            if let PageSegment::LiveFamily(live) = segment {
                live.restart(now_unix);
            }
        }
    }

    pub(super) fn write(&self, out: &mut String, now_unix: f64) {
        for segment in &self.segments {
            match segment {
                PageSegment::Text(text) => out.push_str(text),
                PageSegment::Number(value) => value.push(out),
                PageSegment::Histogram { cell, before, api_servers } => {
                    write_histogram(out, cell, before, *api_servers)
                }
                PageSegment::Hidden { shown, text, value } => {
                    let Some(at) = shown.at() else { continue };
                    out.push_str(text);
                    match value {
                        Some(value) => value.push(out),
                        None => push_float(out, at),
                    }
                    out.push('\n');
                }
                PageSegment::LiveFamily(live) => live.write(out, now_unix),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_spelled_out() {
        let labels = Labels::new([("a", "x\r\u{1b}[0m\0\ny\u{85}é")]);
        assert_eq!(labels.render(), r#"{a="x\\u{d}\\u{1b}[0m\\u{0}\ny\\u{85}é"}"#);
    }

    const EVENTS: FamilyDesc = FamilyDesc { name: "events_total", help: "Some \\ events\nhere." };
    const DELAY: FamilyDesc = FamilyDesc { name: "delay_seconds", help: "A delay." };

    fn text(api_servers: ApiServers) -> String {
        let mut b = PageBuilder::new(api_servers, 1.5e9);
        let h = Arc::new(Histogram::new(&[0.5, 1.0]));
        h.observe(0.7);
        h.observe(9.0);
        b.histogram(DELAY, &[(Labels::new([("model", "m"), ("a", "x")]), h)]);
        let c = Arc::new(Counter::default());
        c.add(3);
        b.counter(EVENTS, vec![Series::new(Labels::new([("k", "a\"\\\n")]), &c)]);
        let mut out = String::new();
        b.build().write(&mut out, 0.0);
        out
    }

    #[test]
    fn one_process_shows_families_as_registered_with_created_beside() {
        assert_eq!(
            text(ApiServers::One),
            r#"# HELP delay_seconds A delay.
# TYPE delay_seconds histogram
delay_seconds_bucket{a="x",le="0.5",model="m"} 0.0
delay_seconds_bucket{a="x",le="1.0",model="m"} 1.0
delay_seconds_bucket{a="x",le="+Inf",model="m"} 2.0
delay_seconds_count{a="x",model="m"} 2.0
delay_seconds_sum{a="x",model="m"} 9.7
# HELP delay_seconds_created A delay.
# TYPE delay_seconds_created gauge
delay_seconds_created{a="x",model="m"} 1.5e+09
# HELP events_total Some \\ events\nhere.
# TYPE events_total counter
events_total{k="a\"\\\n"} 3.0
# HELP events_created Some \\ events\nhere.
# TYPE events_created gauge
events_created{k="a\"\\\n"} 1.5e+09
"#
        );
    }

    #[test]
    fn several_processes_show_counters_first_and_sums_before_buckets() {
        assert_eq!(
            text(ApiServers::Several),
            r#"# HELP events_total Some \\ events\nhere.
# TYPE events_total counter
events_total{k="a\"\\\n"} 3.0
# HELP delay_seconds A delay.
# TYPE delay_seconds histogram
delay_seconds_sum{a="x",model="m"} 9.7
delay_seconds_bucket{a="x",le="0.5",model="m"} 0.0
delay_seconds_bucket{a="x",le="1.0",model="m"} 1.0
delay_seconds_bucket{a="x",le="+Inf",model="m"} 2.0
delay_seconds_count{a="x",model="m"} 2.0
"#
        );
    }
}
