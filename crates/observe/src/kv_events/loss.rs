//! Injected loss of KV event messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Switch for the loss of KV event messages, shared by the publishers of a server.
///
/// A lost message uses its sequence number, and the replay endpoint still returns it.
#[derive(Debug, Clone, Default)]
pub struct EventLossSwitch(Arc<AtomicBool>);

impl EventLossSwitch {
    /// Starts or stops the loss of KV event messages.
    pub fn set_losing(&self, losing: bool) {
        self.0.store(losing, Ordering::Relaxed);
    }

    #[cfg(feature = "zmq")]
    pub(super) fn is_losing(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
