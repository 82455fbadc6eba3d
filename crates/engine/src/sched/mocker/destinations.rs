use std::collections::VecDeque;

use crate::SeqId;

use crate::sched::vllm::seqs::Slot;

#[derive(Debug, Default)]
pub(super) struct Destinations {
    /// Sequences waiting for KV blocks into which their prompts can be transferred, in order.
    pub pending: VecDeque<Slot>,
    /// Ids of the sequences for whose transferred prompts blocks were reserved since the last
    /// query, each with the number of prompt tokens to transfer.
    pub reserved: Vec<(SeqId, u32)>,
}

impl Destinations {
    /// Returns whether a sequence waits for KV blocks into which its prompt can be transferred. If
    /// so, no prompt to be computed locally is started.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) fn forget(&mut self, slot: Slot) {
        self.pending.retain(|&other| other != slot);
    }
}
