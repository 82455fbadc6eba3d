//! Keeps pages of other origins from changing a server that runs on the reader's own machine, and from
//! reading what its operator may: settings, and the requests of others.
//!
//! A browser sends a form or a `text/plain` body anywhere without asking, and the preflight of
//! anything else succeeds under vLLM's default CORS (`--allowed-origins ["*"]`). What is no browser
//! sends neither `Sec-Fetch-Site` nor `Origin` and passes, whatever its content type.

use axum::extract::Request;
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::Response;

use super::error;
use vllm_sim_wire::fault::{ErrorType, Fault};

/// What only an operator reads; other routes may be read, as vLLM's CORS has it.
const OPERATORS: [&str; 2] = ["/admin/", "/dashboard/"];

/// Answers a request, unless it is the operator's and comes from a page of another origin.
pub(super) async fn guard(trusted: &[String], request: Request, next: Next) -> Response {
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    let path = request.uri().path();
    let reads = reads && !OPERATORS.iter().any(|prefix| path.starts_with(prefix));
    let host = request.uri().authority().map(|host| host.as_str());
    if reads || is_own(trusted, request.headers(), host) {
        return next.run(request).await;
    }
    let message = "This route is the operator's and takes no requests from pages of another \
                   origin. Send it without an Origin header, or name the origin in \
                   --allowed-origins.";
    error::response(&Fault::new(403, ErrorType::PermissionDenied, message))
}

/// Whether a request comes from no page, from a page of this server or from one of an origin that
/// is trusted by name. `authority` is the host of HTTP/2, which needs no header for it.
fn is_own(trusted: &[String], headers: &HeaderMap, authority: Option<&str>) -> bool {
    let text = |name| {
        headers
            .get(name)
            .map(|value| value.to_str().unwrap_or_default())
    };
    let origin = text(header::ORIGIN);
    if origin.is_some_and(|origin| trusted.iter().any(|known| known == origin)) {
        return true;
    }
    // A proxy may rewrite the host, but the browser's own word stays.
    if let Some(site) = headers.get("sec-fetch-site") {
        return ["same-origin", "none"].iter().any(|own| *site == *own);
    }
    let Some(origin) = origin else {
        return true;
    };
    let host = text(header::HOST).or(authority);
    let page = origin.split_once("://").map(|(_, host)| host);
    page.is_some() && page == host
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn only_the_own_page_and_what_is_no_page_pass() {
        let own = |headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            });
            is_own(
                &["http://grafana:3000".to_owned()],
                &headers.collect(),
                None,
            )
        };
        let host = ("host", "localhost:8000");
        assert!(own(&[host]));
        assert!(own(&[host, ("origin", "http://localhost:8000")]));
        assert!(own(&[host, ("origin", "http://grafana:3000")]));
        assert!(own(&[host, ("sec-fetch-site", "none")]));
        // Behind a proxy that rewrites the host.
        let proxied = ("origin", "https://sim.example");
        assert!(own(&[host, proxied, ("sec-fetch-site", "same-origin")]));
        assert!(!own(&[host, proxied]));
        assert!(!own(&[host, proxied, ("sec-fetch-site", "cross-site")]));
        assert!(!own(&[host, ("origin", "null")]));
        assert!(!own(&[host, ("origin", "http://localhost:9000")]));
        assert!(!own(&[host, ("sec-fetch-site", "same-site")]));
    }
}
