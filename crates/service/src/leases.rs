use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::InferenceService;
use vllm_sim_engine::SimTime;
use vllm_sim_engine::{EngineCommand, SeqId};

/// Minimum age at which a lease that no server has claimed is forgotten; exceeds every request and
/// lease duration.
const LEASE_RETENTION: Duration = Duration::from_secs(4 * 3600);

/// Leases of finished prefills whose KV blocks other servers may still read, by
/// `remote_request_id`.
#[derive(Debug, Default)]
pub(super) struct KvBlockLeases(Mutex<HashMap<String, (usize, SeqId, SimTime)>>);

impl KvBlockLeases {
    pub(super) fn add_lease(&self, request: String, rank: usize, id: SeqId, now: SimTime) {
        let mut open = self.0.lock();
        if open.len() >= 1024 && open.len().is_power_of_two() {
            open.retain(|_, (_, _, since)| now - *since < LEASE_RETENTION);
        }
        open.insert(request, (rank, id, now));
    }

    pub(super) fn clear(&self) {
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
    pub fn release_prefill_blocks(&self, request: &str) -> bool {
        let found = self.leases.take_lease(request);
        found.is_some_and(|(rank, id)| {
            self.rank_engines()[rank].apply_command(EngineCommand::Release(id))
        })
    }
}
