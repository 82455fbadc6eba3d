//! `GET /dashboard`: one page that shows what `/metrics` says, as it changes.
//!
//! The page holds its style and script, so nothing else is loaded from anywhere; it asks `/metrics`,
//! `/dashboard/latencies` and `/admin/config` of the server it came from.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, StatusCode, header};

use super::app::App;
use super::{error, routes};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// What the page may do: its own style and script, and asking this server.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'self'";

/// `GET /dashboard`.
pub(super) async fn show(State(app): State<Arc<App>>) -> Response<Body> {
    let control = app.config.server.dashboard_control;
    let config = routes::is_administered(&app.config);
    let mut response = Response::new(Body::from(page(control, config)));
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// `GET /dashboard/latencies`: percentiles of the newest latencies in seconds, of the single values
/// that `/metrics` has only buckets of; `null` beside fake metrics.
pub(super) async fn latencies(State(app): State<Arc<App>>) -> Response<Body> {
    let recent = serde_json::json!(app.metrics.recent_latencies());
    error::json(StatusCode::OK, recent.to_string())
}

/// The page; `control` decides whether its switches act, `config` whether it asks for settings.
fn page(control: bool, config: bool) -> String {
    PAGE.replace("{{control}}", if control { "true" } else { "false" })
        .replace("{{config}}", if config { "true" } else { "false" })
        .replace("{{style}}", STYLE)
        .replace("{{script}}", SCRIPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_loads_nothing() {
        let page = page(true, false);
        assert!(!page.contains("{{"), "a placeholder is left");
        assert!(page.contains("data-control=\"true\" data-config=\"false\""));
        let outside = ["http://", "https://", "src=", "@import", "url("];
        let page = page.replace("http://www.w3.org/2000/svg", "");
        for word in outside {
            assert!(!page.contains(word), "{word} in the page");
        }
    }
}
