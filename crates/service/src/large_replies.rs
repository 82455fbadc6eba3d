//! Limits the memory of all large responses together.
//!
//! Each response has a limit of its own ([`reply_size`](super::reply_size)), but many clients that do
//! not read could each keep one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Minimum size of a counted response, in bytes.
const LARGE: u64 = 16 << 20;
/// Maximum size of all counted responses, in bytes.
const MAX_BYTES: u64 = 2 << 30;

/// Error of a large response for which the limit of all large responses has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "The responses in progress would take more than {} MiB. Please retry when some of them have \
     been read.",
    MAX_BYTES >> 20
)]
pub struct RepliesTooLarge;

/// Counts the bytes of all large responses that are generated or wait for their clients.
#[derive(Debug, Clone, Default)]
pub struct LargeReplies(Arc<AtomicU64>);

/// Guard of a large response: its bytes count until the guard is dropped.
#[derive(Debug)]
pub struct LargeReplyReservation {
    bytes: u64,
    total: Arc<AtomicU64>,
}

impl Drop for LargeReplyReservation {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl LargeReplies {
    /// Counts a response of `bytes` bytes until the guard is dropped; `None` for a small one.
    ///
    /// # Errors
    /// [`RepliesTooLarge`] if all large responses would exceed their limit.
    pub fn reserve(&self, bytes: u64) -> Result<Option<LargeReplyReservation>, RepliesTooLarge> {
        if bytes < LARGE {
            return Ok(None);
        }
        let fits = |now: u64| {
            let then = now.saturating_add(bytes);
            (then <= MAX_BYTES).then_some(then)
        };
        let reserved = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        reserved.map_err(|_| RepliesTooLarge)?;
        Ok(Some(LargeReplyReservation { bytes, total: self.0.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_replies_have_a_common_limit() {
        let replies = LargeReplies::default();
        let large = || replies.reserve(256 << 20);
        let mut held: Vec<_> = (0..8).map(|_| large().unwrap()).collect();
        assert!(large().is_err());
        assert!(replies.reserve(LARGE - 1).unwrap().is_none());
        held.pop();
        assert!(large().is_ok());
        assert!(replies.reserve(u64::MAX).is_err());
    }
}
