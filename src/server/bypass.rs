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
use std::task::{Context, Poll, Waker, ready};

use axum::body::{Body, Bytes};
use axum::http::{Method, Request, Response, StatusCode, Version, header};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::Service;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::when_woken::Woken;

/// Bytes of chunks that are written at once, about, and most that wait for the client.
const MOST: usize = 40 * 1024;

/// Writes of one body after which others have their turn.
const WRITES: usize = 16;

thread_local! {
    /// Where chunks are put together: it is in the processor's cache, a connection's buffer is not.
    static CHUNKS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

type Polled = Option<Result<Frame<Bytes>, axum::Error>>;

/// Why no more of a body was gathered.
enum Gathered {
    /// It waits.
    Waits,
    /// There are [`MOST`] bytes.
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
            chunks.clear();
            chunks.append(&mut std::mem::take(&mut self.rest));
            for _ in 0..WRITES {
                let gathered = self.gather(task, chunks);
                if matches!(gathered, Gathered::Other(None)) {
                    // The end is written with it.
                    std::mem::swap(&mut self.rest, chunks);
                    self.given = Some(None);
                    return false;
                }
                let written = self.write(hyper, chunks);
                chunks.clear();
                match gathered {
                    Gathered::Waits => return written,
                    Gathered::Enough if written => {}
                    Gathered::Enough => return false,
                    Gathered::Other(given) => {
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
    fn gather(&mut self, task: &mut Context<'_>, chunks: &mut Vec<u8>) -> Gathered {
        while let Some(body) = &mut self.body {
            match Pin::new(body).poll_frame(task) {
                Poll::Pending => return Gathered::Waits,
                Poll::Ready(Some(Ok(frame))) if frame.is_data() => {
                    put_chunk(chunks, &frame.into_data().unwrap_or_default());
                    if chunks.len() >= MOST {
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
        if self.rest.is_empty() {
            return Poll::Ready(Ok(()));
        }
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
                if chunks.capacity() < buffer.capacity() {
                    *chunks = buffer;
                }
            });
        }
        polled
    }
}

/// Appends `data` as a chunk of HTTP/1.1; empty data is none.
fn put_chunk(chunks: &mut Vec<u8>, data: &[u8]) {
    if data.is_empty() {
        return;
    }
    chunks.reserve(data.len() + 2 * size_of::<usize>() + 4);
    let digits = (usize::BITS - data.len().leading_zeros()).div_ceil(4);
    for digit in (0..digits).rev() {
        chunks.push(b"0123456789ABCDEF"[(data.len() >> (4 * digit)) & 0xf]);
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
    pub(super) async fn run<F: Future>(self, hyper: F) -> F::Output {
        let Self(line) = self;
        let mut hyper = Box::pin(hyper);
        // Without the line, which the socket is in: the socket has this waker.
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut known = Waker::noop().clone();
        poll_fn(move |task| {
            // A task has one waker as long as it lives.
            if !known.will_wake(task.waker()) {
                known.clone_from(task.waker());
                woken.wakes(&known);
            }
            let cx = &mut Context::from_waker(&waker);
            if !woken.take() {
                let mut line = line.lock();
                if line.is_idle() && line.write_body(task, cx) {
                    return Poll::Pending;
                }
            }
            loop {
                if let Poll::Ready(ended) = hyper.as_mut().poll(cx) {
                    return Poll::Ready(ended);
                }
                let mut line = line.lock();
                if !line.is_idle() || line.write_body(task, cx) {
                    return Poll::Pending;
                }
            }
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
            if line.rest.len() > MOST {
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
        ready!(line.poll_rest(cx))?;
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
    A: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
    A::Future: Unpin,
{
    type Response = Response<AnswerBody<S>>;
    type Error = Infallible;
    type Future = Answer<S, A::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let chunked = request.version() == Version::HTTP_11
            && ![Method::HEAD, Method::CONNECT].contains(request.method());
        Answer {
            answering: self.service.call(request),
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
    let headers = response.headers();
    response.status() == StatusCode::OK
        && !headers.contains_key(header::CONTENT_LENGTH)
        && !headers.contains_key(header::TRANSFER_ENCODING)
        && !response.body().is_end_stream()
        && response.body().size_hint().exact().is_none()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::ready;

    use hyper::server::conn::http1::Builder;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::task::JoinHandle;

    use super::*;

    /// A body of pieces of these lengths, which waits a moment at each `None`.
    struct Pieces(VecDeque<Option<usize>>);

    impl http_body::Body for Pieces {
        type Data = Bytes;
        type Error = axum::Error;

        fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
            let next = self.get_mut().0.pop_front();
            if next == Some(None) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(next.flatten().map(|length| Ok(Frame::data(piece(length)))))
        }
    }

    /// Bytes that no other piece of another length has.
    fn piece(length: usize) -> Bytes {
        let byte = |at: usize| b'a' + ((at * 7 + length) % 26) as u8;
        (0..length).map(byte).collect()
    }

    /// Serves a connection with `service`.
    fn connect<A, F>(stream: DuplexStream, service: A) -> JoinHandle<hyper::Result<()>>
    where
        A: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future = F>,
        A: Send + 'static,
        F: Unpin + Send + 'static,
    {
        let bypass = Bypass::new(stream);
        let (io, service) = (TokioIo::new(bypass.io()), bypass.service(service));
        let hyper = Builder::new().serve_connection(io, service);
        tokio::spawn(bypass.run(hyper))
    }

    fn serve(stream: DuplexStream, pieces: &[Option<usize>]) -> JoinHandle<hyper::Result<()>> {
        let pieces: VecDeque<_> = pieces.iter().copied().collect();
        let answer = move |_| {
            let body = Body::new(Pieces(pieces.clone()));
            ready(Ok(Response::new(body)))
        };
        connect(stream, service_fn(answer))
    }

    /// What a client gets that sends `request` and reads to the end, over a pipe of `room` bytes.
    async fn ask(room: usize, request: &str, pieces: &[Option<usize>]) -> Vec<u8> {
        let (mut client, server) = tokio::io::duplex(room);
        let connection = serve(server, pieces);
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        connection.await.unwrap().unwrap();
        let head = answer.windows(4).position(|at| at == b"\r\n\r\n").unwrap();
        answer.split_off(head + 4)
    }

    /// Pieces of all lengths of one to four digits, some at once and some after each other.
    fn mixed() -> Vec<Option<usize>> {
        let lengths = [
            1, 15, 16, 300, 0, 255, 256, 4096, 20_000, 3, 65_536, 2, 2, 320,
        ];
        let alone = lengths.iter().flat_map(|length| [Some(*length), None]);
        let close = lengths.iter().map(|length| Some(*length));
        let waits = [None, None, None];
        waits
            .into_iter()
            .chain(alone)
            .chain(close)
            .chain(waits)
            .collect()
    }

    fn chunks(pieces: &[Option<usize>]) -> Vec<u8> {
        let mut all = Vec::new();
        for length in pieces.iter().flatten().filter(|length| **length > 0) {
            all.extend(format!("{length:X}\r\n").bytes());
            all.extend(piece(*length));
            all.extend(b"\r\n");
        }
        all.extend(b"0\r\n\r\n");
        all
    }

    #[tokio::test]
    async fn every_piece_is_a_chunk_however_little_the_socket_takes() {
        for room in [1, 7, 64, 5_000, 1_000_000] {
            let request = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            let pieces = mixed();
            let answer = ask(room, request, &pieces).await;
            assert!(answer == chunks(&pieces), "room for {room}");
        }
    }

    #[tokio::test]
    async fn a_client_of_http_1_0_gets_no_chunks() {
        let answer = ask(64, "GET / HTTP/1.0\r\n\r\n", &[Some(5), None, Some(17)]).await;
        assert_eq!(answer, [piece(5), piece(17)].concat());
    }

    #[tokio::test]
    async fn a_request_may_follow_before_the_answer_ends() {
        let request = "GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let pieces = [Some(5), None, Some(17), None];
        let answer = ask(64, request, &pieces).await;
        let expected = chunks(&pieces);
        assert!(answer.starts_with(&expected) && answer.ends_with(&expected));
        assert!(answer.len() > 2 * expected.len());
    }

    #[tokio::test]
    async fn what_breaks_off_says_what_it_had_and_closes() {
        let (mut client, server) = tokio::io::duplex(64);
        let answer = |_| {
            let said = [
                Ok(piece(5)),
                Ok(piece(300)),
                Err(io::Error::other("enough")),
            ];
            let body = Body::from_stream(futures_util::stream::iter(said));
            ready(Ok(Response::new(body)))
        };
        let connection = connect(server, service_fn(answer));
        let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        client.write_all(request).await.unwrap();
        let mut said = Vec::new();
        client.read_to_end(&mut said).await.unwrap();
        assert!(connection.await.unwrap().is_err());
        let all = chunks(&[Some(5), Some(300)]);
        let open = &all[..all.len() - b"0\r\n\r\n".len()];
        assert!(said.ends_with(open));
    }

    #[tokio::test]
    async fn the_body_is_dropped_when_the_client_leaves() {
        struct Endless {
            _held: Arc<()>,
        }

        impl http_body::Body for Endless {
            type Data = Bytes;
            type Error = axum::Error;

            fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Polled> {
                Poll::Pending
            }
        }

        let (mut client, server) = tokio::io::duplex(64);
        let held = Arc::new(());
        let guard = held.clone();
        let answer = move |_| {
            let body = Body::new(Endless {
                _held: guard.clone(),
            });
            ready(Ok(Response::new(body)))
        };
        let connection = connect(server, service_fn(answer));
        let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        client.write_all(request).await.unwrap();
        client.read_exact(&mut [0; 10]).await.unwrap();
        drop(client);
        // It ends with the connection that was left.
        let _ = connection.await.unwrap();
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
