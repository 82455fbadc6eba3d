//! Accepts TCP and Unix connections and serves them with hyper.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::socket::{AcceptedConnection, ClientStream, HttpProtocol, ResetOnClose, ServerSocket};
use crate::tls::ReloadingTlsAcceptor;
use vllm_sim_http::HttpService;
use vllm_sim_service::{Availability, ConnectionHandle, RequestContext};

/// Maximum number of concurrent streams of an HTTP/2 connection.
const MAX_STREAMS: u32 = 16_384;

/// Buffer size of a connection for responses and for request heads, in bytes.
const CONNECTION_BUFFER_BYTES: usize = 40 * 1024;

pub(super) async fn accept_connections(
    socket: ServerSocket,
    http: Arc<HttpService>,
    acceptor: Option<ReloadingTlsAcceptor>,
    mut stopping: watch::Receiver<Availability>,
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
        let tls = acceptor.as_ref().map(ReloadingTlsAcceptor::current_acceptor);
        tokio::spawn(async move {
            match (connection, tls) {
                (AcceptedConnection::Tcp(stream), None) => {
                    let Some(protocol) = detect_http_protocol(&stream, keep_alive).await else {
                        return;
                    };
                    serve_connection(stream, client, protocol, http, stopping, keep_alive).await;
                }
                (AcceptedConnection::Tcp(stream), Some(tls)) => {
                    let Some(stream) = tls_handshake(tls, stream, keep_alive).await else {
                        return;
                    };
                    let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let protocol = if h2 { HttpProtocol::Http2 } else { HttpProtocol::Http1 };
                    serve_connection(*stream, client, protocol, http, stopping, keep_alive).await;
                }
                (AcceptedConnection::Unix(stream), _) => {
                    serve_connection(
                        stream,
                        client,
                        HttpProtocol::Http1,
                        http,
                        stopping,
                        keep_alive,
                    )
                    .await;
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
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake took too long"),
    }
    None
}

/// Detects the protocol of a connection, HTTP/1.1 or HTTP/2, by peeking at its first bytes.
///
/// HTTP/2 with prior knowledge starts with `PRI `.
///
/// hyper-util's detection consumes the bytes and returns them with the next read, which makes hyper
/// double its read buffer to 8 KiB per connection.
async fn detect_http_protocol(stream: &TcpStream, within: Duration) -> Option<HttpProtocol> {
    const HTTP2_PREFACE_START: &[u8] = b"PRI ";
    let look = async {
        let mut first = [0; HTTP2_PREFACE_START.len()];
        loop {
            let seen = stream.peek(&mut first).await.ok().filter(|n| *n > 0)?;
            if first[..seen] != HTTP2_PREFACE_START[..seen] {
                return Some(HttpProtocol::Http1);
            }
            if seen == HTTP2_PREFACE_START.len() {
                return Some(HttpProtocol::Http2);
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
    protocol: HttpProtocol,
    http: Arc<HttpService>,
    mut stopping: watch::Receiver<Availability>,
    keep_alive: Duration,
) where
    S: AsyncRead + AsyncWrite + ResetOnClose + Unpin + Send + 'static,
{
    let conn = Arc::new(ConnectionHandle::default());
    let opened = *stopping.borrow_and_update();
    let stream = ClientStream::new(stream, conn.clone(), protocol);
    let context =
        RequestContext { client, connection: Some(conn.clone()), ..RequestContext::default() };
    let service = service_fn(move |request: Request<Incoming>| http.call(request, context.clone()));
    // Boxed: a future that a connection is moved into would reserve its size twice.
    let ended = match protocol {
        HttpProtocol::Http1 => {
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
        HttpProtocol::Http2 => {
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

/// A hyper method that ends a connection after its current response.
type GracefulShutdown<C> = fn(Pin<&mut C>);

/// Runs an HTTP connection to its end; closes it after its current response when the server stops,
/// or asks clients to move to other servers.
async fn run_connection<C: Future<Output = hyper::Result<()>>>(
    (mut connection, shut_down): (Pin<Box<C>>, GracefulShutdown<C>),
    conn: &ConnectionHandle,
    opened: Availability,
    mut stopping: watch::Receiver<Availability>,
) -> hyper::Result<()> {
    let mut leaving = opened.leaving;
    loop {
        tokio::select! {
            // Checks for a broken connection first: it must not send anything more.
            biased;
            () = conn.wait_until_broken() => return Ok(()),
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
