//! Records the start of an HTTP body while it is forwarded, for logs and the request history.
//!
//! The recorded data is reported once, when the body ends or is dropped.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};

/// The recorded start of an HTTP body, with its length and number of frames.
pub(super) struct RecordedBodyPrefix {
    pub(super) head: Vec<u8>,
    pub(super) length: u64,
    pub(super) frames: u64,
    pub(super) whole: bool,
    pub(super) grpc_status: Option<String>,
}

type OnBodyEnd = Box<dyn FnOnce(RecordedBodyPrefix) + Send>;

/// Forwards an HTTP body and records its start.
pub(super) struct BodyPrefixRecorder {
    body: Body,
    limit: usize,
    tapped: RecordedBodyPrefix,
    on_end: Option<OnBodyEnd>,
}

impl BodyPrefixRecorder {
    /// Wraps the HTTP body `body`, records up to `limit` bytes, and calls `on_end` once with the
    /// record.
    pub(super) fn wrap_with_prefix_recorder(
        body: Body,
        limit: usize,
        on_end: impl FnOnce(RecordedBodyPrefix) + Send + 'static,
    ) -> Body {
        Body::new(Self {
            body,
            limit,
            tapped: RecordedBodyPrefix {
                head: Vec::new(),
                length: 0,
                frames: 0,
                whole: false,
                grpc_status: None,
            },
            on_end: Some(Box::new(on_end)),
        })
    }

    fn record_frame(&mut self, frame: &Frame<Bytes>) {
        let tapped = &mut self.tapped;
        if let Some(data) = frame.data_ref() {
            let room = self.limit.saturating_sub(tapped.head.len()).min(data.len());
            tapped.head.extend_from_slice(&data[..room]);
            tapped.length += data.len() as u64;
            tapped.frames += 1;
        } else if let Some(trailers) = frame.trailers_ref() {
            let status = trailers.get("grpc-status");
            tapped.grpc_status = status.and_then(|s| s.to_str().ok()).map(str::to_owned);
        }
    }

    fn call_on_end(&mut self) {
        if let Some(on_end) = self.on_end.take() {
            let empty = RecordedBodyPrefix { head: Vec::new(), grpc_status: None, ..self.tapped };
            on_end(std::mem::replace(&mut self.tapped, empty));
        }
    }
}

impl http_body::Body for BodyPrefixRecorder {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.record_frame(frame);
                if self.body.is_end_stream() {
                    self.tapped.whole = true;
                    self.call_on_end();
                }
            }
            Poll::Ready(None) => {
                self.tapped.whole = true;
                self.call_on_end();
            }
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
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

impl Drop for BodyPrefixRecorder {
    fn drop(&mut self) {
        self.call_on_end();
    }
}
