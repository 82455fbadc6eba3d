//! Listening sockets of a server, and the connections that they accept.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio_rustls::server::TlsStream;

use super::error::StartError;
use vllm_sim_config::Config;
use vllm_sim_service::ConnectionHandle;

/// Maximum number of connections that wait in the kernel to be accepted.
const LISTEN_BACKLOG: u32 = 4096;

/// Start of hyper's response to an invalid request; no other response starts with these headers.
const HYPER_BAD_REQUEST_START: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n";
/// Rest of uvicorn's response to an invalid request, after status line and date.
///
/// Source: uvicorn 0.54 `protocols/http/httptools_impl.py`, `send_400_response`.
const UVICORN_BAD_REQUEST_REST: &[u8] =
    b"server: uvicorn\r\ncontent-type: text/plain; charset=utf-8\r\n\
content-length: 30\r\nconnection: close\r\n\r\nInvalid HTTP request received.";

pub(super) enum ServerSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

pub(super) struct ServerSockets {
    pub(super) http: ServerSocket,
    pub(super) grpc: Option<ServerSocket>,
}

impl ServerSockets {
    pub(super) async fn bind(config: &Config) -> Result<Self, StartError> {
        let http = ServerSocket::bind(config).await?;
        let grpc = match config.server.grpc_port {
            Some(port) => Some(ServerSocket::bind_tcp(config, port).await?),
            None => None,
        };
        Ok(Self { http, grpc })
    }

    /// Returns the TCP addresses of the HTTP and gRPC sockets; `None` for a Unix socket or a
    /// missing one.
    pub(super) fn tcp_addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        (self.http.tcp_address(), self.grpc.as_ref().and_then(ServerSocket::tcp_address))
    }

    pub(super) fn into_sockets(self) -> impl Iterator<Item = ServerSocket> {
        self.grpc.into_iter().chain([self.http])
    }
}

impl ServerSocket {
    pub(super) async fn bind(config: &Config) -> Result<Self, StartError> {
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
        Self::bind_tcp(config, config.server.port).await
    }

    pub(super) async fn bind_tcp(config: &Config, port: u16) -> Result<Self, StartError> {
        let host = config.server.host.as_deref().unwrap_or("0.0.0.0");
        let failed = |why| StartError::Listen { address: format!("{host}:{port}"), why };
        let addresses = tokio::net::lookup_host((host, port)).await.map_err(failed)?;
        let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "no such host");
        for address in addresses {
            match listen_tcp(address) {
                Ok(listener) => return Ok(Self::Tcp(listener)),
                Err(error) => last = error,
            }
        }
        Err(StartError::Listen { address: format!("{host}:{port}"), why: last })
    }

    pub(super) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    pub(super) async fn accept(&self) -> io::Result<AcceptedConnection> {
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

pub(super) enum AcceptedConnection {
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
pub(super) enum HttpProtocol {
    Http1,
    Http2,
}

/// A stream whose socket can be closed with a TCP reset.
pub(super) trait ResetOnClose {
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
pub(super) struct ClientStream<S: ResetOnClose> {
    stream: S,
    conn: Arc<ConnectionHandle>,
    protocol: HttpProtocol,
    /// Replacement for hyper's response to an invalid request, and the number of its bytes written
    /// so far.
    instead: Option<(Vec<u8>, usize)>,
}

impl<S: ResetOnClose> ClientStream<S> {
    pub(super) fn new(stream: S, conn: Arc<ConnectionHandle>, protocol: HttpProtocol) -> Self {
        Self { stream, conn, protocol, instead: None }
    }
}

impl<S: ResetOnClose> Drop for ClientStream<S> {
    fn drop(&mut self) {
        if self.conn.is_reset() {
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
        if this.instead.is_none() && this.protocol == HttpProtocol::Http1 {
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
