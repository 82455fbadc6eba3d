use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use crate::{Sequence, TimerQueue};

use super::config::SchedulingPolicy;
use super::seqs::{SequenceSlab, SequenceSlot, WaitingClass, WaitingSortKey};

/// Sort key and slot of a waiting sequence.
type QueuePosition = (WaitingSortKey, SequenceSlot);

/// Pause of a scheduler, as `PauseState` of vLLM 0.33 (`vllm/v1/core/sched/interface.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PauseState {
    Running,
    /// Only running sequences and waiting sequences that hold KV blocks are scheduled
    /// (`PAUSED_NEW`).
    AdmissionPaused,
    /// No step is scheduled (`PAUSED_ALL`).
    Paused,
}

/// Holds the waiting sequences in scheduling order.
#[derive(Debug, Default)]
pub(in crate::sched) struct WaitingQueue {
    /// The waiting sequence if it is the only one in the queue; stored apart to avoid an allocation
    /// in the common case.
    single: Option<QueuePosition>,
    queue: BTreeSet<QueuePosition>,
    /// Lowest sort key assigned so far to a waiting sequence; each preempted sequence gets the next
    /// lower one.
    front: i64,
    /// Accepted sequences on their way through the simulated API server, by the time at which they
    /// reach the queue. They do not count as waiting.
    pub(super) in_api_server: TimerQueue<Sequence>,
    /// Number of times that a sequence began to wait with KV blocks. Under FCFS, this count is the
    /// sort key of the newest such sequence.
    holders: i64,
}

impl WaitingQueue {
    pub(in crate::sched) fn len(&self) -> usize {
        self.queue.len() + usize::from(self.single.is_some())
    }

    pub(in crate::sched) fn is_empty(&self) -> bool {
        self.single.is_none() && self.queue.is_empty()
    }

    pub(in crate::sched) fn insert_sequence(&mut self, seqs: &SequenceSlab, slot: SequenceSlot) {
        let place = (seqs[slot].rank, slot);
        if self.is_empty() {
            self.single = Some(place);
            return;
        }
        self.queue.extend(self.single.take());
        self.queue.insert(place);
    }

    /// Returns a sort key for a preempted sequence; it precedes the keys of all waiting sequences
    /// without KV blocks.
    pub(in crate::sched) fn front_sort_key(&mut self) -> WaitingSortKey {
        self.front -= 1;
        (WaitingClass::Plain, 0, self.front)
    }

    /// Returns the sort key of a waiting sequence that holds KV blocks; it precedes the keys of
    /// sequences without blocks. The scheduling policy also orders sequences with blocks.
    pub(in crate::sched) fn block_holder_sort_key(
        &mut self,
        policy: SchedulingPolicy,
        rank: WaitingSortKey,
    ) -> WaitingSortKey {
        self.holders += 1;
        match policy {
            SchedulingPolicy::Fcfs => (WaitingClass::HoldsBlocks, 0, self.holders),
            SchedulingPolicy::Priority => (WaitingClass::HoldsBlocks, rank.1, rank.2),
        }
    }

    pub(in crate::sched) fn remove_sequence(&mut self, seqs: &SequenceSlab, slot: SequenceSlot) {
        let place = (seqs[slot].rank, slot);
        if self.single == Some(place) {
            self.single = None;
        } else {
            self.queue.remove(&place);
        }
    }

    /// Iterates over the waiting sequences from the last in the queue to the first.
    pub(in crate::sched) fn iter_from_back(&self) -> impl Iterator<Item = SequenceSlot> {
        let all = self.queue.iter().rev().chain(&self.single);
        all.map(|&(_, slot)| slot)
    }

    /// Returns the first waiting sequence behind the queue position `last`. The sequence at `last`
    /// may have left the queue.
    pub(in crate::sched) fn first_sequence_after(
        &self,
        last: Option<QueuePosition>,
    ) -> Option<QueuePosition> {
        if let Some(single) = self.single {
            return Some(single).filter(|single| last.is_none_or(|last| *single > last));
        }
        match last {
            None => self.queue.first().copied(),
            Some(last) => self.queue.range((Excluded(last), Unbounded)).next().copied(),
        }
    }
}
