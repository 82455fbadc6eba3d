//! Forwards a response body unchanged and records its chunks with their arrival times.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};

use super::captured::CapturedExchange;
use super::proxy::Body;
use super::store::CaptureQueue;
use vllm_sim_http_client::ResponseBody;

/// Maximum size of a recorded response body, in bytes; a larger one is only forwarded.
const LARGEST: usize = 64 << 20;

pub(super) struct Tee {
    body: ResponseBody<Body>,
    bytes: usize,
    captured: Option<CapturedExchange>,
    queue: CaptureQueue,
}

impl Tee {
    pub(super) fn new(
        body: ResponseBody<Body>,
        captured: CapturedExchange,
        queue: CaptureQueue,
    ) -> Self {
        Self {
            body,
            bytes: 0,
            captured: Some(captured),
            queue,
        }
    }

    fn keep(&mut self, data: &Bytes) {
        self.bytes += data.len();
        if self.bytes > LARGEST {
            if self.captured.take().is_some() {
                self.queue.skip("the response is too large");
            }
            return;
        }
        if let Some(captured) = &mut self.captured {
            let after = self
                .body
                .arrived()
                .saturating_duration_since(self.body.sent());
            captured.chunks.push((after, data.clone()));
        }
    }

    fn finish(&mut self) {
        if let Some(captured) = self.captured.take() {
            self.queue.put(captured);
        }
    }
}

impl http_body::Body for Tee {
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
            Poll::Ready(None) => this.finish(),
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    this.keep(data);
                }
            }
            Poll::Ready(Some(Err(_))) => {
                if this.captured.take().is_some() {
                    this.queue.skip("the response was cut off");
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

impl Drop for Tee {
    fn drop(&mut self) {
        // A body of known length is dropped without a poll for its end.
        if self.body.is_end_stream() {
            self.finish();
        } else if self.captured.take().is_some() {
            self.queue.skip("the client disconnected");
        }
    }
}
