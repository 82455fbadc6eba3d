use std::sync::{Arc, OnceLock};

use vllm_sim_engine::End;
use vllm_sim_engine::driver::{Progress, SequenceState};

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
