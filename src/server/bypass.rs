//! Streamed bodies on their way past hyper.
//!
//! hyper looks at all that a connection may do with each piece of a body. While it has nothing to
//! write and waits for nothing but a streamed body, the pieces go to the socket as the chunks that
//! it would make of them. It is asked again when something is its own to do: the body ends, the
//! client sends or leaves, the socket takes no more.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::http::{Method, Request, Response, StatusCode, Version, header};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::when_woken::{RequestBody, Wakeup};
use vllm_sim_http::poll_chunks;

/// Bytes of an answer that are written at once, about, and that wait for the client. With the frame of a
/// stream that comes last, a client that does not read holds 56 KiB.
pub(super) const MAX_BUFFER: usize = 40 * 1024;

/// Writes of one body after which others have their turn.
const WRITES: usize = 16;

/// Polls of hyper after which others have their turn. It wakes itself while it is polled, with each body
/// that is read, and a task that is woken while it runs may go on on another processor.
const POLLS: usize = 16;

thread_local! {
    /// Where chunks are put together: it is in the processor's cache, a connection's buffer is not.
    static CHUNKS: RefCell<Chunks> = const { RefCell::new(Chunks::new()) };
}

/// Chunks of HTTP/1.1, one behind the other.
struct Chunks {
    bytes: Vec<u8>,
    /// Of the chunks in the newest frame of a body.
    lengths: Vec<u32>,
}

type Polled = Option<Result<Frame<Bytes>, axum::Error>>;

/// Why no more of a body was gathered.
enum Gathered {
    /// It waits.
    Waits,
    /// There are [`MAX_BUFFER`] bytes.
    Enough,
    /// It gave something else than data.
    Other(Polled),
}

/// A socket, and the body that is written to it. Only the task of the connection takes its lock.
pub(super) struct Line<S> {
    stream: S,
    /// What goes before all that is written next.
    rest: Vec<u8>,
    /// Whether it waits for the first chunk.
    corked: bool,
    /// Whether the socket took less than it was given.
    blocked: bool,
    /// The streamed body of the answer under way.
    body: Option<Body>,
    /// Whether hyper waits for that body.
    awaited: bool,
    /// What the body gave that is for hyper: its end, most of all.
    given: Option<Polled>,
}

impl<S: AsyncWrite + Unpin> Line<S> {
    /// What hyper gets of the body: no data.
    fn poll_body(&mut self) -> Poll<Polled> {
        self.awaited = match &self.given {
            None => self.body.is_some(),
            Some(None) => false,
            // hyper ends the connection with it, and what was said goes before.
            Some(Some(_)) => !self.rest.is_empty(),
        };
        match self.awaited {
            true => Poll::Pending,
            false => Poll::Ready(self.given.take().flatten()),
        }
    }

    /// Whether hyper has nothing to do but to wait for the body.
    fn is_idle(&self) -> bool {
        self.awaited && !self.blocked
    }

    /// Writes what the body gives, which wakes `task`; whether it waits now, and nothing is left for
    /// hyper.
    fn write_body(&mut self, task: &mut Context<'_>, hyper: &mut Context<'_>) -> bool {
        if self.given.is_some() {
            return false;
        }
        self.corked = false;
        CHUNKS.with_borrow_mut(|chunks| {
            chunks.bytes.clear();
            chunks.bytes.append(&mut std::mem::take(&mut self.rest));
            for _ in 0..WRITES {
                match self.gather(task, chunks) {
                    Gathered::Waits => return self.write(hyper, &chunks.bytes),
                    Gathered::Enough if self.write(hyper, &chunks.bytes) => chunks.bytes.clear(),
                    Gathered::Enough => return false,
                    Gathered::Other(given) => {
                        match given {
                            // The end is written with what came before it.
                            None => std::mem::swap(&mut self.rest, &mut chunks.bytes),
                            Some(_) => _ = self.write(hyper, &chunks.bytes),
                        }
                        self.given = Some(given);
                        return false;
                    }
                }
            }
            task.waker().wake_by_ref();
            true
        })
    }

    /// Appends what the body gives as chunks.
    fn gather(&mut self, task: &mut Context<'_>, chunks: &mut Chunks) -> Gathered {
        while let Some(body) = &mut self.body {
            match poll_chunks(&mut chunks.lengths, || Pin::new(body).poll_frame(task)) {
                Poll::Pending => return Gathered::Waits,
                Poll::Ready(Some(Ok(frame))) if frame.is_data() => {
                    let frame = frame.into_data().unwrap_or_default();
                    chunks.put_frame(&frame);
                    if chunks.bytes.len() >= MAX_BUFFER {
                        return Gathered::Enough;
                    }
                }
                Poll::Ready(given) => return Gathered::Other(given),
            }
        }
        Gathered::Other(None)
    }

    /// Writes bytes; whether all are out. Those that are not are kept.
    fn write(&mut self, hyper: &mut Context<'_>, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return true;
        }
        let written = match Pin::new(&mut self.stream).poll_write(hyper, bytes) {
            Poll::Ready(Ok(written)) => written,
            // hyper meets the error when it flushes.
            Poll::Ready(Err(_)) | Poll::Pending => 0,
        };
        self.rest.extend_from_slice(&bytes[written..]);
        let flushed =
            self.rest.is_empty() && Pin::new(&mut self.stream).poll_flush(hyper).is_ready();
        self.blocked = !flushed;
        flushed
    }

    /// Writes what is left.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut written = 0;
        let polled = loop {
            if written == self.rest.len() {
                break Poll::Ready(Ok(()));
            }
            match Pin::new(&mut self.stream).poll_write(cx, &self.rest[written..]) {
                Poll::Ready(Ok(0)) => break Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(more)) => written += more,
                Poll::Ready(Err(error)) => break Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
        };
        self.rest.drain(..written);
        if self.rest.is_empty() {
            let buffer = std::mem::take(&mut self.rest);
            CHUNKS.with_borrow_mut(|chunks| {
                if chunks.bytes.capacity() < buffer.capacity() {
                    chunks.bytes = buffer;
                }
            });
        }
        polled
    }
}

impl Chunks {
    const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            lengths: Vec::new(),
        }
    }

    /// Appends the newest frame: as chunks of its lengths, or as one.
    fn put_frame(&mut self, frame: &[u8]) {
        let mut rest = frame;
        for length in &self.lengths {
            let (chunk, after) = rest
                .split_at_checked(*length as usize)
                .unwrap_or((rest, &[]));
            put_chunk(&mut self.bytes, chunk);
            rest = after;
        }
        put_chunk(&mut self.bytes, rest);
    }
}

/// Appends `data` as a chunk; empty data is none.
#[inline]
fn put_chunk(chunks: &mut Vec<u8>, data: &[u8]) {
    let length = data.len();
    chunks.reserve(length + 2 * size_of::<usize>() + 4);
    let digit = |at: u32| b"0123456789ABCDEF"[(length >> (4 * at)) & 0xf];
    // An event has two or three digits: few bytes at once are quicker than one by one.
    match length {
        0 => return,
        0x10..=0xff => chunks.extend_from_slice(&[digit(1), digit(0)]),
        0x100..=0xfff => chunks.extend_from_slice(&[digit(2), digit(1), digit(0)]),
        _ => {
            let digits = (usize::BITS - length.leading_zeros()).div_ceil(4);
            chunks.extend((0..digits).rev().map(digit));
        }
    }
    chunks.extend_from_slice(b"\r\n");
    chunks.extend_from_slice(data);
    chunks.extend_from_slice(b"\r\n");
}

/// The way of a connection's streamed bodies past hyper.
pub(super) struct Bypass<S>(Arc<Mutex<Line<S>>>);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Bypass<S> {
    /// For a connection over `stream`.
    pub(super) fn new(stream: S) -> Self {
        Self(Arc::new(Mutex::new(Line {
            stream,
            rest: Vec::new(),
            corked: false,
            blocked: false,
            body: None,
            awaited: false,
            given: None,
        })))
    }

    /// The connection, for hyper.
    pub(super) fn io(&self) -> Io<S> {
        Io(self.0.clone())
    }

    /// `service`, for hyper.
    pub(super) fn service<A>(&self, service: A) -> Answers<S, A> {
        let line = self.0.clone();
        Answers { service, line }
    }

    /// Runs `hyper`, which has the other two, to its end.
    pub(super) async fn run<F: Future>(self, mut hyper: Pin<Box<F>>) -> F::Output {
        let Self(line) = self;
        // Without the line, which the socket is in: the socket has its waker.
        let mut wakeup = Wakeup::new();
        poll_fn(move |task| {
            if !wakeup.is_due(task.waker()) {
                let mut line = line.lock();
                if line.is_idle() && line.write_body(task, &mut wakeup.context()) {
                    return Poll::Pending;
                }
            }
            for _ in 0..POLLS {
                let (polled, woken) = wakeup.poll(hyper.as_mut());
                if polled.is_ready() {
                    return polled;
                }
                let mut line = line.lock();
                let waits = !line.is_idle() || line.write_body(task, &mut wakeup.context());
                if waits && !woken {
                    return Poll::Pending;
                }
            }
            wakeup.wake();
            Poll::Pending
        })
        .await
    }
}

/// The socket, as hyper has it.
pub(super) struct Io<S>(Arc<Mutex<Line<S>>>);

impl<S: AsyncRead + Unpin> AsyncRead for Io<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Io<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let line = &mut *self.0.lock();
        if line.corked || !line.rest.is_empty() {
            if line.rest.len() > MAX_BUFFER {
                line.blocked = true;
                ready!(line.poll_rest(cx))?;
            }
            // They go out together, when it is flushed.
            line.rest.extend_from_slice(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut line.stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let line = &mut *self.0.lock();
        line.blocked = !line.corked;
        if line.corked {
            return Poll::Ready(Ok(()));
        }
        if !line.rest.is_empty() {
            ready!(line.poll_rest(cx))?;
        }
        ready!(Pin::new(&mut line.stream).poll_flush(cx))?;
        line.blocked = false;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let line = &mut *self.0.lock();
        ready!(line.poll_rest(cx))?;
        Pin::new(&mut line.stream).poll_shutdown(cx)
    }
}

/// The body of an answer, as hyper has it.
pub(super) enum AnswerBody<S> {
    /// hyper writes it.
    Plain(Body),
    /// The body of the line.
    Streamed(Arc<Mutex<Line<S>>>),
}

impl<S: AsyncWrite + Unpin> http_body::Body for AnswerBody<S> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
        match self.get_mut() {
            Self::Plain(body) => Pin::new(body).poll_frame(cx),
            Self::Streamed(line) => line.lock().poll_body(),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Plain(body) if body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Plain(body) => body.size_hint(),
            Self::Streamed(_) => SizeHint::default(),
        }
    }
}

impl<S> Drop for AnswerBody<S> {
    fn drop(&mut self) {
        if let Self::Streamed(line) = self {
            let (body, given) = {
                let mut line = line.lock();
                (line.awaited, line.corked) = (false, false);
                (line.body.take(), line.given.take())
            };
            drop((body, given));
        }
    }
}

/// Answers the requests of a connection.
pub(super) struct Answers<S, A> {
    service: A,
    line: Arc<Mutex<Line<S>>>,
}

impl<S, A> Service<Request<Incoming>> for Answers<S, A>
where
    S: AsyncWrite + Unpin,
    A: Service<Request<RequestBody>, Response = Response<Body>, Error = Infallible>,
    A::Future: Unpin,
{
    type Response = Response<AnswerBody<S>>;
    type Error = Infallible;
    type Future = Answer<S, A::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let chunked = request.version() == Version::HTTP_11
            && ![Method::HEAD, Method::CONNECT].contains(request.method());
        Answer {
            answering: self.service.call(request.map(RequestBody)),
            line: chunked.then(|| self.line.clone()),
        }
    }
}

/// An answer in the making.
pub(super) struct Answer<S, F> {
    answering: F,
    /// Where its body may be written without hyper.
    line: Option<Arc<Mutex<Line<S>>>>,
}

impl<S, F> Future for Answer<S, F>
where
    F: Future<Output = Result<Response<Body>, Infallible>> + Unpin,
{
    type Output = Result<Response<AnswerBody<S>>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let response = ready!(Pin::new(&mut this.answering).poll(cx))?;
        let line = this.line.take().filter(|_| is_chunked(&response));
        Poll::Ready(Ok(response.map(|body| match line {
            None => AnswerBody::Plain(body),
            Some(line) => {
                {
                    let mut line = line.lock();
                    line.body = Some(body);
                    line.corked = true;
                }
                AnswerBody::Streamed(line)
            }
        })))
    }
}

/// Whether hyper sends a body in chunks to a client that takes them.
fn is_chunked(response: &Response<Body>) -> bool {
    let (headers, body) = (response.headers(), response.body());
    body.size_hint().exact().is_none()
        && !body.is_end_stream()
        && response.status() == StatusCode::OK
        && !headers.contains_key(header::CONTENT_LENGTH)
        && !headers.contains_key(header::TRANSFER_ENCODING)
}

#[cfg(test)]
mod tests;
