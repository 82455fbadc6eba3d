//! The paths that a server serves, without their handlers, and the rewriting of request paths to them.

use axum::extract::Request;
use axum::http::uri::{PathAndQuery, Uri};
use axum::response::Response;
use indexmap::IndexMap;

use super::middleware::{Middleware, ResponseHook};

pub(crate) const CHAT_PATH: &str = "/v1/chat/completions";
/// Path of the Prometheus metrics; longer paths that start with it are served too.
pub(crate) const METRICS_PATH: &str = "/metrics";
/// Path of one LoRA adapter (SageMaker).
pub(crate) const ADAPTER_PATH: &str = "/adapters/{adapter_name}";
pub(crate) const RESPONSE_PATH: &str = "/v1/responses/{response_id}";
pub(crate) const RESPONSE_CANCEL_PATH: &str = "/v1/responses/{response_id}/cancel";

/// Served paths in the order of the route table, with their methods as in the `Allow` header.
#[derive(Debug)]
pub struct RouteIndex(IndexMap<&'static str, &'static str>);

impl RouteIndex {
    pub(crate) fn new(routes: impl Iterator<Item = (&'static str, &'static str)>) -> Self {
        Self(routes.collect())
    }

    pub(crate) fn allowed_methods(&self, path: &str) -> Option<&'static str> {
        self.0.get(route_template(path)).copied()
    }

    pub(crate) fn serves_path(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// Returns the paths of all routes, and the paths that redirect to them.
    pub fn served_paths(&self) -> Vec<String> {
        let paths = self.0.keys();
        paths.flat_map(|path| [(*path).to_owned(), format!("{path}/")]).collect()
    }
}

/// Returns the route of a request path, as the `http_*` metrics name it; else the path itself.
pub(crate) fn route_template(path: &str) -> &str {
    if let Some(name) = path.strip_prefix("/adapters/") {
        let one = !name.is_empty() && !name.contains('/');
        return if one { ADAPTER_PATH } else { path };
    }
    let Some(rest) = path.strip_prefix("/v1/responses/") else {
        return path;
    };
    match rest.split_once('/') {
        None if !rest.is_empty() => RESPONSE_PATH,
        Some((id, "cancel")) if !id.is_empty() => RESPONSE_CANCEL_PATH,
        _ => path,
    }
}

/// Returns whether the route of a path accepts HEAD.
pub(crate) fn accepts_head_method(path: &str) -> bool {
    matches!(path, "/" | "/openapi.json" | "/docs" | "/redoc" | "/docs/oauth2-redirect")
        || path.starts_with(METRICS_PATH)
}

/// Rewrites request paths to the paths of the routes.
pub(super) struct PathRewriter {
    root_path: String,
    merges_slashes: bool,
}

impl PathRewriter {
    /// Creates a middleware that removes the prefix `root_path` from request paths, and with
    /// `merges_slashes` merges repeated slashes.
    pub(super) fn new(root_path: &str, merges_slashes: bool) -> Self {
        Self { root_path: root_path.to_owned(), merges_slashes }
    }
}

impl Middleware for PathRewriter {
    fn on_request(&self, request: &mut Request) -> Result<ResponseHook, Response> {
        if self.merges_slashes && request.uri().path().contains("//") {
            let target = merge_slashes(request.uri());
            set_uri(request, &target);
        }
        if !self.root_path.is_empty() {
            let target = request.uri().path_and_query();
            let target = target.map_or("/", PathAndQuery::as_str);
            let rest = target.strip_prefix(self.root_path.as_str());
            if let Some(rest) = rest.filter(|rest| rest.starts_with('/')) {
                let rest = rest.to_owned();
                set_uri(request, &rest);
            }
        }
        Ok(None)
    }
}

/// Returns path and query of a request with repeated slashes in the path merged.
fn merge_slashes(uri: &Uri) -> String {
    let parts = uri.path().split('/').filter(|part| !part.is_empty());
    let mut target: String = parts.flat_map(|part| ["/", part]).collect();
    if target.is_empty() || uri.path().ends_with('/') {
        target.push('/');
    }
    if let Some(query) = uri.query() {
        target.extend(["?", query]);
    }
    target
}

fn set_uri(request: &mut Request, target: &str) {
    if let Ok(uri) = target.parse::<Uri>() {
        *request.uri_mut() = uri;
    }
}
