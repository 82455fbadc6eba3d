//! `http_*` metrics: counts, sizes and durations of requests.

use std::sync::Arc;

use axum::body::HttpBody as _;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;

use super::app::App;
use super::around::Middleware;
use super::route_index;
use vllm_sim_engine::driver::unix_now_secs;
use vllm_sim_observe::metrics::HandlerId;
use vllm_sim_service::RequestContext;

/// Records the HTTP metrics of a request after its response, unless its path is excluded.
#[derive(Clone)]
pub(super) struct HttpMetricsLayer(pub Arc<App>);

pub(super) struct RequestStart {
    handler: HandlerId,
    method: Method,
    /// Size of the request body by `Content-Length`, in bytes.
    bytes: u64,
    started: f64,
}

impl Middleware for HttpMetricsLayer {
    type RequestData = Option<RequestStart>;

    fn on_request(&self, request: &mut Request) -> Result<Self::RequestData, Response> {
        let path = route_index::route_template(request.uri().path());
        let context = request.extensions().get::<RequestContext>();
        let handler = self.0.metrics.http().handler(path);
        Ok(handler.map(|handler| RequestStart {
            handler,
            method: request.method().clone(),
            bytes: request.body().size_hint().exact().unwrap_or(0),
            started: context.map_or_else(unix_now_secs, |context| context.started),
        }))
    }

    fn on_response(&self, counted: Self::RequestData, response: Response) -> Response {
        // FastAPI does not count WebSocket connections as requests.
        if let Some(counted) = counted
            && response.status() != StatusCode::SWITCHING_PROTOCOLS
        {
            let (method, status) = (counted.method.as_str(), response.status().as_u16());
            let bytes = response.body().size_hint().exact().unwrap_or(0);
            let seconds = unix_now_secs() - counted.started;
            let metrics = self.0.metrics.http();
            metrics.observe(counted.handler, method, status, counted.bytes, bytes, seconds);
        }
        response
    }
}
