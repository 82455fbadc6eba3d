//! Responses with HTML pages that load nothing from other hosts.

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};

/// Content security policy of the pages: allows only the page's own style and script and requests
/// to this server, and forbids pages of other origins to embed the page.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; img-src data:; base-uri 'none'; frame-ancestors 'self'";

/// Returns a response with status 200 and an HTML page.
pub(super) fn html_page_response(html: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(html.into());
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
