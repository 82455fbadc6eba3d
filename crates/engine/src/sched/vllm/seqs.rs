use std::sync::Arc;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;

use super::encoder_cache::MediaReferences;
use crate::kv::BlockTable;
use crate::seq_map::SeqMap;
use crate::{
    InjectedKvLoadFailure, LoraId, PlannedKvBlocks, PromptKvTransfer, SeqId, Sequence,
    SequenceProgress, SimTime, StepDraftCounts,
};

/// Identifies a moment of a scheduler's run by the simulated time and the number of progress events
/// (tokens, ends, freed blocks) until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sched) struct ProgressMark {
    pub(super) at: SimTime,
    pub(super) changes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::sched) enum SequenceRunState {
    #[default]
    Free,
    Waiting,
    /// The prompt is being fetched or loaded; the sequence holds KV blocks.
    Fetching,
    Running,
    /// The sequence is in the running batch; its last token is scheduled or already emitted.
    Draining,
    /// The sequence is in no queue: it was preempted while its last token was in flight, and waits
    /// for the delay after that token.
    Resting,
    /// The sequence has ended, but a step in flight still computes it.
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sched) enum FetchStage {
    Expected,
    Begun,
    /// The fetch of the prompt's KV cache has ended and the sequence waits for admission.
    Done,
}

/// Holds a sequence in the scheduler. The fields used by every step come first, in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(in crate::sched) struct ScheduledSequence {
    pub id: SeqId,
    /// Number of the sequence's existing prompt and output tokens, including the tokens of steps in
    /// flight.
    pub known: u32,
    /// Number of the sequence's tokens in the KV cache, computed or scheduled.
    pub computed: u32,
    pub total: u32,
    /// Number of the sequence's prompt tokens plus emitted output tokens.
    pub released: u32,
    pub prompt: u32,
    /// Number of tokens up to which the sequence needs no new KV block ([`BlockTable::settled`]).
    pub settled: u32,
    pub state: SequenceRunState,
    /// Number of steps in flight that compute the sequence.
    pub in_flight: u8,
    pub preemptions: PreemptionCounts,
    pub step: SequenceStepState,
    pub admitted: bool,
    pub bulk: BulkDecodeState,
    /// Admission number of the sequence; the running batch is ordered by this number.
    pub place: u64,
    /// Reuse counter of the slot; distinguishes the sequences that use it one after another.
    pub generation: u32,
    pub arrival: u64,
    pub table: BlockTable,
    pub plan: Option<Arc<PlannedKvBlocks>>,
    /// Sort key of the sequence in the waiting queue.
    pub rank: WaitingSortKey,
    pub request: SequenceOptions,
    /// Number of cached prompt tokens at the first admission.
    pub cached: u32,
    pub load: PromptLoadState,
    /// Time of the sequence's last start and number of progress events until then, if the sequence
    /// was preempted before without a new token.
    pub vain_start: Option<ProgressMark>,
    pub draws: Option<Box<ChaCha8Rng>>,
    /// Media items of the prompt; `None` if there are none or no encoder is simulated.
    pub media: Option<Box<MediaReferences>>,
}

#[derive(Debug, Default)]
pub(in crate::sched) struct PreemptionCounts {
    pub recent: u8,
    /// Value of `recent` (number of recent preemptions) before the newest token; restored if that
    /// token is undone.
    earlier: u8,
}

/// State of a sequence in its newest step.
#[derive(Debug, Default)]
pub(in crate::sched) struct SequenceStepState {
    pub stale: StaleSteps,
    /// Number of draft tokens, in the sequence's steps in flight, that will be rejected; the
    /// scheduler does not know this yet.
    pub ahead: u32,
    /// Whether the sequence's newest step computed only a part of its known tokens, so that it
    /// sampled no new token.
    pub is_prefill_chunk: bool,
    /// Whether the draft tokens in the next step of the sequence are only padding, so that the
    /// sequence computes as many tokens as other sequences.
    pub is_padded: bool,
    /// Whether admission skipped the sequence in the waiting queue since the sequence was queued.
    pub is_deferred: bool,
}

/// Counts the steps that were in flight when their sequence was preempted.
///
/// **Source:** `num_stale_output_tokens`, `vllm/v1/core/sched/scheduler.py`.
#[derive(Debug, Default, Clone, Copy)]
pub(in crate::sched) struct StaleSteps {
    left: u8,
    output: StepOutputUse,
}

/// Treatment of the output that an ended step has computed for a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::sched) enum StepOutputUse {
    #[default]
    Current,
    /// The sequence was preempted during the step; the tokens of the step count.
    Stale,
    /// The sequence was preempted during the step, and computes the tokens of the step again.
    Dropped,
}

impl StaleSteps {
    pub(in crate::sched) fn new(left: u8, output: StepOutputUse) -> Self {
        Self { left, output }
    }

    /// Returns whether the output tokens of a preempted sequence's steps in flight are dropped.
    pub(in crate::sched) fn drops_step_output(self) -> bool {
        self.has_stale_steps() && self.output == StepOutputUse::Dropped
    }

    pub(in crate::sched) fn has_stale_steps(self) -> bool {
        self.left > 0
    }

    /// Counts a step that has ended, and returns the treatment of that step's output.
    #[inline]
    pub(in crate::sched) fn record_ended_step(&mut self) -> StepOutputUse {
        if self.left == 0 {
            return StepOutputUse::Current;
        }
        self.left -= 1;
        self.output
    }
}

/// Sort key of a waiting sequence: class, then priority, then order of queueing.
pub(in crate::sched) type WaitingSortKey = (WaitingClass, i64, i64);

/// Class of a waiting sequence; sequences of a lower class are tried for admission first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::sched) enum WaitingClass {
    /// The waiting sequence holds KV blocks of a loaded prompt, and is tried for admission before
    /// all others.
    HoldsBlocks,
    Plain,
}

/// State of a sequence that is decoded in bulk, without bookkeeping per step
/// ([`BulkDecode`](super::bulk_decode::BulkDecode)).
#[derive(Debug, Default)]
pub(in crate::sched) struct BulkDecodeState {
    /// Whether the sequence is decoded in bulk, with a token in every step but no bookkeeping. If
    /// so, `known` and `computed` are the values at step `joined`.
    pub is_in: bool,
    /// Number of the last step before the sequence was decoded in bulk, without bookkeeping per
    /// step.
    pub joined: u64,
    /// Number of the step at which the sequence next needs a KV block, adds a prefix-cache entry or
    /// ends.
    pub due: u64,
}

/// State of a prompt that is loaded from another engine or from host memory.
#[derive(Debug, Default)]
pub(in crate::sched) struct PromptLoadState {
    stage: Option<FetchStage>,
    /// Whether the fetch of the remote prompt's KV cache has ended, even if it failed or the KV
    /// cache was lost again.
    pub is_here: bool,
    /// Whether the fetch of the prompt's KV cache failed, so that the sequence computes the missing
    /// tokens.
    pub is_lost: bool,
    /// End time of the fetch of the prompt's KV cache.
    pub ends: SimTime,
    /// Whether the loaded KV blocks are not in the prefix cache yet.
    pub is_uncached: bool,
    /// Number of prompt tokens loaded from host memory, after the cached ones.
    pub tokens: u32,
    pub failure: Option<InjectedKvLoadFailure>,
}

/// State of the grammar of a structured output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::sched) enum GrammarState {
    /// The grammar of the output is compiled, or the output has no grammar.
    #[default]
    Ready,
    Compiling,
    /// The compilation of the grammar has failed.
    Failed,
    /// The scheduler has found that the compilation of the grammar failed, and ends the sequence.
    Reported,
}

#[derive(Debug, Default)]
pub(in crate::sched) struct SequenceOptions {
    pub skip_cache_read: bool,
    pub transfer: PromptKvTransfer,
    pub lora: Option<LoraId>,
    pub hit_threshold: Option<f64>,
    pub grammar: GrammarState,
    /// Whether the compilation of the grammar fails.
    pub invalid_grammar: bool,
    pub tail: Duration,
    drafts: Option<Arc<[StepDraftCounts]>>,
}

impl ScheduledSequence {
    /// Resets the number of preemptions without a new token, because a step schedules a token.
    #[inline]
    pub(in crate::sched) fn reset_recent_preemptions(&mut self) {
        self.preemptions.earlier = std::mem::take(&mut self.preemptions.recent);
    }

    /// Reverts [`Self::reset_recent_preemptions`] for a token whose step is undone.
    pub(in crate::sched) fn restore_recent_preemptions(&mut self) {
        self.preemptions.recent = self.preemptions.earlier;
    }

    /// Returns the number of preemptions since the last token of the sequence that no step in
    /// flight can undo.
    pub(in crate::sched) fn final_preemption_count(&self) -> u8 {
        let PreemptionCounts { recent, earlier } = self.preemptions;
        match self.in_flight {
            0 => recent,
            _ => recent.max(earlier),
        }
    }

    /// Returns the number of drafts after the sequence's newest token, as given at submission;
    /// `None` if none were given.
    pub(in crate::sched) fn submitted_drafts(&self) -> Option<StepDraftCounts> {
        let drafts = self.request.drafts.as_ref()?;
        // No drafts follow a prompt.
        let output = (self.known - self.prompt).checked_sub(1);
        let at = output.and_then(|at| drafts.get(at as usize));
        Some(at.copied().unwrap_or_default())
    }

    /// Returns how many of the sequence's first `known` tokens belong to KV blocks with keys. If a
    /// key also covers tokens after its block (lookahead), these tokens must be known.
    pub(in crate::sched) fn tokens_with_keys(&self, known: u32) -> u32 {
        let ahead = self.plan.as_ref().map_or(0, |plan| plan.lookahead);
        known.saturating_sub(ahead)
    }

    /// Returns whether the preemption of a sequence in the batch frees KV blocks. A sequence that
    /// has emitted all its tokens holds none, even if a step in flight still computes drafts of it.
    pub(in crate::sched) fn is_preemptible(&self) -> bool {
        self.state == SequenceRunState::Running
            || (self.in_flight > 0 && self.released < self.total)
    }

    /// Returns whether the sequence ends with the steps in flight even if they accept no draft
    /// tokens.
    ///
    /// **Source:** `num_output_placeholders`, `vllm/v1/core/sched/scheduler.py`.
    pub(in crate::sched) fn ends_without_accepted_drafts(&self) -> bool {
        let samples = self.in_flight > 0 && !self.step.is_prefill_chunk;
        self.released + u32::from(samples) >= self.total
    }

    /// Returns how many tokens of the sequence are known when the next step is planned: all tokens
    /// except those that steps in flight sample. `ahead` is the number of steps in flight.
    #[inline]
    pub(in crate::sched) fn known_tokens_at_planning(&self, known: u32, ahead: u32) -> u32 {
        match self.bulk.is_in {
            true => known - ahead.min(known),
            false => self.released,
        }
    }

    /// Returns whether a media item of the prompt may still need encoding.
    pub(in crate::sched) fn may_need_encoding(&self) -> bool {
        let media = self.media.as_ref();
        media.is_some_and(|media| media.end_token_index() > self.computed)
    }

    /// Returns whether the sequence references embeddings in the encoder cache.
    pub(in crate::sched) fn holds_embeddings(&self) -> bool {
        self.media.as_ref().is_some_and(|media| media.holds_any_media_reference())
    }

    fn empty_slot() -> Self {
        Self {
            id: SeqId(u64::MAX),
            known: 0,
            computed: 0,
            total: 0,
            released: 0,
            prompt: 0,
            settled: 0,
            state: SequenceRunState::Free,
            in_flight: 0,
            preemptions: PreemptionCounts::default(),
            vain_start: None,
            step: SequenceStepState::default(),
            admitted: false,
            bulk: BulkDecodeState::default(),
            place: 0,
            generation: 0,
            arrival: 0,
            table: BlockTable::default(),
            plan: None,
            rank: (WaitingClass::Plain, 0, 0),
            request: SequenceOptions::default(),
            cached: 0,
            load: PromptLoadState::default(),
            draws: None,
            media: None,
        }
    }
}

pub(in crate::sched) type SequenceSlot = u32;

#[derive(Debug, Default)]
pub(in crate::sched) struct SequenceSlab {
    slots: Vec<ScheduledSequence>,
    free: Vec<SequenceSlot>,
    by_id: SeqMap<SequenceSlot>,
    pub(in crate::sched) fetches: [u32; 3],
}

impl SequenceSlab {
    /// Adds a sequence, with at most `max_len` tokens, to the scheduler's sequence slots.
    pub(in crate::sched) fn insert(
        &mut self,
        seq: Sequence,
        max_len: u32,
        arrival: u64,
    ) -> SequenceSlot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(ScheduledSequence::empty_slot());
            (self.slots.len() - 1) as SequenceSlot
        });
        self.by_id.insert(seq.id, slot);
        let old = &mut self.slots[slot as usize];
        let table = std::mem::take(&mut old.table);
        *old = ScheduledSequence {
            id: seq.id,
            known: seq.prompt,
            total: seq.prompt.saturating_add(seq.output).min(max_len.max(seq.prompt)),
            released: seq.prompt,
            prompt: seq.prompt,
            state: SequenceRunState::Waiting,
            load: PromptLoadState { failure: seq.load_failure, ..PromptLoadState::default() },
            generation: old.generation.wrapping_add(1),
            table,
            plan: seq.plan,
            arrival,
            request: SequenceOptions {
                skip_cache_read: seq.skip_cache_read,
                transfer: seq.transfer,
                lora: seq.lora,
                hit_threshold: seq.hit_threshold,
                grammar: match seq.grammar {
                    Some(_) => GrammarState::Compiling,
                    None => GrammarState::Ready,
                },
                invalid_grammar: seq.grammar.is_some_and(|grammar| grammar.fails),
                tail: seq.tail,
                drafts: seq.drafts,
            },
            ..ScheduledSequence::empty_slot()
        };
        if seq.transfer == PromptKvTransfer::RemotePrefill {
            self.set_fetch_stage(slot, Some(FetchStage::Expected));
        }
        slot
    }

    pub(in crate::sched) fn set_fetch_stage(
        &mut self,
        slot: SequenceSlot,
        stage: Option<FetchStage>,
    ) {
        let seq = &mut self.slots[slot as usize];
        if let Some(before) = std::mem::replace(&mut seq.load.stage, stage) {
            self.fetches[before as usize] -= 1;
        }
        if let Some(stage) = stage {
            self.fetches[stage as usize] += 1;
        }
    }

    pub(in crate::sched) fn find_slot(&self, id: SeqId) -> Option<SequenceSlot> {
        self.by_id.get(&id).copied()
    }

    /// Returns the progress of a sequence with bookkeeping in every step (not decoded in bulk).
    pub(in crate::sched) fn sequence_progress(&self, id: SeqId) -> Option<SequenceProgress> {
        let seq = &self[self.find_slot(id)?];
        Some(SequenceProgress {
            computed: seq.computed,
            waits_for_kv: seq.state == SequenceRunState::Fetching,
        })
    }

    /// Removes a sequence from its slot. The slot is free once no step in flight refers to it.
    pub(in crate::sched) fn end_sequence(&mut self, slot: SequenceSlot) {
        self.set_fetch_stage(slot, None);
        let seq = &mut self.slots[slot as usize];
        self.by_id.remove(&seq.id);
        seq.plan = None;
        seq.draws = None;
        seq.request.drafts = None;
        seq.media = None;
        if seq.in_flight == 0 {
            seq.state = SequenceRunState::Free;
            self.free.push(slot);
        } else {
            seq.state = SequenceRunState::Dead;
        }
    }

    pub(in crate::sched) fn free_dead_slot(&mut self, slot: SequenceSlot) {
        let seq = &mut self.slots[slot as usize];
        if seq.state == SequenceRunState::Dead && seq.in_flight == 0 {
            seq.state = SequenceRunState::Free;
            self.free.push(slot);
        }
    }

    pub(in crate::sched) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Iterates over all sequence slots, including free ones.
    pub(in crate::sched) fn iter_all_slots(&self) -> impl Iterator<Item = &ScheduledSequence> {
        self.slots.iter()
    }

    /// Iterates over the block tables of all sequences, each with its number of tokens in the KV
    /// cache.
    pub(in crate::sched) fn tables(&self) -> impl Iterator<Item = (&BlockTable, u32)> {
        let all = self.by_id.values().map(|&slot| &self[slot]);
        all.map(|seq| (&seq.table, seq.computed))
    }

    pub(in crate::sched) fn live_slots(&self) -> Vec<SequenceSlot> {
        let mut all: Vec<SequenceSlot> = self.by_id.values().copied().collect();
        all.sort_unstable_by_key(|&slot| self[slot].arrival);
        all
    }
}

impl std::ops::Index<SequenceSlot> for SequenceSlab {
    type Output = ScheduledSequence;
    #[inline]
    fn index(&self, slot: SequenceSlot) -> &ScheduledSequence {
        &self.slots[slot as usize]
    }
}

impl std::ops::IndexMut<SequenceSlot> for SequenceSlab {
    #[inline]
    fn index_mut(&mut self, slot: SequenceSlot) -> &mut ScheduledSequence {
        &mut self.slots[slot as usize]
    }
}
