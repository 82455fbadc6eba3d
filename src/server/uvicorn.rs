//! Where uvicorn and hyper differ on the wire, below HTTP.
//!
//! Two things: uvicorn explains itself when a request is not HTTP, and it keeps the blanks behind
//! a header's value, so that a key with a blank at its end is another key.
//!
//! Source: uvicorn 0.54 `protocols/http/httptools_impl.py`, `send_400_response`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How hyper begins its own answer to what is not HTTP. Ours never have the connection's end first.
const REFUSED: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n";
/// What follows the status line and the date in uvicorn's.
const EXPLAINED: &[u8] = b"server: uvicorn\r\ncontent-type: text/plain; charset=utf-8\r\n\
content-length: 30\r\nconnection: close\r\n\r\nInvalid HTTP request received.";
const AUTHORIZATION: &[u8] = b"\r\nauthorization:";
/// A byte that may stand in a value and is no blank.
const MARK: u8 = 0x80;

/// A connection that behaves as uvicorn's would.
#[derive(Debug)]
pub(super) struct Uvicorn<S> {
    inner: S,
    /// Whether keys are compared, so that blanks matter.
    keys: bool,
    /// What is written in place of hyper's refusal: the bytes, and how many are out.
    instead: Option<(Vec<u8>, usize)>,
}

impl<S> Uvicorn<S> {
    /// Over `inner`; `keys`: whether the server asks for a key.
    pub(super) fn new(inner: S, keys: bool) -> Self {
        Self {
            inner,
            keys,
            instead: None,
        }
    }
}

/// Makes the last blank of an `Authorization` line one that is not trimmed.
fn mark(read: &mut [u8]) {
    let mut from = 0;
    while let Some(at) = find(&read[from..]) {
        let start = from + at + AUTHORIZATION.len();
        let Some(length) = read[start..].windows(2).position(|w| w == b"\r\n") else {
            return;
        };
        let end = start + length;
        if length > 0 && matches!(read[end - 1], b' ' | b'\t') {
            read[end - 1] = MARK;
        }
        from = end;
    }
}

fn find(read: &[u8]) -> Option<usize> {
    read.windows(AUTHORIZATION.len())
        .position(|window| window.eq_ignore_ascii_case(AUTHORIZATION))
}

/// uvicorn's words for hyper's refusal, whose date they keep.
fn explained(refusal: &[u8]) -> Option<Vec<u8>> {
    let rest = refusal.strip_prefix(REFUSED)?;
    let date = rest.strip_suffix(b"\r\n")?;
    let status = b"HTTP/1.1 400 Bad Request\r\n".as_slice();
    Some([status, date, EXPLAINED].concat())
}

impl<S: AsyncRead + Unpin> AsyncRead for Uvicorn<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buffer))?;
        if this.keys {
            mark(&mut buffer.filled_mut()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Uvicorn<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.instead.is_none() {
            match explained(bytes) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_blank_behind_a_key_is_marked() {
        let mut read = b"GET / HTTP/1.1\r\nhost: x \r\nAuthorization: Bearer k \r\n\r\n".to_vec();
        mark(&mut read);
        let expected = b"GET / HTTP/1.1\r\nhost: x \r\nAuthorization: Bearer k\x80\r\n\r\n";
        assert_eq!(read, expected);
        let mut plain = b"GET / HTTP/1.1\r\nauthorization: Bearer k\r\n\r\n{ \r\n}".to_vec();
        let before = plain.clone();
        mark(&mut plain);
        assert_eq!(plain, before);
    }
}
