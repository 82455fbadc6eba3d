//! The paths that a server serves, without their handlers.

use indexmap::IndexMap;

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
    pub fn paths(&self) -> Vec<String> {
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
pub(crate) fn accepts_head(path: &str) -> bool {
    matches!(path, "/" | "/openapi.json" | "/docs" | "/redoc" | "/docs/oauth2-redirect")
        || path.starts_with(METRICS_PATH)
}
