//! Ends sequences and frees their KV blocks and slots.

use crate::{End, Event, Outbox, SimTime, Transfer};

use super::seqs::{SeqState, Slot};
use super::{BatchScheduler, SchedulingRules};

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Handles the release of a sequence's last token. The caller removes the sequence from the
    /// running batch.
    pub(in crate::sched) fn complete(&mut self, slot: Slot, now: SimTime, out: &mut Outbox) {
        // The sequence may have been preempted while its last token was in flight.
        match self.seqs[slot].state {
            SeqState::Waiting => self.waiting.remove(&self.seqs, slot),
            SeqState::Fetching => self.fetching -= 1,
            _ => {}
        }
        if self.seqs[slot].state != SeqState::Draining {
            self.seqs[slot].state = SeqState::Resting;
        }
        self.lease(slot, now, out);
        let seq = &self.seqs[slot];
        if seq.request.tail.is_zero() {
            self.end(slot, End::Finished, now, out);
            return;
        }
        let due = now + seq.request.tail;
        self.timers.set(due, (slot, seq.generation));
        // The sequence stays in the batch, but needs no cache.
        self.free_blocks(slot);
    }

    /// Keeps the KV blocks of a finished prefill for the remote decode engine.
    fn lease(&mut self, slot: Slot, now: SimTime, out: &mut Outbox) {
        let seq = &mut self.seqs[slot];
        // A sequence preempted with its last token in flight may complete twice.
        let hands_over = seq.request.transfer == Transfer::RemoteDecode
            && !seq.table.is_empty()
            && !self.leases.holds(seq.id);
        let Some(term) = self.config.transfer.lease.filter(|_| hands_over) else {
            return;
        };
        let (id, table) = (seq.id, std::mem::take(&mut seq.table));
        seq.settled = 0;
        let blocks = self.leases.hold(now, term, id, table);
        out.push_back((now, Event::Leased { id, blocks }));
    }

    /// Frees the KV blocks and the slot of a sequence. The sequence must be in no queue except the
    /// running batch.
    pub(in crate::sched) fn end(&mut self, slot: Slot, end: End, now: SimTime, out: &mut Outbox) {
        self.free_blocks(slot);
        self.leave_host(slot);
        R::left(self, slot);
        let id = self.seqs[slot].id;
        self.seqs.end(slot);
        out.push_back((now, Event::Ended { id, end }));
    }

    pub(in crate::sched) fn stop(&mut self, slot: Slot, end: End, now: SimTime, out: &mut Outbox) {
        match self.seqs[slot].state {
            SeqState::Waiting => self.waiting.remove(&self.seqs, slot),
            SeqState::Fetching => self.fetching -= 1,
            SeqState::Running | SeqState::Draining => {
                self.flush(slot, now, out);
                self.bulk.left(slot);
                self.running.retain(|&other| other != slot);
            }
            SeqState::Resting => {}
            SeqState::Free | SeqState::Dead => return,
        }
        self.end(slot, end, now, out);
    }
}
