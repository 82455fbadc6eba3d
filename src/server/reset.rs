//! TCP and Unix streams that can be closed with a TCP reset.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use vllm_sim_service::fault::ConnectionHandle;

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

/// A stream that is closed with a TCP reset if its [`ConnectionHandle`] requests it.
pub(super) struct ResettableStream<S: ResetOnClose> {
    stream: S,
    conn: Arc<ConnectionHandle>,
}

impl<S: ResetOnClose> ResettableStream<S> {
    pub(super) fn new(stream: S, conn: Arc<ConnectionHandle>) -> Self {
        Self { stream, conn }
    }
}

impl<S: ResetOnClose> Drop for ResettableStream<S> {
    fn drop(&mut self) {
        if self.conn.is_reset() {
            self.stream.reset_on_close();
        }
    }
}

impl<S: ResetOnClose + AsyncRead + Unpin> AsyncRead for ResettableStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: ResetOnClose + AsyncWrite + Unpin> AsyncWrite for ResettableStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
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
