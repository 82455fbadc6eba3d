//! The output socket of one front end, which is never waited for.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::handshake::MOST_UNREAD;

/// Requests that a front end may be owed an end.
const MOST_OWED: usize = 65_536;

/// Where the answers to one front end go.
pub(crate) struct Outlet {
    socket: zmq::Socket,
    client: usize,
    /// Requests that were given up because it does not read, until it is told.
    owed: BTreeSet<Arc<str>>,
    /// Whether its socket is full.
    full: bool,
}

impl Outlet {
    pub(crate) fn new(client: usize, socket: zmq::Socket) -> Self {
        Self {
            socket,
            client,
            owed: BTreeSet::new(),
            full: false,
        }
    }

    /// Whether it does not read what it is sent.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Looks whether one that did not read does so now.
    pub(crate) fn look(&mut self) {
        if self.full && self.socket.poll(zmq::POLLOUT, 0).is_ok_and(|n| n > 0) {
            self.note_room();
        }
    }

    fn note_room(&mut self) {
        if std::mem::replace(&mut self.full, false) {
            tracing::info!(client = self.client, "the front end reads again");
        }
    }

    /// Sends a message, unless there is no room for it.
    pub(crate) fn send(&mut self, message: &[u8]) -> bool {
        match self.socket.send(message, zmq::DONTWAIT) {
            Ok(()) => {
                self.note_room();
                true
            }
            Err(zmq::Error::EAGAIN) => {
                if !std::mem::replace(&mut self.full, true) {
                    tracing::warn!(
                        client = self.client,
                        unread = MOST_UNREAD,
                        "the front end does not read its answers: its requests are aborted"
                    );
                }
                false
            }
            Err(error) => {
                tracing::warn!(client = self.client, %error, "cannot send to the front end");
                false
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
