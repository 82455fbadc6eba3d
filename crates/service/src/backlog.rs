//! Prompts that have not had their first token: what `--max-num-queued-tokens` bounds.
//!
//! vLLM 0.33 `v1/engine/output_processor.py`: the prompt lengths of requests that are prefilling, each
//! of several choices counted; `v1/engine/async_llm.py`: at the bound or above, all are refused.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use vllm_sim_engine::driver::{Progress, SequenceState};

/// Sequences whose prompt is still being computed, or waits for it.
#[derive(Default)]
pub(super) struct Backlog(Mutex<Vec<Prefill>>);

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
    /// A sequence comes with a prompt of `tokens`.
    pub(super) fn note(&self, progress: &Arc<Progress>, tokens: u32) {
        let progress = Arc::downgrade(progress);
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.push(Prefill { progress, tokens });
    }

    /// Prompt tokens of those that still have no output.
    pub(super) fn tokens(&self) -> u64 {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(Prefill::is_open);
        open.iter().map(|prefill| u64::from(prefill.tokens)).sum()
    }
}
