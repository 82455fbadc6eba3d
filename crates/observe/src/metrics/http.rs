//! The `http_*` families of prometheus-fastapi-instrumentator 8.1.
//!
//! Series appear in the order of the first requests that they count. Only such a first request
//! takes a lock.
//!
//! Routes that *contain* `/metrics`, `/health`, `/load`, `/ping`, `/version` or `/server_info` are
//! excluded. Upstream matches the pattern anywhere, so `/v1/load_lora_adapter` is excluded too,
//! while `/v1/unload_lora_adapter` is counted.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::buckets;
use super::cell::{Counter, Histogram};
use super::families as f;
use super::number::{push_count, push_float};
use super::page::{
    ApiServers, FamilyDesc, FamilyGroup, Labels, LiveFamily, PageBuilder, created_name, header,
    histogram_lines, write_histogram,
};
use super::settings::Clock;

const EXCLUDED: [&str; 6] = ["/metrics", "/health", "/load", "/ping", "/version", "/server_info"];
/// HTTP methods with a label of their own; `OTHER` counts all other methods.
const METHODS: [&str; 8] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "OTHER"];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Index of a route template in the `handler` label of HTTP metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandlerId(u16);

struct HandlerCells {
    name: String,
    requests: [[OnceLock<Arc<Counter>>; CLASSES.len()]; METHODS.len()],
    durations: [OnceLock<Arc<Histogram>>; METHODS.len()],
    sizes: OnceLock<Arc<SizeCells>>,
}

#[derive(Default)]
struct SizeCells {
    count: Counter,
    request: Counter,
    response: Counter,
}

/// Metrics of HTTP requests, by route template, method and status.
pub struct HttpMetrics {
    /// Cells of each route template; the first one is `none`, for requests without a route.
    handlers: Vec<HandlerCells>,
    /// Index in `handlers` of each route; `None`: the route is excluded from metrics.
    routes: HashMap<String, Option<HandlerId>>,
    highr: Arc<Histogram>,
    series: Arc<Mutex<HttpSeries>>,
    api_servers: ApiServers,
    clock: Clock,
}

impl HttpMetrics {
    pub(super) fn new(routes: &[String], api_servers: ApiServers, clock: Clock) -> Self {
        let names = ["none"].into_iter().chain(routes.iter().map(String::as_str));
        let handlers = names.take(usize::from(u16::MAX)).map(|name| HandlerCells {
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
            series: Arc::default(),
            api_servers,
            clock,
        }
    }

    /// Returns the id of a route template for metrics; `None` if the route is excluded.
    ///
    /// A route that is not in the settings counts as `none`. So does a path without a route or with
    /// an unknown method: pass the raw path. A path that redirects to the one without trailing
    /// slash is a route of its own.
    pub fn handler(&self, route: &str) -> Option<HandlerId> {
        match self.routes.get(route) {
            Some(known) => *known,
            None => (!is_excluded(route)).then_some(HandlerId(0)),
        }
    }

    /// Counts a completed HTTP request and observes its duration and sizes.
    ///
    /// `request_bytes` and `response_bytes` are those of the content-length headers, or zero
    /// without one (a stream has none).
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
        let series =
            CounterSeries { head: SeriesHead::new(&labels, (self.clock)()), cell: cell.clone() };
        self.series.lock().requests.push(series);
        cell
    }

    fn add_sizes(&self, handler: &str) -> Arc<SizeCells> {
        let cells = Arc::<SizeCells>::default();
        let labels = Labels::new([("handler", handler)]);
        let series =
            SizeSeries { head: SeriesHead::new(&labels, (self.clock)()), cells: cells.clone() };
        self.series.lock().sizes.push(series);
        cells
    }

    fn add_durations(&self, handler: &str, method: usize) -> Arc<Histogram> {
        let cell = Arc::new(Histogram::new(buckets::HTTP));
        let labels = Labels::new([("handler", handler), ("method", METHODS[method])]);
        let name = f::HTTP_DURATION.name;
        let series = DurationSeries {
            head: SeriesHead::new(&labels, (self.clock)()),
            before: histogram_lines(name, &labels, (buckets::HTTP, false), self.api_servers),
            cell: cell.clone(),
        };
        self.series.lock().durations.push(series);
        cell
    }

    pub(super) fn register(&self, page: &mut PageBuilder) {
        let text = |family| {
            Arc::new(HttpFamilyWriter {
                family,
                series: self.series.clone(),
                api_servers: self.api_servers,
            })
        };
        page.live(FamilyGroup::Counter, text(HttpFamily::Requests));
        page.live(FamilyGroup::Summary, text(HttpFamily::RequestSizes));
        page.live(FamilyGroup::Summary, text(HttpFamily::ResponseSizes));
        let highr = (Labels::default(), self.highr.clone());
        page.histogram(f::HTTP_DURATION_HIGHR, &[highr]);
        page.live(FamilyGroup::Histogram, text(HttpFamily::Durations));
    }
}

fn is_excluded(route: &str) -> bool {
    EXCLUDED.iter().any(|part| route.contains(part))
}

#[derive(Default)]
struct HttpSeries {
    requests: Vec<CounterSeries>,
    sizes: Vec<SizeSeries>,
    durations: Vec<DurationSeries>,
}

struct SeriesHead {
    labels: String,
    created: f64,
}

impl SeriesHead {
    fn new(labels: &Labels, created: f64) -> Self {
        let mut labels = labels.render();
        labels.push(' ');
        Self { labels, created }
    }
}

struct CounterSeries {
    head: SeriesHead,
    cell: Arc<Counter>,
}

struct SizeSeries {
    head: SeriesHead,
    cells: Arc<SizeCells>,
}

struct DurationSeries {
    head: SeriesHead,
    cell: Arc<Histogram>,
    before: Vec<String>,
}

#[derive(Clone, Copy)]
enum HttpFamily {
    Requests,
    RequestSizes,
    ResponseSizes,
    Durations,
}

impl HttpSeries {
    /// Resets all HTTP series to zero and keeps them, because concurrent calls may hold their
    /// cells.
    fn restart(&mut self, now_unix: f64) {
        for s in &mut self.requests {
            s.cell.set(0);
            s.head.created = now_unix;
        }
        for s in &mut self.sizes {
            let cells = &s.cells;
            for cell in [&cells.count, &cells.request, &cells.response] {
                cell.set(0);
            }
            s.head.created = now_unix;
        }
        for s in &mut self.durations {
            s.cell.replace(&[]);
            s.head.created = now_unix;
        }
    }
}

struct HttpFamilyWriter {
    family: HttpFamily,
    series: Arc<Mutex<HttpSeries>>,
    api_servers: ApiServers,
}

impl LiveFamily for HttpFamilyWriter {
    fn restart(&self, now_unix: f64) {
        self.series.lock().restart(now_unix);
    }

    fn write(&self, out: &mut String, _: f64) {
        let series = &*self.series.lock();
        match self.family {
            HttpFamily::Requests => {
                self.head(out, f::HTTP_REQUESTS, "counter", series.requests.len());
                for s in &series.requests {
                    push_sample(out, f::HTTP_REQUESTS.name, "", &s.head, &s.cell);
                }
                let created = series.requests.iter().map(|s| &s.head);
                self.write_created(out, f::HTTP_REQUESTS, created);
            }
            HttpFamily::RequestSizes => {
                self.write_sizes(out, f::HTTP_REQUEST_SIZE, &series.sizes, |cells| &cells.request);
            }
            HttpFamily::ResponseSizes => {
                self.write_sizes(out, f::HTTP_RESPONSE_SIZE, &series.sizes, |cells| {
                    &cells.response
                });
            }
            HttpFamily::Durations => {
                self.head(out, f::HTTP_DURATION, "histogram", series.durations.len());
                for s in &series.durations {
                    write_histogram(out, &s.cell, &s.before, self.api_servers);
                }
                let created = series.durations.iter().map(|s| &s.head);
                self.write_created(out, f::HTTP_DURATION, created);
            }
        }
    }
}

impl HttpFamilyWriter {
    /// Writes the HELP and TYPE lines of a family; vLLM with several API servers exposes no family
    /// without series.
    fn head(&self, out: &mut String, desc: FamilyDesc, kind: &str, series: usize) {
        if !(series == 0 && self.api_servers == ApiServers::Several) {
            out.push_str(&header(desc.name, desc.help, kind));
        }
    }

    fn write_sizes(
        &self,
        out: &mut String,
        desc: FamilyDesc,
        series: &[SizeSeries],
        bytes: fn(&SizeCells) -> &Counter,
    ) {
        self.head(out, desc, "summary", series.len());
        for s in series {
            push_sample(out, desc.name, "_count", &s.head, &s.cells.count);
            push_sample(out, desc.name, "_sum", &s.head, bytes(&s.cells));
        }
        self.write_created(out, desc, series.iter().map(|s| &s.head));
    }

    fn write_created<'a>(
        &self,
        out: &mut String,
        desc: FamilyDesc,
        series: impl ExactSizeIterator<Item = &'a SeriesHead>,
    ) {
        if self.api_servers == ApiServers::Several || series.len() == 0 {
            return;
        }
        let name = created_name(desc.name);
        out.push_str(&header(&name, desc.help, "gauge"));
        for head in series {
            out.push_str(&name);
            out.push_str(&head.labels);
            push_float(out, head.created);
            out.push('\n');
        }
    }
}

fn push_sample(out: &mut String, name: &str, suffix: &str, head: &SeriesHead, cell: &Counter) {
    out.push_str(name);
    out.push_str(suffix);
    out.push_str(&head.labels);
    push_count(out, cell.get());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics() -> HttpMetrics {
        let routes = ["/v1/completions", "/v1/models/", "/v1/load_lora_adapter"];
        HttpMetrics::new(&routes.map(str::to_owned), ApiServers::One, || 5.0)
    }

    fn text(http: &HttpMetrics) -> String {
        let mut page = PageBuilder::new(http.api_servers, 5.0);
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
        let series: Vec<_> = text
            .lines()
            .filter(|l| !l.starts_with('#') && !l.contains("highr") && !l.contains("_bucket"))
            .collect();
        assert_eq!(
            series,
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
    fn excluded_paths_are_not_counted() {
        let http = metrics();
        for route in ["/health", "/metrics", "/load", "/v1/load_lora_adapter", "/server_info"] {
            assert_eq!(http.handler(route), None, "{route}");
        }
        assert!(http.handler("/v1/unload_lora_adapter").is_some());
        assert_eq!(http.handler("/v1/models/"), Some(HandlerId(2)));
    }

    #[test]
    fn several_processes_show_no_empty_family() {
        let http = HttpMetrics::new(&[], ApiServers::Several, || 5.0);
        assert_eq!(text(&http).matches("# TYPE").count(), 1);
    }
}
