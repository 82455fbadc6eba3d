use std::time::Duration;

use crate::SimTime;
use crate::kv::StoreCopy;
use crate::latency::Batch;
use crate::{Draft, EncoderInput, End, Event, Outbox, SeqId};

use super::seqs::{SeqState, Seqs, Slot};

/// A sequence of a step, and what comes out for it at the end.
#[derive(Debug, Clone, Copy)]
pub(in crate::sched) struct StepEntry {
    pub slot: Slot,
    /// Tokens that come out.
    pub emit: u32,
    /// They are the last ones.
    pub last: bool,
    /// Drafts that it verifies.
    pub drafts: Draft,
}

/// What a sequence computes in a step.
#[derive(Debug, Clone, Copy)]
pub(in crate::sched) struct StepWork {
    pub slot: Slot,
    /// Tokens before it, computed or cached.
    pub past: u32,
    /// Tokens it computes, drafts included.
    pub new: u32,
    /// Its prompt tokens.
    pub prompt: u32,
    /// Tokens it had when it was scheduled.
    pub known: u32,
    /// What comes out is drawn later, and costs a decode then.
    pub later: bool,
    /// Its prompt was fetched, and its last token is computed for the logits alone.
    pub fetched: bool,
}

/// One scheduled batch.
#[derive(Debug, Default)]
pub(in crate::sched) struct Step {
    pub entries: Vec<StepEntry>,
    /// The work of all entries but those that compute their newest token and nothing else.
    pub work: Vec<StepWork>,
    /// Block events that it causes.
    pub events: Vec<Event>,
    /// Sequences that were found impossible when it was made.
    pub rejected: Vec<SeqId>,
    pub batch: Batch,
    /// Sequences that take part without an entry: one token comes out for each.
    pub bulk_decodes: u32,
    /// Some running sequence got no token of the budget, or no block.
    pub short: bool,
    /// BlockCounts the steps; set when it goes into flight.
    pub number: u64,
    /// How long adapters load before it computes.
    pub loading: Duration,
    /// What encoders make of media before it computes, and for whom.
    pub encoded: Vec<(Slot, EncoderInput)>,
    /// Blocks to be copied to the memory of the host when it has ended.
    pub stores: Vec<StoreCopy>,
    /// Before then it does not compute: blocks that others took are still being copied.
    pub copied: SimTime,
    /// When it started.
    pub begun: SimTime,
    /// When it ends; set when it starts.
    pub end: SimTime,
    /// The same without the other ranks of a lock step.
    pub own_end: SimTime,
    /// Nobody takes part: other ranks have work.
    pub is_dummy: bool,
    /// Tokens of prompts (and lost output) computed.
    pub prompt_tokens: u32,
}

impl Step {
    /// Makes it as good as new, keeping its memory.
    pub(in crate::sched) fn clear(&mut self) {
        self.entries.clear();
        self.work.clear();
        self.events.clear();
        self.rejected.clear();
        self.batch = Batch::default();
        self.bulk_decodes = 0;
        self.short = false;
        self.loading = Duration::ZERO;
        self.encoded.clear();
        self.stores.clear();
        self.copied = SimTime::ZERO;
        self.prompt_tokens = 0;
        self.is_dummy = false;
    }

    /// Whether nobody takes part.
    pub(in crate::sched) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.bulk_decodes == 0
    }

    /// Whether all that took part are over.
    pub(in crate::sched) fn is_abandoned(&self, seqs: &Seqs) -> bool {
        let over = |entry: &StepEntry| seqs[entry.slot].state == SeqState::Dead;
        self.bulk_decodes == 0 && self.entries.iter().all(over)
    }

    /// Reports the sequences that were found impossible.
    pub(in crate::sched) fn report_rejected(&mut self, now: SimTime, out: &mut Outbox) {
        if self.rejected.is_empty() {
            return;
        }
        let end = End::Cancelled;
        let ended = self
            .rejected
            .drain(..)
            .map(|id| (now, Event::Ended { id, end }));
        out.extend(ended);
    }

    pub(in crate::sched) fn push(
        &mut self,
        entry: StepEntry,
        work: StepWork,
        cost: Batch,
        prompt_tokens: u32,
    ) {
        self.entries.push(entry);
        self.work.push(work);
        self.batch += cost;
        self.prompt_tokens += prompt_tokens;
    }

    /// Takes a sequence out again, but not its cost; `plain` is its work if it has none of its own. Returns
    /// the tokens that will not come out, and the work that will not be done.
    pub(in crate::sched) fn remove(
        &mut self,
        slot: Slot,
        plain: StepWork,
    ) -> Option<(u32, StepWork)> {
        let at = self.entries.iter().position(|entry| entry.slot == slot)?;
        let entry = self.entries.remove(at);
        let own = self.work.iter().position(|work| work.slot == slot);
        let work = own.map_or(plain, |at| self.work.remove(at));
        Some((entry.emit, work))
    }
}

impl StepWork {
    /// A sequence decodes when all that it had but its newest token was there.
    pub(in crate::sched) fn decodes(&self) -> bool {
        self.past >= self.ready() && self.past + 1 == self.known
    }

    /// Prompt tokens without those that cost a decode.
    pub(in crate::sched) fn ready(&self) -> u32 {
        self.prompt - u32::from(self.fetched)
    }
}
