//! Decode side of a KV transfer: notifies the prefill servers.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use super::listener::BLOCKS_READ_MESSAGE;
use vllm_sim_engine::SchedulerEvent;
use vllm_sim_engine::SimTime;
use vllm_sim_engine::driver::{EngineObserver, KvSourceServer, SequenceRecord};

/// Maximum number of messages queued for other servers; further ones are dropped. After a dropped
/// notification, the prefill server's lease on the KV blocks expires instead.
const MAX_QUEUED_MESSAGES: usize = 10_000;
/// Maximum number of ZMQ messages queued for a server that does not respond.
const SEND_QUEUE_MESSAGES: i32 = 1000;
const MAX_PEERS: usize = 256;

/// Sends messages to the [`ZmqMessageListener`](super::ZmqMessageListener)s of other servers.
#[derive(Debug, Clone)]
pub struct ZmqMessageSender {
    queue: SyncSender<(String, Vec<Vec<u8>>)>,
}

impl ZmqMessageSender {
    /// Starts the thread that sends messages; the thread stops when the last clone of the sender is
    /// dropped.
    ///
    /// # Errors
    /// An I/O error if the thread cannot be started.
    pub fn start_sender_thread() -> std::io::Result<Self> {
        let (queue, waiting) = sync_channel(MAX_QUEUED_MESSAGES);
        thread::Builder::new().name("kv-read".to_owned()).spawn(move || send_messages(&waiting))?;
        Ok(Self { queue })
    }

    /// Queues a message to a ZMQ endpoint; never waits. An empty frame is sent before `frames`.
    pub fn send_message(&self, endpoint: &str, frames: Vec<Vec<u8>>) {
        let _ = self.queue.try_send((endpoint.to_owned(), frames));
    }
}

/// Notifies prefill servers that a decode server has read their blocks, at the first token of a
/// request.
#[derive(Debug, Clone)]
pub struct KvBlockReadNotifier(ZmqMessageSender);

impl KvBlockReadNotifier {
    /// Starts the thread that sends notifications; the thread stops when the last clone of the
    /// notifier is dropped.
    ///
    /// # Errors
    /// An I/O error if the thread cannot be started.
    pub fn start_notifier_thread() -> std::io::Result<Self> {
        ZmqMessageSender::start_sender_thread().map(Self)
    }

    /// Queues the notification that a request's blocks were read; never waits.
    pub fn notify_blocks_read(&self, source: &KvSourceServer) {
        // Mooncake's prefill servers have an address of another kind, and keep no blocks.
        if !source.endpoint.starts_with("tcp://") {
            return;
        }
        let request = source.request.as_bytes().to_vec();
        self.0.send_message(&source.endpoint, vec![BLOCKS_READ_MESSAGE.to_vec(), request]);
    }
}

fn send_messages(waiting: &Receiver<(String, Vec<Vec<u8>>)>) {
    let context = zmq::Context::new();
    let mut peers: HashMap<String, zmq::Socket> = HashMap::new();
    for (endpoint, mut frames) in waiting {
        if !peers.contains_key(&endpoint) {
            if peers.len() >= MAX_PEERS {
                peers.clear();
            }
            match connect_to_peer(&context, &endpoint) {
                Ok(socket) => peers.insert(endpoint.clone(), socket),
                Err(error) => {
                    tracing::debug!(%error, endpoint, "no server to send to");
                    continue;
                }
            };
        }
        if let Some(socket) = peers.get(&endpoint) {
            frames.insert(0, Vec::new());
            // A full socket means that the peer is gone: its lease expires.
            let _ = socket.send_multipart(frames, zmq::DONTWAIT);
        }
    }
}

fn connect_to_peer(context: &zmq::Context, endpoint: &str) -> zmq::Result<zmq::Socket> {
    let socket = context.socket(zmq::DEALER)?;
    socket.set_linger(0)?;
    socket.set_sndhwm(SEND_QUEUE_MESSAGES)?;
    socket.set_ipv6(endpoint.contains('['))?;
    socket.connect(endpoint)?;
    Ok(socket)
}

impl EngineObserver for KvBlockReadNotifier {
    fn on_sequence_event(
        &mut self,
        _: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        _: SimTime,
    ) {
        let Some(source) = &record.kv_source else {
            return;
        };
        let first = match event {
            SchedulerEvent::Tokens { n, .. } => record.output == *n,
            // A sequence that ends without a token does not need the blocks either.
            SchedulerEvent::Ended { .. } => record.output == 0,
            _ => false,
        };
        // A failed read sends no notification: the lease expires.
        if first && !record.has_failed_kv_load() {
            self.notify_blocks_read(source);
        }
    }
}
