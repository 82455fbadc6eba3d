//! Middleware around every HTTP request and response.
//!
//! The order is that of vLLM's middleware: request id, API key, CORS, router. Only
//! `CatchPanicLayer` is from tower-http, whose CORS, request id and body limit differ from
//! Starlette and vLLM in bytes that clients see.

use std::any::Any;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use tower::ServiceBuilder;
use tower::util::BoxCloneSyncService;
use tower_http::catch_panic::CatchPanicLayer;

use super::access_log::AccessLog;
use super::api_key::ApiKeyCheck;
use super::app::App;
use super::around::{Middleware, MiddlewareLayer};
use super::cors::CorsRules;
use super::http_metrics::HttpMetricsLayer;
use super::path_rules::PathRewriter;
use super::request_head::names::REQUEST_ID;
use super::request_history::HistoryLayer;
use super::request_log::RequestLog;
use super::{error, fault, large_body, request_log, route_index, routes};
use vllm_sim_config::{CorsConfig, LogConfig};
use vllm_sim_service::{InferenceService, run_blocking};
use vllm_sim_tokenizer::EncodingTooExpensive;
use vllm_sim_wire::fault::Fault;

/// A router with its middleware around it.
pub(super) type MiddlewareStack = BoxCloneSyncService<Request, Response, Infallible>;

/// Settings of the middleware around all routes.
#[derive(Debug, Clone)]
pub struct LayerSettings {
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
pub(super) fn http_stack(
    app: &Arc<App>,
    settings: &LayerSettings,
    log: Option<RequestLog>,
    routes: Router,
) -> MiddlewareStack {
    let paths = PathRewriter::new(&settings.root_path, app.dialect.has_lenient_paths());
    let service = app.service().clone();
    let message_memory = service.message_memory().clone();
    let headers = FixedHeaders::new(settings, Some("uvicorn"));
    let layers = ServiceBuilder::new()
        .map_request(move |request| paths.rewrite_path(request))
        .option_layer(app.history.clone().map(HistoryLayer::for_http).map(MiddlewareLayer))
        .option_layer(AccessLog::new(&settings.log).map(MiddlewareLayer))
        .option_layer(log.map(|log| from_fn_with_state(Arc::new(log), request_log::log_http)))
        .option_layer(settings.request_id_headers.then_some(MiddlewareLayer(RequestIdHeader)))
        .map_response(move |response| headers.add_headers(add_retry_after(&service, response)))
        .option_layer(ApiKeyCheck::for_http(settings, app.settings.compat).map(MiddlewareLayer))
        .layer(MiddlewareLayer(CorsRules(Arc::new(settings.cors.clone()))))
        .layer(MiddlewareLayer(HttpMetricsLayer(app.clone())))
        .layer(MiddlewareLayer(HeadAndOptions(app.clone())))
        .layer(from_fn_with_state(app.clone(), fault::inject_faults))
        .map_response(move |response: Response<_>| {
            large_body::limit_large_body(&message_memory, response.map(Body::new))
        })
        .layer(CatchPanicLayer::custom(panic_response))
        .layer(from_fn(run_long_body_blocking));
    BoxCloneSyncService::new(layers.service(routes))
}

/// Builds the middleware around the gRPC services, outermost first.
pub(super) fn grpc_stack(
    app: &Arc<App>,
    settings: &LayerSettings,
    log: Option<RequestLog>,
    services: Router,
) -> MiddlewareStack {
    let headers = FixedHeaders::new(settings, None);
    let layers = ServiceBuilder::new()
        .option_layer(app.history.clone().map(HistoryLayer::for_grpc).map(MiddlewareLayer))
        .option_layer(log.map(|log| from_fn_with_state(Arc::new(log), request_log::log_grpc)))
        .option_layer(settings.request_id_headers.then_some(MiddlewareLayer(RequestIdHeader)))
        .map_response(move |response| headers.add_headers(response))
        .option_layer(ApiKeyCheck::for_grpc(settings).map(MiddlewareLayer));
    BoxCloneSyncService::new(layers.service(services))
}

/// Adds fixed headers to every response: server name, pod, port and namespace.
#[derive(Clone)]
struct FixedHeaders(Arc<Vec<(HeaderName, HeaderValue)>>);

impl FixedHeaders {
    fn new(settings: &LayerSettings, server: Option<&str>) -> Self {
        let (pod, port) = settings.pod.clone().unzip();
        let port = port.map(|port| port.to_string());
        let headers = [
            ("server", server),
            ("x-inference-pod", pod.as_deref()),
            ("x-inference-port", port.as_deref()),
            ("x-inference-namespace", settings.namespace.as_deref()),
        ];
        let headers = headers.into_iter().filter_map(|(name, value)| {
            let value = HeaderValue::from_str(value?).ok()?;
            Some((HeaderName::from_static(name), value))
        });
        Self(Arc::new(headers.collect()))
    }

    fn add_headers(&self, mut response: Response) -> Response {
        for (name, value) in &*self.0 {
            response.headers_mut().insert(name, value.clone());
        }
        response
    }
}

/// Adds `X-Request-Id` to a response: the client's id, or a new one.
///
/// Source: vLLM 0.33 `entrypoints/serve/middleware.py`, `XRequestIdMiddleware`.
#[derive(Clone)]
struct RequestIdHeader;

impl Middleware for RequestIdHeader {
    type RequestData = Option<HeaderValue>;

    fn on_request(&self, request: &mut Request) -> Result<Self::RequestData, Response> {
        Ok(request.headers().get(&REQUEST_ID).cloned())
    }

    fn on_response(&self, given: Self::RequestData, mut response: Response) -> Response {
        let id = given.unwrap_or_else(|| {
            let id = uuid::Uuid::new_v4().simple().to_string();
            HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("0"))
        });
        response.headers_mut().insert(&REQUEST_ID, id);
        response
    }
}

/// Adds `Retry-After` to a response with status 429 or 503 that has none.
fn add_retry_after(service: &InferenceService, mut response: Response) -> Response {
    if matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
        && let Some(seconds) = service.faults.settings().retry_after_seconds
    {
        let entry = response.headers_mut().entry(header::RETRY_AFTER);
        entry.or_insert(seconds.into());
    }
    response
}

/// Answers HEAD requests to paths without a HEAD route, and OPTIONS requests as llm-d-inference-sim
/// does.
#[derive(Clone)]
struct HeadAndOptions(Arc<App>);

impl Middleware for HeadAndOptions {
    type RequestData = ();

    fn on_request(&self, request: &mut Request) -> Result<(), Response> {
        let (app, path) = (&self.0, request.uri().path());
        if request.method() == Method::HEAD && !route_index::accepts_head(path) {
            return Err(routes::head_not_supported(app, path));
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
        Ok(())
    }

    fn on_response(&self, (): (), response: Response) -> Response {
        response
    }
}

/// Returns an error if a handler panics, instead of closing the connection: a 400 if the tokenizer gave
/// up on the text, else a 500.
fn panic_response(payload: Box<dyn Any + Send>) -> Response {
    match payload.downcast_ref::<EncodingTooExpensive>() {
        Some(given_up) => error::fault_response(&Fault::bad_request(given_up.to_string())),
        None => error::fault_response(&error::engine_failure_fault()),
    }
}

/// Runs a request with a large body on the blocking pool, because reading and checking it takes
/// long.
async fn run_long_body_blocking(request: Request, next: Next) -> Response {
    /// Size from which a request body counts as large, in bytes.
    const LARGE_BODY_BYTES: u64 = 64 * 1024;

    let is_large = match request.body().size_hint().exact() {
        Some(length) => LARGE_BODY_BYTES <= length,
        None => request.headers().contains_key(header::TRANSFER_ENCODING),
    };
    match is_large {
        true => run_blocking(next.run(request)).await,
        false => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

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
