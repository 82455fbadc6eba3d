use std::collections::VecDeque;

use crate::SeqId;

use crate::sched::vllm::seqs::Slot;

/// Sequences whose prompts come from elsewhere.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    /// Without blocks, in the order they were announced.
    pub pending: VecDeque<Slot>,
    /// That got their blocks since somebody asked.
    pub reserved: Vec<(SeqId, u32)>,
}

impl Destinations {
    /// Whether somebody waits for blocks; then no prompt is started here.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// A sequence is gone.
    pub(super) fn forget(&mut self, slot: Slot) {
        self.pending.retain(|&other| other != slot);
    }
}
