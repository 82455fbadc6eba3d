use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;

use super::socket::{ArrivalTimedSocket, LatestBytesArrivalTime};

/// TCP connection with or without TLS, as a byte stream.
pub struct ClientStream {
    through: Transport,
    arrival: LatestBytesArrivalTime,
}

enum Transport {
    Plain(ArrivalTimedSocket),
    Tls(Box<TlsStream<ArrivalTimedSocket>>),
}

impl ClientStream {
    pub(super) fn from_tcp(socket: ArrivalTimedSocket) -> Self {
        Self { arrival: socket.arrival_time(), through: Transport::Plain(socket) }
    }

    pub(super) fn from_tls(stream: TlsStream<ArrivalTimedSocket>) -> Self {
        Self {
            arrival: stream.get_ref().0.arrival_time(),
            through: Transport::Tls(Box::new(stream)),
        }
    }

    /// Returns a handle to the arrival time of the latest bytes read.
    pub fn arrival_time(&self) -> LatestBytesArrivalTime {
        self.arrival.clone()
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().through {
            Transport::Plain(socket) => Pin::new(socket).poll_read(cx, buffer),
            Transport::Tls(tls) => Pin::new(tls).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().through {
            Transport::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Transport::Tls(tls) => Pin::new(tls).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().through {
            Transport::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Transport::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().through {
            Transport::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Transport::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
