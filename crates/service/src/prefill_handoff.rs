use std::sync::{Arc, OnceLock};

use vllm_sim_engine::End;
use vllm_sim_engine::driver::{Progress, SequenceState};

/// The hand-off of a prompt that is prefilled on this server for another server to decode.
#[derive(Debug)]
pub struct PrefillHandoff {
    /// Request id by which the decode server names the KV cache (`remote_request_id`).
    pub request: String,
    placed: OnceLock<(u32, Arc<Progress>)>,
}

impl PrefillHandoff {
    /// Creates the hand-off of a prefill request that is not yet submitted.
    pub fn new(request: String) -> Self {
        Self {
            request,
            placed: OnceLock::new(),
        }
    }

    /// Returns the index of the data-parallel rank that prefills the prompt; `None` before
    /// submission.
    pub fn rank(&self) -> Option<u32> {
        self.placed.get().map(|(rank, _)| *rank)
    }

    /// Returns the prompt's KV block ids and the number of output tokens; `None` until the request
    /// has finished.
    pub fn outcome(&self) -> Option<(&[u32], u32)> {
        let (_, progress) = self.placed.get()?;
        let finished = progress.state() == SequenceState::Ended(End::Finished);
        finished.then(|| (progress.leased().unwrap_or_default(), progress.released()))
    }

    pub(super) fn place(&self, rank: usize, progress: &Arc<Progress>) {
        // Runs once per request.
        let _ = self.placed.set((rank as u32, Arc::clone(progress)));
    }
}
