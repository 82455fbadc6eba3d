//! Injects faults into responses that are not streams: cut in half, broken off, or with a wrong
//! length.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::time::Sleep;

use vllm_sim_service::{BREAK_FLUSH_DELAY, FaultInjector, InjectorAction};

/// The error that breaks off a response body, as an injected fault.
#[derive(Debug, thiserror::Error)]
#[error("the response was cut off by an injected fault")]
pub(super) struct SimulatedBreak;

/// Injects a fault in the middle of a response that is not a stream, where tokens cannot be
/// counted.
pub(super) async fn inject_mid_body_fault(
    response: Response<Body>,
    mut faults: Box<FaultInjector>,
) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    let Ok(whole) = body.collect().await else {
        return Response::from_parts(parts, Body::empty());
    };
    let mut whole = whole.to_bytes();
    // Schedules all faults after the first half.
    faults.count_sent_tokens(u32::MAX);
    let garbled = faults.has_malformed_event();
    let rest = whole.split_off(whole.len() / 2);
    let rest = if garbled { Bytes::new() } else { rest };
    // Announces the length that a response without fault would have.
    let length = HeaderValue::from(whole.len() + rest.len());
    parts.headers.insert(header::CONTENT_LENGTH, length);
    let body = HalvedBody { first: Some(whole), rest: Some(rest), faults };
    Response::from_parts(parts, Body::new(body))
}

struct HalvedBody {
    first: Option<Bytes>,
    rest: Option<Bytes>,
    faults: Box<FaultInjector>,
}

impl http_body::Body for HalvedBody {
    type Data = Bytes;
    type Error = SimulatedBreak;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, SimulatedBreak>>> {
        let this = self.get_mut();
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        loop {
            match this.faults.poll_action(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(InjectorAction::Break) => {
                    return Poll::Ready(Some(Err(SimulatedBreak)));
                }
                // The garbled half was removed above.
                Poll::Ready(InjectorAction::Garble) => {}
                Poll::Ready(InjectorAction::Proceed) => {
                    let rest = this.rest.take().filter(|rest| !rest.is_empty());
                    return Poll::Ready(rest.map(|rest| Ok(Frame::data(rest))));
                }
            }
        }
    }
}

/// Sets a `Content-Length` of `by` bytes more than a response has; a stream gets the absolute value
/// of `by`.
pub(super) fn set_wrong_content_length(response: Response<Body>, by: i32) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    let announced = parts.headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<i64>().ok());
    let known = http_body::Body::size_hint(&body).exact();
    let length = announced.or(known.and_then(|length| i64::try_from(length).ok()));
    let length = match length {
        Some(length) => (length + i64::from(by)).max(0),
        None => i64::from(by.unsigned_abs()),
    };
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Response::from_parts(parts, Body::new(UnsizedBody { body, end: None }))
}

/// A response body without a size hint, so that hyper keeps a wrong `Content-Length`.
///
/// It ends after a delay, so that its data reaches the client before the connection breaks.
struct UnsizedBody {
    body: Body,
    end: Option<Pin<Box<Sleep>>>,
}

impl http_body::Body for UnsizedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(end) = &mut self.end {
            return end.as_mut().poll(cx).map(|()| None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_some() {
            return Poll::Ready(frame);
        }
        let end = self.end.insert(Box::pin(tokio::time::sleep(BREAK_FLUSH_DELAY)));
        end.as_mut().poll(cx).map(|()| None)
    }
}
