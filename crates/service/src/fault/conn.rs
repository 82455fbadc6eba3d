use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A handle by which an injected fault breaks a connection.
///
/// The task that serves the connection awaits [`Self::broken`] in parallel with its work, then
/// drops the socket. [`Self::is_reset`] selects a TCP reset instead of a regular close.
#[derive(Debug, Default)]
pub struct ConnHandle {
    reset: AtomicBool,
    broken: Notify,
}

impl ConnHandle {
    /// Breaks the connection with a TCP reset, regardless of pending I/O.
    pub fn reset(&self) {
        self.reset.store(true, Ordering::Release);
        self.broken.notify_one();
    }

    /// Returns whether the connection must be closed with a TCP reset.
    pub fn is_reset(&self) -> bool {
        self.reset.load(Ordering::Acquire)
    }

    /// Resolves when the connection must be broken.
    pub async fn broken(&self) {
        self.broken.notified().await;
    }
}
