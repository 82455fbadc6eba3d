//! The outermost service of a connection, and the middleware around its requests and responses.
//!
//! The order is that of vLLM's middleware: request id, API key, CORS, router. Only
//! `CatchPanicLayer` is from tower-http, whose CORS, request id and body limit differ from
//! Starlette and vLLM in bytes that clients see.

use std::any::Any;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Version, header};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_http::catch_panic::CatchPanicLayer;

use super::access_log::AccessLog;
use super::api_key::ApiKeyCheck;
use super::app::{self, App};
use super::body::{DrainOnDropBody, announces_longer_body};
use super::middleware::{
    CorsRules, Middleware, MiddlewareStack, PathRewriter, ResponseHook, add_middleware,
};
use super::request_head::names::REQUEST_ID_HEADER;
use super::request_history::RequestHistoryLayer;
use super::request_log::RequestLog;
use super::{body, error, fault, request_log, routes};
use vllm_sim_config::{CorsConfig, LogConfig};
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::{InferenceService, RequestContext, run_blocking};
use vllm_sim_tokenizer::TextEncodingTooExpensive;
use vllm_sim_wire::fault::Fault;

/// The outermost service of a connection, for HTTP and gRPC.
pub struct HttpService {
    http: MiddlewareStack,
    grpc: Option<MiddlewareStack>,
    /// Maximum size of a request body, in bytes.
    max_body: usize,
}

/// The future of the response to one HTTP request.
pub type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl HttpService {
    /// Builds the middleware around the HTTP routes of `app` and around the gRPC services.
    pub fn new(
        app: &Arc<App>,
        settings: &MiddlewareSettings,
        routes: Router<Arc<App>>,
        grpc: Option<Router>,
    ) -> Self {
        let log =
            || Some(RequestLog::new(&settings.log)).filter(RequestLog::is_request_log_enabled);
        Self {
            http: http_stack(app, settings, log(), routes.with_state(app.clone())),
            grpc: grpc.map(|services| grpc_stack(app, settings, log(), services)),
            max_body: settings.max_body_bytes,
        }
    }

    /// Answers one HTTP request or gRPC call; `context` describes its connection.
    ///
    /// # Errors
    /// None: every failure becomes a response.
    pub fn call<B>(&self, request: Request<B>, context: RequestContext) -> ResponseFuture
    where
        B: http_body::Body<Data = Bytes> + Unpin + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let (stack, is_long) = match &self.grpc {
            Some(grpc) if is_grpc_call(&request) => (grpc.clone(), false),
            _ => (self.http.clone(), has_long_body(&request)),
        };
        let closes =
            request.version() != Version::HTTP_2 && announces_longer_body(&request, self.max_body);
        let mut request = DrainOnDropBody::drain_request_body_on_drop(request, self.max_body);
        let started = unix_now_secs();
        request.extensions_mut().insert(RequestContext { started, ..context });
        // Boxed, so that an idle connection holds a pointer instead of space for the largest
        // handler.
        Box::pin(async move {
            // Reading and checking a large body takes long.
            let mut response = match is_long {
                true => run_blocking(stack.oneshot(request)).await?,
                false => stack.oneshot(request).await?,
            };
            if closes {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            Ok(response)
        })
    }
}

/// Returns whether a request is a gRPC call, by its content type; gRPC-Web is excluded.
fn is_grpc_call<B>(request: &Request<B>) -> bool {
    if request.version() != Version::HTTP_2 {
        return false;
    }
    let kind = request.headers().get(header::CONTENT_TYPE);
    let rest = kind.and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Returns whether a request has a large body, or one of unknown size.
fn has_long_body(request: &Request<impl http_body::Body>) -> bool {
    /// Minimum size of a request body that is handled on the blocking pool, in bytes.
    const LARGE_BODY_BYTES: u64 = 64 * 1024;

    match request.body().size_hint().exact() {
        Some(length) => LARGE_BODY_BYTES <= length,
        None => request.headers().contains_key(header::TRANSFER_ENCODING),
    }
}

/// Settings of the middleware around all routes.
#[derive(Debug, Clone)]
pub struct MiddlewareSettings {
    /// The prefix that request paths may have (`--root-path`).
    pub root_path: String,
    /// The accepted API keys, of which clients need one (`--api-key`); an empty list requires none.
    pub api_keys: Vec<String>,
    /// CORS settings of all responses.
    pub cors: CorsConfig,
    /// Name of the Kubernetes pod and port of the server, reported in every response.
    pub pod: Option<(String, u16)>,
    /// Kubernetes namespace, reported in every response.
    pub namespace: Option<String>,
    /// Whether responses have `X-Request-Id` (`--enable-request-id-headers`).
    pub request_id_headers: bool,
    /// Maximum size of a request body, in bytes (`--max-request-body-size-mb`).
    pub max_body_bytes: usize,
    /// Settings of the access log and the request log.
    pub log: LogConfig,
}

/// Builds the middleware around the HTTP routes, outermost first.
fn http_stack(
    app: &Arc<App>,
    settings: &MiddlewareSettings,
    log: Option<RequestLog>,
    routes: Router,
) -> MiddlewareStack {
    let paths = PathRewriter::new(&settings.root_path, app.dialect.has_lenient_paths());
    let message_memory = app.service().large_body_memory().clone();
    let admin_key = app.settings.server.admin_key.as_ref();
    let before_log = enabled([
        Some(Box::new(paths)),
        app.history.clone().map(RequestHistoryLayer::new_for_http).map(boxed),
        AccessLog::start_access_log_if_enabled(&settings.log).map(boxed),
    ]);
    let after_log = enabled([
        settings.request_id_headers.then(|| boxed(RequestIdHeader)),
        Some(Box::new(FixedHeaders::new(settings, Some(app)))),
        ApiKeyCheck::new_for_http(settings, app.dialect, admin_key).map(boxed),
        ApiKeyCheck::new_for_admin_routes(admin_key, app.dialect).map(boxed),
        Some(Box::new(CorsRules(Arc::new(settings.cors.clone())))),
        Some(Box::new(HttpMetricsLayer(app.clone()))),
        Some(Box::new(HeadAndOptions(app.clone()))),
    ]);
    let handlers = ServiceBuilder::new()
        .map_response(move |response: Response<_>| {
            body::send_large_body_in_parts(&message_memory, response.map(Body::new))
        })
        .layer(CatchPanicLayer::custom(panic_response))
        .service(routes);
    let app = app.clone();
    let routes =
        service_fn(move |request| fault::inject_faults(app.clone(), request, handlers.clone()));
    match log {
        None => add_middleware(before_log.chain(after_log).collect(), routes),
        Some(log) => {
            let log = from_fn_with_state(Arc::new(log), request_log::log_http_request);
            let logged = log.layer(add_middleware(after_log.collect(), routes));
            add_middleware(before_log.collect(), logged)
        }
    }
}

/// Builds the middleware around the gRPC services, outermost first.
fn grpc_stack(
    app: &Arc<App>,
    settings: &MiddlewareSettings,
    log: Option<RequestLog>,
    services: Router,
) -> MiddlewareStack {
    let history = app.history.clone().map(RequestHistoryLayer::new_for_grpc).map(boxed);
    let after_log = enabled([
        settings.request_id_headers.then(|| boxed(RequestIdHeader)),
        Some(Box::new(FixedHeaders::new(settings, None))),
        ApiKeyCheck::new_for_grpc(settings).map(boxed),
    ]);
    match log {
        None => add_middleware(history.into_iter().chain(after_log).collect(), services),
        Some(log) => {
            let log = from_fn_with_state(Arc::new(log), request_log::log_grpc_request);
            let logged = log.layer(add_middleware(after_log.collect(), services));
            add_middleware(Vec::from_iter(history), logged)
        }
    }
}

fn boxed(middleware: impl Middleware + 'static) -> Box<dyn Middleware> {
    Box::new(middleware)
}

/// Returns the enabled middleware of a list, in which disabled middleware is `None`.
fn enabled<const N: usize>(
    list: [Option<Box<dyn Middleware>>; N],
) -> impl Iterator<Item = Box<dyn Middleware>> {
    list.into_iter().flatten()
}

/// Adds fixed headers to every response: server name, pod, port and namespace. HTTP responses also
/// get `Retry-After`.
struct FixedHeaders {
    headers: Arc<[(HeaderName, HeaderValue)]>,
    /// Inference service whose settings hold the value of `Retry-After`; `None` for gRPC.
    service: Option<Arc<InferenceService>>,
}

impl FixedHeaders {
    fn new(settings: &MiddlewareSettings, http: Option<&App>) -> Self {
        let (pod, port) = settings.pod.clone().unzip();
        let port = port.map(|port| port.to_string());
        let headers = [
            ("server", http.map(|_| "uvicorn")),
            ("x-inference-pod", pod.as_deref()),
            ("x-inference-port", port.as_deref()),
            ("x-inference-namespace", settings.namespace.as_deref()),
        ];
        let headers = headers.into_iter().filter_map(|(name, value)| {
            let value = HeaderValue::from_str(value?).ok()?;
            Some((HeaderName::from_static(name), value))
        });
        Self { headers: headers.collect(), service: http.map(|app| app.service().clone()) }
    }
}

impl Middleware for FixedHeaders {
    fn on_request(&self, _request: &mut Request) -> Result<ResponseHook, Response> {
        let (headers, service) = (self.headers.clone(), self.service.clone());
        Ok(Some(Box::new(move |mut response| {
            if let Some(service) = service {
                add_retry_after(&service, &mut response);
            }
            for (name, value) in &*headers {
                response.headers_mut().insert(name, value.clone());
            }
            response
        })))
    }
}

/// Adds `X-Request-Id` to a response: the client's id, or a new one.
///
/// Source: vLLM 0.33 `entrypoints/serve/middleware.py`, `XRequestIdMiddleware`.
struct RequestIdHeader;

impl Middleware for RequestIdHeader {
    fn on_request(&self, request: &mut Request) -> Result<ResponseHook, Response> {
        let given = request.headers().get(&REQUEST_ID_HEADER).cloned();
        Ok(Some(Box::new(move |mut response| {
            let id = given.unwrap_or_else(|| {
                let id = uuid::Uuid::new_v4().simple().to_string();
                HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("0"))
            });
            response.headers_mut().insert(&REQUEST_ID_HEADER, id);
            response
        })))
    }
}

/// Adds `Retry-After` to a response with status 429 or 503 that has none.
fn add_retry_after(service: &InferenceService, response: &mut Response) {
    if matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
        && let Some(seconds) = service.faults.settings().retry_after_seconds
    {
        let entry = response.headers_mut().entry(header::RETRY_AFTER);
        entry.or_insert(seconds.into());
    }
}

/// Answers HEAD requests to paths without a HEAD route, and OPTIONS requests as llm-d-inference-sim
/// does.
struct HeadAndOptions(Arc<App>);

impl Middleware for HeadAndOptions {
    fn on_request(&self, request: &mut Request) -> Result<ResponseHook, Response> {
        let (app, path) = (&self.0, request.uri().path());
        if request.method() == Method::HEAD && !app::accepts_head_method(path) {
            return Err(routes::head_not_supported_response(app, path));
        }
        if request.method() == Method::OPTIONS
            && app.dialect.has_lenient_paths()
            && let Some(allow) = app.routes.allowed_methods(path)
        {
            let mut response = error::empty_response(StatusCode::OK);
            if let Ok(allow) = HeaderValue::from_str(&format!("{allow}, OPTIONS")) {
                response.headers_mut().insert(header::ALLOW, allow);
            }
            return Err(response);
        }
        Ok(None)
    }
}

/// Returns the error response for a handler that panics: 400 if the tokenizer took too long on a
/// text, else 500.
fn panic_response(payload: Box<dyn Any + Send>) -> Response {
    match payload.downcast_ref::<TextEncodingTooExpensive>() {
        Some(given_up) => error::fault_response(&Fault::bad_request(given_up.to_string())),
        None => error::fault_response(&error::engine_failure_fault()),
    }
}

/// Records the HTTP metrics of a request after its response, unless its path is excluded.
struct HttpMetricsLayer(Arc<App>);

impl Middleware for HttpMetricsLayer {
    fn on_request(&self, request: &mut Request) -> Result<ResponseHook, Response> {
        let path = app::route_template(request.uri().path());
        let Some(handler) = self.0.metrics.http_metrics().handler_id(path) else {
            return Ok(None);
        };
        let context = request.extensions().get::<RequestContext>();
        let started = context.map_or_else(unix_now_secs, |context| context.started);
        let method = request.method().clone();
        let read = request.body().size_hint().exact().unwrap_or(0);
        let metrics = self.0.metrics.clone();
        Ok(Some(Box::new(move |response: Response| {
            let (status, bytes) = (response.status(), response.body().size_hint().exact());
            // FastAPI does not count WebSocket connections as requests.
            if status != StatusCode::SWITCHING_PROTOCOLS {
                let (bytes, seconds) = (bytes.unwrap_or(0), unix_now_secs() - started);
                let (method, status) = (method.as_str(), status.as_u16());
                metrics
                    .http_metrics()
                    .observe_request(handler, method, status, read, bytes, seconds);
            }
            response
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    #[tokio::test]
    async fn a_panic_in_a_handler_is_a_500() {
        async fn fails() -> Response {
            panic!("on purpose")
        }

        let router =
            Router::new().route("/", get(fails)).layer(CatchPanicLayer::custom(panic_response));
        let response = router.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = r#"{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}"#;
        assert_eq!(body, text);
    }
}
