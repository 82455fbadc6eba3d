use std::collections::VecDeque;

use crate::SeqId;

use crate::sched::vllm::seqs::SequenceSlot;

#[derive(Debug, Default)]
pub(super) struct IncomingPromptTransfers {
    /// Sequences waiting for KV blocks into which their prompts' KV cache can be transferred, in
    /// order.
    pub pending: VecDeque<SequenceSlot>,
    /// Ids of the sequences for whose transferred prompts KV blocks were reserved since the caller
    /// last took this list, each with the number of prompt tokens to transfer.
    pub reserved: Vec<(SeqId, u32)>,
}

impl IncomingPromptTransfers {
    /// Returns whether a sequence waits for KV blocks into which its prompt can be transferred.
    /// While one waits, no prompt to be computed locally is started.
    pub(super) fn has_pending_sequences(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) fn remove_sequence(&mut self, slot: SequenceSlot) {
        self.pending.retain(|&other| other != slot);
    }
}
