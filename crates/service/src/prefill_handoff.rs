//! Prefill and decode on different servers: the hand-off of a prompt, the leases of its KV blocks, and
//! the handshakes of a decode server.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::InferenceService;
use vllm_sim_engine::driver::{KvSourceServer, SequenceState, SharedSequenceProgress};
use vllm_sim_engine::{EngineCommand, SeqId, SequenceEndReason, SimTime};

/// Callback for the end of a prefill hand-off; its argument is true if this server has prefilled
/// the prompt.
type EndReport = Box<dyn Fn(bool) + Send + Sync>;

/// The hand-off of a prompt that is prefilled on this server for another server to decode.
pub struct PrefillHandoff {
    /// Request id by which the decode server names the KV cache (`remote_request_id`).
    pub request: String,
    placed: OnceLock<(u32, Arc<SharedSequenceProgress>)>,
    on_end: Option<EndReport>,
}

impl fmt::Debug for PrefillHandoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefillHandoff").field("request", &self.request).finish_non_exhaustive()
    }
}

impl Drop for PrefillHandoff {
    fn drop(&mut self) {
        if let Some(report) = &self.on_end {
            report(self.block_ids_and_output_tokens().is_some());
        }
    }
}

impl PrefillHandoff {
    /// Creates the hand-off of a prefill request that is not yet submitted.
    pub fn new(request_id: String) -> Self {
        Self { request: request_id, placed: OnceLock::new(), on_end: None }
    }

    /// Creates a hand-off whose drop calls `on_end`, with true if the prompt was prefilled. The
    /// drop occurs at the end of the reply or after a refusal.
    pub fn with_end_callback(
        request_id: String,
        on_end: impl Fn(bool) + Send + Sync + 'static,
    ) -> Self {
        Self { request: request_id, placed: OnceLock::new(), on_end: Some(Box::new(on_end)) }
    }

    /// Returns the index of the data-parallel rank that prefills the prompt; `None` before
    /// submission.
    pub fn prefill_rank(&self) -> Option<u32> {
        self.placed.get().map(|(rank, _)| *rank)
    }

    /// Returns the prompt's KV block ids and the number of output tokens; `None` until the request
    /// has finished.
    pub fn block_ids_and_output_tokens(&self) -> Option<(&[u32], u32)> {
        let (_, progress) = self.placed.get()?;
        let finished = progress.state() == SequenceState::Ended(SequenceEndReason::Finished);
        finished.then(|| {
            (progress.leased_block_ids().unwrap_or_default(), progress.released_output_tokens())
        })
    }

    pub(super) fn set_rank_and_progress(
        &self,
        rank: usize,
        progress: &Arc<SharedSequenceProgress>,
    ) {
        // Runs once per request.
        let _ = self.placed.set((rank as u32, Arc::clone(progress)));
    }
}

/// Performs the handshakes of a decode server with prefill servers.
pub trait PrefillHandshake: fmt::Debug + Send + Sync {
    /// Begins the handshake with the prefill server of a request; the returned receiver gets true
    /// if the handshake succeeds. Returns `None` if no handshake is needed.
    fn begin(&self, source: &Arc<KvSourceServer>) -> Option<oneshot::Receiver<bool>>;
}

/// Minimum age at which a lease on prefilled KV blocks is dropped if no decode server has claimed
/// the lease. This age exceeds the duration of every request and lease.
const LEASE_RETENTION: Duration = Duration::from_secs(4 * 3600);

/// Leases of finished prefills whose KV blocks other servers may still read, by
/// `remote_request_id`.
#[derive(Debug, Default)]
pub(super) struct KvBlockLeases(Mutex<HashMap<String, (usize, SeqId, SimTime)>>);

impl KvBlockLeases {
    pub(super) fn add_kv_block_lease(
        &self,
        request_id: String,
        rank: usize,
        sequence_id: SeqId,
        now: SimTime,
    ) {
        let mut open = self.0.lock();
        if open.len() >= 1024 && open.len().is_power_of_two() {
            open.retain(|_, (_, _, since)| now - *since < LEASE_RETENTION);
        }
        open.insert(request_id, (rank, sequence_id, now));
    }

    pub(super) fn clear_kv_block_leases(&self) {
        self.0.lock().clear();
    }

    fn take_lease(&self, request: &str) -> Option<(usize, SeqId)> {
        let (rank, id, _) = self.0.lock().remove(request)?;
        Some((rank, id))
    }
}

impl InferenceService {
    /// Releases the KV blocks of a prefilled request that a decode server has read.
    ///
    /// Returns whether the blocks were still leased.
    pub fn release_prefill_blocks(&self, request_id: &str) -> bool {
        let found = self.leases.take_lease(request_id);
        found.is_some_and(|(rank, id)| {
            self.rank_engines()[rank].apply_command(EngineCommand::Release(id))
        })
    }
}
