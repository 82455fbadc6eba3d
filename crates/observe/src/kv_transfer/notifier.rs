//! Decode side of a KV transfer: notifies the prefill servers.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use super::listener::READ;
use vllm_sim_engine::SimTime;
use vllm_sim_engine::driver::{KvSource, Observer, SequenceRecord};
use vllm_sim_engine::{Event, Stats};

/// Maximum number of queued notifications; further ones are dropped, and the prefill server's lease
/// expires instead.
const QUEUE: usize = 10_000;
/// Maximum number of ZMQ messages queued for a prefill server that does not respond.
const SEND_HWM: i32 = 1000;
const MAX_PEERS: usize = 256;

/// Notifies prefill servers that a decode server has read their blocks, at the first token of a
/// request.
#[derive(Debug, Clone)]
pub struct ReadNotifier {
    queue: SyncSender<KvSource>,
}

impl ReadNotifier {
    /// Starts the thread that sends notifications; it stops when the last clone of the notifier is
    /// dropped.
    ///
    /// # Errors
    /// An I/O error if the thread cannot be started.
    pub fn start() -> std::io::Result<Self> {
        let (queue, waiting) = sync_channel(QUEUE);
        thread::Builder::new()
            .name("kv-read".to_owned())
            .spawn(move || send_all(&waiting))?;
        Ok(Self { queue })
    }

    /// Queues the notification that a request's blocks were read; never waits.
    pub fn notify(&self, source: &KvSource) {
        let _ = self.queue.try_send(source.clone());
    }
}

fn send_all(waiting: &Receiver<KvSource>) {
    let context = zmq::Context::new();
    let mut peers: HashMap<String, zmq::Socket> = HashMap::new();
    for source in waiting {
        if !peers.contains_key(&source.endpoint) {
            if peers.len() >= MAX_PEERS {
                peers.clear();
            }
            match connect(&context, &source.endpoint) {
                Ok(socket) => peers.insert(source.endpoint.clone(), socket),
                Err(error) => {
                    tracing::debug!(%error, endpoint = source.endpoint, "no prefill server");
                    continue;
                }
            };
        }
        if let Some(socket) = peers.get(&source.endpoint) {
            let frames = [b"", READ, source.request.as_bytes()];
            // A full socket means that the peer is gone: its lease expires.
            let _ = socket.send_multipart(frames, zmq::DONTWAIT);
        }
    }
}

fn connect(context: &zmq::Context, endpoint: &str) -> zmq::Result<zmq::Socket> {
    let socket = context.socket(zmq::DEALER)?;
    socket.set_linger(0)?;
    socket.set_sndhwm(SEND_HWM)?;
    socket.set_ipv6(endpoint.contains('['))?;
    socket.connect(endpoint)?;
    Ok(socket)
}

impl Observer for ReadNotifier {
    fn on_queued(&mut self, _: &SequenceRecord) {}

    fn on_event(&mut self, _: SimTime, event: &Event, record: &SequenceRecord, _: SimTime) {
        let Some(source) = &record.request.kv_source else {
            return;
        };
        let first = match event {
            Event::Tokens { n, .. } => record.output == *n,
            // A sequence that ends without a token does not need the blocks either.
            Event::Ended { .. } => record.output == 0,
            _ => false,
        };
        // A failed read sends no notification: the lease expires.
        if first && !record.lost_load() {
            self.notify(source);
        }
    }

    fn on_engine(&mut self, _: SimTime, _: &Event) {}

    fn on_stats(&mut self, _: &Stats) {}
}
