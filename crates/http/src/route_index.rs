//! The paths that a server serves, without their handlers.

use indexmap::IndexMap;

/// Chats.
pub(crate) const CHAT: &str = "/v1/chat/completions";
/// The Prometheus page; whatever begins so is its own.
pub(crate) const METRICS: &str = "/metrics";
/// One adapter (SageMaker).
pub(crate) const ADAPTER: &str = "/adapters/{adapter_name}";
/// A stored response.
pub(crate) const RESPONSE: &str = "/v1/responses/{response_id}";
/// The end of a background response.
pub(crate) const RESPONSE_CANCEL: &str = "/v1/responses/{response_id}/cancel";

/// The routes of a configuration, in the order of the table: path to methods, as `allow` names
/// them.
#[derive(Debug)]
pub struct RouteIndex(IndexMap<&'static str, &'static str>);

impl RouteIndex {
    /// The index of these paths and methods.
    pub(crate) fn new(routes: impl Iterator<Item = (&'static str, &'static str)>) -> Self {
        Self(routes.collect())
    }

    /// Methods of a path, for the redirect of a trailing slash and for answers to HEAD.
    pub(crate) fn methods(&self, path: &str) -> Option<&'static str> {
        self.0.get(template(path)).copied()
    }

    /// Whether a path is served.
    pub(crate) fn serves(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// Paths of all routes, and of the redirects to them.
    pub fn paths(&self) -> Vec<String> {
        let paths = self.0.keys();
        paths
            .flat_map(|path| [(*path).to_owned(), format!("{path}/")])
            .collect()
    }
}

/// The route a path belongs to, as `http_*` names it; the path itself when there is none.
pub(crate) fn template(path: &str) -> &str {
    if let Some(name) = path.strip_prefix("/adapters/") {
        let one = !name.is_empty() && !name.contains('/');
        return if one { ADAPTER } else { path };
    }
    let Some(rest) = path.strip_prefix("/v1/responses/") else {
        return path;
    };
    match rest.split_once('/') {
        None if !rest.is_empty() => RESPONSE,
        Some((id, "cancel")) if !id.is_empty() => RESPONSE_CANCEL,
        _ => path,
    }
}

/// Whether HEAD is answered as GET is.
pub(crate) fn answers_head(path: &str) -> bool {
    matches!(
        path,
        "/openapi.json" | "/docs" | "/redoc" | "/docs/oauth2-redirect"
    ) || path.starts_with(METRICS)
}
