//! Limits of a server's admission: sequences in flight, prompt tokens that are not yet computed, and
//! the memory of all large requests and responses together. Also the load that a server reports.
//!
//! Each request and response has a limit of its own ([`ReplySize`](super::job::ReplySize)), but many
//! clients together could take any amount.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use vllm_sim_engine::driver::{SequenceState, SharedSequenceProgress};

/// Limits on the requests in flight, from arrival to end; `None` means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AdmissionLimits {
    /// Maximum number of sequences in flight, waiting and running.
    pub requests: Option<u32>,
    /// Maximum number of prompt tokens that the engines have not yet computed.
    pub tokens: Option<u64>,
}

/// Counter of the prompt tokens of sequences without output so far, limited by
/// `--max-num-queued-tokens`.
///
/// Source: vLLM 0.33 `v1/engine/output_processor.py` counts the prompt once per choice, and
/// `v1/engine/async_llm.py` rejects every request at or above the limit.
#[derive(Default)]
pub(super) struct PrefillTokenBacklog(Mutex<OpenPrefills>);

#[derive(Default)]
struct OpenPrefills {
    open: Vec<OpenPrefill>,
    /// Number of prompt tokens of jobs that are not yet submitted to the engine.
    reserved: u64,
}

impl OpenPrefills {
    fn total_tokens(&mut self) -> u64 {
        self.open.retain(OpenPrefill::is_open);
        let open = self.open.iter().map(|prefill| u64::from(prefill.tokens));
        open.fold(self.reserved, u64::saturating_add)
    }
}

/// Guard of a generation job's prompt tokens: counts these tokens until the job's sequences are
/// submitted, which then count them.
pub(super) struct PrefillTokenReservation<'b> {
    backlog: &'b PrefillTokenBacklog,
    tokens: u64,
}

impl Drop for PrefillTokenReservation<'_> {
    fn drop(&mut self) {
        let mut prefills = self.backlog.lock();
        prefills.reserved = prefills.reserved.saturating_sub(self.tokens);
    }
}

struct OpenPrefill {
    progress: Weak<SharedSequenceProgress>,
    tokens: u32,
}

impl OpenPrefill {
    fn is_open(&self) -> bool {
        self.progress.upgrade().is_some_and(|progress| {
            progress.released_output_tokens() == 0
                && !matches!(progress.state(), SequenceState::Ended(_))
        })
    }
}

impl PrefillTokenBacklog {
    fn lock(&self) -> MutexGuard<'_, OpenPrefills> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts `tokens` prompt tokens until the guard is dropped; returns `None` if `max` tokens are
    /// already counted.
    pub(super) fn reserve_prefill_tokens(
        &self,
        tokens: u64,
        max: u64,
    ) -> Option<PrefillTokenReservation<'_>> {
        let mut prefills = self.lock();
        if prefills.total_tokens() >= max {
            return None;
        }
        prefills.reserved = prefills.reserved.saturating_add(tokens);
        Some(PrefillTokenReservation { backlog: self, tokens })
    }

    pub(super) fn add_prefill(&self, progress: &Arc<SharedSequenceProgress>, tokens: u32) {
        let progress = Arc::downgrade(progress);
        self.lock().open.push(OpenPrefill { progress, tokens });
    }

    pub(super) fn total_backlog_tokens(&self) -> u64 {
        self.lock().total_tokens()
    }
}

/// Counter of requests in progress, the load that a server reports.
#[derive(Debug, Clone, Default)]
pub struct ServerLoad(Arc<AtomicI64>);

/// Guard of a request, which counts in the server's load until the guard is dropped.
#[derive(Debug)]
pub struct ServerLoadGuard(ServerLoad);

impl ServerLoad {
    /// Counts a request in the server's load until the returned guard is dropped.
    pub fn count_request(&self) -> ServerLoadGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        ServerLoadGuard(self.clone())
    }

    /// Returns the number of requests in progress.
    pub fn in_progress_request_count(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for ServerLoadGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Minimum size of a request or response that counts as large, in bytes.
const LARGE_MESSAGE_BYTES: u64 = 16 << 20;
/// Maximum size of all large requests and responses in progress, in bytes.
const MAX_MESSAGES_BYTES: u64 = 2 << 30;

/// Error of a large request or response that would exceed the memory limit for all large requests
/// and responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "The requests and responses in progress would take more than {} MiB. Please retry when some of \
     them have ended.",
    MAX_MESSAGES_BYTES >> 20
)]
pub struct LargeBodyMemoryFull;

/// Counter of the bytes of all large requests and responses in progress.
#[derive(Debug, Clone, Default)]
pub struct LargeBodyMemory(Arc<AtomicU64>);

/// Guard of a large request or response: its bytes count until the guard is dropped.
#[derive(Debug)]
pub struct LargeBodyReservation {
    bytes: u64,
    total: Arc<AtomicU64>,
}

impl Drop for LargeBodyReservation {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl LargeBodyMemory {
    /// Counts a request or response of `bytes` bytes until the guard is dropped; `None` for a small
    /// one.
    ///
    /// # Errors
    /// [`LargeBodyMemoryFull`] if all large messages would exceed their limit.
    pub fn reserve_body_bytes(
        &self,
        bytes: u64,
    ) -> Result<Option<LargeBodyReservation>, LargeBodyMemoryFull> {
        if bytes < LARGE_MESSAGE_BYTES {
            return Ok(None);
        }
        let fits = |now: u64| {
            let then = now.saturating_add(bytes);
            (then <= MAX_MESSAGES_BYTES).then_some(then)
        };
        let reserved = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        reserved.map_err(|_| LargeBodyMemoryFull)?;
        Ok(Some(LargeBodyReservation { bytes, total: self.0.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_messages_have_a_common_limit() {
        let memory = LargeBodyMemory::default();
        let large = || memory.reserve_body_bytes(256 << 20);
        let mut held: Vec<_> = (0..8).map(|_| large().unwrap()).collect();
        assert!(large().is_err());
        assert!(memory.reserve_body_bytes(LARGE_MESSAGE_BYTES - 1).unwrap().is_none());
        held.pop();
        assert!(large().is_ok());
        assert!(memory.reserve_body_bytes(u64::MAX).is_err());
    }
}
