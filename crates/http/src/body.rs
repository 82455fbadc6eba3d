//! Reads request bodies, limited in size and time, with vLLM's errors for invalid JSON, and drains
//! those that no handler reads.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{Version, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::runtime::Handle;

use super::App;
use super::request_head::RequestHead;
use super::{bounded_body, error};
use vllm_sim_service::RequestContext;
use vllm_sim_wire::body::estimated_memory;
use vllm_sim_wire::fault::Fault;

/// Reads a request body up to the server's size limit.
///
/// # Errors
/// 413 above the limit; 408 below the minimum rate; 400 if the client disconnects.
pub(super) async fn read_body(app: &App, body: Body) -> Result<Bytes, Fault> {
    bounded_body::read_limited_body(body, app.settings.server.max_body_bytes).await
}

/// Headers and complete body of a request, for routes that parse the body themselves.
pub(super) struct RawRequest {
    pub(super) head: RequestHead,
    pub(super) bytes: Bytes,
}

impl RawRequest {
    pub(super) fn media_type(&self) -> Option<&str> {
        let named = self.head.headers.get(header::CONTENT_TYPE)?;
        named.to_str().ok()
    }

    /// Parses the request body as JSON, as FastAPI does.
    ///
    /// # Errors
    /// vLLM's 400 for another media type, invalid JSON or an empty body.
    pub(super) fn parse_fastapi_json(&self) -> Result<Value, Fault> {
        vllm_sim_wire::body::read_json_body(self.media_type(), &self.bytes)
    }

    /// Parses the request body as JSON by the rules of the imitated server, vLLM or
    /// llm-d-inference-sim.
    ///
    /// # Errors
    /// The errors of [`Self::parse_fastapi_json`], converted to that API.
    pub(super) fn parse_dialect_json(&self, app: &App) -> Result<Value, Fault> {
        let media_type = app.dialect.media_type(self.media_type());
        vllm_sim_wire::body::read_json_body(media_type, &self.bytes)
            .map_err(|fault| app.dialect.unreadable_body_fault(fault))
    }

    /// Returns the raw request body if nothing reads it before the JSON schema.
    ///
    /// Returns `None` if the imitated server checks the body before the schema, or rejects its
    /// media type.
    pub(super) fn schema_only_body(&self, app: &App) -> Option<&[u8]> {
        let schema_first = app.dialect.checks_schema_first();
        self.body_if_json(app).filter(|_| schema_first)
    }

    /// Returns the raw request body unless its media type is rejected.
    pub(super) fn body_if_json(&self, app: &App) -> Option<&[u8]> {
        let media_type = app.dialect.media_type(self.media_type());
        let taken = vllm_sim_wire::body::check_media_type(media_type).is_ok();
        taken.then_some(&self.bytes)
    }
}

impl FromRequest<Arc<App>> for RawRequest {
    type Rejection = Fault;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Fault> {
        let (mut parts, body) = request.into_parts();
        let context: RequestContext = parts.extensions.remove().unwrap_or_default();
        let bytes = read_body(app, body).await?;
        let memory = app.service.message_memory().reserve(estimated_memory(&bytes));
        let memory = memory.map_err(|full| error::serve_error_fault(&full.into()))?;
        Ok(Self {
            head: RequestHead {
                faults: context.faults,
                usage: context.usage,
                _memory: memory,
                ..RequestHead::new(parts.headers)
            },
            bytes,
        })
    }
}

/// Headers of a request and its body as JSON ([`RawRequest::parse_fastapi_json`]).
pub(super) struct JsonRequest {
    pub(super) head: RequestHead,
    pub(super) value: Value,
}

impl FromRequest<Arc<App>> for JsonRequest {
    type Rejection = Fault;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Fault> {
        let received = RawRequest::from_request(request, app).await?;
        Ok(Self { value: received.parse_dialect_json(app)?, head: received.head })
    }
}

/// Maximum time to read the rest of a request body after the response.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Reads a request body to its end, even if the handler does not.
///
/// hyper closes a connection if part of a body is unread. A request that is rejected by its headers
/// would then lose its connection and the next request on it. As in uvicorn, the rest is read and
/// dropped after the response, up to the server's size limit.
pub(super) struct DrainingBody<B: HttpBody<Data = Bytes> + Unpin + Send + 'static> {
    body: Option<B>,
    /// Number of bytes of the request body that may still be read.
    left: usize,
    runtime: Handle,
}

impl<B> DrainingBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    /// Wraps the body of a request so that it is read to its end, up to `limit` bytes.
    pub(super) fn wrap(request: Request<B>, limit: usize) -> Request<Body> {
        // An HTTP/2 stream ends without its connection. A client that sends `Expect` sends no body
        // after an error response.
        let drains = request.version() != Version::HTTP_2
            && !request.body().is_end_stream()
            && !request.headers().contains_key(header::EXPECT)
            && !is_longer_than(&request, limit);
        if !drains {
            return request.map(Body::new);
        }
        let runtime = Handle::current();
        request.map(|body| Body::new(Self { body: Some(body), left: limit, runtime }))
    }
}

/// Returns whether a request announces a body of more than `limit` bytes, which is not drained.
pub(super) fn is_longer_than<B: HttpBody>(request: &Request<B>, limit: usize) -> bool {
    request.body().size_hint().lower() > limit as u64
}

impl<B> HttpBody for DrainingBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin + Send + 'static,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let length = frame.data_ref().map_or(0, Bytes::len);
            this.left = this.left.saturating_sub(length);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.as_ref();
        body.map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin + Send + 'static> Drop for DrainingBody<B> {
    fn drop(&mut self) {
        let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) else {
            return;
        };
        let rest = drain_body(body, self.left);
        self.runtime.spawn(async move {
            // A client that sends too slowly loses its connection.
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
        });
    }
}

/// Reads and drops the rest of a request body, up to `left` bytes.
async fn drain_body<B: HttpBody<Data = Bytes> + Unpin>(mut body: B, mut left: usize) {
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        if length > left {
            return;
        }
        left -= length;
    }
}
