//! Counts the prompt tokens of sequences that have no output yet, limited by
//! `--max-num-queued-tokens`.
//!
//! Source: vLLM 0.33 `v1/engine/output_processor.py` counts the prompt once per choice, and
//! `v1/engine/async_llm.py` rejects every request at or above the limit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use vllm_sim_engine::driver::{Progress, SequenceState};

#[derive(Default)]
pub(super) struct Backlog(Mutex<Prefills>);

#[derive(Default)]
struct Prefills {
    open: Vec<Prefill>,
    /// Prompt tokens of jobs that are not yet submitted to the engine.
    reserved: u64,
}

impl Prefills {
    fn tokens(&mut self) -> u64 {
        self.open.retain(Prefill::is_open);
        let open = self.open.iter().map(|prefill| u64::from(prefill.tokens));
        open.fold(self.reserved, u64::saturating_add)
    }
}

/// Guard of a job's prompt tokens: they count until the job's sequences are submitted and counted
/// themselves.
pub(super) struct ReservedTokens<'b> {
    backlog: &'b Backlog,
    tokens: u64,
}

impl Drop for ReservedTokens<'_> {
    fn drop(&mut self) {
        let mut prefills = self.backlog.lock();
        prefills.reserved = prefills.reserved.saturating_sub(self.tokens);
    }
}

struct Prefill {
    progress: Weak<Progress>,
    tokens: u32,
}

impl Prefill {
    fn is_open(&self) -> bool {
        self.progress.upgrade().is_some_and(|progress| {
            progress.released() == 0 && !matches!(progress.state(), SequenceState::Ended(_))
        })
    }
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, Prefills> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts `tokens` prompt tokens until the guard is dropped; returns `None` if `max` tokens are
    /// already counted.
    pub(super) fn reserve(&self, tokens: u64, max: u64) -> Option<ReservedTokens<'_>> {
        let mut prefills = self.lock();
        if prefills.tokens() >= max {
            return None;
        }
        prefills.reserved = prefills.reserved.saturating_add(tokens);
        Some(ReservedTokens {
            backlog: self,
            tokens,
        })
    }

    pub(super) fn note(&self, progress: &Arc<Progress>, tokens: u32) {
        let progress = Arc::downgrade(progress);
        self.lock().open.push(Prefill { progress, tokens });
    }

    pub(super) fn tokens(&self) -> u64 {
        self.lock().tokens()
    }
}
