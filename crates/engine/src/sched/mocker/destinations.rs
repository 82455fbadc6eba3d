use std::collections::VecDeque;

use crate::SeqId;

use crate::sched::vllm::seqs::Slot;

#[derive(Debug, Default)]
pub(super) struct Destinations {
    /// Announced sequences without blocks, in order.
    pub pending: VecDeque<Slot>,
    /// Ids of sequences with new blocks since the last query, and their missing tokens.
    pub reserved: Vec<(SeqId, u32)>,
}

impl Destinations {
    /// Returns whether a sequence waits for blocks. Then no local prompt is started.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) fn forget(&mut self, slot: Slot) {
        self.pending.retain(|&other| other != slot);
    }
}
