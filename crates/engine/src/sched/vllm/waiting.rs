use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use super::seqs::{Seqs, Slot};

/// A sequence at its rank.
type Place = ((i64, i64), Slot);

/// Sequences that wait to run, in the order they are tried.
#[derive(Debug, Default)]
pub(in crate::sched) struct WaitingQueue {
    /// The only one, which most requests are: the queue allocates.
    lone: Option<Place>,
    queue: BTreeSet<Place>,
    /// Places before all arrivals, for those that ran before.
    front: i64,
}

impl WaitingQueue {
    pub(in crate::sched) fn len(&self) -> usize {
        self.queue.len() + usize::from(self.lone.is_some())
    }

    pub(in crate::sched) fn is_empty(&self) -> bool {
        self.lone.is_none() && self.queue.is_empty()
    }

    /// Puts a sequence at its rank.
    pub(in crate::sched) fn insert(&mut self, seqs: &Seqs, slot: Slot) {
        let place = (seqs[slot].rank, slot);
        if self.is_empty() {
            self.lone = Some(place);
            return;
        }
        self.queue.extend(self.lone.take());
        self.queue.insert(place);
    }

    /// A rank before that of everybody here.
    pub(in crate::sched) fn front_rank(&mut self) -> (i64, i64) {
        self.front -= 1;
        (0, self.front)
    }

    pub(in crate::sched) fn remove(&mut self, seqs: &Seqs, slot: Slot) {
        let place = (seqs[slot].rank, slot);
        if self.lone == Some(place) {
            self.lone = None;
        } else {
            self.queue.remove(&place);
        }
    }

    /// All, the last in line first.
    pub(in crate::sched) fn backwards(&self) -> impl Iterator<Item = Slot> {
        let all = self.queue.iter().rev().chain(&self.lone);
        all.map(|&(_, slot)| slot)
    }

    /// The first sequence after `last`, which may have left meanwhile.
    pub(in crate::sched) fn after(&self, last: Option<Place>) -> Option<Place> {
        if let Some(lone) = self.lone {
            return Some(lone).filter(|lone| last.is_none_or(|last| *lone > last));
        }
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
