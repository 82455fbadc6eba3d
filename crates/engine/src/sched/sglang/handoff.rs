//! Prompts that move between engines under the eye of somebody above.
//!
//! Where output is made, a sequence is expected first; the pages of its whole prompt are reserved
//! as soon as there is room, and after the transfer it joins the running batch. Where prompts are
//! computed, a finished sequence keeps its pages until it is released.
//!
//! Source: aisimulate-core 0.13.0 `scheduler/sglang/core.rs` (destinations, source holds).

use std::collections::VecDeque;

use crate::SimTime;
use crate::{Outbox, SeqId};

use super::Sglang;
use super::seqs::Slot;

/// Sequences whose prompts come from elsewhere.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    /// Without pages, in the order they were announced.
    pending: VecDeque<Slot>,
    /// That got their pages since somebody asked.
    pub reserved: Vec<(SeqId, u32)>,
    /// Their prompts are here; they join the batch next.
    ready: VecDeque<Slot>,
}

impl Destinations {
    /// Whether somebody waits for pages or for a place; then no prompt is started here.
    pub(super) fn go_first(&self) -> bool {
        !self.pending.is_empty() || !self.ready.is_empty()
    }

    /// Whether somebody can join the batch.
    pub(super) fn are_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A sequence is gone.
    pub(super) fn forget(&mut self, slot: Slot) {
        self.pending.retain(|&other| other != slot);
        self.ready.retain(|&other| other != slot);
    }
}

impl Sglang {
    /// A sequence is announced.
    pub(super) fn expect_prompt(&mut self, slot: Slot, now: SimTime, out: &mut Outbox) {
        self.destinations.pending.push_back(slot);
        if self.pass.is_none() {
            self.reserve_next(now, out);
        }
    }

    /// Reserves the pages of the first prompt that is expected, if there is room.
    pub(super) fn reserve_next(&mut self, now: SimTime, out: &mut Outbox) {
        let Some(&slot) = self.destinations.pending.front() else {
            return;
        };
        let seq = &self.seqs[slot];
        let (prompt, page) = (seq.prompt, self.config.page_size);
        let keys = match self.config.enable_prefix_caching {
            true => seq.keys(prompt / page),
            false => &[],
        };
        let (matched, node) = self.radix.lock_match(keys);
        let fresh = self.config.pages(prompt) - matched;
        let mut events = Vec::new();
        if !self.take_pages(fresh, &mut events) {
            self.radix.unlock(node);
            return;
        }
        out.extend(events.into_iter().map(|event| (now, event)));
        self.destinations.pending.pop_front();
        let epoch = self.epoch;
        let seq = &mut self.seqs[slot];
        (seq.node, seq.pages, seq.shared, seq.epoch) = (node, matched + fresh, matched, epoch);
        seq.holds = true;
        self.destinations.reserved.push((seq.id, fresh * page));
    }

    /// The prompt of a sequence is here. False: nobody waits for it.
    pub(super) fn activate_prompt(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) -> bool {
        let Some(slot) = self.seqs.find(id) else {
            return false;
        };
        let seq = &mut self.seqs[slot];
        if !seq.holds || seq.stored > 0 {
            return false;
        }
        seq.stored = seq.prompt;
        let mut events = Vec::new();
        self.share(slot, &mut events);
        out.extend(events.into_iter().map(|event| (now, event)));
        self.destinations.ready.push_back(slot);
        self.reserve_next(now, out);
        self.wake(now);
        true
    }

    /// Those whose prompts are here join the running batch, while it has places.
    pub(super) fn join_ready(&mut self, now: SimTime, out: &mut Outbox) {
        while self.running.len() < self.config.max_num_seqs as usize {
            let Some(slot) = self.destinations.ready.pop_front() else {
                break;
            };
            self.running.push(slot);
            self.note_admission(slot, 0, now, out);
        }
    }

    /// A prompt that was kept for another engine has been fetched. False: there is none.
    pub(super) fn release_source(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) -> bool {
        let Some(slot) = self.seqs.find(id).filter(|&slot| self.seqs[slot].held) else {
            return false;
        };
        let mut events = Vec::new();
        self.share(slot, &mut events);
        out.extend(events.into_iter().map(|event| (now, event)));
        self.release(slot);
        self.seqs.end(slot);
        self.reserve_next(now, out);
        self.wake(now);
        true
    }
}
