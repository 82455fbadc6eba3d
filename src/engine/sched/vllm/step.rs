use crate::engine::latency::Batch;
use crate::engine::{Event, SeqId};
use crate::sim::SimTime;

use super::config::Recompute;
use super::seqs::Slot;

/// What one sequence does in a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub slot: Slot,
    /// Tokens before it, computed or cached.
    pub past: u32,
    /// Tokens it computes, drafts included.
    pub new: u32,
    /// Tokens that come out at the end.
    pub emit: u32,
    /// Its prompt tokens.
    pub prompt: u32,
    /// Tokens it had when it was scheduled.
    pub known: u32,
    /// Draft tokens may have made some of what comes out.
    pub drafted: bool,
    /// The last tokens come out.
    pub last: bool,
}

/// One scheduled batch.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub entries: Vec<Entry>,
    /// Block events that it causes.
    pub events: Vec<Event>,
    /// Sequences that were found impossible when it was made.
    pub rejected: Vec<SeqId>,
    pub batch: Batch,
    /// When it ends; set when it starts.
    pub end: SimTime,
    /// Tokens of prompts (and lost output) computed.
    pub prompt_tokens: u32,
}

impl Step {
    /// Makes it as good as new, keeping its memory.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.events.clear();
        self.rejected.clear();
        self.batch = Batch::default();
        self.prompt_tokens = 0;
    }

    pub(super) fn push(&mut self, entry: Entry, rule: Recompute, window: Option<u32>) {
        self.count(&entry, rule, window);
        self.entries.push(entry);
    }

    /// Takes a sequence out again; the sums are made anew.
    pub(super) fn remove(
        &mut self,
        slot: Slot,
        rule: Recompute,
        window: Option<u32>,
    ) -> Option<Entry> {
        let at = self.entries.iter().position(|entry| entry.slot == slot)?;
        let removed = self.entries.remove(at);
        self.batch = Batch::default();
        self.prompt_tokens = 0;
        let entries = std::mem::take(&mut self.entries);
        for entry in &entries {
            self.count(entry, rule, window);
        }
        self.entries = entries;
        Some(removed)
    }

    fn count(&mut self, entry: &Entry, rule: Recompute, window: Option<u32>) {
        let &Entry {
            past,
            new,
            prompt,
            known,
            drafted,
            ..
        } = entry;
        // A sequence decodes when all that it had but its newest token was there.
        let decodes = past >= prompt && past + 1 == known;
        if !decodes {
            self.prompt_tokens += new;
        }
        match rule {
            Recompute::Costed if decodes => self.batch.add_decode(past + new, new, window),
            Recompute::Costed => self.batch.add_chunk(new, past),
            Recompute::Free => {
                // aisimulate-core `scheduler/vllm/core.rs`: prompt tokens only; whoever emits
                // decodes, unless this step ends its prompt.
                let before = past.min(prompt);
                let fresh = (past + new).min(prompt) - before;
                if fresh > 0 {
                    self.batch.add_chunk(fresh, before);
                }
                let emits = past + new >= known;
                if emits && (fresh == 0 || drafted) {
                    self.batch.add_decode(known, 1, window);
                }
            }
        }
    }
}
