use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::Service;
use vllm_sim_engine::SimTime;
use vllm_sim_engine::driver::{Progress, SequenceState};
use vllm_sim_engine::{Command, End, SeqId};

/// A name that nobody asked for is forgotten after this long at the earliest: longer than any
/// request runs and any lease lasts.
const FORGET: Duration = Duration::from_secs(4 * 3600);

/// A prompt that is computed for another server: where, once that is decided.
#[derive(Debug)]
pub struct HandOver {
    /// How the other server will call it (`remote_request_id`).
    pub request: String,
    placed: OnceLock<(u32, Arc<Progress>)>,
}

impl HandOver {
    /// A request that nobody has taken yet.
    pub fn new(request: String) -> Self {
        Self {
            request,
            placed: OnceLock::new(),
        }
    }

    /// The index of the rank that computes it.
    pub fn rank(&self) -> Option<u32> {
        self.placed.get().map(|(rank, _)| *rank)
    }

    /// Its blocks, once it has finished, and the output tokens it has.
    pub fn outcome(&self) -> Option<(&[u32], u32)> {
        let (_, progress) = self.placed.get()?;
        let finished = progress.state() == SequenceState::Ended(End::Finished);
        finished.then(|| (progress.leased().unwrap_or_default(), progress.released()))
    }

    pub(super) fn place(&self, rank: usize, progress: &Arc<Progress>) {
        // A job is generated once.
        let _ = self.placed.set((rank as u32, Arc::clone(progress)));
    }
}

/// Requests whose blocks may be kept for other servers, by the name these use.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<HashMap<String, (usize, SeqId, SimTime)>>);

impl Leases {
    pub(super) fn note(&self, request: String, rank: usize, id: SeqId, now: SimTime) {
        let mut open = self.0.lock();
        if open.len() >= 1024 && open.len().is_power_of_two() {
            open.retain(|_, (_, _, since)| now - *since < FORGET);
        }
        open.insert(request, (rank, id, now));
    }

    fn take(&self, request: &str) -> Option<(usize, SeqId)> {
        let (rank, id, _) = self.0.lock().remove(request)?;
        Some((rank, id))
    }
}

impl Service {
    /// Another server has read the blocks of a request: whether they were still kept.
    pub fn release(&self, request: &str) -> bool {
        let found = self.leases.take(request);
        found.is_some_and(|(rank, id)| self.ranks()[rank].command(Command::Release(id)))
    }
}
