//! The output socket of one front end, which is never waited for.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::handshake::LINGER_MS;

/// Requests that a front end may be owed an end.
const MOST_OWED: usize = 65_536;
/// Messages that may wait for a front end that does not read, and their bytes. Those that libzmq
/// has are few ([`MOST_IN_SOCKET`](super::handshake::MOST_IN_SOCKET)), as it counts no bytes.
const MOST_UNREAD: usize = 100_000;
const MOST_UNREAD_BYTES: usize = 64 << 20;

/// Where the answers to one front end go.
pub(crate) struct Outlet {
    socket: zmq::Socket,
    client: usize,
    /// Messages that the socket has no room for.
    unsent: VecDeque<Vec<u8>>,
    /// The bytes of those.
    bytes: usize,
    /// Requests that were given up because it does not read, until it is told.
    owed: BTreeSet<Arc<str>>,
    /// Records whether as much waits for it as may.
    full: bool,
}

impl Outlet {
    pub(crate) fn new(client: usize, socket: zmq::Socket) -> Self {
        Self {
            socket,
            client,
            unsent: VecDeque::new(),
            bytes: 0,
            owed: BTreeSet::new(),
            full: false,
        }
    }

    /// Returns whether something waits until it reads.
    pub(crate) fn waits(&self) -> bool {
        self.full || !self.unsent.is_empty() || !self.owed.is_empty()
    }

    /// Returns whether it does not read what it is sent.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Sends what waits as long as the socket takes it, and waits so long for it to do so; `true`
    /// when something went out.
    pub(crate) fn flush(&mut self, patience: Duration) -> bool {
        let before = self.unsent.len();
        while let Some(message) = self.unsent.front() {
            match self.socket.send(message.as_slice(), zmq::DONTWAIT) {
                Err(zmq::Error::EAGAIN) => {
                    let millis = patience.as_millis() as i64;
                    let room = self.socket.poll(zmq::POLLOUT, millis).unwrap_or(0);
                    if patience.is_zero() || room == 0 {
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
            tracing::info!(client = self.client, "the front end reads again");
        }
        self.unsent.len() < before
    }

    /// Half of what may wait, so that it is not told twice of each message.
    fn has_room_again(&self) -> bool {
        self.unsent.len() <= MOST_UNREAD / 2 && self.bytes <= MOST_UNREAD_BYTES / 2
    }

    /// Sends a message, or has it wait, unless there is no room for it.
    pub(crate) fn send(&mut self, message: Vec<u8>) -> bool {
        self.flush(Duration::ZERO);
        let bytes = self.bytes.saturating_add(message.len());
        // One alone may be of any size.
        let fits =
            self.unsent.is_empty() || bytes <= MOST_UNREAD_BYTES && self.unsent.len() < MOST_UNREAD;
        if self.full || !fits {
            if !std::mem::replace(&mut self.full, true) {
                tracing::warn!(
                    client = self.client,
                    unread = self.unsent.len(),
                    bytes = self.bytes,
                    "the front end does not read its answers: its requests are aborted"
                );
            }
            return false;
        }
        self.bytes = bytes;
        self.unsent.push_back(message);
        self.flush(Duration::ZERO);
        true
    }

    /// Sends the last message, behind all that waits, as long as a socket that closes may take.
    #[expect(clippy::disallowed_methods, reason = "sockets work in real time")]
    pub(crate) fn end(&mut self, last: Option<&[u8]>) {
        self.unsent.extend(last.map(<[u8]>::to_vec));
        let until = Instant::now() + Duration::from_millis(LINGER_MS.unsigned_abs().into());
        while !self.unsent.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if !self.flush(left) && left.is_zero() {
                return;
            }
        }
    }

    /// Its requests that end unheard.
    pub(crate) fn owe(&mut self, ids: impl IntoIterator<Item = Arc<str>>) {
        let room = MOST_OWED.saturating_sub(self.owed.len());
        self.owed.extend(ids.into_iter().take(room));
    }

    /// What it is owed, once there is room for it.
    pub(crate) fn owed(&self) -> &BTreeSet<Arc<str>> {
        &self.owed
    }

    /// It has been told.
    pub(crate) fn settle(&mut self) {
        self.owed.clear();
    }
}
