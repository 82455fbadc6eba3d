//! The layers that every request passes before it is routed, and its answer after that.
//!
//! Their order is that of vLLM's middleware: request id, then API key, then CORS, then the router. Only
//! `SetResponseHeaderLayer` and `CatchPanicLayer` are of tower-http: its CORS, request id and body limit
//! differ from Starlette and vLLM in bytes that clients see.

use std::any::Any;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use tower::ServiceBuilder;
use tower::util::BoxCloneSyncService;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::set_header::SetResponseHeaderLayer;

use super::access_log::AccessLog;
use super::app::App;
use super::path_rules::PathRules;
use super::request_head::names::REQUEST_ID;
use super::request_log::RequestLog;
use super::{
    access_log, api_key, cors, error, fault, http_metrics, request_history, request_log,
    route_index, routes,
};
use vllm_sim_config::{Cors, Log};
use vllm_sim_service::{Service, long_work};
use vllm_sim_tokenizer::EncodingGivenUp;
use vllm_sim_wire::fault::Fault;

/// A router with its layers.
pub(super) type Stack = BoxCloneSyncService<Request, Response, Infallible>;

/// Holds the settings of the layers.
#[derive(Debug, Clone)]
pub struct LayerSettings {
    /// The prefix that paths may have (`--root-path`).
    pub root_path: String,
    /// The keys of which a client needs one (`--api-key`); empty: it needs none.
    pub api_keys: Vec<String>,
    /// The pages that may read answers.
    pub cors: Cors,
    /// The pod that answers name, with its port.
    pub pod: Option<(String, u16)>,
    /// The namespace that answers name.
    pub namespace: Option<String>,
    /// Records whether answers carry `X-Request-Id` (`--enable-request-id-headers`).
    pub request_id_headers: bool,
    /// Bytes of a body that are read (`--max-request-body-size-mb`).
    pub max_body_bytes: usize,
    /// The log of requests.
    pub log: Log,
}

/// Builds the layers around the HTTP routes, outermost first.
pub(super) fn http(
    app: &Arc<App>,
    settings: &LayerSettings,
    log: Option<RequestLog>,
    routes: Router,
) -> Stack {
    let paths = PathRules::new(&settings.root_path, app.dialect.has_lenient_paths());
    let service = app.service().clone();
    let layers = ServiceBuilder::new()
        .map_request(move |request| paths.apply(request))
        .option_layer(
            app.history
                .clone()
                .map(|history| from_fn_with_state(history, request_history::layer)),
        )
        .option_layer(
            AccessLog::new(&settings.log).map(|log| from_fn_with_state(log, access_log::layer)),
        )
        .option_layer(log.map(|log| from_fn_with_state(Arc::new(log), request_log::layer)))
        .option_layer(settings.request_id_headers.then(|| from_fn(request_id)))
        .layer(pod_headers(settings))
        .layer(fixed_header("server", Some("uvicorn")))
        .map_response(move |response| retry_after(&service, response))
        .option_layer(api_key::keys(settings).map(|keys| from_fn_with_state(keys, api_key::layer)))
        .layer(from_fn_with_state(
            Arc::new(settings.cors.clone()),
            cors::layer,
        ))
        .layer(from_fn_with_state(app.clone(), http_metrics::layer))
        .layer(from_fn_with_state(app.clone(), head_and_options))
        .layer(from_fn_with_state(app.clone(), fault::layer))
        .map_response(|response: Response<_>| response.map(Body::new))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(long_body));
    BoxCloneSyncService::new(layers.service(routes))
}

/// Builds the layers around the gRPC services, outermost first: they have less of HTTP's.
pub(super) fn grpc(
    app: &Arc<App>,
    settings: &LayerSettings,
    log: Option<RequestLog>,
    services: Router,
) -> Stack {
    let layers = ServiceBuilder::new()
        .option_layer(
            app.history
                .clone()
                .map(|history| from_fn_with_state(history, request_history::grpc_layer)),
        )
        .option_layer(log.map(|log| from_fn_with_state(Arc::new(log), request_log::grpc_layer)))
        .option_layer(settings.request_id_headers.then(|| from_fn(request_id)))
        .layer(pod_headers(settings))
        .option_layer(
            api_key::keys(settings).map(|keys| from_fn_with_state(keys, api_key::grpc_layer)),
        );
    BoxCloneSyncService::new(layers.service(services))
}

type FixedHeader = SetResponseHeaderLayer<Option<HeaderValue>>;

/// Makes the layers that name the pod, its port and its namespace in every answer.
fn pod_headers(settings: &LayerSettings) -> (FixedHeader, FixedHeader, FixedHeader) {
    let pod = settings.pod.as_ref();
    let port = pod.map(|(_, port)| port.to_string());
    (
        fixed_header("x-inference-namespace", settings.namespace.as_deref()),
        fixed_header("x-inference-port", port.as_deref()),
        fixed_header("x-inference-pod", pod.map(|(name, _)| name.as_str())),
    )
}

/// Makes a layer that sets a header of every answer; without a value it does nothing.
fn fixed_header(name: &'static str, value: Option<&str>) -> FixedHeader {
    let value = value.and_then(|value| HeaderValue::from_str(value).ok());
    SetResponseHeaderLayer::overriding(HeaderName::from_static(name), value)
}

/// Gives an answer the id of its request, the client's or a new one.
///
/// Source: vLLM 0.33 `entrypoints/serve/middleware.py`, `XRequestIdMiddleware`.
async fn request_id(request: Request, next: Next) -> Response {
    let given = request.headers().get(&REQUEST_ID).cloned();
    let mut response = next.run(request).await;
    let id = given.unwrap_or_else(|| {
        let id = uuid::Uuid::new_v4().simple().to_string();
        HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("0"))
    });
    response.headers_mut().insert(&REQUEST_ID, id);
    response
}

/// Adds `Retry-After` to a 429 or 503 that has none.
fn retry_after(service: &Service, mut response: Response) -> Response {
    if matches!(
        response.status(),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    ) && let Some(seconds) = service.faults.settings().retry_after_seconds
    {
        let entry = response.headers_mut().entry(header::RETRY_AFTER);
        entry.or_insert(seconds.into());
    }
    response
}

/// Answers HEAD where no route does, and llm-d's OPTIONS.
async fn head_and_options(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if request.method() == Method::HEAD && !route_index::answers_head(path) {
        return routes::no_head(&app, path);
    }
    if request.method() == Method::OPTIONS
        && app.dialect.has_lenient_paths()
        && let Some(allow) = app.routes.methods(path)
    {
        let mut response = error::empty(StatusCode::OK);
        if let Ok(allow) = HeaderValue::from_str(&format!("{allow}, OPTIONS")) {
            response.headers_mut().insert(header::ALLOW, allow);
        }
        return response;
    }
    next.run(request).await
}

/// Answers a request whose handler panicked: a 500 and not a connection that breaks off.
fn panicked(payload: Box<dyn Any + Send>) -> Response {
    match payload.downcast_ref::<EncodingGivenUp>() {
        Some(given_up) => error::response(&Fault::bad_request(given_up.to_string())),
        None => error::response(&error::failed()),
    }
}

/// Handles a request on the threads of long work when its body takes long to read and check.
async fn long_body(request: Request, next: Next) -> Response {
    /// Bytes from which on it does.
    const LARGE: u64 = 64 * 1024;

    let is_large = match request.body().size_hint().exact() {
        Some(length) => LARGE <= length,
        None => request.headers().contains_key(header::TRANSFER_ENCODING),
    };
    match is_large {
        true => long_work(next.run(request)).await,
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

        let router = Router::new()
            .route("/", get(fails))
            .layer(CatchPanicLayer::custom(panicked));
        let response = router.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = r#"{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}"#;
        assert_eq!(body, text);
    }
}
