//! The queue of messages to one front end, written to its output socket without blocking.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::handshake::SOCKET_LINGER_MS;

/// Maximum number of aborted requests that a front end is still to be notified of.
const MAX_DEFERRED_ABORTS: usize = 65_536;
/// Limits on the messages that wait for a slow front end: their number, and their bytes in total.
///
/// libzmq limits only messages, so its own queue is short
/// ([`OUTPUT_SOCKET_HIGH_WATER_MARK`](super::handshake::OUTPUT_SOCKET_HIGH_WATER_MARK)).
const MAX_UNREAD_MESSAGES: usize = 100_000;
const MAX_UNREAD_BYTES: usize = 64 << 20;

pub(crate) struct FrontEndOutputQueue {
    socket: zmq::Socket,
    client: usize,
    unsent: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Ids of aborted requests of which the front end is not yet notified.
    deferred_aborts: BTreeSet<Arc<str>>,
    /// Whether the queue of messages to the front end reached its size limit; reset at half the
    /// limit.
    full: bool,
}

impl FrontEndOutputQueue {
    pub(crate) fn new(client_index: usize, output_socket: zmq::Socket) -> Self {
        Self {
            socket: output_socket,
            client: client_index,
            unsent: VecDeque::new(),
            bytes: 0,
            deferred_aborts: BTreeSet::new(),
            full: false,
        }
    }

    pub(crate) fn has_pending_messages(&self) -> bool {
        self.full || !self.unsent.is_empty() || !self.deferred_aborts.is_empty()
    }

    pub(crate) fn is_output_queue_full(&self) -> bool {
        self.full
    }

    /// Sends queued messages to the front end, and waits up to `max_wait` for room in the output
    /// socket.
    ///
    /// Returns whether a message was sent.
    pub(crate) fn send_queued_messages(&mut self, max_wait: Duration) -> bool {
        let before = self.unsent.len();
        while let Some(message) = self.unsent.front() {
            match self.socket.send(message.as_slice(), zmq::DONTWAIT) {
                Err(zmq::Error::EAGAIN) => {
                    let millis = max_wait.as_millis() as i64;
                    let room = self.socket.poll(zmq::POLLOUT, millis).unwrap_or(0);
                    if max_wait.is_zero() || room == 0 {
                        break;
                    }
                    continue;
                }
                Err(error) => {
                    tracing::warn!(client = self.client, %error, "cannot send to the front end");
                }
                Ok(()) => {}
            }
            self.bytes = self.bytes.saturating_sub(message.len());
            self.unsent.pop_front();
        }
        if self.full && self.has_room_again() {
            self.full = false;
            tracing::info!(client = self.client, "the front end reads its outputs again");
        }
        self.unsent.len() < before
    }

    /// Returns whether the message queue of a front end is at most half full. Only then is the flag
    /// `full` reset, so that the flag does not alternate with every message.
    fn has_room_again(&self) -> bool {
        self.unsent.len() <= MAX_UNREAD_MESSAGES / 2 && self.bytes <= MAX_UNREAD_BYTES / 2
    }

    /// Sends or queues a message to the front end; returns `false` if the front end's queue is
    /// full.
    pub(crate) fn send_or_queue_message(&mut self, message: Vec<u8>) -> bool {
        self.send_queued_messages(Duration::ZERO);
        let bytes = self.bytes.saturating_add(message.len());
        // A single message may exceed the limit.
        let fits = self.unsent.is_empty()
            || bytes <= MAX_UNREAD_BYTES && self.unsent.len() < MAX_UNREAD_MESSAGES;
        if self.full || !fits {
            if !std::mem::replace(&mut self.full, true) {
                tracing::warn!(
                    client = self.client,
                    unread = self.unsent.len(),
                    bytes = self.bytes,
                    "the front end does not read its outputs: its requests are aborted"
                );
            }
            return false;
        }
        self.bytes = bytes;
        self.unsent.push_back(message);
        self.send_queued_messages(Duration::ZERO);
        true
    }

    /// Sends the front end its queued messages, then the message `last`, for at most the linger
    /// time of the socket ([`SOCKET_LINGER_MS`]).
    #[expect(clippy::disallowed_methods, reason = "sockets work in real time")]
    pub(crate) fn send_last_message(&mut self, last: Option<&[u8]>) {
        self.unsent.extend(last.map(<[u8]>::to_vec));
        let until = Instant::now() + Duration::from_millis(SOCKET_LINGER_MS.unsigned_abs().into());
        while !self.unsent.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if !self.send_queued_messages(left) && left.is_zero() {
                return;
            }
        }
    }

    /// Records aborted requests of which the front end is to be notified once its queue has room.
    pub(crate) fn defer_abort_notifications(&mut self, ids: impl IntoIterator<Item = Arc<str>>) {
        let room = MAX_DEFERRED_ABORTS.saturating_sub(self.deferred_aborts.len());
        self.deferred_aborts.extend(ids.into_iter().take(room));
    }

    pub(crate) fn deferred_abort_ids(&self) -> &BTreeSet<Arc<str>> {
        &self.deferred_aborts
    }

    pub(crate) fn clear_deferred_abort_ids(&mut self) {
        self.deferred_aborts.clear();
    }
}
