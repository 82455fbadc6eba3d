use axum::extract::Request;
use axum::http::uri::{PathAndQuery, Uri};

/// Middleware that rewrites request paths to the paths of the routes.
#[derive(Debug, Clone)]
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

    pub(super) fn rewrite_path(&self, mut request: Request) -> Request {
        if self.merges_slashes && request.uri().path().contains("//") {
            let target = merge_slashes(request.uri());
            set_uri(&mut request, &target);
        }
        if !self.root_path.is_empty() {
            let target = request.uri().path_and_query();
            let target = target.map_or("/", PathAndQuery::as_str);
            let rest = target.strip_prefix(self.root_path.as_str());
            if let Some(rest) = rest.filter(|rest| rest.starts_with('/')) {
                let rest = rest.to_owned();
                set_uri(&mut request, &rest);
            }
        }
        request
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
