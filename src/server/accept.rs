//! Listening sockets of a server: accepts TCP and Unix connections and serves them with hyper.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::error::StartError;
use crate::tls::ReloadingTlsAcceptor;
use vllm_sim_config::Config;
use vllm_sim_http::HttpService;
use vllm_sim_service::{ConnectionHandle, RequestContext, ServerAvailability};

/// Maximum number of concurrent streams of an HTTP/2 connection.
const MAX_STREAMS: u32 = 16_384;

/// Buffer size of a connection for responses and for request heads, in bytes.
const CONNECTION_BUFFER_BYTES: usize = 40 * 1024;

/// Maximum number of connections that wait in the kernel to be accepted.
const LISTEN_BACKLOG: u32 = 4096;

/// Start of hyper's response to an invalid request, with headers that begin no other response.
const HYPER_BAD_REQUEST_START: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n";
/// Rest of uvicorn's response to an invalid request, after status line and date.
///
/// Source: uvicorn 0.54 `protocols/http/httptools_impl.py`, `send_400_response`.
const UVICORN_BAD_REQUEST_REST: &[u8] =
    b"server: uvicorn\r\ncontent-type: text/plain; charset=utf-8\r\n\
content-length: 30\r\nconnection: close\r\n\r\nInvalid HTTP request received.";

pub(super) async fn accept_connections(
    socket: ListeningSocket,
    http: Arc<HttpService>,
    acceptor: Option<ReloadingTlsAcceptor>,
    mut stopping: watch::Receiver<ServerAvailability>,
    keep_alive: Duration,
) {
    // The log has the 1st, 2nd, 4th, 8th, … failure: without descriptors there are 50 a second.
    let mut failures = 0_u64;
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            changed = stopping.changed() => {
                if changed.is_err() || stopping.borrow_and_update().stopping {
                    return;
                }
                continue;
            }
        };
        let connection = match accepted {
            Ok(connection) => connection,
            Err(error) => {
                // Most likely out of file descriptors; waits until some are closed.
                failures += 1;
                if failures.is_power_of_two() {
                    tracing::warn!(%error, failures, "cannot accept a connection");
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        if stopping.borrow().down {
            if let AcceptedConnection::Tcp(stream) = connection {
                stream.reset_on_close();
            }
            continue;
        }
        let client = match &connection {
            AcceptedConnection::Tcp(stream) => {
                stream.peer_addr().ok().map(|address| Arc::from(address.to_string()))
            }
            AcceptedConnection::Unix(_) => None,
        };
        let (http, stopping) = (http.clone(), stopping.clone());
        let tls = acceptor.as_ref().map(ReloadingTlsAcceptor::current_tls_acceptor);
        tokio::spawn(async move {
            match (connection, tls) {
                (AcceptedConnection::Tcp(stream), None) => {
                    if let Some(protocol) = detect_http_protocol(&stream, keep_alive).await {
                        serve_connection(stream, client, protocol, http, stopping, keep_alive)
                            .await;
                    }
                }
                (AcceptedConnection::Tcp(stream), Some(tls)) => {
                    let Some(stream) = tls_handshake(tls, stream, keep_alive).await else {
                        return;
                    };
                    let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let protocol =
                        if h2 { HttpProtocolVersion::Http2 } else { HttpProtocolVersion::Http1 };
                    serve_connection(*stream, client, protocol, http, stopping, keep_alive).await;
                }
                (AcceptedConnection::Unix(stream), _) => {
                    let protocol = HttpProtocolVersion::Http1;
                    serve_connection(stream, client, protocol, http, stopping, keep_alive).await;
                }
            }
        });
    }
}

/// Runs the TLS handshake of a connection; `None` if it fails or takes too long.
async fn tls_handshake(
    tls: TlsAcceptor,
    stream: TcpStream,
    within: Duration,
) -> Option<Box<TlsStream<TcpStream>>> {
    match tokio::time::timeout(within * 2, tls.accept(stream)).await {
        Ok(Ok(stream)) => return Some(Box::new(stream)),
        Ok(Err(error)) => log_failed_handshake(&error),
        Err(_) => tracing::debug!("TLS handshake took too long"),
    }
    None
}

/// Logs why a TLS handshake failed; a refused client certificate is a warning.
fn log_failed_handshake(error: &io::Error) {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(_)) => {
            tracing::warn!(%error, "TLS: client certificate refused");
        }
        _ => tracing::debug!(%error, "TLS handshake failed"),
    }
}

/// Detects the protocol of a connection, HTTP/1.1 or HTTP/2, by peeking at its first bytes.
///
/// HTTP/2 with prior knowledge starts with `PRI `.
///
/// hyper-util's detection consumes the bytes and returns them with the next read, which makes hyper
/// double its read buffer to 8 KiB per connection.
async fn detect_http_protocol(stream: &TcpStream, within: Duration) -> Option<HttpProtocolVersion> {
    const HTTP2_PREFACE_START: &[u8] = b"PRI ";
    let look = async {
        let mut first = [0; HTTP2_PREFACE_START.len()];
        loop {
            let seen = stream.peek(&mut first).await.ok().filter(|n| *n > 0)?;
            if first[..seen] != HTTP2_PREFACE_START[..seen] {
                return Some(HttpProtocolVersion::Http1);
            }
            if seen == HTTP2_PREFACE_START.len() {
                return Some(HttpProtocolVersion::Http2);
            }
            // Part of the preface has arrived; the rest follows.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(within, look).await.ok().flatten()
}

async fn serve_connection<S>(
    stream: S,
    client: Option<Arc<str>>,
    protocol: HttpProtocolVersion,
    http: Arc<HttpService>,
    mut stopping: watch::Receiver<ServerAvailability>,
    keep_alive: Duration,
) where
    S: AsyncRead + AsyncWrite + ResetOnClose + Unpin + Send + 'static,
{
    let conn = Arc::new(ConnectionHandle::default());
    let opened = *stopping.borrow_and_update();
    let stream = ClientStream { stream, conn: conn.clone(), protocol, instead: None };
    let context =
        RequestContext { client, connection: Some(conn.clone()), ..RequestContext::default() };
    let service = service_fn(move |request: Request<Incoming>| http.call(request, context.clone()));
    // Boxed: a future that a connection is moved into would reserve its size twice.
    let ended = match protocol {
        HttpProtocolVersion::Http1 => {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                // The timeout starts at the end of the previous response, so it also closes idle
                // connections.
                .header_read_timeout(keep_alive)
                // A connection opened while the server is leaving serves one request.
                .keep_alive(!opened.leaving)
                .max_buf_size(CONNECTION_BUFFER_BYTES)
                // Halves the CPU time per small chunk: copying is cheaper than a vectored write.
                .writev(false)
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            let shut_down = http1::UpgradeableConnection::graceful_shutdown;
            run_connection((Box::pin(connection), shut_down), &conn, opened, stopping).await
        }
        HttpProtocolVersion::Http2 => {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                // A gRPC client sends all calls on one connection.
                .max_concurrent_streams(MAX_STREAMS)
                .serve_connection(TokioIo::new(stream), service);
            let shut_down = http2::Connection::graceful_shutdown;
            run_connection((Box::pin(connection), shut_down), &conn, opened, stopping).await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = %error, "connection ended early");
    }
}

/// Function type: a hyper method that closes a connection after its current response.
type GracefulShutdown<C> = fn(Pin<&mut C>);

/// Runs an HTTP connection to its end. Closes the connection after the current response if the
/// server stops or asks clients to move to other servers.
async fn run_connection<C: Future<Output = hyper::Result<()>>>(
    (mut connection, shut_down): (Pin<Box<C>>, GracefulShutdown<C>),
    conn: &ConnectionHandle,
    opened: ServerAvailability,
    mut stopping: watch::Receiver<ServerAvailability>,
) -> hyper::Result<()> {
    let mut leaving = opened.leaving;
    loop {
        tokio::select! {
            // Checks for a broken connection first: it must not send anything more.
            biased;
            () = conn.wait_until_connection_broken() => return Ok(()),
            changed = stopping.changed() => {
                let link = *stopping.borrow_and_update();
                if changed.is_err() || link.stopping {
                    shut_down(connection.as_mut());
                    return connection.await;
                }
                if link.leaving && !std::mem::replace(&mut leaving, true) {
                    shut_down(connection.as_mut());
                }
                if link.lives != opened.lives {
                    conn.reset_connection();
                }
            }
            ended = connection.as_mut() => return ended,
        }
    }
}

pub(super) enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

pub(super) struct ListeningSockets {
    pub(super) http: ListeningSocket,
    pub(super) grpc: Option<ListeningSocket>,
}

impl ListeningSockets {
    pub(super) async fn bind_http_and_grpc(config: &Config) -> Result<Self, StartError> {
        let http = ListeningSocket::bind_http_socket(config).await?;
        let grpc = match config.server.grpc_port {
            Some(port) => Some(ListeningSocket::bind_tcp(config, port, " (--grpc-port)").await?),
            None => None,
        };
        Ok(Self { http, grpc })
    }

    /// Returns the TCP addresses of the HTTP and gRPC sockets; `None` for a socket of another kind.
    pub(super) fn http_and_grpc_tcp_addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        (self.http.tcp_address(), self.grpc.as_ref().and_then(ListeningSocket::tcp_address))
    }

    pub(super) fn into_sockets(self) -> impl Iterator<Item = ListeningSocket> {
        self.grpc.into_iter().chain([self.http])
    }
}

impl ListeningSocket {
    pub(super) async fn bind_http_socket(config: &Config) -> Result<Self, StartError> {
        if let Some(path) = &config.server.uds {
            let listen = |why| StartError::Listen { address: path.display().to_string(), why };
            // Removes a socket of an earlier run, but no other file.
            if tokio::net::UnixStream::connect(path).await.is_err() {
                use std::os::unix::fs::FileTypeExt;
                let is_socket = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_socket());
                if is_socket {
                    let _ = std::fs::remove_file(path);
                }
            }
            return UnixListener::bind(path).map(Self::Unix).map_err(listen);
        }
        Self::bind_tcp(config, config.server.port, "").await
    }

    /// Listens on a port of the configured host; errors show `flag` behind the address.
    async fn bind_tcp(config: &Config, port: u16, flag: &str) -> Result<Self, StartError> {
        let host = config.server.host.as_deref().unwrap_or("0.0.0.0");
        let failed = |why| StartError::Listen { address: format!("{host}:{port}{flag}"), why };
        let addresses = tokio::net::lookup_host((host, port)).await.map_err(failed)?;
        let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no such host");
        for address in addresses {
            match listen_tcp(address) {
                Ok(listener) => return Ok(Self::Tcp(listener)),
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }

    fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    async fn accept(&self) -> io::Result<AcceptedConnection> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(AcceptedConnection::Tcp(stream))
            }
            Self::Unix(listener) => Ok(AcceptedConnection::Unix(listener.accept().await?.0)),
        }
    }
}

enum AcceptedConnection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// HTTP protocol version of a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HttpProtocolVersion {
    Http1,
    Http2,
}

/// A stream whose socket can be closed with a TCP reset.
trait ResetOnClose {
    /// Makes closing the socket send a TCP reset and discard unsent data.
    fn reset_on_close(&self);
}

impl ResetOnClose for TcpStream {
    fn reset_on_close(&self) {
        // Fails only if the socket is already closed.
        let _ = self.set_zero_linger();
    }
}

impl ResetOnClose for TlsStream<TcpStream> {
    fn reset_on_close(&self) {
        self.get_ref().0.reset_on_close();
    }
}

impl ResetOnClose for UnixStream {
    /// Does nothing: a Unix socket has no TCP reset, so the peer sees a normal close.
    fn reset_on_close(&self) {}
}

/// The stream of a client's connection, which hyper reads and writes.
///
/// It is closed with a TCP reset if its [`ConnectionHandle`] requests it. Over HTTP/1.1, a request
/// that is not HTTP gets uvicorn's response in place of hyper's empty one.
struct ClientStream<S: ResetOnClose> {
    stream: S,
    conn: Arc<ConnectionHandle>,
    protocol: HttpProtocolVersion,
    /// Replacement for hyper's response to an invalid request, and number of the replacement's
    /// bytes written so far.
    instead: Option<(Vec<u8>, usize)>,
}

impl<S: ResetOnClose> Drop for ClientStream<S> {
    fn drop(&mut self) {
        if self.conn.is_connection_reset() {
            self.stream.reset_on_close();
        }
    }
}

fn to_uvicorn_response(refusal: &[u8]) -> Option<Vec<u8>> {
    let rest = refusal.strip_prefix(HYPER_BAD_REQUEST_START)?;
    let date = rest.strip_suffix(b"\r\n")?;
    let status = b"HTTP/1.1 400 Bad Request\r\n".as_slice();
    Some([status, date, UVICORN_BAD_REQUEST_REST].concat())
}

impl<S: ResetOnClose + AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: ResetOnClose + AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.instead.is_none() && this.protocol == HttpProtocolVersion::Http1 {
            this.instead = to_uvicorn_response(bytes).map(|response| (response, 0));
        }
        let Some((response, written)) = &mut this.instead else {
            return Pin::new(&mut this.stream).poll_write(cx, bytes);
        };
        while *written < response.len() {
            let more = Pin::new(&mut this.stream).poll_write(cx, &response[*written..]);
            match ready!(more)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                more => *written += more,
            }
        }
        this.instead = None;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
