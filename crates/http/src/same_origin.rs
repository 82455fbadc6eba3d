//! Rejects requests of foreign web pages to operator routes.
//!
//! Such pages could otherwise change a server on the user's machine, or read settings and requests.
//!
//! A browser sends a form or a `text/plain` body to any origin without a preflight, and preflights
//! succeed under vLLM's default CORS (`--allowed-origins ["*"]`). Clients other than browsers send
//! neither `Sec-Fetch-Site` nor `Origin`, so they pass.

use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;

use super::error;
use vllm_sim_config::HttpServerConfig;
use vllm_sim_wire::fault::{ErrorType, Fault};

/// Path prefixes of operator routes for which the origin of reads is checked too, because the
/// responses contain settings or requests. On other routes, only the origin of writes is checked.
const OPERATOR_PATHS: [&str; 2] = ["/admin/", "/dashboard/"];

/// Top-level domains in which public names cannot be registered, so a foreign page cannot use them.
const PRIVATE_TOP_LEVEL_DOMAINS: [&str; 4] = ["internal", "local", "localhost", "svc"];

/// The web pages that may use the operator routes.
#[derive(Debug, Clone)]
pub(super) struct TrustedPageOrigins {
    /// Trusted origins of web pages (`--allowed-origins`).
    origins: Vec<String>,
    /// Known host names of this server; `None` accepts all host names, because operators need a
    /// key.
    hosts: Option<Vec<String>>,
}

impl TrustedPageOrigins {
    pub(super) fn new(server: &HttpServerConfig) -> Self {
        let needs_key = server.admin_key.is_some() || !server.api_keys.is_empty();
        let named = [&server.host, &server.pod.name].into_iter().flatten();
        let hosts = server.allowed_hosts.iter().chain(named).cloned();
        Self { origins: server.cors.origins.clone(), hosts: (!needs_key).then(|| hosts.collect()) }
    }

    /// Returns whether a host name is of this server: an IP address, a name that cannot be
    /// registered, or a known name.
    ///
    /// With DNS rebinding, a foreign name resolves to this server, and its page has the server's
    /// own origin. Only the host name reveals that.
    fn is_own_host(&self, host: &str) -> bool {
        let Some(hosts) = &self.hosts else {
            return true;
        };
        let name = match host.strip_prefix('[') {
            // An IPv6 address.
            Some(_) => return true,
            None => host.split(':').next().unwrap_or_default(),
        };
        let last = name.rsplit('.').next().unwrap_or_default();
        last == name
            || name.parse::<Ipv4Addr>().is_ok()
            || PRIVATE_TOP_LEVEL_DOMAINS.iter().any(|local| last.eq_ignore_ascii_case(local))
            || hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Middleware that rejects a request to an operator route from a page of another origin.
pub(super) async fn reject_cross_origin_pages(
    State(pages): State<Arc<TrustedPageOrigins>>,
    request: Request,
    next: Next,
) -> Response {
    let reads = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    let path = request.uri().path();
    let reads = reads && !OPERATOR_PATHS.iter().any(|prefix| path.starts_with(prefix));
    let headers = request.headers();
    let origin = headers.get(header::ORIGIN);
    let trusted = |origin: &HeaderValue| pages.origins.iter().any(|known| *known == *origin);
    if reads || origin.is_some_and(trusted) {
        return next.run(request).await;
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or(request.uri().authority().map(|host| host.as_str()));
    if !is_same_origin(headers, host) {
        return forbidden_response(
            "This route is for operators and rejects requests from pages of another origin. Send \
             the request without an Origin header, or add the origin to --allowed-origins.",
        );
    }
    if is_browser_request(headers) && !pages.is_own_host(host.unwrap_or_default()) {
        return forbidden_response(
            "This route is for operators and accepts requests of browsers only under a known \
             host. Add the host to --allowed-hosts, or set --admin-api-key or --api-key.",
        );
    }
    next.run(request).await
}

fn forbidden_response(message: &str) -> Response {
    error::fault_response(&Fault::new(403, ErrorType::PermissionDenied, message))
}

/// Returns whether a request comes from a browser, by headers that pages cannot remove.
fn is_browser_request(headers: &HeaderMap) -> bool {
    ["origin", "sec-fetch-site", "accept-language"].iter().any(|name| headers.contains_key(*name))
}

/// Returns whether a request comes from no web page, or from a page of this server at `host`.
fn is_same_origin(headers: &HeaderMap, host: Option<&str>) -> bool {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let origin = text(header::ORIGIN);
    // A proxy may rewrite the host, but not `Sec-Fetch-Site`.
    if let Some(site) = headers.get("sec-fetch-site") {
        return ["same-origin", "none"].iter().any(|own| *site == *own);
    }
    let Some(origin) = origin else {
        return true;
    };
    let page = origin.split_once("://").map(|(_, host)| host);
    page.is_some() && page == host
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    #[test]
    fn only_same_origin_pages_and_non_browsers_are_allowed() {
        let own = |headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            is_same_origin(&headers.collect(), Some("localhost:8000"))
        };
        assert!(own(&[]));
        assert!(own(&[("origin", "http://localhost:8000")]));
        assert!(own(&[("sec-fetch-site", "none")]));
        // A proxy that rewrites the host.
        let proxied = ("origin", "https://sim.example");
        assert!(own(&[proxied, ("sec-fetch-site", "same-origin")]));
        assert!(!own(&[proxied]));
        assert!(!own(&[proxied, ("sec-fetch-site", "cross-site")]));
        assert!(!own(&[("origin", "null")]));
        assert!(!own(&[("origin", "http://localhost:9000")]));
        assert!(!own(&[("sec-fetch-site", "same-site")]));
    }
}
