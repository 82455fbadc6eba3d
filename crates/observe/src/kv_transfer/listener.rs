//! Prefill side of a KV transfer: receives the notifications of decode servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::handshake::{KvTransferEngineMetadata, is_metadata_query};

pub(super) const BLOCKS_READ_MESSAGE: &[u8] = b"read";

const POLL_MS: i32 = 200;

/// Listener for ZMQ messages of other servers, on a separate thread; dropping the listener stops
/// the thread.
#[derive(Debug)]
pub struct ZmqMessageListener {
    /// ZMQ endpoint to which the listener is bound, with its port.
    pub endpoint: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ZmqMessageListener {
    /// Binds a ZMQ `endpoint`, and calls `on_message` with the frames that follow the empty frame
    /// of each message; `on_message` returns the frames of the answer.
    ///
    /// # Errors
    /// An I/O error if the endpoint cannot be bound or the thread cannot be started.
    pub fn start_listening(
        endpoint: &str,
        on_message: impl Fn(&[Vec<u8>]) -> Option<Vec<Vec<u8>>> + Send + 'static,
    ) -> Result<Self, std::io::Error> {
        let open = || {
            let socket = zmq::Context::new().socket(zmq::ROUTER)?;
            socket.set_linger(0)?;
            socket.set_rcvtimeo(POLL_MS)?;
            socket.set_ipv6(endpoint.contains('['))?;
            socket.bind(endpoint)?;
            let bound = socket.get_last_endpoint()?;
            Ok((socket, bound.unwrap_or_else(|_| endpoint.to_owned())))
        };
        let opened = open().map_err(|error: zmq::Error| std::io::Error::other(error.to_string()));
        let (socket, endpoint) = opened?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new().name("kv-transfer".to_owned());
        let thread = thread.spawn({
            let stop = Arc::clone(&stop);
            move || {
                while !stop.load(Ordering::Relaxed) {
                    let Ok(frames) = socket.recv_multipart(0) else {
                        continue;
                    };
                    let [peer, empty, message @ ..] = frames.as_slice() else {
                        continue;
                    };
                    if let Some(answer) = empty.is_empty().then(|| on_message(message)).flatten() {
                        let mut frames = vec![peer.clone(), Vec::new()];
                        frames.extend(answer);
                        // A peer that has left needs no answer.
                        let _ = socket.send_multipart(frames, zmq::DONTWAIT);
                    }
                }
            }
        })?;
        Ok(Self { endpoint, stop, thread: Some(thread) })
    }
}

impl Drop for ZmqMessageListener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the listener for other servers panicked");
        }
    }
}

/// Listens on ZMQ `endpoint` and calls `on_read` with the id of each request whose KV blocks a
/// decode server has read; needed once per data-parallel rank. Handshakes are answered with the
/// `metadata` of the engine, if there is any.
///
/// # Errors
/// An I/O error if the endpoint cannot be bound or the thread cannot be started.
pub fn listen_for_kv_block_reads(
    endpoint: &str,
    metadata: impl Fn() -> Option<KvTransferEngineMetadata> + Send + 'static,
    on_read: impl Fn(&str) + Send + 'static,
) -> std::io::Result<ZmqMessageListener> {
    ZmqMessageListener::start_listening(endpoint, move |message| match message {
        [word, request] if word == BLOCKS_READ_MESSAGE => {
            if let Ok(request) = std::str::from_utf8(request) {
                on_read(request);
            }
            None
        }
        [query] if is_metadata_query(query) => Some(metadata()?.to_handshake_answer().to_vec()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::super::notifier::KvBlockReadNotifier;
    use super::*;
    use vllm_sim_engine::driver::KvSourceServer;

    #[test]
    fn only_read_notifications_are_reported() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("tcp://{}", free.local_addr().unwrap());
        drop(free);
        let (sender, reads) = mpsc::channel();
        let on_read = move |request: &str| {
            let _ = sender.send(request.to_owned());
        };
        let listener = listen_for_kv_block_reads(&endpoint, || None, on_read).unwrap();
        let stranger = zmq::Context::new().socket(zmq::DEALER).unwrap();
        stranger.set_linger(0).unwrap();
        stranger.connect(&endpoint).unwrap();
        stranger.send_multipart(["", "handshake", "x"], 0).unwrap();
        stranger.send("x", 0).unwrap();
        let notifier = KvBlockReadNotifier::start_notifier_thread().unwrap();
        for request in ["a", "b"] {
            notifier.notify_blocks_read(&KvSourceServer {
                endpoint: endpoint.clone(),
                request: request.to_owned(),
                engine_id: String::new(),
            });
        }
        let next = || reads.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!([next(), next()], ["a", "b"]);
        drop(listener);
        assert!(reads.recv().is_err());
    }
}
