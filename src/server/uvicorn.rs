//! uvicorn's response to requests that are not HTTP, in place of hyper's empty one.
//!
//! Source: uvicorn 0.54 `protocols/http/httptools_impl.py`, `send_400_response`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Start of hyper's response to an invalid request; no other response starts with these headers.
const HYPER_BAD_REQUEST_START: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n";
/// Rest of uvicorn's response to an invalid request, after status line and date.
const UVICORN_BAD_REQUEST_REST: &[u8] =
    b"server: uvicorn\r\ncontent-type: text/plain; charset=utf-8\r\n\
content-length: 30\r\nconnection: close\r\n\r\nInvalid HTTP request received.";

/// A connection whose responses to invalid requests are those of uvicorn.
#[derive(Debug)]
pub(super) struct UvicornErrorStream<S> {
    inner: S,
    /// Replacement for hyper's response to an invalid request, and the number of its bytes written
    /// so far.
    instead: Option<(Vec<u8>, usize)>,
}

impl<S> UvicornErrorStream<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, instead: None }
    }
}

fn to_uvicorn_response(refusal: &[u8]) -> Option<Vec<u8>> {
    let rest = refusal.strip_prefix(HYPER_BAD_REQUEST_START)?;
    let date = rest.strip_suffix(b"\r\n")?;
    let status = b"HTTP/1.1 400 Bad Request\r\n".as_slice();
    Some([status, date, UVICORN_BAD_REQUEST_REST].concat())
}

impl<S: AsyncRead + Unpin> AsyncRead for UvicornErrorStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for UvicornErrorStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.instead.is_none() {
            match to_uvicorn_response(bytes) {
                None => return Pin::new(&mut this.inner).poll_write(cx, bytes),
                Some(words) => this.instead = Some((words, 0)),
            }
        }
        if let Some((words, written)) = &mut this.instead {
            while *written < words.len() {
                let more = Pin::new(&mut this.inner).poll_write(cx, &words[*written..]);
                match ready!(more)? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    more => *written += more,
                }
            }
        }
        this.instead = None;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
