//! What every request passes on its way in and every response on its way out.
//!
//! From outside in, as vLLM stacks its middleware: request id, API key, CORS, then the router.
//! One service instead of a stack of layers: each step is a few instructions, a layer is a box.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use axum::Router;
use axum::body::Body;
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use tower::ServiceExt;

use super::access_log::AccessLog;
use super::app::{App, unix_now};
use super::bearer::is_bearer;
use super::request_history::RequestHistory;
use super::request_log::RequestLog;
use super::{cors, error, fault, route_index, routes};
use vllm_sim_observe::metrics::HandlerId;
use vllm_sim_service::fault::ConnHandle;
use vllm_sim_service::long_work;

/// The outermost service of a connection: answers its requests, HTTP and gRPC.
#[derive(Clone)]
pub struct HttpService {
    app: Arc<App>,
    routes: Router,
    grpc: Option<Router>,
    fixed_headers: Arc<[(HeaderName, HeaderValue)]>,
    /// The connection, for faults that break it.
    connection: Option<Arc<ConnHandle>>,
    /// The lines that uvicorn prints of who asks, when it does.
    access_log: Option<AccessLog>,
    /// What is logged of requests, when anything is.
    request_log: Option<Arc<RequestLog>>,
}

/// An answer in the making.
pub type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Bytes from which on a body takes long to read and check.
const LARGE_BODY: u64 = 64 * 1024;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

impl HttpService {
    /// The routes of `app` behind everything that all of them share.
    pub fn new(app: Arc<App>) -> Self {
        let pod = &app.config.server.pod;
        let mut fixed = Vec::new();
        let mut set = |name: &'static str, value: Option<&str>| {
            if let Some(value) = value.and_then(|v| HeaderValue::from_str(v).ok()) {
                fixed.push((HeaderName::from_static(name), value));
            }
        };
        set("server", Some("uvicorn"));
        set("x-inference-pod", pod.name.as_deref());
        let port = pod.name.as_ref().map(|_| app.port.to_string());
        set("x-inference-port", port.as_deref());
        set("x-inference-namespace", pod.namespace.as_deref());
        let request_log = RequestLog::new(&app.config.server.log);
        Self {
            access_log: AccessLog::new(&app.config.server.log),
            request_log: request_log.is_enabled().then(|| Arc::new(request_log)),
            routes: routes::router(app.clone()),
            app,
            grpc: None,
            fixed_headers: fixed.into(),
            connection: None,
        }
    }

    /// The same service, on a connection that faults may break.
    #[must_use]
    pub fn on_connection(self, connection: Arc<ConnHandle>) -> Self {
        Self {
            connection: Some(connection),
            ..self
        }
    }

    /// The same service, for a client at this address; `None`: it asks over a Unix socket.
    #[must_use]
    pub fn for_client(self, client: Option<SocketAddr>) -> Self {
        let access_log = self.access_log.map(|log| log.for_client(client));
        Self { access_log, ..self }
    }

    /// Answers gRPC calls with `router`.
    #[must_use]
    pub fn with_grpc(self, router: Router) -> Self {
        Self {
            grpc: Some(router),
            ..self
        }
    }

    /// Answers one request.
    ///
    /// # Errors
    /// None: every failure is an answer.
    pub fn call<B>(self: Arc<Self>, request: Request<B>) -> Answering
    where
        B: http_body::Body<Data = axum::body::Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let started = unix_now();
        let request = request.map(Body::new);
        // Boxed: between requests a connection keeps a pointer instead of room for the largest handler.
        Box::pin(self.answer_any(request, started))
    }

    async fn answer_any(
        self: Arc<Self>,
        mut request: Request<Body>,
        started: f64,
    ) -> Result<Response<Body>, Infallible> {
        if let Some(grpc) = self.grpc.as_ref().filter(|_| is_grpc(&request)) {
            if let Some(history) = &self.app.history
                && RequestHistory::concerns_call(&request)
            {
                let (recording, request) = history.begin(request, started);
                let response = Box::pin(self.answer_grpc(grpc, request)).await;
                return Ok(recording.answer(response));
            }
            return Ok(self.answer_grpc(grpc, request).await);
        }
        self.merge_slashes(&mut request);
        self.strip_root_path(&mut request);
        if let Some(history) = &self.app.history
            && RequestHistory::concerns(&request)
        {
            let (recording, request) = history.begin(request, started);
            // Boxed: a server without a history has no room for it.
            let response = Box::pin(self.answer(request, started)).await;
            return Ok(recording.answer(response));
        }
        Ok(self.answer(request, started).await)
    }

    async fn answer_grpc(&self, grpc: &Router, request: Request<Body>) -> Response<Body> {
        match self.request_log.clone() {
            Some(request_log) => {
                let path = request.uri().path().to_owned();
                request_log.grpc_call(&path, request.headers());
                let response = Box::pin(self.call_grpc(grpc.clone(), request)).await;
                request_log.grpc_answer(path, response)
            }
            None => self.call_grpc(grpc.clone(), request).await,
        }
    }

    async fn answer(&self, request: Request<Body>, started: f64) -> Response<Body> {
        let access_log = self.access_log.as_ref();
        let line = access_log.and_then(|log| log.line(&request));
        let response = match self.request_log.clone() {
            // Boxed: a server without a request log has no room for it.
            Some(request_log) => Box::pin(self.logged(&request_log, request, started)).await,
            None => self.respond(request, started).await,
        };
        if let (Some(log), Some(line)) = (access_log, line) {
            log.answered(&line, response.status());
        }
        response
    }

    /// Answers a request, and logs both as far as somebody asked.
    async fn logged(
        &self,
        request_log: &RequestLog,
        request: Request<Body>,
        started: f64,
    ) -> Response<Body> {
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        let request = request_log.request(request).await;
        let response = self.respond(request, started).await;
        let status = response.status().as_u16();
        request_log.answered(method.as_str(), &path, status, unix_now() - started);
        request_log.response(&path, response).await
    }

    /// The id that the answer carries, the client's or a new one; `None`: it carries none.
    fn request_id(&self, request: &Request<Body>) -> Option<HeaderValue> {
        let given = || request.headers().get(REQUEST_ID).cloned();
        let wanted = self.app.config.server.request_id_headers;
        wanted.then(|| given().unwrap_or_else(fresh_id))
    }

    /// Answers a request that is not gRPC's.
    async fn respond(&self, request: Request<Body>, started: f64) -> Response<Body> {
        let handler = self.app.metrics.http();
        let handler = handler.handler(route_index::template(request.uri().path()));
        let arrival = self.arrival(&request, false, handler, started);
        let cors = &self.app.config.server.cors;
        let response = if self.lacks_key(&request) {
            unauthorized()
        } else if let Some(response) = cors::preflight(cors, &request, arrival.origin.as_ref()) {
            self.allow_origin(&arrival, response)
        } else {
            let response = self.route(request).await;
            self.answered(&arrival, response)
        };
        self.complete(arrival, response)
    }

    /// What the answer to a request needs of it; `handler`: what it is counted as, if it is. A `plain` one
    /// has no special headers.
    fn arrival(
        &self,
        request: &Request<Body>,
        plain: bool,
        handler: Option<HandlerId>,
        started: f64,
    ) -> Arrival {
        Arrival {
            id: self.request_id(request),
            origin: match plain {
                true => None,
                false => request.headers().get(header::ORIGIN).cloned(),
            },
            metrics: handler.map(|handler| RequestMetrics::of(handler, request)),
            started,
        }
    }

    /// A handler has answered.
    fn answered(&self, arrival: &Arrival, response: Response<Body>) -> Response<Body> {
        if let Some(metrics) = &arrival.metrics {
            metrics.answered(&self.app, &response, unix_now() - arrival.started);
        }
        self.allow_origin(arrival, response)
    }

    fn allow_origin(&self, arrival: &Arrival, mut response: Response<Body>) -> Response<Body> {
        let cors = &self.app.config.server.cors;
        cors::allow_origin(cors, arrival.origin.as_ref(), &mut response);
        response
    }

    /// The answer with what all answers have.
    fn complete(&self, arrival: Arrival, mut response: Response<Body>) -> Response<Body> {
        self.say_when_to_retry(&mut response);
        let headers = response.headers_mut();
        for (name, value) in self.fixed_headers.iter() {
            headers.insert(name.clone(), value.clone());
        }
        if let Some(id) = arrival.id {
            headers.insert(REQUEST_ID, id);
        }
        response
    }

    /// `Retry-After` of a refusal that does not say it itself.
    fn say_when_to_retry(&self, response: &mut Response<Body>) {
        let status = response.status();
        if status != StatusCode::TOO_MANY_REQUESTS && status != StatusCode::SERVICE_UNAVAILABLE {
            return;
        }
        let settings = self.app.service().faults.settings();
        if let Some(seconds) = settings.retry_after_seconds {
            let entry = response.headers_mut().entry(header::RETRY_AFTER);
            entry.or_insert(seconds.into());
        }
    }

    async fn route(&self, request: Request<Body>) -> Response<Body> {
        if request.method() == Method::HEAD && !route_index::answers_head(request.uri().path()) {
            return routes::no_head(&self.app, request.uri().path());
        }
        if self.app.policy.lenient_paths
            && request.method() == Method::OPTIONS
            && let Some(allow) = self.app.routes.methods(request.uri().path())
        {
            return options(allow);
        }
        let route = async |request: Request<Body>| {
            if is_large(&request) {
                let service = self.clone();
                let answer = async move { service.handle(request).await };
                return caught(Box::pin(long_work(answer)).as_mut()).await;
            }
            caught(pin!(self.handle(request))).await
        };
        if fault::concerns(&self.app, &request, false) {
            // Boxed: a request without a fault decision has no room for one.
            let connection = self.connection.clone();
            return Box::pin(fault::answer(&self.app, connection, request, route)).await;
        }
        route(request).await
    }

    /// The answer of a handler.
    async fn handle(&self, request: Request<Body>) -> Response<Body> {
        match self.routes.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    /// A gRPC call: nothing of HTTP's middleware but its id and where it was answered.
    async fn call_grpc(&self, router: Router, mut request: Request<Body>) -> Response<Body> {
        if let Some(connection) = &self.connection {
            request.extensions_mut().insert(connection.clone());
        }
        let id = self.request_id(&request);
        let mut response = match router.oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        for (name, value) in self
            .fixed_headers
            .iter()
            .filter(|(name, _)| name != header::SERVER)
        {
            response.headers_mut().insert(name.clone(), value.clone());
        }
        if let Some(id) = id {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        response
    }

    /// `//x` is `/x`, where the policy has it so.
    fn merge_slashes(&self, request: &mut Request<Body>) {
        let uri = request.uri();
        if !self.app.policy.lenient_paths || !uri.path().contains("//") {
            return;
        }
        let parts = uri.path().split('/').filter(|part| !part.is_empty());
        let mut target: String = parts.flat_map(|part| ["/", part]).collect();
        if target.is_empty() || uri.path().ends_with('/') {
            target.push('/');
        }
        if let Some(query) = uri.query() {
            target.extend(["?", query]);
        }
        if let Ok(uri) = target.parse::<Uri>() {
            *request.uri_mut() = uri;
        }
    }

    /// `/prefix/x` is `/x`; both exist.
    fn strip_root_path(&self, request: &mut Request<Body>) {
        let root = self.app.config.server.root_path.as_str();
        if root.is_empty() {
            return;
        }
        let target = request
            .uri()
            .path_and_query()
            .map_or("/", PathAndQuery::as_str);
        let Some(rest) = target.strip_prefix(root).filter(|r| r.starts_with('/')) else {
            return;
        };
        if let Ok(uri) = rest.parse::<Uri>() {
            *request.uri_mut() = uri;
        }
    }

    /// Whether the request lacks a key that it needs.
    fn lacks_key(&self, request: &Request<Body>) -> bool {
        let keys = &self.app.config.server.api_keys;
        if keys.is_empty() || request.method() == Method::OPTIONS {
            return false;
        }
        let path = request.uri().path();
        if !["/v1", "/v2", "/inference", "/cohere"]
            .iter()
            .any(|p| path.starts_with(p))
        {
            return false;
        }
        let given = request.headers().get(header::AUTHORIZATION);
        !is_bearer(given.map(HeaderValue::as_bytes), keys)
    }
}

/// The answer of a handler; a panic in it is a 500 and not a connection that breaks off.
async fn caught<F>(mut handler: Pin<&mut F>) -> Response<Body>
where
    F: Future<Output = Response<Body>>,
{
    poll_fn(|cx| {
        // A handler that panicked is not asked again.
        let polled = catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(cx)));
        polled.unwrap_or_else(|_| Poll::Ready(error::response(&error::failed())))
    })
    .await
}

/// What a route says of its methods.
fn options(allow: &'static str) -> Response<Body> {
    let mut response = error::empty(StatusCode::OK);
    let allow = format!("{allow}, OPTIONS");
    if let Ok(allow) = HeaderValue::from_str(&allow) {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}

/// Whether a body is so large, or may be, that reading and checking it takes long.
fn is_large(request: &Request<Body>) -> bool {
    match http_body::Body::size_hint(request.body()).exact() {
        Some(length) => LARGE_BODY <= length,
        None => request.headers().contains_key(header::TRANSFER_ENCODING),
    }
}

/// Whether a request is a gRPC call. The content type says it; gRPC-Web is another protocol.
fn is_grpc(request: &Request<Body>) -> bool {
    if request.version() != Version::HTTP_2 {
        return false;
    }
    let kind = request.headers().get(header::CONTENT_TYPE);
    let rest = kind.and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

fn fresh_id() -> HeaderValue {
    let id = uuid::Uuid::new_v4().simple().to_string();
    HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("0"))
}

/// What the answer to a request needs of it.
struct Arrival {
    /// The id that the answer carries.
    id: Option<HeaderValue>,
    origin: Option<HeaderValue>,
    /// `None` for the routes that are left out.
    metrics: Option<RequestMetrics>,
    /// Seconds since 1970.
    started: f64,
}

/// What `http_*` counts of a request.
struct RequestMetrics {
    handler: HandlerId,
    method: Method,
    size: u64,
}

impl RequestMetrics {
    fn of(handler: HandlerId, request: &Request<Body>) -> Self {
        Self {
            handler,
            method: request.method().clone(),
            // What its `content-length` says.
            size: http_body::Body::size_hint(request.body())
                .exact()
                .unwrap_or(0),
        }
    }

    fn answered(&self, app: &App, response: &Response<Body>, seconds: f64) {
        // A WebSocket is none of FastAPI's requests.
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return;
        }
        let body = http_body::Body::size_hint(response.body())
            .exact()
            .unwrap_or(0);
        let (method, status) = (self.method.as_str(), response.status().as_u16());
        app.metrics
            .http()
            .observe(self.handler, method, status, self.size, body, seconds);
    }
}

/// vLLM's refusal of a request without a key.
fn unauthorized() -> Response<Body> {
    let body = "{\"error\":\"Unauthorized\"}".to_owned();
    error::json(StatusCode::UNAUTHORIZED, body)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_panic_in_a_handler_is_a_500() {
        let response = caught(pin!(async { panic!("on purpose") })).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = r#"{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}"#;
        assert_eq!(body, text);
    }
}
