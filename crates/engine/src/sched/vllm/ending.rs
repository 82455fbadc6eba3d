//! Ends sequences and frees their KV blocks and slots.

use crate::{Outbox, PromptTransfer, SchedulerEvent, SequenceEndReason, SimTime};

use super::seqs::{SequenceRunState, SequenceSlot};
use super::{BatchScheduler, SchedulingRules};

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Handles the release of a sequence's last token. The caller removes the sequence from the
    /// running batch.
    pub(in crate::sched) fn complete_sequence(
        &mut self,
        slot: SequenceSlot,
        now: SimTime,
        out: &mut Outbox,
    ) {
        // The sequence may have been preempted while its last token was in flight.
        match self.seqs[slot].state {
            SequenceRunState::Waiting => self.waiting.remove_sequence(&self.seqs, slot),
            SequenceRunState::Fetching => self.fetching -= 1,
            _ => {}
        }
        if self.seqs[slot].state != SequenceRunState::Draining {
            self.seqs[slot].state = SequenceRunState::Resting;
        }
        self.lease_prefill_blocks(slot, now, out);
        let seq = &self.seqs[slot];
        if seq.request.tail.is_zero() {
            self.end_sequence(slot, SequenceEndReason::Finished, now, out);
            return;
        }
        let due = now + seq.request.tail;
        self.timers.schedule(due, (slot, seq.generation));
        // The sequence stays in the batch, but needs no cache.
        self.free_sequence_blocks(slot);
    }

    /// Keeps the KV blocks of a finished prefill for the remote decode engine.
    fn lease_prefill_blocks(&mut self, slot: SequenceSlot, now: SimTime, out: &mut Outbox) {
        let seq = &mut self.seqs[slot];
        // A sequence preempted with its last token in flight may complete twice.
        let hands_over = seq.request.transfer == PromptTransfer::RemoteDecode
            && !seq.table.is_empty()
            && !self.leases.has_lease(seq.id);
        let Some(term) = self.config.transfer.lease.filter(|_| hands_over) else {
            return;
        };
        let (id, table) = (seq.id, std::mem::take(&mut seq.table));
        seq.settled = 0;
        let blocks = self.leases.lease_blocks(now, term, id, table);
        out.push_back((now, SchedulerEvent::Leased { id, blocks }));
    }

    /// Frees the KV blocks and the slot of a sequence. The sequence must be in no queue except the
    /// running batch.
    pub(in crate::sched) fn end_sequence(
        &mut self,
        slot: SequenceSlot,
        end: SequenceEndReason,
        now: SimTime,
        out: &mut Outbox,
    ) {
        self.free_sequence_blocks(slot);
        self.remove_from_host_cache(slot);
        R::on_sequence_left(self, slot);
        let id = self.seqs[slot].id;
        self.seqs.end_sequence(slot);
        out.push_back((now, SchedulerEvent::Ended { id, end }));
    }

    pub(in crate::sched) fn stop_sequence(
        &mut self,
        slot: SequenceSlot,
        end: SequenceEndReason,
        now: SimTime,
        out: &mut Outbox,
    ) {
        match self.seqs[slot].state {
            SequenceRunState::Waiting => self.waiting.remove_sequence(&self.seqs, slot),
            SequenceRunState::Fetching => self.fetching -= 1,
            SequenceRunState::Running | SequenceRunState::Draining => {
                self.flush_bulk_decode(slot, now, out);
                self.bulk.remove_sequence(slot);
                self.running.retain(|&other| other != slot);
            }
            SequenceRunState::Resting => {}
            SequenceRunState::Free | SequenceRunState::Dead => return,
        }
        self.end_sequence(slot, end, now, out);
    }
}
