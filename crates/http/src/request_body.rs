use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, Version, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::runtime::Handle;

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
