//! Moves the KV cache of prompts between engines, coordinated by the caller.
//!
//! On a decode engine the caller announces a sequence. The pages of its prompt are reserved as soon
//! as there is room; after the transfer it joins the running batch. On a prefill engine a finished
//! sequence keeps its pages until it is released. The end of a transfer is reported by the caller,
//! or follows from the configured transfer time.
//!
//! **Source:** aisimulate-core 0.13.0 `scheduler/sglang/core.rs` (destinations, source holds).

use std::collections::VecDeque;

use crate::{Outbox, SeqId};
use crate::{SimTime, TimerQueue};

use super::SglangScheduler;
use super::seqs::SequenceSlot;

#[derive(Debug, Default)]
pub(super) struct IncomingPromptTransfers {
    /// Sequences waiting for KV cache pages into which the KV cache of their prompts can be
    /// transferred, in order.
    pending: VecDeque<SequenceSlot>,
    /// Ids of the sequences whose prompts got KV cache pages reserved for a transfer since the
    /// caller last took this list, each with the number of prompt tokens to transfer.
    pub reserved: Vec<(SeqId, u32)>,
    /// End times of prompt transfers whose duration is configured, by slot of the sequence and by
    /// reuse counter (generation) of that slot.
    fetches: TimerQueue<(SequenceSlot, u32)>,
    /// Sequences to join the running batch next, because the KV cache of their prompts was
    /// transferred from another engine.
    ready: VecDeque<SequenceSlot>,
}

impl IncomingPromptTransfers {
    /// Returns whether a sequence with a prompt from another engine waits for KV cache pages or for
    /// room in the running batch. If so, no prompt is started that this engine would compute.
    pub(super) fn has_waiting_remote_prompts(&self) -> bool {
        !self.pending.is_empty() || !self.ready.is_empty()
    }

    pub(super) fn has_transferred_sequences(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn has_pending_sequences(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) fn next_prompt_transfer_end(&self) -> Option<SimTime> {
        self.fetches.next_due_time()
    }

    pub(super) fn remove_sequence(&mut self, slot: SequenceSlot) {
        self.pending.retain(|&other| other != slot);
        self.ready.retain(|&other| other != slot);
    }
}

impl SglangScheduler {
    pub(super) fn queue_remote_prompt(
        &mut self,
        slot: SequenceSlot,
        now: SimTime,
        out: &mut Outbox,
    ) {
        self.destinations.pending.push_back(slot);
        if self.pass.is_none() {
            self.reserve_next_prompt_pages(now, out);
        }
    }

    pub(super) fn reserve_next_prompt_pages(&mut self, now: SimTime, out: &mut Outbox) {
        // Transfers of a configured time run at the same time.
        while self.reserve_prompt(now, out) && self.config.fetch.is_some() {}
    }

    /// Reserves KV cache pages for the first prompt that waits to be transferred; returns false if
    /// no prompt waits or no room is left.
    fn reserve_prompt(&mut self, now: SimTime, out: &mut Outbox) -> bool {
        let Some(&slot) = self.destinations.pending.front() else {
            return false;
        };
        let seq = &self.seqs[slot];
        let (prompt, page) = (seq.prompt, self.config.page_size);
        let keys = match self.config.enable_prefix_caching {
            true => seq.page_keys(prompt / page),
            false => &[],
        };
        let (matched, node) = self.radix.lock_longest_prefix(keys);
        let fresh = self.config.pages_for_tokens(prompt) - matched;
        let mut events = Vec::new();
        if !self.take_pages(fresh, &mut events) {
            self.radix.unlock_path_to_root(node);
            return false;
        }
        out.extend(events.into_iter().map(|event| (now, event)));
        self.destinations.pending.pop_front();
        let epoch = self.epoch;
        let seq = &mut self.seqs[slot];
        (seq.node, seq.pages, seq.shared, seq.epoch) = (node, matched + fresh, matched, epoch);
        seq.holds = true;
        match self.config.fetch {
            None => self.destinations.reserved.push((seq.id, fresh * page)),
            Some((fixed, per_token)) => {
                let tokens = prompt.saturating_sub(matched * page);
                let end = now + fixed.saturating_add(per_token.saturating_mul(tokens));
                self.destinations.fetches.schedule_item(end, (slot, seq.generation));
            }
        }
        true
    }

    /// Ends the next prompt transfer whose configured duration is over at `now`; returns false if
    /// no transfer is over.
    pub(super) fn end_due_prompt_transfer(&mut self, now: SimTime, out: &mut Outbox) -> bool {
        let Some((at, (slot, generation))) = self.destinations.fetches.pop_due_item(now) else {
            return false;
        };
        let seq = &self.seqs[slot];
        if seq.generation == generation && !seq.dead {
            self.resume_transferred_prompt(at, seq.id, out);
        }
        true
    }

    /// Resumes a sequence whose prompt's KV cache was transferred from another engine; returns
    /// false if the sequence does not wait for a transfer.
    pub(super) fn resume_transferred_prompt(
        &mut self,
        now: SimTime,
        id: SeqId,
        out: &mut Outbox,
    ) -> bool {
        let Some(slot) = self.seqs.find_slot(id) else {
            return false;
        };
        let seq = &mut self.seqs[slot];
        if !seq.holds || seq.stored > 0 {
            return false;
        }
        seq.stored = seq.prompt;
        let mut events = Vec::new();
        self.share_full_pages(slot, &mut events);
        out.extend(events.into_iter().map(|event| (now, event)));
        self.destinations.ready.push_back(slot);
        self.reserve_next_prompt_pages(now, out);
        self.request_pass(now);
        true
    }

    pub(super) fn admit_transferred_sequences(&mut self, now: SimTime, out: &mut Outbox) {
        while self.running.len() < self.config.max_num_seqs as usize {
            let Some(slot) = self.destinations.ready.pop_front() else {
                break;
            };
            self.running.push(slot);
            self.record_sequence_admission(slot, 0, now, out);
        }
    }

    /// Frees the KV cache pages of a prompt that another engine has fetched; returns false if no
    /// such pages are kept.
    pub(super) fn free_pages_of_fetched_prompt(
        &mut self,
        now: SimTime,
        id: SeqId,
        out: &mut Outbox,
    ) -> bool {
        let Some(slot) = self.seqs.find_slot(id).filter(|&slot| self.seqs[slot].held) else {
            return false;
        };
        let mut events = Vec::new();
        self.share_full_pages(slot, &mut events);
        out.extend(events.into_iter().map(|event| (now, event)));
        self.release_pages(slot);
        self.seqs.end_sequence(slot);
        self.reserve_next_prompt_pages(now, out);
        self.request_pass(now);
        true
    }
}
