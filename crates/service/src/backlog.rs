//! Counts the prompt tokens of sequences that have no output yet, limited by
//! `--max-num-queued-tokens`.
//!
//! Source: vLLM 0.33 `v1/engine/output_processor.py` counts the prompt once per choice, and
//! `v1/engine/async_llm.py` rejects every request at or above the limit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use vllm_sim_engine::driver::{SequenceState, SharedProgress};

#[derive(Default)]
pub(super) struct PrefillBacklog(Mutex<OpenPrefills>);

#[derive(Default)]
struct OpenPrefills {
    open: Vec<OpenPrefill>,
    /// Prompt tokens of jobs that are not yet submitted to the engine.
    reserved: u64,
}

impl OpenPrefills {
    fn total_tokens(&mut self) -> u64 {
        self.open.retain(OpenPrefill::is_open);
        let open = self.open.iter().map(|prefill| u64::from(prefill.tokens));
        open.fold(self.reserved, u64::saturating_add)
    }
}

/// Guard of a job's prompt tokens: they count until the job's sequences are submitted and counted
/// themselves.
pub(super) struct ReservedTokens<'b> {
    backlog: &'b PrefillBacklog,
    tokens: u64,
}

impl Drop for ReservedTokens<'_> {
    fn drop(&mut self) {
        let mut prefills = self.backlog.lock();
        prefills.reserved = prefills.reserved.saturating_sub(self.tokens);
    }
}

struct OpenPrefill {
    progress: Weak<SharedProgress>,
    tokens: u32,
}

impl OpenPrefill {
    fn is_open(&self) -> bool {
        self.progress.upgrade().is_some_and(|progress| {
            progress.released_tokens() == 0 && !matches!(progress.state(), SequenceState::Ended(_))
        })
    }
}

impl PrefillBacklog {
    fn lock(&self) -> MutexGuard<'_, OpenPrefills> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts `tokens` prompt tokens until the guard is dropped; returns `None` if `max` tokens are
    /// already counted.
    pub(super) fn reserve_tokens(&self, tokens: u64, max: u64) -> Option<ReservedTokens<'_>> {
        let mut prefills = self.lock();
        if prefills.total_tokens() >= max {
            return None;
        }
        prefills.reserved = prefills.reserved.saturating_add(tokens);
        Some(ReservedTokens { backlog: self, tokens })
    }

    pub(super) fn add_prefill(&self, progress: &Arc<SharedProgress>, tokens: u32) {
        let progress = Arc::downgrade(progress);
        self.lock().open.push(OpenPrefill { progress, tokens });
    }

    pub(super) fn total_tokens(&self) -> u64 {
        self.lock().total_tokens()
    }
}
