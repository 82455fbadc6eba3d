use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;

use super::connect::{ByteStream, HttpConnector};
use super::socket::{LatestBytesArrivalTime, real_clock_now};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// HTTP/1.1 client for one server with a pool of connections; clones share the pool.
pub struct PooledHttpClient<B: Body + 'static>(Arc<SharedPool<B>>);

impl<B: Body + 'static> std::fmt::Debug for PooledHttpClient<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl<B: Body + 'static> Clone for PooledHttpClient<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct SharedPool<B: Body + 'static> {
    connector: HttpConnector,
    idle: Mutex<VecDeque<(Instant, PooledConnection<B>)>>,
    preparing: AtomicBool,
}

/// Error of sending an HTTP request.
#[derive(Debug)]
pub struct HttpSendError {
    /// Description of the error that occurred while sending the request.
    pub why: String,
    /// Whether the server closed a reused connection, so that the request may be sent again.
    stale: bool,
}

impl<B> PooledHttpClient<B>
where
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    /// Creates a client that opens its first connection for the first request.
    pub fn new(connector: HttpConnector) -> Self {
        Self(Arc::new(SharedPool {
            connector,
            idle: Mutex::default(),
            preparing: AtomicBool::new(false),
        }))
    }

    /// Sends an HTTP request and waits for the head of the response.
    ///
    /// The request's URI is a path, and its headers name the host.
    ///
    /// # Errors
    /// [`HttpSendError`], also if the server closes a reused connection.
    pub async fn send_request(
        &self,
        request: Request<B>,
    ) -> Result<Response<ResponseBody<B>>, HttpSendError> {
        let mut request = request;
        loop {
            let link = self.0.idle.lock().pop_back();
            let (mut link, used) = match link {
                Some((_, link)) => (link, true),
                None => (self.take_connection().await?, false),
            };
            let failed = |error: hyper::Error| HttpSendError {
                stale: used && (error.is_canceled() || error.is_incomplete_message()),
                why: format!("cannot send: {}", root_cause(&error)),
            };
            // A connection that the server has closed is not ready; try the next.
            match link.wait_until_ready().await {
                Ok(()) => {}
                Err(_) if used => continue,
                Err(error) => return Err(failed(error)),
            }
            let sent = real_clock_now();
            let response = {
                let PooledConnection { sender, connection, .. } = &mut link;
                let mut response = pin!(sender.try_send_request(request));
                poll_fn(|cx| {
                    drive_connection(connection, cx);
                    response.as_mut().poll(cx)
                })
                .await
            };
            let mut error = match response {
                Ok(response) => {
                    return Ok(response.map(|body| ResponseBody {
                        body,
                        sent,
                        arrival: link.arrival.clone(),
                        link: Some(link),
                        client: self.clone(),
                    }));
                }
                Err(error) => error,
            };
            match error.take_message() {
                Some(unsent) if used => request = unsent,
                _ => return Err(failed(error.into_error())),
            }
        }
    }

    /// Sends a request like [`Self::send_request`], and repeats it if the server closes a reused
    /// connection.
    ///
    /// # Errors
    /// [`HttpSendError`] of the last attempt.
    pub async fn send_with_retry(
        &self,
        request: Request<B>,
    ) -> Result<Response<ResponseBody<B>>, HttpSendError>
    where
        B: Clone,
    {
        loop {
            match self.send_request(request.clone()).await {
                Err(error) if error.stale => {}
                sent => return sent,
            }
        }
    }

    /// Sends an HTTP request and reads the whole response, whatever its status.
    ///
    /// # Errors
    /// A message about the connection, or about a response body of more than `most_bytes`.
    pub async fn fetch_response_body(
        &self,
        request: Request<B>,
        most_bytes: usize,
    ) -> Result<Response<Bytes>, String>
    where
        B: Clone,
    {
        let response = self.send_with_retry(request).await.map_err(|error| error.why)?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, most_bytes).collect().await;
        let body = body.map_err(|error| error.to_string())?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }

    /// Closes all idle connections, so that the next request opens a fresh one.
    pub fn close_idle_connections(&self) {
        self.0.idle.lock().clear();
    }

    /// Opens a connection if none is idle, so that the next request need not wait for it.
    pub async fn open_idle_connection(&self) {
        if !self.0.idle.lock().is_empty() || self.0.preparing.swap(true, Ordering::Relaxed) {
            return;
        }
        // The next request reports a permanent error.
        if let Ok(link) = self.take_connection().await {
            self.return_connection(link);
        }
        self.0.preparing.store(false, Ordering::Relaxed);
    }

    async fn take_connection(&self) -> Result<PooledConnection<B>, HttpSendError> {
        let failed =
            |why: String| HttpSendError { why: format!("cannot connect: {why}"), stale: false };
        let opened = self.0.connector.connect().await;
        let (stream, arrival) = opened.map_err(|error| failed(error.to_string()))?;
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|error| failed(error.to_string()))?;
        Ok(PooledConnection { sender, connection: Some(connection), arrival })
    }
}

impl<B: Body + 'static> PooledHttpClient<B> {
    fn return_connection(&self, link: PooledConnection<B>) {
        let now = real_clock_now();
        let mut idle = self.0.idle.lock();
        idle.push_back((now, link));
        while idle.front().is_some_and(|(at, _)| now - *at > IDLE_TIMEOUT) {
            idle.pop_front();
        }
    }
}

/// HTTP connection of a pool, driven by the task that waits for its response.
struct PooledConnection<B: Body + 'static> {
    sender: SendRequest<B>,
    /// I/O future of the connection; `None` after the connection has ended.
    connection: Option<Connection<TokioIo<Box<dyn ByteStream>>, B>>,
    arrival: LatestBytesArrivalTime,
}

fn root_cause(error: &hyper::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// Runs the I/O of an HTTP connection; the task that waits for the response receives any error.
fn drive_connection<B>(
    connection: &mut Option<Connection<TokioIo<Box<dyn ByteStream>>, B>>,
    cx: &mut Context<'_>,
) where
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    if let Some(open) = connection
        && Pin::new(open).poll(cx).is_ready()
    {
        *connection = None;
    }
}

impl<B> PooledConnection<B>
where
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    /// Waits until the connection accepts a request; returns an error if the connection is closed.
    async fn wait_until_ready(&mut self) -> hyper::Result<()> {
        poll_fn(|cx| {
            drive_connection(&mut self.connection, cx);
            self.sender.poll_ready(cx)
        })
        .await
    }
}

/// Body of an HTTP response, read from its connection on demand.
pub struct ResponseBody<B: Body + 'static> {
    body: Incoming,
    sent: Instant,
    arrival: LatestBytesArrivalTime,
    link: Option<PooledConnection<B>>,
    client: PooledHttpClient<B>,
}

impl<B: Body + 'static> ResponseBody<B> {
    /// Returns the time at which the request was passed to its connection.
    pub fn request_sent_at(&self) -> Instant {
        self.sent
    }

    /// Returns the time at which the bytes of the last frame arrived; before the first frame, the
    /// arrival time of the head.
    pub fn last_frame_arrived_at(&self) -> Instant {
        self.arrival.latest_arrival()
    }

    fn return_to_pool(&mut self) {
        if let Some(link) = self.link.take()
            && link.connection.is_some()
        {
            self.client.return_connection(link);
        }
    }
}

impl<B: Body + 'static> Drop for ResponseBody<B> {
    fn drop(&mut self) {
        // The end of a body with a known length is never polled.
        if self.body.is_end_stream() {
            self.return_to_pool();
        }
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = hyper::Error;

    /// Polls the next frame of the response body.
    ///
    /// The connection buffers one frame at most, so the last bytes that arrived belong to this
    /// frame.
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        if let Some(link) = &mut this.link {
            drive_connection(&mut link.connection, cx);
        }
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        if let Poll::Ready(None) = polled {
            this.return_to_pool();
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use http_body_util::Full;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::{CertificateVerification, HttpServerEndpoint};

    /// Starts a server that sends these responses on each connection and then closes it; returns
    /// the number of connections, too.
    async fn server(
        answers: &'static [&'static str],
    ) -> (PooledHttpClient<Full<Bytes>>, Arc<AtomicUsize>) {
        let (client, made, _) = closing_server(answers).await;
        (client, made)
    }

    /// Starts such a server; returns also a permit for each connection that it has closed.
    async fn closing_server(
        answers: &'static [&'static str],
    ) -> (PooledHttpClient<Full<Bytes>>, Arc<AtomicUsize>, Arc<Semaphore>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it has one");
        let made = Arc::new(AtomicUsize::new(0));
        let closed = Arc::new(Semaphore::new(0));
        let (count, closes) = (made.clone(), closed.clone());
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let closes = closes.clone();
                tokio::spawn(async move {
                    let mut room = [0; 1024];
                    for answer in answers {
                        let asked = socket.read(&mut room).await.expect("is open");
                        if asked == 0 {
                            return;
                        }
                        socket.write_all(answer.as_bytes()).await.expect("is open");
                    }
                    drop(socket);
                    closes.add_permits(1);
                });
            }
        });
        let endpoint = HttpServerEndpoint {
            secure: false,
            host: address.ip().to_string(),
            port: address.port(),
        };
        let connector = HttpConnector::new(endpoint, &CertificateVerification::PublicAuthorities)
            .expect("needs none");
        (PooledHttpClient::new(connector), made, closed)
    }

    fn request() -> Request<Full<Bytes>> {
        let request = Request::get("/").header("host", "x");
        request.body(Full::default()).expect("is right")
    }

    const SIZED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";

    #[tokio::test]
    async fn a_connection_serves_one_request_after_the_other() {
        let (client, made) = server(&[SIZED, CHUNKED, SIZED, SIZED]).await;
        for number in 0..4 {
            let mut answer = client.send_request(request()).await.expect("is answered");
            let frame = answer.body_mut().frame().await.expect("has a body");
            let data = frame.expect("is whole").into_data().expect("is data");
            assert_eq!(&data[..], b"ok");
            assert!(answer.body().last_frame_arrived_at() >= answer.body().request_sent_at());
            // The end of a body with a known length need not be polled.
            if number == 1 {
                assert!(answer.body_mut().frame().await.is_none());
            }
        }
        assert_eq!(made.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_connection_closed_while_idle_is_replaced() {
        let (client, made, closed) = closing_server(&[SIZED]).await;
        for _ in 0..3 {
            let answer = client.send_request(request()).await.expect("is answered");
            let body = answer.into_body().collect().await.expect("is whole");
            assert_eq!(body.to_bytes(), "ok");
            closed.acquire().await.expect("is open").forget();
            // Lets the runtime poll the sockets.
            tokio::task::yield_now().await;
        }
        assert_eq!(made.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn a_connection_with_unread_data_is_not_reused() {
        let (client, made) = server(&[CHUNKED, CHUNKED]).await;
        drop(client.send_request(request()).await.expect("is answered"));
        drop(client.send_request(request()).await.expect("is answered"));
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }
}
