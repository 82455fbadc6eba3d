//! `http_*` on `/metrics`: requests, their sizes and how long they took.

use std::sync::Arc;

use axum::body::HttpBody as _;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::response::Response;

use super::app::App;
use super::around::Around;
use super::route_index;
use vllm_sim_engine::driver::unix_now;
use vllm_sim_observe::metrics::HandlerId;
use vllm_sim_service::RequestContext;

/// Counts requests once they are answered, unless their path is left out.
#[derive(Clone)]
pub(super) struct HttpMetricsLayer(pub Arc<App>);

/// The parts of a request that its metrics need.
pub(super) struct Counted {
    handler: HandlerId,
    method: Method,
    /// `content-length`, as the body has not been touched.
    bytes: u64,
    /// Unix time of its arrival.
    started: f64,
}

impl Around for HttpMetricsLayer {
    type Kept = Option<Counted>;

    fn before(&self, request: &mut Request) -> Result<Self::Kept, Response> {
        let path = route_index::template(request.uri().path());
        let context = request.extensions().get::<RequestContext>();
        let handler = self.0.metrics.http().handler(path);
        Ok(handler.map(|handler| Counted {
            handler,
            method: request.method().clone(),
            bytes: request.body().size_hint().exact().unwrap_or(0),
            started: context.map_or_else(unix_now, |context| context.started),
        }))
    }

    fn after(&self, counted: Self::Kept, response: Response) -> Response {
        // A WebSocket is none of FastAPI's requests.
        if let Some(counted) = counted
            && response.status() != StatusCode::SWITCHING_PROTOCOLS
        {
            let (method, status) = (counted.method.as_str(), response.status().as_u16());
            let bytes = response.body().size_hint().exact().unwrap_or(0);
            let seconds = unix_now() - counted.started;
            let metrics = self.0.metrics.http();
            metrics.observe(
                counted.handler,
                method,
                status,
                counted.bytes,
                bytes,
                seconds,
            );
        }
        response
    }
}
