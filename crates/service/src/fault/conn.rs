use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A handle by which an injected fault breaks a client connection.
///
/// The task that serves the connection awaits [`Self::wait_until_broken`] in parallel with its work, then
/// drops the socket. [`Self::is_reset`] selects a TCP reset instead of a regular close.
#[derive(Debug, Default)]
pub struct ConnectionHandle {
    reset: AtomicBool,
    broken: Notify,
}

impl ConnectionHandle {
    /// Breaks the connection with a TCP reset, regardless of pending I/O.
    pub fn reset_connection(&self) {
        self.reset.store(true, Ordering::Release);
        self.broken.notify_one();
    }

    /// Returns whether the connection must be closed with a TCP reset instead of a regular close.
    pub fn is_reset(&self) -> bool {
        self.reset.load(Ordering::Acquire)
    }

    /// Resolves when an injected fault breaks the connection.
    pub async fn wait_until_broken(&self) {
        self.broken.notified().await;
    }
}
