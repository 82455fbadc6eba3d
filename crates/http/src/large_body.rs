//! Sends large response bodies in parts, and counts their bytes until the client has read them.
//!
//! hyper would copy a body of one frame to its write buffer as a whole. In parts, the body waits
//! here while the client does not read, and its bytes stay counted.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::response::Response;
use http_body::{Frame, SizeHint};

use super::error;
use vllm_sim_service::{MessageMemory, MessageReservation};

/// Size of a part of a large body, in bytes.
const PART_BYTES: usize = 256 << 10;

struct LargeBody {
    body: Body,
    /// Rest of the current frame of `body`.
    rest: Bytes,
    _reservation: MessageReservation,
}

/// Returns the response, with its body in parts if it is large; a 503 if all large requests and
/// responses would take too much memory.
pub(super) fn limit_large_body(memory: &MessageMemory, response: Response) -> Response {
    let bytes = response.body().size_hint().exact().unwrap_or(0);
    match memory.reserve(bytes) {
        Ok(None) => response,
        Ok(Some(reservation)) => response.map(|body| {
            Body::new(LargeBody { body, rest: Bytes::new(), _reservation: reservation })
        }),
        Err(refused) => error::fault_response(&error::serve_error_fault(&refused.into())),
    }
}

impl http_body::Body for LargeBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let part = self.rest.len().min(PART_BYTES);
        let part = self.rest.split_to(part);
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.body.size_hint();
        match hint.exact() {
            Some(exact) => SizeHint::with_exact(exact + self.rest.len() as u64),
            None => hint,
        }
    }
}
