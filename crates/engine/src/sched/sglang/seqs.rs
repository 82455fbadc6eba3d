use std::sync::Arc;
use std::time::Duration;

use crate::seq_map::SeqMap;
use crate::{BlockKey, PlannedKvBlocks, SeqId, Sequence};

use super::radix::{RadixNodeId, RadixTree};

pub(super) type SequenceSlot = u32;

#[derive(Debug)]
pub(super) struct ScheduledSequence {
    pub id: SeqId,
    pub prompt: u32,
    pub output: u32,
    pub made: u32,
    /// Number of tokens whose keys and values are in the sequence's KV cache pages.
    pub stored: u32,
    /// Number of the sequence's KV cache pages, including those shared with other sequences.
    pub pages: u32,
    pub shared: u32,
    pub node: RadixNodeId,
    /// Whether the sequence is in the running batch or has computed a prompt chunk.
    pub holds: bool,
    pub admitted: bool,
    pub preempted: bool,
    /// Number of output tokens that the sequence gets from the forward pass in flight.
    pub burst: u32,
    /// Whether another engine fetches the KV cache of the sequence's prompt.
    pub lends: bool,
    /// Whether the sequence has ended and keeps its KV cache pages for another engine.
    pub held: bool,
    /// Whether the sequence has ended although a forward pass in flight still computes it.
    pub dead: bool,
    pub in_flight: bool,
    /// Whether the sequence has emitted all its tokens and waits for the delay after the last one.
    pub drained: bool,
    pub generation: u32,
    /// Number of prefix-cache resets before the sequence locked its KV cache pages.
    pub epoch: u32,
    pub arrival: u64,
    pub plan: Option<Arc<PlannedKvBlocks>>,
    pub tail: Duration,
}

impl ScheduledSequence {
    fn new(seq: Sequence, max_len: u32, arrival: u64, generation: u32) -> Self {
        Self {
            id: seq.id,
            prompt: seq.prompt,
            output: seq.output.min(max_len.saturating_sub(seq.prompt)),
            made: 0,
            stored: 0,
            pages: 0,
            shared: 0,
            node: RadixTree::root_node(),
            holds: false,
            admitted: false,
            preempted: false,
            burst: 0,
            lends: false,
            held: false,
            dead: false,
            in_flight: false,
            drained: false,
            generation,
            epoch: 0,
            arrival,
            plan: seq.plan.filter(|_| !seq.skip_cache_read),
            tail: seq.tail,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.prompt + self.made
    }

    pub(super) fn remaining_output_tokens(&self) -> u32 {
        self.output - self.made
    }

    pub(super) fn page_keys(&self, pages: u32) -> &[BlockKey] {
        let keys = self.plan.as_ref().map_or(&[][..], |plan| &plan.keys);
        &keys[..keys.len().min(pages as usize)]
    }
}

#[derive(Debug, Default)]
pub(super) struct SequenceSlab {
    slots: Vec<ScheduledSequence>,
    free: Vec<SequenceSlot>,
    by_id: SeqMap<SequenceSlot>,
}

impl SequenceSlab {
    pub(super) fn insert_sequence(
        &mut self,
        seq: Sequence,
        max_len: u32,
        arrival: u64,
    ) -> SequenceSlot {
        let id = seq.id;
        let slot = match self.free.pop() {
            Some(slot) => {
                let old = &mut self.slots[slot as usize];
                *old =
                    ScheduledSequence::new(seq, max_len, arrival, old.generation.wrapping_add(1));
                slot
            }
            None => {
                self.slots.push(ScheduledSequence::new(seq, max_len, arrival, 0));
                (self.slots.len() - 1) as SequenceSlot
            }
        };
        self.by_id.insert(id, slot);
        slot
    }

    pub(super) fn find_slot(&self, id: SeqId) -> Option<SequenceSlot> {
        self.by_id.get(&id).copied()
    }

    /// Removes a sequence from the scheduler. The sequence's slot is free once no forward pass in
    /// flight refers to it.
    pub(super) fn end_sequence(&mut self, slot: SequenceSlot) {
        let seq = &mut self.slots[slot as usize];
        self.by_id.remove(&seq.id);
        seq.plan = None;
        seq.dead = true;
        if !seq.in_flight {
            self.free.push(slot);
        }
    }

    pub(super) fn release_sequence_after_pass(&mut self, slot: SequenceSlot) {
        let seq = &mut self.slots[slot as usize];
        seq.in_flight = false;
        if seq.dead {
            self.free.push(slot);
        }
    }

    pub(super) fn live_slots(&self) -> Vec<SequenceSlot> {
        let mut all: Vec<SequenceSlot> = self.by_id.values().copied().collect();
        all.sort_unstable_by_key(|&slot| self[slot].arrival);
        all
    }
}

impl std::ops::Index<SequenceSlot> for SequenceSlab {
    type Output = ScheduledSequence;
    fn index(&self, slot: SequenceSlot) -> &ScheduledSequence {
        &self.slots[slot as usize]
    }
}

impl std::ops::IndexMut<SequenceSlot> for SequenceSlab {
    fn index_mut(&mut self, slot: SequenceSlot) -> &mut ScheduledSequence {
        &mut self.slots[slot as usize]
    }
}
