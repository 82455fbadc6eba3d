//! Prefill and decode on different servers: the leases of KV blocks that another server fetches, and
//! the handshakes of a decode server.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::InferenceService;
use vllm_sim_engine::driver::KvSourceServer;
use vllm_sim_engine::{EngineCommand, SeqId, SimTime};

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
