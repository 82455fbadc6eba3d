//! Middleware that sees a request before it is handled and its response afterwards, without waiting.
//! CORS and the rewriting of paths are such middleware.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt as _, service_fn};

use vllm_sim_config::CorsConfig;

/// CORS methods listed in responses if `*` is configured.
const ALL_METHODS: &str = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY";

/// Value of `Vary` in the response to a CORS preflight request.
const PREFLIGHT_VARY: &str = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network";

/// A service for all routes, with any middleware around it.
pub(super) type MiddlewareStack = BoxCloneSyncService<Request, Response, Infallible>;

/// The change that a middleware makes to the response to one request; `None` for no change.
pub(super) type ResponseHook = Option<Box<dyn FnOnce(Response) -> Response + Send>>;

/// A middleware of all routes, which never waits.
pub(super) trait Middleware: Send + Sync {
    /// Processes a request before the inner services do, and returns the change to make to its
    /// response.
    ///
    /// # Errors
    /// The response to a request that the inner services do not see.
    #[expect(clippy::result_large_err, reason = "it is rare, and moved once in either form")]
    fn on_request(&self, request: &mut Request) -> Result<ResponseHook, Response>;
}

/// Puts middleware around a service; the first of the list is the outermost.
pub(super) fn add_middleware<S>(middlewares: Vec<Box<dyn Middleware>>, inner: S) -> MiddlewareStack
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
{
    let list: Arc<[Box<dyn Middleware>]> = middlewares.into();
    let run = move |request| run_middleware(list.clone(), request, inner.clone());
    BoxCloneSyncService::new(service_fn(run))
}

async fn run_middleware(
    list: Arc<[Box<dyn Middleware>]>,
    mut request: Request,
    inner: impl Service<Request, Response = Response, Error = Infallible>,
) -> Result<Response, Infallible> {
    let mut hooks = Vec::with_capacity(list.len());
    for middleware in &*list {
        match middleware.on_request(&mut request) {
            Ok(hook) => hooks.extend(hook),
            Err(response) => return Ok(run_hooks(hooks, response)),
        }
    }
    Ok(run_hooks(hooks, inner.oneshot(request).await?))
}

fn run_hooks(
    hooks: Vec<Box<dyn FnOnce(Response) -> Response + Send>>,
    response: Response,
) -> Response {
    hooks.into_iter().rev().fold(response, |response, hook| hook(response))
}

/// Rewrites request paths to the paths of routes: removes the root path and repeated slashes.
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

/// Answers CORS preflight requests and adds CORS headers to other responses, as Starlette's
/// middleware does.
///
/// `tower_http::cors` differs in visible bytes: it treats every `OPTIONS` request as a preflight
/// and never rejects one. It sends `*` to requests without an origin, and lowercase names in
/// `vary`.
///
/// Source: Starlette 1.10 `middleware/cors.py`.
pub(super) struct CorsRules(pub Arc<CorsConfig>);

impl Middleware for CorsRules {
    fn on_request(&self, request: &mut Request) -> Result<ResponseHook, Response> {
        let origin = request.headers().get(header::ORIGIN).cloned();
        let cors = self.0.clone();
        let add_headers = move |mut response: Response| {
            add_cors_headers(&cors, origin.as_ref(), &mut response);
            response
        };
        match preflight_response(&self.0, request) {
            Some(response) => Err(add_headers(response)),
            None => Ok(Some(Box::new(add_headers))),
        }
    }
}

/// Returns the response to a CORS preflight request; `None` for other requests.
fn preflight_response(cors: &CorsConfig, request: &Request) -> Option<Response> {
    let headers = request.headers();
    if request.method() != Method::OPTIONS {
        return None;
    }
    let origin = headers.get(header::ORIGIN)?;
    let method = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
    let mut failed = Vec::new();
    if !allows_origin(&cors.origins, origin) {
        failed.push("origin");
    }
    let methods = if cors.methods.iter().any(|m| m == "*") {
        ALL_METHODS.to_owned()
    } else {
        cors.methods.join(", ")
    };
    let mut allowed = methods.split(", ");
    if !allowed.any(|m| m.as_bytes() == method.as_bytes()) {
        failed.push("method");
    }
    let text = match failed.as_slice() {
        [] => "OK".to_owned(),
        failed => format!("Disallowed CORS {}", failed.join(", ")),
    };
    let mut response = Response::new(Body::from(text));
    if !failed.is_empty() {
        *response.status_mut() = StatusCode::BAD_REQUEST;
    }
    let out = response.headers_mut();
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    out.insert(header::CONTENT_TYPE, plain);
    if let Ok(methods) = HeaderValue::from_str(&methods) {
        out.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    }
    let ten_minutes = HeaderValue::from_static("600");
    out.insert(header::ACCESS_CONTROL_MAX_AGE, ten_minutes);
    if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        out.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    out.insert(header::VARY, HeaderValue::from_static(PREFLIGHT_VARY));
    Some(response)
}

/// Adds the CORS headers to the response to a request other than a preflight.
fn add_cors_headers(cors: &CorsConfig, origin: Option<&HeaderValue>, response: &mut Response) {
    let headers = response.headers_mut();
    if let Some(origin) = origin.filter(|origin| allows_origin(&cors.origins, origin)) {
        let any = cors.origins.iter().any(|o| o == "*") && !cors.credentials;
        let shown = if any { HeaderValue::from_static("*") } else { origin.clone() };
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, shown);
        if cors.credentials {
            let yes = HeaderValue::from_static("true");
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, yes);
        }
    }
    headers.entry(header::VARY).or_insert(HeaderValue::from_static("Origin"));
}

fn allows_origin(origins: &[String], origin: &HeaderValue) -> bool {
    origins.iter().any(|allowed| allowed == "*" || allowed.as_bytes() == origin.as_bytes())
}
