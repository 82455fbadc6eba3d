//! Accepts TCP and Unix connections and serves them with hyper.

use std::net::SocketAddr;
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

use super::reset::{ResetOnClose, ResettableStream};
use super::socket::{Connection, ServerSocket};
use super::uvicorn::UvicornErrors;
use crate::tls::Acceptor;
use vllm_sim_http::{Availability, HttpService};
use vllm_sim_service::RequestContext;
use vllm_sim_service::fault::ConnHandle;

/// Maximum number of concurrent streams of an HTTP/2 connection.
const MAX_STREAMS: u32 = 16_384;

/// Buffer size of a connection for responses and for request heads, in bytes.
const MAX_BUFFER: usize = 40 * 1024;

pub(super) async fn run(
    socket: ServerSocket,
    http: Arc<HttpService>,
    acceptor: Option<Acceptor>,
    mut stopping: watch::Receiver<Availability>,
    keep_alive: Duration,
) {
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
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        if stopping.borrow().down {
            if let Connection::Tcp(stream) = connection {
                stream.reset_on_close();
            }
            continue;
        }
        let client = match &connection {
            Connection::Tcp(stream) => stream.peer_addr().ok(),
            Connection::Unix(_) => None,
        };
        let (http, stopping) = (http.clone(), stopping.clone());
        let tls = acceptor.as_ref().map(Acceptor::current);
        tokio::spawn(async move {
            match (connection, tls) {
                (Connection::Tcp(stream), None) => {
                    let Some(protocol) = detect(&stream, keep_alive).await else {
                        return;
                    };
                    serve(stream, client, protocol, http, stopping, keep_alive).await;
                }
                (Connection::Tcp(stream), Some(tls)) => {
                    let Some(stream) = handshake(tls, stream, keep_alive).await else {
                        return;
                    };
                    let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let protocol = if h2 { Protocol::Http2 } else { Protocol::Http1 };
                    serve(*stream, client, protocol, http, stopping, keep_alive).await;
                }
                (Connection::Unix(stream), _) => {
                    serve(stream, client, Protocol::Http1, http, stopping, keep_alive).await;
                }
            }
        });
    }
}

/// Runs the TLS handshake of a connection; `None` if it fails or takes too long.
async fn handshake(
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// Detects the protocol of a connection, HTTP/1.1 or HTTP/2, by peeking at its first bytes.
///
/// HTTP/2 with prior knowledge starts with `PRI `.
///
/// hyper-util's detection consumes the bytes and returns them with the next read, which makes hyper
/// double its read buffer to 8 KiB per connection.
async fn detect(stream: &TcpStream, within: Duration) -> Option<Protocol> {
    const PREFACE: &[u8] = b"PRI ";
    let look = async {
        let mut first = [0; PREFACE.len()];
        loop {
            let seen = stream.peek(&mut first).await.ok().filter(|n| *n > 0)?;
            if first[..seen] != PREFACE[..seen] {
                return Some(Protocol::Http1);
            }
            if seen == PREFACE.len() {
                return Some(Protocol::Http2);
            }
            // Part of the preface has arrived; the rest follows.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(within, look).await.ok().flatten()
}

async fn serve<S>(
    stream: S,
    client: Option<SocketAddr>,
    protocol: Protocol,
    http: Arc<HttpService>,
    mut stopping: watch::Receiver<Availability>,
    keep_alive: Duration,
) where
    S: AsyncRead + AsyncWrite + ResetOnClose + Unpin + Send + 'static,
{
    let conn = Arc::new(ConnHandle::default());
    let opened = *stopping.borrow_and_update();
    let stream = ResettableStream::new(stream, conn.clone());
    let context = RequestContext {
        client,
        connection: Some(conn.clone()),
        ..RequestContext::default()
    };
    let service = service_fn(move |request: Request<Incoming>| http.call(request, context.clone()));
    // Boxed: a future that a connection is moved into would reserve its size twice.
    let ended = match protocol {
        Protocol::Http1 => {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                // The timeout starts at the end of the previous response, so it also closes idle
                // connections.
                .header_read_timeout(keep_alive)
                // A connection opened while the server is leaving serves one request.
                .keep_alive(!opened.leaving)
                .max_buf_size(MAX_BUFFER)
                // Halves the CPU time per small chunk: copying is cheaper than a vectored write.
                .writev(false)
                .serve_connection(TokioIo::new(UvicornErrors::new(stream)), service)
                .with_upgrades();
            let shut_down = http1::UpgradeableConnection::graceful_shutdown;
            run_connection((Box::pin(connection), shut_down), &conn, opened, stopping).await
        }
        Protocol::Http2 => {
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

/// Runs an HTTP connection to its end; closes it after its current response when the server leaves
/// or stops.
async fn run_connection<C: Future<Output = hyper::Result<()>>>(
    (mut connection, shut_down): (Pin<Box<C>>, GracefulShutdown<C>),
    conn: &ConnHandle,
    opened: Availability,
    mut stopping: watch::Receiver<Availability>,
) -> hyper::Result<()> {
    let mut leaving = opened.leaving;
    loop {
        tokio::select! {
            // Checks for a broken connection first: it must not send anything more.
            biased;
            () = conn.broken() => return Ok(()),
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
                    conn.reset();
                }
            }
            ended = connection.as_mut() => return ended,
        }
    }
}
