//! The `http_*` families of prometheus-fastapi-instrumentator 8.1.
//!
//! Series appear in the order of the first requests that they count.
//!
//! Routes that *contain* `/metrics`, `/health`, `/load`, `/ping`, `/version` or `/server_info` are
//! excluded. Upstream matches the pattern anywhere, so `/v1/load_lora_adapter` is excluded too,
//! while `/v1/unload_lora_adapter` is counted.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use super::families::Id;
use super::series::{MetricCellVec, MetricSeries};
use super::settings::MetricsSettings;

const EXCLUDED: [&str; 6] = ["/metrics", "/health", "/load", "/ping", "/version", "/server_info"];
/// HTTP methods with a label of their own; `OTHER` counts all other methods.
const METHODS: [&str; 8] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "OTHER"];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Index of a route template in the `handler` label of HTTP metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpHandlerId(usize);

/// HTTP series with one set of labels: number of requests, request sizes, response sizes and, in two
/// histograms, durations.
type RequestSeries = [Arc<MetricSeries>; 5];

/// Series of the requests of a route by method and class of status; they are looked up once.
type HandlerSeries = OnceLock<Box<[OnceLock<RequestSeries>]>>;

/// Metrics of HTTP requests, by route template, method and status.
pub struct HttpMetrics {
    /// Series of requests without a route, and of those of each route of the settings.
    handlers: Vec<HandlerSeries>,
    /// Index in `handlers` of each route; `None`: the route is excluded from metrics.
    routes: HashMap<String, Option<HttpHandlerId>, foldhash::fast::RandomState>,
    /// Families of [`RequestSeries`].
    vecs: [Arc<MetricCellVec>; 5],
    settings: Arc<MetricsSettings>,
}

impl HttpMetrics {
    pub(super) fn new(settings: Arc<MetricsSettings>, vecs: &[Arc<MetricCellVec>]) -> Self {
        use Id::{
            HttpDuration, HttpDurationHighr, HttpRequestSize, HttpRequests, HttpResponseSize,
        };
        let ids = (1..).map(HttpHandlerId);
        let routes = settings.routes.iter().zip(ids).map(|(route, id)| {
            let counted = (!is_excluded(route)).then_some(id);
            (route.clone(), counted)
        });
        let families =
            [HttpRequests, HttpRequestSize, HttpResponseSize, HttpDuration, HttpDurationHighr];
        Self {
            routes: routes.collect(),
            handlers: (0..=settings.routes.len()).map(|_| OnceLock::new()).collect(),
            vecs: families.map(|id| vecs[id as usize].clone()),
            settings,
        }
    }

    /// Returns the id of a route template for metrics; `None` if the route is excluded.
    ///
    /// A route that is not in the settings counts as `none`. So does a path without a route or with
    /// an unknown method: pass the raw path. A path that redirects to the one without trailing
    /// slash is a route of its own.
    pub fn handler_id(&self, route: &str) -> Option<HttpHandlerId> {
        match self.routes.get(route) {
            Some(known) => *known,
            None => (!is_excluded(route)).then_some(HttpHandlerId(0)),
        }
    }

    /// Counts a completed HTTP request and observes its duration and sizes.
    ///
    /// `request_bytes` and `response_bytes` are those of the content-length headers, or zero
    /// without one (a stream has none).
    pub fn observe_request(
        &self,
        handler: HttpHandlerId,
        method: &str,
        status: u16,
        request_bytes: u64,
        response_bytes: u64,
        seconds: f64,
    ) {
        let Some(series) = self.handlers.get(handler.0) else { return };
        let known = METHODS.iter().position(|m| *m == method);
        let method = known.unwrap_or(METHODS.len() - 1);
        let class = usize::from(status / 100).clamp(1, CLASSES.len()) - 1;
        let count = METHODS.len() * CLASSES.len();
        let series = series.get_or_init(|| (0..count).map(|_| OnceLock::new()).collect());
        let series = series[method * CLASSES.len() + class].get_or_init(|| {
            let route = handler.0.checked_sub(1).map(|index| self.settings.routes[index].as_str());
            let (name, method) = (route.unwrap_or("none"), METHODS[method]);
            let labels: [&[&str]; 5] =
                [&[name, method, CLASSES[class]], &[name], &[name], &[name, method], &[]];
            let now = (self.settings.clock.0)();
            std::array::from_fn(|i| self.vecs[i].with_label_values(labels[i], now))
        });
        let [requests, request_sizes, response_sizes, durations, all_durations] = series;
        requests.add(1.0);
        request_sizes.observe(request_bytes as f64);
        response_sizes.observe(response_bytes as f64);
        all_durations.observe(seconds);
        durations.observe(seconds);
    }
}

fn is_excluded(route: &str) -> bool {
    EXCLUDED.iter().any(|part| route.contains(part))
}

#[cfg(test)]
mod tests {
    use super::super::{ApiServerCount, Metrics, UnixClock};
    use super::*;

    fn metrics(api_servers: ApiServerCount) -> Arc<Metrics> {
        let routes = ["/v1/completions", "/v1/models/", "/v1/load_lora_adapter"];
        Metrics::new(MetricsSettings {
            routes: routes.map(str::to_owned).to_vec(),
            api_servers,
            clock: UnixClock(|| 5.0),
            ..MetricsSettings::default()
        })
    }

    fn text(metrics: &Metrics) -> String {
        let mut out = String::new();
        metrics.encode_page(&mut out, 0.0);
        out
    }

    #[test]
    fn a_series_appears_with_its_first_request() {
        let metrics = metrics(ApiServerCount::One);
        let families = text(&metrics).matches("# TYPE http_").count();
        assert_eq!(families, 5 + 1, "{}", text(&metrics));

        let http = metrics.http_metrics();

        let route = http.handler_id("/v1/completions").unwrap();
        http.observe_request(route, "POST", 200, 100, 0, 0.2);
        http.observe_request(route, "POST", 503, 50, 20, 0.001);
        http.observe_request(http.handler_id("/nowhere").unwrap(), "BREW", 418, 0, 7, 0.0);
        let text = text(&metrics);
        let series: Vec<_> = text
            .lines()
            .filter(|l| l.starts_with("http_") && !l.contains("highr") && !l.contains("_bucket"))
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
        let metrics = metrics(ApiServerCount::One);
        let http = metrics.http_metrics();
        for route in ["/health", "/metrics", "/load", "/v1/load_lora_adapter", "/server_info"] {
            assert_eq!(http.handler_id(route), None, "{route}");
        }
        assert!(http.handler_id("/v1/unload_lora_adapter").is_some());
        assert_eq!(http.handler_id("/v1/models/"), Some(HttpHandlerId(2)));
    }

    #[test]
    fn several_processes_show_no_empty_family() {
        let metrics = metrics(ApiServerCount::Several);
        assert_eq!(text(&metrics).matches("# TYPE").count(), 1);
    }
}
