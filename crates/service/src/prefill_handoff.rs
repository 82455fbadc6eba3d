use std::fmt;
use std::sync::{Arc, OnceLock};

use vllm_sim_engine::SequenceEndReason;
use vllm_sim_engine::driver::{SequenceState, SharedProgress};

/// Callback for the end of a hand-off, with whether the prompt was prefilled.
type EndReport = Box<dyn Fn(bool) + Send + Sync>;

/// The hand-off of a prompt that is prefilled on this server for another server to decode.
pub struct PrefillHandoff {
    /// Request id by which the decode server names the KV cache (`remote_request_id`).
    pub request: String,
    placed: OnceLock<(u32, Arc<SharedProgress>)>,
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
            report(self.finished_blocks_and_tokens().is_some());
        }
    }
}

impl PrefillHandoff {
    /// Creates the hand-off of a prefill request that is not yet submitted.
    pub fn new(request: String) -> Self {
        Self { request, placed: OnceLock::new(), on_end: None }
    }

    /// Creates a hand-off that calls `report` when it is dropped, at the end of the reply or after
    /// a refusal, with whether the prompt was prefilled.
    pub fn with_end_report(request: String, report: impl Fn(bool) + Send + Sync + 'static) -> Self {
        Self { request, placed: OnceLock::new(), on_end: Some(Box::new(report)) }
    }

    /// Returns the index of the data-parallel rank that prefills the prompt; `None` before
    /// submission.
    pub fn prefill_rank(&self) -> Option<u32> {
        self.placed.get().map(|(rank, _)| *rank)
    }

    /// Returns the prompt's KV block ids and the number of output tokens; `None` until the request
    /// has finished.
    pub fn finished_blocks_and_tokens(&self) -> Option<(&[u32], u32)> {
        let (_, progress) = self.placed.get()?;
        let finished = progress.state() == SequenceState::Ended(SequenceEndReason::Finished);
        finished
            .then(|| (progress.leased_block_ids().unwrap_or_default(), progress.released_tokens()))
    }

    pub(super) fn set_placement(&self, rank: usize, progress: &Arc<SharedProgress>) {
        // Runs once per request.
        let _ = self.placed.set((rank as u32, Arc::clone(progress)));
    }
}
