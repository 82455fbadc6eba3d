//! Prompts that have not had their first token: what `--max-num-queued-tokens` bounds.
//!
//! vLLM 0.33 `v1/engine/output_processor.py`: the prompt lengths of requests that are prefilling, each
//! of several choices counted; `v1/engine/async_llm.py`: at the bound or above, all are refused.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use vllm_sim_engine::driver::{Progress, SequenceState};

/// Sequences whose prompt is still being computed, or waits for it.
#[derive(Default)]
pub(super) struct Backlog(Mutex<Prefills>);

#[derive(Default)]
struct Prefills {
    open: Vec<Prefill>,
    /// Tokens of jobs that are on their way to the engine.
    reserved: u64,
}

impl Prefills {
    fn tokens(&mut self) -> u64 {
        self.open.retain(Prefill::is_open);
        let open = self.open.iter().map(|prefill| u64::from(prefill.tokens));
        open.fold(self.reserved, u64::saturating_add)
    }
}

/// Tokens that count until their sequences do.
pub(super) struct Reserved<'b> {
    backlog: &'b Backlog,
    tokens: u64,
}

impl Drop for Reserved<'_> {
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

    /// Counts `tokens` from now on, unless as many as `max` count already.
    pub(super) fn reserve(&self, tokens: u64, max: u64) -> Option<Reserved<'_>> {
        let mut prefills = self.lock();
        if prefills.tokens() >= max {
            return None;
        }
        prefills.reserved = prefills.reserved.saturating_add(tokens);
        Some(Reserved {
            backlog: self,
            tokens,
        })
    }

    /// A sequence comes with a prompt of `tokens`.
    pub(super) fn note(&self, progress: &Arc<Progress>, tokens: u32) {
        let progress = Arc::downgrade(progress);
        self.lock().open.push(Prefill { progress, tokens });
    }

    /// Prompt tokens of those that still have no output.
    pub(super) fn tokens(&self) -> u64 {
        self.lock().tokens()
    }
}
