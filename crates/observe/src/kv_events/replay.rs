//! Replays missed KV event batches from a thread with a ZMQ ROUTER socket.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use indexmap::IndexMap;
use parking_lot::Mutex;

use super::publisher::{KvEventPublisherError, bound_endpoint};

const IDLE_POLL_MS: i64 = 100;
const SEND_RETRY_MS: i64 = 1;
/// Number of KV event batches replayed to one client before the next client is served.
const MAX_BATCHES_PER_TURN: usize = 256;
/// Time without progress after which the replay for a client is dropped.
const STUCK_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of clients with queued replay requests, and of such requests per client; further
/// requests are ignored.
const MAX_REPLAY_REQUESTS_PER_CLIENT: usize = 16;
const MAX_REPLAY_CLIENTS: usize = 256;
/// Maximum number of messages that libzmq queues for one client, which bounds the memory for
/// clients that do not read.
const MAX_UNREAD: i32 = 64;
/// Maximum size of the messages kept for replay, in bytes; a single message may exceed it.
const MAX_KEPT_BYTES: usize = 256 << 20;
const END_OF_REPLAY_SEQUENCE: [u8; 8] = [0xff; 8];

#[derive(Debug)]
pub(super) struct EventReplayBuffer {
    kept: Mutex<KeptBatches>,
    capacity: usize,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct KeptBatches {
    batches: VecDeque<(u64, Arc<[u8]>)>,
    /// Total size of the message payloads kept for replay, in bytes.
    bytes: usize,
}

impl EventReplayBuffer {
    pub(super) fn new(capacity: usize) -> Self {
        Self { kept: Mutex::default(), capacity, max_bytes: MAX_KEPT_BYTES }
    }

    pub(super) fn store_published_message(&self, sequence_number: u64, payload: Arc<[u8]>) {
        if self.capacity == 0 {
            return;
        }
        let mut kept = self.kept.lock();
        let KeptBatches { batches, bytes } = &mut *kept;
        *bytes += payload.len();
        batches.push_back((sequence_number, payload));
        while batches.len() > self.capacity || *bytes > self.max_bytes && batches.len() > 1 {
            let oldest = batches.pop_front();
            *bytes -= oldest.map_or(0, |(_, payload)| payload.len());
        }
    }

    fn end_sequence(&self) -> u64 {
        let kept = self.kept.lock();
        kept.batches.back().map_or(0, |(last, _)| last + 1)
    }

    fn messages_in_range(&self, from: u64, end: u64, n: usize) -> Vec<(u64, Arc<[u8]>)> {
        let kept = self.kept.lock();
        let batches = &kept.batches;
        let start = batches.partition_point(|(sequence, _)| *sequence < from);
        let found = batches.range(start..).take(n);
        found.take_while(|(sequence, _)| *sequence < end).cloned().collect()
    }
}

#[derive(Debug)]
pub(super) struct EventReplaySocket {
    endpoint: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl EventReplaySocket {
    pub(super) fn start_replay_thread(
        context: &zmq::Context,
        endpoint: &str,
        topic: &str,
        buffer: Arc<EventReplayBuffer>,
    ) -> Result<Self, KvEventPublisherError> {
        let socket =
            open_router(context, endpoint).map_err(|source| KvEventPublisherError::Endpoint {
                field: "replay_endpoint",
                endpoint: endpoint.to_owned(),
                action: "bind",
                source,
            })?;
        let endpoint = bound_endpoint(&socket, endpoint);
        let stop = Arc::new(AtomicBool::new(false));
        let server = ReplayServer {
            socket,
            topic: topic.as_bytes().to_vec(),
            buffer,
            clients: IndexMap::new(),
        };
        let thread = thread::Builder::new().name("kv-replay".to_owned());
        let thread = thread.spawn({
            let stop = Arc::clone(&stop);
            move || server.run(&stop)
        })?;
        Ok(Self { endpoint, stop, thread: Some(thread) })
    }

    pub(super) fn bound_replay_endpoint(&self) -> &str {
        &self.endpoint
    }
}

impl Drop for EventReplaySocket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the KV event replay thread panicked");
        }
    }
}

fn open_router(context: &zmq::Context, endpoint: &str) -> zmq::Result<zmq::Socket> {
    let socket = context.socket(zmq::ROUTER)?;
    // Distinguishes a full client (retry) from one that has disconnected. Without it messages to
    // both are dropped.
    socket.set_router_mandatory(true)?;
    socket.set_sndhwm(MAX_UNREAD)?;
    socket.set_linger(0)?;
    socket.set_ipv6(endpoint.contains('['))?;
    socket.bind(endpoint)?;
    Ok(socket)
}

/// Replay in progress: the KV event batches with sequence numbers `next..end`, then the end marker.
#[derive(Debug)]
struct ReplayInProgress {
    next: u64,
    end: u64,
}

#[derive(Debug)]
struct ReplayClient {
    answers: VecDeque<ReplayInProgress>,
    stuck: Option<Instant>,
}

enum SendOutcome {
    Ready,
    Stuck,
    Done,
    Gone,
}

struct ReplayServer {
    socket: zmq::Socket,
    topic: Vec<u8>,
    buffer: Arc<EventReplayBuffer>,
    clients: IndexMap<Vec<u8>, ReplayClient>,
}

impl ReplayServer {
    fn run(mut self, stop: &AtomicBool) {
        let mut wait = IDLE_POLL_MS;
        while !stop.load(Ordering::Relaxed) {
            match self.socket.poll(zmq::POLLIN, wait) {
                Ok(_) | Err(zmq::Error::EINTR) => {}
                Err(error) => {
                    tracing::error!(%error, "KV event replay has ended");
                    return;
                }
            }
            for _ in 0..MAX_BATCHES_PER_TURN {
                match self.socket.recv_multipart(zmq::DONTWAIT) {
                    Ok(frames) => self.queue_replay_request(frames),
                    Err(_) => break,
                }
            }
            wait = self.serve_clients();
        }
    }

    /// Queues a replay request of three frames: identity, delimiter, first sequence number. Other
    /// messages are ignored.
    fn queue_replay_request(&mut self, frames: Vec<Vec<u8>>) {
        let Ok([identity, _, start]) = <[Vec<u8>; 3]>::try_from(frames) else {
            return;
        };
        if self.clients.len() >= MAX_REPLAY_CLIENTS && !self.clients.contains_key(&identity) {
            return;
        }
        let client = self
            .clients
            .entry(identity)
            .or_insert_with(|| ReplayClient { answers: VecDeque::new(), stuck: None });
        if client.answers.len() < MAX_REPLAY_REQUESTS_PER_CLIENT {
            let next = parse_sequence_number(&start);
            let end = self.buffer.end_sequence();
            client.answers.push_back(ReplayInProgress { next, end });
        }
    }

    /// Sends each replay client its next batches; returns the time to wait before the next round,
    /// in milliseconds.
    #[expect(
        clippy::disallowed_methods,
        reason = "an edge: a stuck client is given up in real time"
    )]
    fn serve_clients(&mut self) -> i64 {
        let mut wait = IDLE_POLL_MS;
        let (socket, topic, buffer) = (&self.socket, &self.topic, &self.buffer);
        self.clients.retain(|identity, client| {
            let wanted = match client.send_next_batches(identity, socket, topic, buffer) {
                SendOutcome::Ready => 0,
                SendOutcome::Stuck => {
                    let now = Instant::now();
                    let since = *client.stuck.get_or_insert(now);
                    if now.saturating_duration_since(since) >= STUCK_TIMEOUT {
                        tracing::debug!("a KV event replay client does not read and was dropped");
                        return false;
                    }
                    SEND_RETRY_MS
                }
                SendOutcome::Done | SendOutcome::Gone => return false,
            };
            wait = wait.min(wanted);
            true
        });
        wait
    }
}

impl ReplayClient {
    fn send_next_batches(
        &mut self,
        id: &[u8],
        socket: &zmq::Socket,
        topic: &[u8],
        buffer: &EventReplayBuffer,
    ) -> SendOutcome {
        let Some(answer) = self.answers.front_mut() else {
            return SendOutcome::Done;
        };
        let batches = buffer.messages_in_range(answer.next, answer.end, MAX_BATCHES_PER_TURN);
        let last = batches.len() < MAX_BATCHES_PER_TURN;
        let mut send = |frames: [&[u8]; 5]| match socket.send_multipart(frames, zmq::DONTWAIT) {
            Ok(()) => {
                self.stuck = None;
                None
            }
            Err(zmq::Error::EAGAIN) => Some(SendOutcome::Stuck),
            Err(_) => Some(SendOutcome::Gone),
        };
        for (sequence, payload) in batches {
            if let Some(turn) = send([id, &[], topic, &sequence.to_be_bytes(), &payload]) {
                return turn;
            }
            answer.next = sequence + 1;
        }
        if last {
            if let Some(turn) = send([id, &[], &[], &END_OF_REPLAY_SEQUENCE, &[]]) {
                return turn;
            }
            self.answers.pop_front();
        }
        SendOutcome::Ready
    }
}

/// Parses a big-endian sequence number of any length; saturates on overflow.
fn parse_sequence_number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(
        0u64,
        |n, &byte| {
            if n >> 56 == 0 { n << 8 | u64::from(byte) } else { u64::MAX }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replay_buffer_keeps_the_last_batches_and_their_gaps() {
        let buffer = EventReplayBuffer::new(3);
        for sequence in [0, 1, 4, 5] {
            buffer.store_published_message(sequence, [sequence as u8].as_slice().into());
        }
        let sequences = |from, end, n| -> Vec<u64> {
            buffer.messages_in_range(from, end, n).into_iter().map(|(s, _)| s).collect()
        };
        assert_eq!(buffer.end_sequence(), 6);
        assert_eq!(sequences(0, 6, 9), [1, 4, 5]);
        assert_eq!(sequences(2, 5, 9), [4]);
        assert_eq!(sequences(0, 6, 2), [1, 4]);
        assert_eq!(sequences(6, 6, 9), [0; 0]);
    }

    #[test]
    fn large_batches_leave_the_replay_buffer_by_their_bytes() {
        let buffer = EventReplayBuffer { max_bytes: 1 << 20, ..EventReplayBuffer::new(10_000) };
        for sequence in 0..10 {
            buffer.store_published_message(sequence, vec![0; 300_000].into());
        }
        let kept = buffer.messages_in_range(0, 10, 99);
        assert_eq!(kept.first().map(|(first, _)| *first), Some(7));
        buffer.store_published_message(10, vec![0; 5_000_000].into());
        let kept = buffer.messages_in_range(0, 11, 99);
        assert_eq!(kept.len(), 1, "the newest batch is kept, however large");
    }

    #[test]
    fn replay_start_number_may_have_any_length() {
        assert_eq!(parse_sequence_number(&[]), 0);
        assert_eq!(parse_sequence_number(&[0, 0, 1, 2]), 258);
        assert_eq!(parse_sequence_number(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 7]), 7);
        assert_eq!(parse_sequence_number(&[0xff; 8]), u64::MAX);
        assert_eq!(parse_sequence_number(&[1, 0, 0, 0, 0, 0, 0, 0, 0]), u64::MAX);
    }
}
