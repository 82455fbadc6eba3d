//! Limits the log lines of an event that a flood of requests repeats.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts an event, and selects its 1st, 2nd, 4th, 8th, … occurrence for the log.
#[derive(Debug, Default)]
pub(crate) struct LogRateLimit(AtomicU64);

impl LogRateLimit {
    /// Counts an occurrence; returns the count if it belongs into the log.
    pub(crate) fn count_and_select(&self) -> Option<u64> {
        let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        count.is_power_of_two().then_some(count)
    }
}
