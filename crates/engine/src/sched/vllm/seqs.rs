use std::sync::Arc;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;

use super::encoder_cache::MediaRefs;
use crate::kv::BlockTable;
use crate::seq_map::SeqMap;
use crate::{BlockPlan, Draft, LoadFailure, LoraId, SeqId, Sequence, SequenceProgress, Transfer};

/// Where a sequence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::sched) enum SeqState {
    /// The slot is empty.
    #[default]
    Free,
    /// In the waiting queue.
    Waiting,
    /// Its prompt is being fetched or loaded; it holds blocks.
    Fetching,
    /// In the running batch.
    Running,
    /// In the running batch, but its last token is scheduled or out.
    Draining,
    /// In no queue: preempted with its last token in flight, it waits for its tail.
    Resting,
    /// Over, but a step that computes it is still in flight.
    Dead,
}

/// How far the fetch or load of a prompt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sched) enum FetchStage {
    /// It has not begun.
    Expected,
    /// It goes on.
    Begun,
    /// It is over, and the sequence waits for its turn.
    Done,
}

/// A sequence as the scheduler sees it. What every step touches comes first, in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(in crate::sched) struct Seq {
    pub id: SeqId,
    /// Prompt and output tokens that exist, those being made in flight included.
    pub known: u32,
    /// Tokens whose cache is computed or scheduled to be.
    pub computed: u32,
    /// Prompt + planned output.
    pub total: u32,
    /// Prompt + output tokens that came out.
    pub released: u32,
    pub prompt: u32,
    /// [`BlockTable::settled`] of its blocks.
    pub settled: u32,
    pub state: SeqState,
    /// Steps in flight that compute it.
    pub in_flight: u8,
    pub preemptions: Preemptions,
    /// It left the waiting queue before.
    pub admitted: bool,
    pub bulk: BulkPlace,
    /// BlockCounts the admissions: the order of the running batch.
    pub place: u64,
    /// Told apart from earlier sequences in the same slot.
    pub generation: u32,
    /// Number of its submission.
    pub arrival: u64,
    pub table: BlockTable,
    pub plan: Option<Arc<BlockPlan>>,
    /// Place in the waiting queue.
    pub rank: (i64, i64),
    pub request: SeqRequest,
    /// Cached prompt tokens at first admission.
    pub cached: u32,
    pub load: PromptLoad,
    pub draws: Option<Box<ChaCha8Rng>>,
    /// Items of media in its prompt; `None` too where no encoder is modelled.
    pub media: Option<Box<MediaRefs>>,
}

/// Preemptions without a token.
#[derive(Debug, Default)]
pub(in crate::sched) struct Preemptions {
    /// Since it last made one.
    pub recent: u8,
    /// The same before the token of its newest step, which may be undone.
    earlier: u8,
}

/// A sequence's part in the bulk ([`BulkDecode`](super::bulk_decode::BulkDecode)).
#[derive(Debug, Default)]
pub(in crate::sched) struct BulkPlace {
    /// True if the sequence is in every step, and `known` and `computed` are those at step `joined`.
    pub is_in: bool,
    /// Number of the last step before it was decoded in bulk.
    pub joined: u64,
    /// Number of the step in which it needs something.
    pub due: u64,
}

/// The part of a prompt that comes from another engine or the memory of the host.
#[derive(Debug, Default)]
pub(in crate::sched) struct PromptLoad {
    /// The stage of the fetch, if there is one.
    stage: Option<FetchStage>,
    /// A remote prompt is here (or lost again).
    pub is_here: bool,
    /// True if the fetch failed: the sequence computes what it lacks.
    pub is_lost: bool,
    /// Tokens behind the cached ones that came from the memory of the host.
    pub tokens: u32,
    /// [`Sequence::load_failure`], until it has ended.
    pub failure: Option<LoadFailure>,
}

/// Fields of a submitted [`Sequence`] that no step changes.
#[derive(Debug, Default)]
pub(in crate::sched) struct SeqRequest {
    pub skip_cache_read: bool,
    pub transfer: Transfer,
    pub lora: Option<LoraId>,
    pub hit_threshold: Option<f64>,
    pub tail: Duration,
    drafts: Option<Arc<[Draft]>>,
}

impl Seq {
    /// A step makes a token of it.
    #[inline]
    pub(in crate::sched) fn note_token(&mut self) {
        self.preemptions.earlier = std::mem::take(&mut self.preemptions.recent);
    }

    /// The step that was to make a token of it does not.
    pub(in crate::sched) fn undo_token(&mut self) {
        self.preemptions.recent = self.preemptions.earlier;
    }

    /// Preemptions since the last token that cannot be undone any more.
    pub(in crate::sched) fn preemptions(&self) -> u8 {
        let Preemptions { recent, earlier } = self.preemptions;
        match self.in_flight {
            0 => recent,
            _ => recent.max(earlier),
        }
    }

    /// What its text says of the drafts behind its newest token; `None`: it says nothing.
    pub(in crate::sched) fn own_drafts(&self) -> Option<Draft> {
        let drafts = self.request.drafts.as_ref()?;
        // None are made behind a prompt.
        let output = (self.known - self.prompt).checked_sub(1);
        let at = output.and_then(|at| drafts.get(at as usize));
        Some(at.copied().unwrap_or_default())
    }

    /// Of so many tokens, those whose blocks have names: a name that looks ahead waits for what
    /// follows.
    pub(in crate::sched) fn named(&self, known: u32) -> u32 {
        let ahead = self.plan.as_ref().map_or(0, |plan| plan.lookahead);
        known.saturating_sub(ahead)
    }

    /// Whether an item of its prompt may still have to be encoded.
    pub(in crate::sched) fn awaits_media(&self) -> bool {
        let media = self.media.as_ref();
        media.is_some_and(|media| media.end() > self.computed)
    }

    /// What stands in an unused slot.
    fn empty() -> Self {
        Self {
            id: SeqId(u64::MAX),
            known: 0,
            computed: 0,
            total: 0,
            released: 0,
            prompt: 0,
            settled: 0,
            state: SeqState::Free,
            in_flight: 0,
            preemptions: Preemptions::default(),
            admitted: false,
            bulk: BulkPlace::default(),
            place: 0,
            generation: 0,
            arrival: 0,
            table: BlockTable::default(),
            plan: None,
            rank: (0, 0),
            request: SeqRequest::default(),
            cached: 0,
            load: PromptLoad::default(),
            draws: None,
            media: None,
        }
    }
}

/// Index of a sequence in its slab.
pub(in crate::sched) type Slot = u32;

/// All sequences that live, in slots that are used again.
#[derive(Debug, Default)]
pub(in crate::sched) struct Seqs {
    slots: Vec<Seq>,
    free: Vec<Slot>,
    by_id: SeqMap<Slot>,
    /// Sequences by [`FetchStage`].
    pub(in crate::sched) fetches: [u32; 3],
}

impl Seqs {
    /// Takes a sequence in, cut at `max_len` tokens.
    pub(in crate::sched) fn insert(&mut self, seq: Sequence, max_len: u32, arrival: u64) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Seq::empty());
            (self.slots.len() - 1) as Slot
        });
        self.by_id.insert(seq.id, slot);
        let old = &mut self.slots[slot as usize];
        let table = std::mem::take(&mut old.table);
        *old = Seq {
            id: seq.id,
            known: seq.prompt,
            total: seq
                .prompt
                .saturating_add(seq.output)
                .min(max_len.max(seq.prompt)),
            released: seq.prompt,
            prompt: seq.prompt,
            state: SeqState::Waiting,
            load: PromptLoad {
                failure: seq.load_failure,
                ..PromptLoad::default()
            },
            generation: old.generation.wrapping_add(1),
            table,
            plan: seq.plan,
            rank: (0, 0),
            arrival,
            request: SeqRequest {
                skip_cache_read: seq.skip_cache_read,
                transfer: seq.transfer,
                lora: seq.lora,
                hit_threshold: seq.hit_threshold,
                tail: seq.tail,
                drafts: seq.drafts,
            },
            ..Seq::empty()
        };
        if seq.transfer == Transfer::RemotePrefill {
            self.fetch(slot, Some(FetchStage::Expected));
        }
        slot
    }

    /// Notes how far the fetch or load of a prompt is.
    pub(in crate::sched) fn fetch(&mut self, slot: Slot, stage: Option<FetchStage>) {
        let seq = &mut self.slots[slot as usize];
        if let Some(before) = std::mem::replace(&mut seq.load.stage, stage) {
            self.fetches[before as usize] -= 1;
        }
        if let Some(stage) = stage {
            self.fetches[stage as usize] += 1;
        }
    }

    pub(in crate::sched) fn find(&self, id: SeqId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    /// How far a sequence is, outside the bulk.
    pub(in crate::sched) fn progress(&self, id: SeqId) -> Option<SequenceProgress> {
        let seq = &self[self.find(id)?];
        Some(SequenceProgress {
            computed: seq.computed,
            waits_for_kv: seq.state == SeqState::Fetching,
        })
    }

    /// Forgets the name; the slot is free once no step refers to it.
    pub(in crate::sched) fn end(&mut self, slot: Slot) {
        self.fetch(slot, None);
        let seq = &mut self.slots[slot as usize];
        self.by_id.remove(&seq.id);
        seq.plan = None;
        seq.draws = None;
        seq.request.drafts = None;
        seq.media = None;
        if seq.in_flight == 0 {
            seq.state = SeqState::Free;
            self.free.push(slot);
        } else {
            seq.state = SeqState::Dead;
        }
    }

    /// A step that referred to the slot is over: a dead one becomes free with the last.
    pub(in crate::sched) fn free_dead(&mut self, slot: Slot) {
        let seq = &mut self.slots[slot as usize];
        if seq.state == SeqState::Dead && seq.in_flight == 0 {
            seq.state = SeqState::Free;
            self.free.push(slot);
        }
    }

    /// How many sequences live.
    pub(in crate::sched) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The slots of all living sequences, by arrival.
    pub(in crate::sched) fn living(&self) -> Vec<Slot> {
        let mut all: Vec<Slot> = self.by_id.values().copied().collect();
        all.sort_unstable_by_key(|&slot| self[slot].arrival);
        all
    }
}

impl std::ops::Index<Slot> for Seqs {
    type Output = Seq;
    #[inline]
    fn index(&self, slot: Slot) -> &Seq {
        &self.slots[slot as usize]
    }
}

impl std::ops::IndexMut<Slot> for Seqs {
    #[inline]
    fn index_mut(&mut self, slot: Slot) -> &mut Seq {
        &mut self.slots[slot as usize]
    }
}
