use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::task::Waker;

use atomic_waker::AtomicWaker;

use crate::End;
use crate::SimTime;

/// Drafts of each step that verified some, and how many of them were right.
type VerifiedDrafts = Mutex<Vec<(u8, u8)>>;

/// Tokens that came out together, as first and one past the last.
type TokenGroups = Mutex<VecDeque<(u32, u32)>>;

/// How far a sequence is: the one thing the engine and a reply share.
///
/// The engine adds to the counter and wakes; the reply writes everything between what it sent and
/// what is released. There is no queue per token, so a slow client costs one integer.
///
/// In the order of declaration: what each token touches lies together, as two cores pass it back and
/// forth.
#[derive(Debug)]
#[repr(C)]
pub struct Progress {
    waker: AtomicWaker,
    released: AtomicU32,
    state: AtomicU8,
    lost_load: AtomicBool,
    last: AtomicU64,
    /// Tokens that came out together, as first and one past the last, in order: accepted drafts and
    /// the token before them. Only of sequences with drafts.
    groups: OnceLock<Box<TokenGroups>>,
    first: AtomicU64,
    scheduled: AtomicU64,
    /// When the request arrived, on the engine's clock.
    pub arrived: SimTime,
    cached: AtomicU32,
    external: AtomicU32,
    /// Drafts of each step that verified some, and how many of them were right.
    drafts: OnceLock<Box<VerifiedDrafts>>,
    /// Blocks that are kept for another engine.
    leased: OnceLock<Box<[u32]>>,
}

/// Where a sequence is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceState {
    /// In the queue.
    Waiting,
    /// Running.
    Running,
    /// Over.
    Ended(End),
}

const WAITING: u8 = 0;
const RUNNING: u8 = 1;
const FINISHED: u8 = 2;
const ABORTED: u8 = 3;
const CANCELLED: u8 = 4;
const THRESHOLD: u8 = 5;
const FAILED: u8 = 6;

impl Progress {
    /// Nothing has happened yet.
    pub fn new(arrived: SimTime) -> Self {
        Self {
            released: AtomicU32::new(0),
            state: AtomicU8::new(WAITING),
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

    /// Tokens released so far.
    pub fn released(&self) -> u32 {
        self.released.load(Ordering::Acquire)
    }

    /// Where the sequence is. Read it before [`Self::released`] to see every token of an ended one.
    pub fn state(&self) -> SequenceState {
        match self.state.load(Ordering::Acquire) {
            WAITING => SequenceState::Waiting,
            RUNNING => SequenceState::Running,
            FINISHED => SequenceState::Ended(End::Finished),
            ABORTED => SequenceState::Ended(End::Aborted),
            CANCELLED => SequenceState::Ended(End::Cancelled),
            FAILED => SequenceState::Ended(End::Failed),
            _ => SequenceState::Ended(End::Threshold),
        }
    }

    /// Prompt tokens that were found in the prefix cache; known once running.
    pub fn cached(&self) -> u32 {
        self.cached.load(Ordering::Acquire)
    }

    /// Prompt tokens that came from another engine or the memory of the host; known once running.
    pub fn external(&self) -> u32 {
        self.external.load(Ordering::Acquire)
    }

    /// Prompt tokens that were not computed here, of `prompt`: the last one is where others came from
    /// elsewhere.
    pub fn reused(&self, prompt: u32) -> u32 {
        let cached = self.cached();
        let others = prompt.saturating_sub(1).saturating_sub(cached);
        cached + self.external().min(others)
    }

    /// When it left the queue, when its first and its latest token came out.
    pub fn instants(&self) -> [SimTime; 3] {
        [&self.scheduled, &self.first, &self.last]
            .map(|at| SimTime::from_nanos(at.load(Ordering::Acquire)))
    }

    /// Numbers of the blocks that are kept for another engine; known once ended.
    pub fn leased(&self) -> Option<&[u32]> {
        self.leased.get().map(AsRef::as_ref)
    }

    /// Where the next part of an output ends that begins with token `from` and is at least `least`
    /// long: what came out together stays together. It may lie beyond what is released.
    pub fn part_end(&self, from: u32, least: u32) -> u32 {
        let wanted = from.saturating_add(least);
        let Some(groups) = self.groups.get() else {
            return wanted;
        };
        // A thread that panicked while it held the lock changed nothing halfway.
        let mut groups = groups
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        while groups.front().is_some_and(|group| group.1 <= from) {
            groups.pop_front();
        }
        let cut = groups
            .iter()
            .find(|group| group.0 < wanted && wanted < group.1);
        cut.map_or(wanted, |group| group.1)
    }

    /// Whether some tokens came out together.
    pub fn has_groups(&self) -> bool {
        self.groups.get().is_some()
    }

    /// Tokens `from..to` came out together.
    pub(super) fn group(&self, from: u32, to: u32) {
        let groups = self.groups.get_or_init(Box::default);
        let mut groups = groups
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        groups.push_back((from, to));
    }

    /// Drafts of each step so far that verified some, and how many of them were right.
    pub fn drafts(&self) -> Vec<(u8, u8)> {
        let Some(drafts) = self.drafts.get() else {
            return Vec::new();
        };
        let drafts = drafts.lock();
        drafts
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }

    /// A step verified drafts.
    pub(super) fn verify(&self, proposed: u32, accepted: u32) {
        let byte = |n: u32| u8::try_from(n).unwrap_or(u8::MAX);
        let drafts = self.drafts.get_or_init(Box::default).lock();
        let mut drafts = drafts.unwrap_or_else(std::sync::PoisonError::into_inner);
        drafts.push((byte(proposed), byte(accepted)));
    }

    /// Wakes this task at the next change; look again after registering.
    pub fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    pub(super) fn schedule(&self, at: SimTime, cached: u32, external: u32) {
        self.cached.store(cached, Ordering::Relaxed);
        self.external.store(external, Ordering::Relaxed);
        self.scheduled.store(at.nanos(), Ordering::Relaxed);
        self.state.store(RUNNING, Ordering::Release);
    }

    pub(super) fn release(&self, at: SimTime, total: u32, first: bool) {
        if first {
            self.first.store(at.nanos(), Ordering::Relaxed);
        }
        self.last.store(at.nanos(), Ordering::Relaxed);
        self.released.store(total, Ordering::Release);
    }

    pub(super) fn end(&self, end: End) {
        let state = match end {
            End::Finished => FINISHED,
            End::Aborted => ABORTED,
            End::Cancelled => CANCELLED,
            End::Threshold => THRESHOLD,
            End::Failed => FAILED,
        };
        self.state.store(state, Ordering::Release);
    }

    /// Whether its prompt was to be loaded, and was not, or not all of it.
    pub fn lost_load(&self) -> bool {
        self.lost_load.load(Ordering::Acquire)
    }

    pub(super) fn lose_load(&self) {
        self.lost_load.store(true, Ordering::Release);
    }

    pub(super) fn lease(&self, blocks: &[u32]) {
        // A sequence ends once.
        let _ = self.leased.set(blocks.into());
    }

    pub(super) fn wake(&self) {
        self.waker.wake();
    }
}
