//! Prompts that another engine computed, moved here under the eye of somebody above.
//!
//! A sequence is expected first; when its turn has come and there is room, the blocks of its whole
//! prompt are reserved, and those that are cached here need no transfer. After the transfer it is
//! activated: it waits to run like others, its prompt computed.
//!
//! Source: aisimulate-core 0.13.0 `scheduler/vllm/core.rs` (destinations).

use crate::SimTime;
use crate::kv::BlockRequest;
use crate::{Outbox, SeqId};

use super::Mocker;
use crate::sched::vllm::seqs::{SeqState, Slot};

impl Mocker {
    /// A sequence is announced.
    pub(super) fn announce_prompt(&mut self, slot: Slot, now: SimTime, out: &mut Outbox) {
        self.seqs[slot].state = SeqState::Fetching;
        self.fetching += 1;
        self.rules.destinations.pending.push_back(slot);
        if self.flight.is_empty() {
            self.reserve_next(now, out);
        }
    }

    /// Reserves the blocks of the first prompt that is expected, if there is room.
    pub(super) fn reserve_next(&mut self, now: SimTime, out: &mut Outbox) {
        let Some(&slot) = self.rules.destinations.pending.front() else {
            return;
        };
        if self.running.len() >= self.config.max_num_seqs as usize {
            return;
        }
        let seq = &mut self.seqs[slot];
        let prompt = seq.prompt;
        // Nothing is computed here, so the last block may be a cached one too.
        let cached = seq.plan.as_ref().map_or(0, |plan| {
            self.pool.cached_prefix(plan, prompt.saturating_add(1))
        });
        let need = BlockRequest {
            prefix: cached,
            tokens: prompt,
            ..BlockRequest::default()
        };
        let plan = seq.plan.as_ref();
        let done = self
            .pool
            .allocate(&mut seq.table, plan, &need, &mut |event| {
                out.push_back((now, event));
            });
        if done {
            self.rules.destinations.pending.pop_front();
            let size = self.config.block_size;
            let missing = (self.pool.blocks_for(prompt) - cached / size) * size;
            let id = self.seqs[slot].id;
            self.rules.destinations.reserved.push((id, missing));
        }
    }

    /// The prompt of a sequence is here. False: nobody waits for it.
    pub(super) fn activate_prompt(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) -> bool {
        let Some(slot) = self.seqs.find(id) else {
            return false;
        };
        let seq = &mut self.seqs[slot];
        if seq.state != SeqState::Fetching || seq.table.is_empty() {
            return false;
        }
        self.fetching -= 1;
        (seq.state, seq.load.is_here) = (SeqState::Waiting, true);
        (seq.computed, seq.cached) = (seq.prompt, 0);
        let (plan, upto) = (seq.plan.as_ref(), seq.prompt);
        self.pool
            .cache_full(&mut seq.table, plan, upto, &mut |event| {
                out.push_back((now, event));
            });
        seq.settled = seq.table.settled();
        self.waiting.insert(&self.seqs, slot);
        self.reserve_next(now, out);
        self.wake(now);
        true
    }
}
