//! Limits the memory of all large requests and responses together.
//!
//! Each request and response has a limit of its own ([`reply_size`](super::reply_size)), but many
//! clients together could take any amount.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Minimum size of a counted message, in bytes.
const LARGE: u64 = 16 << 20;
/// Maximum size of all counted messages, in bytes.
const MAX_BYTES: u64 = 2 << 30;

/// Error of a large message for which the limit of all large messages has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "The requests and responses in progress would take more than {} MiB. Please retry when some of \
     them have ended.",
    MAX_BYTES >> 20
)]
pub struct MessageMemoryFull;

/// Counts the bytes of all large requests and responses in progress.
#[derive(Debug, Clone, Default)]
pub struct MessageMemory(Arc<AtomicU64>);

/// Guard of a large message: its bytes count until the guard is dropped.
#[derive(Debug)]
pub struct MessageReservation {
    bytes: u64,
    total: Arc<AtomicU64>,
}

impl Drop for MessageReservation {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl MessageMemory {
    /// Counts a message of `bytes` bytes until the guard is dropped; `None` for a small one.
    ///
    /// # Errors
    /// [`MessageMemoryFull`] if all large messages would exceed their limit.
    pub fn reserve(&self, bytes: u64) -> Result<Option<MessageReservation>, MessageMemoryFull> {
        if bytes < LARGE {
            return Ok(None);
        }
        let fits = |now: u64| {
            let then = now.saturating_add(bytes);
            (then <= MAX_BYTES).then_some(then)
        };
        let reserved = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        reserved.map_err(|_| MessageMemoryFull)?;
        Ok(Some(MessageReservation { bytes, total: self.0.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_messages_have_a_common_limit() {
        let memory = MessageMemory::default();
        let large = || memory.reserve(256 << 20);
        let mut held: Vec<_> = (0..8).map(|_| large().unwrap()).collect();
        assert!(large().is_err());
        assert!(memory.reserve(LARGE - 1).unwrap().is_none());
        held.pop();
        assert!(large().is_ok());
        assert!(memory.reserve(u64::MAX).is_err());
    }
}
