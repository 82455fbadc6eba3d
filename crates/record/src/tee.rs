//! Forwards a response body unchanged and records its chunks with their arrival times.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};

use super::captured::CapturedHttpExchange;
use super::proxy::ProxyBody;
use super::store::CapturedExchangeQueue;
use vllm_sim_http_client::ResponseBody;

/// Maximum size of a recorded response body, in bytes; a larger one is only forwarded.
const MAX_RECORDED_BODY_BYTES: usize = 64 << 20;

pub(super) struct RecordingResponseBody {
    body: ResponseBody<ProxyBody>,
    bytes: usize,
    captured: Option<CapturedHttpExchange>,
    queue: CapturedExchangeQueue,
}

impl RecordingResponseBody {
    pub(super) fn new(
        body: ResponseBody<ProxyBody>,
        captured: CapturedHttpExchange,
        queue: CapturedExchangeQueue,
    ) -> Self {
        Self { body, bytes: 0, captured: Some(captured), queue }
    }

    fn keep_chunk(&mut self, data: &Bytes) {
        self.bytes += data.len();
        if self.bytes > MAX_RECORDED_BODY_BYTES {
            if self.captured.take().is_some() {
                self.queue.count_skipped_response("the response is too large");
            }
            return;
        }
        if let Some(captured) = &mut self.captured {
            let after = self
                .body
                .last_frame_arrived_at()
                .saturating_duration_since(self.body.request_sent_at());
            captured.chunks.push((after, data.clone()));
        }
    }

    fn queue_captured_response(&mut self) {
        if let Some(captured) = self.captured.take() {
            self.queue.try_queue_exchange(captured);
        }
    }
}

impl http_body::Body for RecordingResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        match &polled {
            Poll::Pending => {}
            Poll::Ready(None) => this.queue_captured_response(),
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    this.keep_chunk(data);
                }
            }
            Poll::Ready(Some(Err(_))) => {
                if this.captured.take().is_some() {
                    this.queue.count_skipped_response("the response was cut off");
                }
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for RecordingResponseBody {
    fn drop(&mut self) {
        // A body of known length is dropped without a poll for its end.
        if self.body.is_end_stream() {
            self.queue_captured_response();
        } else if self.captured.take().is_some() {
            self.queue.count_skipped_response("the client disconnected");
        }
    }
}
