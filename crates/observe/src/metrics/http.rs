//! The `http_*` families of prometheus-fastapi-instrumentator 8.1.
//!
//! A series appears with the first request it counts, in that order. Counting locks nothing
//! but on that first request.
//!
//! Excluded are routes that *contain* `/metrics`, `/health`, `/load`, `/ping`, `/version` or
//! `/server_info`: upstream searches the pattern anywhere, so `/v1/load_lora_adapter` is not
//! counted either, while `/v1/unload_lora_adapter` is.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::Clock;
use super::buckets;
use super::cell::{Counter, Histogram};
use super::families as f;
use super::number::{push_count, push_float};
use super::page::{
    Group, Labels, Live, PageBuilder, Spec, created_name, header, histogram_lines, write_histogram,
};

const EXCLUDED: [&str; 6] = [
    "/metrics",
    "/health",
    "/load",
    "/ping",
    "/version",
    "/server_info",
];
/// Last: whatever else a client may send.
const METHODS: [&str; 8] = [
    "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "OTHER",
];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// A route template that requests are counted under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandlerId(u16);

/// What requests of one route come to; its parts are made with the first request of each.
struct Handler {
    name: String,
    requests: [[OnceLock<Arc<Counter>>; CLASSES.len()]; METHODS.len()],
    durations: [OnceLock<Arc<Histogram>>; METHODS.len()],
    sizes: OnceLock<Arc<Sizes>>,
}

#[derive(Default)]
struct Sizes {
    count: Counter,
    request: Counter,
    response: Counter,
}

/// Requests over HTTP, as seen from outside.
pub struct HttpMetrics {
    /// The first is `none`: no route matched.
    handlers: Vec<Handler>,
    /// Per route its handler, or that it is not counted.
    routes: HashMap<String, Option<HandlerId>>,
    highr: Arc<Histogram>,
    lines: Arc<Mutex<Lines>>,
    multiprocess: bool,
    clock: Clock,
}

impl HttpMetrics {
    /// Knows these route templates (`/v1/responses/{response_id}`).
    pub(super) fn new(routes: &[String], multiprocess: bool, clock: Clock) -> Self {
        let names = ["none"]
            .into_iter()
            .chain(routes.iter().map(String::as_str));
        let handlers = names.take(usize::from(u16::MAX)).map(|name| Handler {
            name: name.to_owned(),
            requests: Default::default(),
            durations: Default::default(),
            sizes: OnceLock::new(),
        });
        let ids = (1..=u16::MAX).map(HandlerId);
        let routes = routes.iter().zip(ids).map(|(route, id)| {
            let counted = (!is_excluded(route)).then_some(id);
            (route.clone(), counted)
        });
        Self {
            handlers: handlers.collect(),
            routes: routes.collect(),
            highr: Arc::new(Histogram::new(buckets::HTTP_HIGHR)),
            lines: Arc::default(),
            multiprocess,
            clock,
        }
    }

    /// The id of a route, or `None` when it is not counted. A route that the settings did not
    /// name counts as `none`, as does a path that matched nothing or has no such method: give
    /// its raw path. A path that redirects to the one without its slash is a route of its own.
    pub fn handler(&self, route: &str) -> Option<HandlerId> {
        match self.routes.get(route) {
            Some(known) => *known,
            None => (!is_excluded(route)).then_some(HandlerId(0)),
        }
    }

    /// Counts a request that was answered: the sizes are those of the content-length headers,
    /// zero without one (a stream has none).
    pub fn observe(
        &self,
        handler: HandlerId,
        method: &str,
        status: u16,
        request_bytes: u64,
        response_bytes: u64,
        seconds: f64,
    ) {
        let Some(handler) = self.handlers.get(usize::from(handler.0)) else {
            return;
        };
        let known = METHODS.iter().position(|m| *m == method);
        let method = known.unwrap_or(METHODS.len() - 1);
        let class = usize::from(status / 100).clamp(1, CLASSES.len()) - 1;

        let requests = &handler.requests[method][class];
        let requests = requests.get_or_init(|| self.add_requests(&handler.name, method, class));
        requests.add(1);
        let sizes = handler.sizes.get_or_init(|| self.add_sizes(&handler.name));
        sizes.count.add(1);
        sizes.request.add(request_bytes);
        sizes.response.add(response_bytes);
        self.highr.observe(seconds);
        let durations = &handler.durations[method];
        let durations = durations.get_or_init(|| self.add_durations(&handler.name, method));
        durations.observe(seconds);
    }

    fn add_requests(&self, handler: &str, method: usize, class: usize) -> Arc<Counter> {
        let cell = Arc::<Counter>::default();
        let labels = Labels::new([
            ("handler", handler),
            ("method", METHODS[method]),
            ("status", CLASSES[class]),
        ]);
        let line = CountLine {
            line: Line::new(&labels, (self.clock)()),
            cell: cell.clone(),
        };
        self.lines.lock().requests.push(line);
        cell
    }

    fn add_sizes(&self, handler: &str) -> Arc<Sizes> {
        let cells = Arc::<Sizes>::default();
        let labels = Labels::new([("handler", handler)]);
        let line = SizeLine {
            line: Line::new(&labels, (self.clock)()),
            cells: cells.clone(),
        };
        self.lines.lock().sizes.push(line);
        cells
    }

    fn add_durations(&self, handler: &str, method: usize) -> Arc<Histogram> {
        let cell = Arc::new(Histogram::new(buckets::HTTP));
        let labels = Labels::new([("handler", handler), ("method", METHODS[method])]);
        let name = f::HTTP_DURATION.name;
        let line = DurationLine {
            line: Line::new(&labels, (self.clock)()),
            before: histogram_lines(name, &labels, buckets::HTTP, self.multiprocess),
            cell: cell.clone(),
        };
        self.lines.lock().durations.push(line);
        cell
    }

    pub(super) fn register(&self, page: &mut PageBuilder) {
        let text = |what| {
            Arc::new(Text {
                what,
                lines: self.lines.clone(),
                multiprocess: self.multiprocess,
            })
        };
        page.live(Group::Counter, text(What::Requests));
        page.live(Group::Summary, text(What::RequestSizes));
        page.live(Group::Summary, text(What::ResponseSizes));
        let highr = (Labels::default(), self.highr.clone());
        page.histogram(f::HTTP_DURATION_HIGHR, &[highr]);
        page.live(Group::Histogram, text(What::Durations));
    }
}

fn is_excluded(route: &str) -> bool {
    EXCLUDED.iter().any(|part| route.contains(part))
}

/// All series there are, in the order they appeared.
#[derive(Default)]
struct Lines {
    requests: Vec<CountLine>,
    sizes: Vec<SizeLine>,
    durations: Vec<DurationLine>,
}

struct Line {
    /// `{…} `, with the space after.
    labels: String,
    born: f64,
}

impl Line {
    fn new(labels: &Labels, born: f64) -> Self {
        let mut labels = labels.render();
        labels.push(' ');
        Self { labels, born }
    }
}

struct CountLine {
    line: Line,
    cell: Arc<Counter>,
}

struct SizeLine {
    line: Line,
    cells: Arc<Sizes>,
}

struct DurationLine {
    line: Line,
    cell: Arc<Histogram>,
    before: Vec<String>,
}

#[derive(Clone, Copy)]
enum What {
    Requests,
    RequestSizes,
    ResponseSizes,
    Durations,
}

impl Lines {
    /// The series stay, at zero: a count that is under way still finds its own.
    fn restart(&mut self, now_unix: f64) {
        for l in &mut self.requests {
            l.cell.set(0);
            l.line.born = now_unix;
        }
        for l in &mut self.sizes {
            let cells = &l.cells;
            for cell in [&cells.count, &cells.request, &cells.response] {
                cell.set(0);
            }
            l.line.born = now_unix;
        }
        for l in &mut self.durations {
            l.cell.replace(&[]);
            l.line.born = now_unix;
        }
    }
}

/// One family.
struct Text {
    what: What,
    lines: Arc<Mutex<Lines>>,
    multiprocess: bool,
}

impl Live for Text {
    fn restart(&self, now_unix: f64) {
        self.lines.lock().restart(now_unix);
    }

    fn write(&self, out: &mut String, _: f64) {
        let lines = &*self.lines.lock();
        match self.what {
            What::Requests => {
                self.head(out, f::HTTP_REQUESTS, "counter", lines.requests.is_empty());
                for l in &lines.requests {
                    push_sample(out, f::HTTP_REQUESTS.name, "", &l.line, &l.cell);
                }
                let born = lines.requests.iter().map(|l| &l.line);
                self.write_created(out, f::HTTP_REQUESTS, born);
            }
            What::RequestSizes => {
                self.write_sizes(out, f::HTTP_REQUEST_SIZE, &lines.sizes, |s| &s.request);
            }
            What::ResponseSizes => {
                self.write_sizes(out, f::HTTP_RESPONSE_SIZE, &lines.sizes, |s| &s.response);
            }
            What::Durations => {
                self.head(
                    out,
                    f::HTTP_DURATION,
                    "histogram",
                    lines.durations.is_empty(),
                );
                for l in &lines.durations {
                    write_histogram(out, &l.cell, &l.before, self.multiprocess);
                }
                let born = lines.durations.iter().map(|l| &l.line);
                self.write_created(out, f::HTTP_DURATION, born);
            }
        }
    }
}

impl Text {
    /// Several processes show no family without series.
    fn head(&self, out: &mut String, spec: Spec, kind: &str, empty: bool) {
        if !(empty && self.multiprocess) {
            out.push_str(&header(spec.name, spec.help, kind));
        }
    }

    fn write_sizes(
        &self,
        out: &mut String,
        spec: Spec,
        lines: &[SizeLine],
        bytes: fn(&Sizes) -> &Counter,
    ) {
        self.head(out, spec, "summary", lines.is_empty());
        for l in lines {
            push_sample(out, spec.name, "_count", &l.line, &l.cells.count);
            push_sample(out, spec.name, "_sum", &l.line, bytes(&l.cells));
        }
        self.write_created(out, spec, lines.iter().map(|l| &l.line));
    }

    fn write_created<'a>(
        &self,
        out: &mut String,
        spec: Spec,
        lines: impl ExactSizeIterator<Item = &'a Line>,
    ) {
        if self.multiprocess || lines.len() == 0 {
            return;
        }
        let name = created_name(spec.name);
        out.push_str(&header(&name, spec.help, "gauge"));
        for line in lines {
            out.push_str(&name);
            out.push_str(&line.labels);
            push_float(out, line.born);
            out.push('\n');
        }
    }
}

fn push_sample(out: &mut String, name: &str, suffix: &str, line: &Line, cell: &Counter) {
    out.push_str(name);
    out.push_str(suffix);
    out.push_str(&line.labels);
    push_count(out, cell.get());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> HttpMetrics {
        let routes = ["/v1/completions", "/v1/models/", "/v1/load_lora_adapter"];
        HttpMetrics::new(&routes.map(str::to_owned), false, || 5.0)
    }

    fn text(http: &HttpMetrics) -> String {
        let mut page = PageBuilder::new(http.multiprocess, 5.0);
        http.register(&mut page);
        let mut out = String::new();
        page.build().write(&mut out, 0.0);
        out
    }

    #[test]
    fn a_series_appears_with_its_first_request() {
        let http = metrics();
        let families = text(&http).matches("# TYPE").count();
        assert_eq!(families, 5 + 1, "{}", text(&http));

        let route = http.handler("/v1/completions").unwrap();
        http.observe(route, "POST", 200, 100, 0, 0.2);
        http.observe(route, "POST", 503, 50, 20, 0.001);
        http.observe(http.handler("/nowhere").unwrap(), "BREW", 418, 0, 7, 0.0);
        let text = text(&http);
        let lines: Vec<_> = text
            .lines()
            .filter(|l| !l.starts_with('#') && !l.contains("highr") && !l.contains("_bucket"))
            .collect();
        assert_eq!(
            lines,
            [
                r#"http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1.0"#,
                r#"http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 1.0"#,
                r#"http_requests_total{handler="none",method="OTHER",status="4xx"} 1.0"#,
                r#"http_requests_created{handler="/v1/completions",method="POST",status="2xx"} 5.0"#,
                r#"http_requests_created{handler="/v1/completions",method="POST",status="5xx"} 5.0"#,
                r#"http_requests_created{handler="none",method="OTHER",status="4xx"} 5.0"#,
                r#"http_request_size_bytes_count{handler="/v1/completions"} 2.0"#,
                r#"http_request_size_bytes_sum{handler="/v1/completions"} 150.0"#,
                r#"http_request_size_bytes_count{handler="none"} 1.0"#,
                r#"http_request_size_bytes_sum{handler="none"} 0.0"#,
                r#"http_request_size_bytes_created{handler="/v1/completions"} 5.0"#,
                r#"http_request_size_bytes_created{handler="none"} 5.0"#,
                r#"http_response_size_bytes_count{handler="/v1/completions"} 2.0"#,
                r#"http_response_size_bytes_sum{handler="/v1/completions"} 20.0"#,
                r#"http_response_size_bytes_count{handler="none"} 1.0"#,
                r#"http_response_size_bytes_sum{handler="none"} 7.0"#,
                r#"http_response_size_bytes_created{handler="/v1/completions"} 5.0"#,
                r#"http_response_size_bytes_created{handler="none"} 5.0"#,
                r#"http_request_duration_seconds_count{handler="/v1/completions",method="POST"} 2.0"#,
                r#"http_request_duration_seconds_sum{handler="/v1/completions",method="POST"} 0.201"#,
                r#"http_request_duration_seconds_count{handler="none",method="OTHER"} 1.0"#,
                r#"http_request_duration_seconds_sum{handler="none",method="OTHER"} 0.0"#,
                r#"http_request_duration_seconds_created{handler="/v1/completions",method="POST"} 5.0"#,
                r#"http_request_duration_seconds_created{handler="none",method="OTHER"} 5.0"#,
            ]
        );
    }

    #[test]
    fn what_contains_an_excluded_pattern_is_not_counted() {
        let http = metrics();
        for route in [
            "/health",
            "/metrics",
            "/load",
            "/v1/load_lora_adapter",
            "/server_info",
        ] {
            assert_eq!(http.handler(route), None, "{route}");
        }
        assert!(http.handler("/v1/unload_lora_adapter").is_some());
        assert_eq!(http.handler("/v1/models/"), Some(HandlerId(2)));
    }

    #[test]
    fn several_processes_show_no_empty_family() {
        let http = HttpMetrics::new(&[], true, || 5.0);
        assert_eq!(text(&http).matches("# TYPE").count(), 1);
    }
}
