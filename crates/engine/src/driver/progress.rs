use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::task::Waker;

use atomic_waker::AtomicWaker;

use crate::SequenceEndReason;
use crate::SimTime;

type VerifiedDrafts = Mutex<Vec<(u8, u8)>>;

/// Index ranges `start..end` of output tokens that one step released together.
type TokenGroupRanges = Mutex<VecDeque<(u32, u32)>>;

/// Progress of a sequence, shared between the engine and the task that writes the reply.
///
/// The engine adds to the counter and wakes the reply, which writes all tokens between those sent
/// and those released. No queue holds single tokens, so a slow client costs one integer.
///
/// The layout is in declaration order: the fields written per token share a cache line, since two
/// cores exchange it.
#[derive(Debug)]
#[repr(C)]
pub struct SharedProgress {
    waker: AtomicWaker,
    released: AtomicU32,
    state: AtomicU8,
    lost_load: AtomicBool,
    last: AtomicU64,
    /// Groups of output tokens released together, in order: accepted draft tokens and the token
    /// before them. Only for sequences with draft tokens.
    groups: OnceLock<Box<TokenGroupRanges>>,
    first: AtomicU64,
    scheduled: AtomicU64,
    /// Arrival time of the request, on the engine's clock.
    pub arrived: SimTime,
    cached: AtomicU32,
    external: AtomicU32,
    drafts: OnceLock<Box<VerifiedDrafts>>,
    leased: OnceLock<Box<[u32]>>,
}

/// State of a sequence in its life cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceState {
    /// The sequence waits in the engine's queue.
    Waiting,
    /// The sequence is in the engine's running batch.
    Running,
    /// The sequence has finished, or was aborted or cancelled.
    Ended(SequenceEndReason),
}

const STATE_WAITING: u8 = 0;
const STATE_RUNNING: u8 = 1;
const STATE_FINISHED: u8 = 2;
const STATE_ABORTED: u8 = 3;
const STATE_CANCELLED: u8 = 4;
const STATE_BELOW_HIT_THRESHOLD: u8 = 5;
const STATE_FAILED: u8 = 6;

impl SharedProgress {
    /// Creates the progress of a sequence that waits in the queue.
    pub fn new(arrived: SimTime) -> Self {
        Self {
            released: AtomicU32::new(0),
            state: AtomicU8::new(STATE_WAITING),
            cached: AtomicU32::new(0),
            external: AtomicU32::new(0),
            scheduled: AtomicU64::new(0),
            first: AtomicU64::new(0),
            last: AtomicU64::new(0),
            arrived,
            waker: AtomicWaker::new(),
            groups: OnceLock::new(),
            drafts: OnceLock::new(),
            leased: OnceLock::new(),
            lost_load: AtomicBool::new(false),
        }
    }

    /// Returns the number of released output tokens.
    pub fn released_tokens(&self) -> u32 {
        self.released.load(Ordering::Acquire)
    }

    /// Returns the life-cycle state of the sequence. Read it before [`Self::released_tokens`] to see every
    /// token of an ended sequence.
    pub fn state(&self) -> SequenceState {
        match self.state.load(Ordering::Acquire) {
            STATE_WAITING => SequenceState::Waiting,
            STATE_RUNNING => SequenceState::Running,
            STATE_FINISHED => SequenceState::Ended(SequenceEndReason::Finished),
            STATE_ABORTED => SequenceState::Ended(SequenceEndReason::Aborted),
            STATE_CANCELLED => SequenceState::Ended(SequenceEndReason::Cancelled),
            STATE_FAILED => SequenceState::Ended(SequenceEndReason::Failed),
            _ => SequenceState::Ended(SequenceEndReason::Threshold),
        }
    }

    /// Returns the number of prompt tokens found in the prefix cache; valid once the sequence runs.
    pub fn cached_tokens(&self) -> u32 {
        self.cached.load(Ordering::Acquire)
    }

    /// Returns the number of prompt tokens loaded from another engine or from host memory; valid
    /// once the sequence runs.
    pub fn external_tokens(&self) -> u32 {
        self.external.load(Ordering::Acquire)
    }

    /// Returns the number of prompt tokens, of `prompt` in total, that were not computed. The last
    /// token is always computed if others were loaded.
    pub fn reused_tokens(&self, prompt: u32) -> u32 {
        let cached = self.cached_tokens();
        let others = prompt.saturating_sub(1).saturating_sub(cached);
        cached + self.external_tokens().min(others)
    }

    /// Returns the times of the sequence's admission, of its first token and of its latest token.
    pub fn admission_and_token_times(&self) -> [SimTime; 3] {
        [&self.scheduled, &self.first, &self.last]
            .map(|at| SimTime::from_nanos(at.load(Ordering::Acquire)))
    }

    /// Returns the ids of the KV blocks kept for another engine to read; valid once the sequence
    /// has ended.
    pub fn leased_block_ids(&self) -> Option<&[u32]> {
        self.leased.get().map(AsRef::as_ref)
    }

    /// Returns the end index of a chunk of output that starts at token `from` and has at least
    /// `least` tokens. Tokens released together stay in one chunk. The end may be greater than
    /// [`Self::released_tokens`].
    pub fn output_chunk_end(&self, from: u32, least: u32) -> u32 {
        let wanted = from.saturating_add(least);
        let Some(groups) = self.groups.get() else {
            return wanted;
        };
        // A panic of another holder of this lock leaves no partial change.
        let mut groups = groups.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while groups.front().is_some_and(|group| group.1 <= from) {
            groups.pop_front();
        }
        let cut = groups.iter().find(|group| group.0 < wanted && wanted < group.1);
        cut.map_or(wanted, |group| group.1)
    }

    /// Returns whether some output tokens were released together, by accepted draft tokens.
    pub fn has_multi_token_releases(&self) -> bool {
        self.groups.get().is_some()
    }

    pub(super) fn record_multi_token_release(&self, from: u32, to: u32) {
        let groups = self.groups.get_or_init(Box::default);
        let mut groups = groups.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        groups.push_back((from, to));
    }

    /// Returns the numbers of proposed and of accepted draft tokens, for each step that verified
    /// some.
    pub fn verified_drafts(&self) -> Vec<(u8, u8)> {
        let Some(drafts) = self.drafts.get() else {
            return Vec::new();
        };
        let drafts = drafts.lock();
        drafts.unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub(super) fn record_verified_drafts(&self, proposed: u32, accepted: u32) {
        let byte = |n: u32| u8::try_from(n).unwrap_or(u8::MAX);
        let drafts = self.drafts.get_or_init(Box::default).lock();
        let mut drafts = drafts.unwrap_or_else(std::sync::PoisonError::into_inner);
        drafts.push((byte(proposed), byte(accepted)));
    }

    /// Registers the waker of the task that writes the reply, to be woken at the next progress of
    /// the sequence. Check the progress again after the call.
    pub fn register_waker(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    pub(super) fn record_admission(&self, at: SimTime, cached: u32, external: u32) {
        self.cached.store(cached, Ordering::Relaxed);
        self.external.store(external, Ordering::Relaxed);
        self.scheduled.store(at.as_nanos(), Ordering::Relaxed);
        self.state.store(STATE_RUNNING, Ordering::Release);
    }

    pub(super) fn record_released_tokens(&self, at: SimTime, total: u32, first: bool) {
        if first {
            self.first.store(at.as_nanos(), Ordering::Relaxed);
        }
        self.last.store(at.as_nanos(), Ordering::Relaxed);
        self.released.store(total, Ordering::Release);
    }

    pub(super) fn record_end(&self, end: SequenceEndReason) {
        let state = match end {
            SequenceEndReason::Finished => STATE_FINISHED,
            SequenceEndReason::Aborted => STATE_ABORTED,
            SequenceEndReason::Cancelled => STATE_CANCELLED,
            SequenceEndReason::Threshold => STATE_BELOW_HIT_THRESHOLD,
            SequenceEndReason::Failed => STATE_FAILED,
        };
        self.state.store(state, Ordering::Release);
    }

    /// Returns whether a part of the prompt's KV blocks could not be loaded from another engine or
    /// from host memory.
    pub fn has_failed_kv_load(&self) -> bool {
        self.lost_load.load(Ordering::Acquire)
    }

    pub(super) fn record_failed_kv_load(&self) {
        self.lost_load.store(true, Ordering::Release);
    }

    pub(super) fn record_leased_blocks(&self, blocks: &[u32]) {
        // A sequence ends only once.
        let _ = self.leased.set(blocks.into());
    }

    pub(super) fn wake_reply(&self) {
        self.waker.wake();
    }
}
