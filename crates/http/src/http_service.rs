//! The outermost service of a connection, for HTTP and gRPC.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Request, Response, Version, header};
use tower::ServiceExt;

use super::app::App;
use super::body::{DrainingBody, is_longer_than};
use super::layers::{self, LayerSettings, MiddlewareStack};
use super::request_log::RequestLog;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_service::RequestContext;

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
        settings: &LayerSettings,
        routes: Router<Arc<App>>,
        grpc: Option<Router>,
    ) -> Self {
        let log = || Some(RequestLog::new(&settings.log)).filter(RequestLog::is_enabled);
        Self {
            http: layers::http_stack(app, settings, log(), routes.with_state(app.clone())),
            grpc: grpc.map(|services| layers::grpc_stack(app, settings, log(), services)),
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
        let stack = match &self.grpc {
            Some(grpc) if is_grpc_call(&request) => grpc,
            _ => &self.http,
        };
        let stack = stack.clone();
        let closes =
            request.version() != Version::HTTP_2 && is_longer_than(&request, self.max_body);
        let mut request = DrainingBody::wrap(request, self.max_body);
        let started = unix_now_secs();
        request.extensions_mut().insert(RequestContext { started, ..context });
        // Boxed, so that an idle connection holds a pointer instead of space for the largest
        // handler.
        Box::pin(async move {
            let mut response = stack.oneshot(request).await?;
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
