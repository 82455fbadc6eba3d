use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A connection as faults see it: it can be told to break.
///
/// The task that serves the connection waits for [`Self::broken`] beside its work and then drops
/// the socket; [`Self::is_reset`] tells the socket to leave with a reset.
#[derive(Debug, Default)]
pub struct ConnHandle {
    reset: AtomicBool,
    broken: Notify,
}

impl ConnHandle {
    /// Breaks the connection with a TCP reset, whatever else is under way on it.
    pub fn reset(&self) {
        self.reset.store(true, Ordering::Release);
        self.broken.notify_one();
    }

    /// Whether the connection is to leave with a reset.
    pub fn is_reset(&self) -> bool {
        self.reset.load(Ordering::Acquire)
    }

    /// Returns when the connection is to break.
    pub async fn broken(&self) {
        self.broken.notified().await;
    }
}
