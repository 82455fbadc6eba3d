//! A connection that can be told to leave with a reset.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use vllm_sim_service::fault::ConnHandle;

/// A stream over a socket that may be closed with a reset.
pub(super) trait Abrupt {
    /// Closing sends a reset from now on, and what was not sent is dropped.
    fn make_abrupt(&self);
}

impl Abrupt for TcpStream {
    fn make_abrupt(&self) {
        // A socket that is gone already needs no reset.
        let _ = self.set_zero_linger();
    }
}

impl Abrupt for TlsStream<TcpStream> {
    fn make_abrupt(&self) {
        self.get_ref().0.make_abrupt();
    }
}

impl Abrupt for UnixStream {
    /// There is no reset on a Unix socket: the peer sees it close.
    fn make_abrupt(&self) {}
}

/// A stream that asks its [`ConnHandle`] how to leave.
pub(super) struct Held<S: Abrupt> {
    stream: S,
    line: Arc<ConnHandle>,
}

impl<S: Abrupt> Held<S> {
    pub(super) fn new(stream: S, line: Arc<ConnHandle>) -> Self {
        Self { stream, line }
    }
}

impl<S: Abrupt> Drop for Held<S> {
    fn drop(&mut self) {
        if self.line.is_reset() {
            self.stream.make_abrupt();
        }
    }
}

impl<S: Abrupt + AsyncRead + Unpin> AsyncRead for Held<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: Abrupt + AsyncWrite + Unpin> AsyncWrite for Held<S> {
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
