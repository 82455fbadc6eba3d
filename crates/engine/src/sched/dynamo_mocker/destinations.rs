use std::collections::VecDeque;

use crate::SeqId;

use crate::sched::vllm::seqs::SequenceSlot;

#[derive(Debug, Default)]
pub(super) struct IncomingPromptTransfers {
    /// Sequences waiting for KV blocks into which the KV cache of their prompts can be transferred,
    /// in order.
    pub pending: VecDeque<SequenceSlot>,
    /// Ids of the sequences whose prompts got KV blocks reserved for a transfer since the caller
    /// last took this list, each with the number of prompt tokens to transfer.
    pub reserved: Vec<(SeqId, u32)>,
}

impl IncomingPromptTransfers {
    /// Returns whether a sequence waits for KV blocks into which the KV cache of its prompt can be
    /// transferred. While such a sequence waits, the engine starts no prompt that it would compute
    /// itself.
    pub(super) fn has_pending_sequences(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) fn remove_sequence(&mut self, slot: SequenceSlot) {
        self.pending.retain(|&other| other != slot);
    }
}
