use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Arrival time of the latest bytes on a connection.
#[derive(Debug, Clone)]
pub(super) struct LatestBytesArrivalTime {
    epoch: Instant,
    nanos: Arc<AtomicU64>,
}

impl LatestBytesArrivalTime {
    fn new() -> Self {
        Self { epoch: real_clock_now(), nanos: Arc::default() }
    }

    /// Returns the arrival time of the latest bytes on the connection; before any bytes, the time
    /// of connecting.
    pub(super) fn latest_arrival(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn set(&self, at: Instant) {
        let nanos = at.saturating_duration_since(self.epoch).as_nanos();
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        self.nanos.store(nanos, Ordering::Relaxed);
    }
}

pub(super) struct ArrivalTimedSocket {
    tcp: TcpStream,
    arrival: LatestBytesArrivalTime,
}

impl ArrivalTimedSocket {
    pub(super) fn new(tcp: TcpStream) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        Ok(Self { arrival: LatestBytesArrivalTime::new(), tcp })
    }

    pub(super) fn arrival_time(&self) -> LatestBytesArrivalTime {
        self.arrival.clone()
    }
}

impl AsyncRead for ArrivalTimedSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { tcp, arrival } = self.get_mut();
        let read = Pin::new(tcp).poll_read(cx, buffer);
        if read.is_ready() {
            arrival.set(real_clock_now());
        }
        read
    }
}

impl AsyncWrite for ArrivalTimedSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(cx)
    }
}

#[expect(clippy::disallowed_methods, reason = "arrivals from real servers are measured")]
pub(super) fn real_clock_now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn received_data_equals_sent_data() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it has one");
        let tcp = TcpStream::connect(address).await.expect("it listens");
        let mut socket = ArrivalTimedSocket::new(tcp).expect("is open");
        let (mut peer, _) = listener.accept().await.expect("somebody came");
        let sent: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        let copy = sent.clone();
        let writing = tokio::spawn(async move {
            peer.write_all(&copy).await.expect("is open");
        });
        let mut got = Vec::new();
        let (mut room, mut before) = (vec![0; 40_000], socket.arrival_time().latest_arrival());
        loop {
            let read = socket.read(&mut room).await.expect("is open");
            let at = socket.arrival_time().latest_arrival();
            assert!(at >= before);
            before = at;
            if read == 0 {
                break;
            }
            got.extend_from_slice(&room[..read]);
        }
        writing.await.expect("writes all");
        assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    }
}
