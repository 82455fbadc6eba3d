//! Events that are lost on purpose.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the messages of a server's publishers are lost on their way to the subscribers: their
/// numbers are used up, and a replay socket still has them.
#[derive(Debug, Clone, Default)]
pub struct EventLoss(Arc<AtomicBool>);

impl EventLoss {
    /// From now on messages are lost, or arrive.
    pub fn set(&self, losing: bool) {
        self.0.store(losing, Ordering::Relaxed);
    }

    #[cfg(feature = "zmq")]
    pub(super) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
