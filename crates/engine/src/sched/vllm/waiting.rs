use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use super::seqs::{Seqs, Slot};

/// Sequences that wait to run, in the order they are tried.
#[derive(Debug, Default)]
pub(super) struct WaitingQueue {
    queue: BTreeSet<((i64, i64), Slot)>,
    /// Places before all arrivals, for those that ran before.
    front: i64,
}

impl WaitingQueue {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Puts a sequence at its rank.
    pub(super) fn insert(&mut self, seqs: &Seqs, slot: Slot) {
        self.queue.insert((seqs[slot].rank, slot));
    }

    /// A rank before that of everybody here.
    pub(super) fn front_rank(&mut self) -> (i64, i64) {
        self.front -= 1;
        (0, self.front)
    }

    pub(super) fn remove(&mut self, seqs: &Seqs, slot: Slot) {
        self.queue.remove(&(seqs[slot].rank, slot));
    }

    /// All, the last in line first.
    pub(super) fn backwards(&self) -> impl Iterator<Item = Slot> {
        self.queue.iter().rev().map(|&(_, slot)| slot)
    }

    /// The first sequence after `last`, which may have left meanwhile.
    pub(super) fn after(&self, last: Option<((i64, i64), Slot)>) -> Option<((i64, i64), Slot)> {
        match last {
            None => self.queue.first().copied(),
            Some(last) => self
                .queue
                .range((Excluded(last), Unbounded))
                .next()
                .copied(),
        }
    }
}
