//! `GET /dashboard`: a page that displays `/metrics` live.
//!
//! The page embeds its style and script and loads nothing else. It requests `/metrics`, the routes
//! below `/dashboard` and `/admin/config` from the server it came from.

pub(super) mod cache;
pub(super) mod chart_annotations;
pub(super) mod history;
pub(super) mod replicas;
pub(super) mod requests;
pub(super) mod scenarios;
pub(super) mod trace;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;

use super::app::AppState;
use super::html_page::html_page_response;
use crate::error::ok_json_response;

const PAGE_HTML: &str = include_str!("page.html");
/// CSS of the dashboard page; its first part is the CSS of all HTML pages.
const PAGE_CSS: &str =
    concat!(include_str!("../../../replay/src/html/base.css"), include_str!("page.css"));
/// Script of the dashboard page; `page.js` is last because it starts the requests.
const PAGE_SCRIPT: &str = concat!(
    include_str!("requests.js"),
    include_str!("cache.js"),
    include_str!("drills.js"),
    include_str!("replicas.js"),
    include_str!("scenarios.js"),
    include_str!("page.js"),
);

pub(super) async fn get_dashboard_page(State(app): AppState) -> Response<Body> {
    let page = DashboardPage {
        control: app.settings.server.dashboard.control,
        config: app.settings.is_administered,
        replicas: replicas::has_other_replicas(&app),
        documentation: app.routes.serves_path("/docs"),
    };
    html_page_response(page.html())
}

/// Handles `GET /dashboard/latencies`: returns percentiles of the latencies of recent requests, in
/// seconds.
///
/// They are computed from single values, while `/metrics` has only histogram buckets. The body is
/// `null` with fake metrics.
pub(super) async fn get_latency_percentiles(State(app): AppState) -> Response<Body> {
    let recent = serde_json::json!(app.metrics.recent_latencies());
    ok_json_response(&recent)
}

/// Features of the dashboard page that a server enables.
struct DashboardPage {
    /// Whether the dashboard can change settings and inject faults.
    control: bool,
    /// Whether the dashboard requests `/admin/config`.
    config: bool,
    /// Whether the dashboard requests the state of other servers.
    replicas: bool,
    /// Whether the dashboard links to `/docs`.
    documentation: bool,
}

impl DashboardPage {
    fn html(&self) -> String {
        PAGE_HTML
            .replace("{{control}}", &self.control.to_string())
            .replace("{{config}}", &self.config.to_string())
            .replace("{{replicas}}", &self.replicas.to_string())
            .replace("{{no-docs}}", if self.documentation { "" } else { "hidden" })
            .replace("{{style}}", PAGE_CSS)
            .replace("{{script}}", PAGE_SCRIPT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_complete_and_loads_nothing() {
        let page =
            DashboardPage { control: true, config: false, replicas: true, documentation: true };
        let page = page.html();
        assert!(!page.contains("{{"), "a placeholder is left");
        assert!(
            page.contains("data-control=\"true\" data-config=\"false\" data-replicas=\"true\"")
        );
        let outside = ["http://", "https://", "src=", "@import", "url("];
        let page = page.replace("http://www.w3.org/2000/svg", "");
        for word in outside {
            assert!(!page.contains(word), "{word} in the page");
        }
    }
}
