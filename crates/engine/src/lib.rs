#![doc = include_str!("../README.md")]
//!
//! # Rules
//!
//! A driver is a loop around the calls of [`Scheduler`]; [`Scheduler::command`] is for what an
//! operator does. At one instant: what was due fires first, in the order it was set, then inputs.
//!
//! Invariants, each held by a property test in `tests/engine/invariants.rs`:
//!
//! 1. everything submitted ends exactly once;
//! 2. waiting → running → (preempted → waiting)* → ended;
//! 3. time never runs back;
//! 4. free + referenced + cached-only blocks = all blocks;
//! 5. arrival ≤ start ≤ first token ≤ end;
//! 6. same configuration, seed and inputs → same log, byte for byte;
//! 7. runnable work always has a pending step;
//! 8. a stored block's parent was stored before it;
//! 9. a removed block was stored and is referenced by no one;
//! 10. the memory of the host holds a block once at most and no more than it has room for; what it gives
//!     back or loses was stored there;
//! 11. the encoder cache holds no more than it has room for, and nothing is kept there for a sequence
//!     that is over.

#[cfg(feature = "live")]
pub mod driver;
pub mod duration;
pub mod sched;
mod time;
mod timer_queue;

mod delays;
mod event;
pub mod kv;
pub mod latency;
pub mod lock_step;
mod seq_map;
mod sequence;

use std::collections::VecDeque;
use std::ops::Range;

pub use delays::{Calculator, Delays, LONGEST_DELAY};
pub use event::{
    BlockUse, CachedBlock, Command, End, Event, GroupEvent, HostEvent, Reset, SequenceProgress,
    Stats,
};
pub use sequence::{
    BlockKey, BlockPlan, Draft, EncoderInput, EncoderKind, ExtraKey, LoadFailure,
    LoadFailurePolicy, LoraId, SeqId, Sequence, Transfer,
};
pub use time::SimTime;
pub use timer_queue::TimerQueue;

/// Where a scheduler puts its events, in the order they happen.
pub type Outbox = VecDeque<(SimTime, Event)>;

/// Why a sequence was not taken. Nothing of it stays behind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The bounded waiting queue has no place left.
    #[error("the waiting queue is full ({limit} sequences)")]
    QueueFull {
        /// The bound.
        limit: usize,
    },
    /// The sequence can never fit, however long it waits.
    #[error("the sequence needs {needed} blocks, the cache has {total}")]
    TooLarge {
        /// Blocks that the whole sequence needs.
        needed: u32,
        /// Blocks that exist.
        total: u32,
    },
}

/// A policy that decides which sequence runs when.
///
/// All times passed in never decrease. `advance(now)` handles everything due at or before `now`
/// and stamps each event with the instant it was due, not with `now`.
pub trait Scheduler {
    /// Takes a sequence, or says why not.
    ///
    /// # Errors
    /// [`SubmitError`] when it can be neither started nor queued.
    fn submit(&mut self, now: SimTime, seq: Sequence, out: &mut Outbox) -> Result<(), SubmitError>;
    /// Ends a sequence early, waiting or running; unknown ids are ignored.
    fn abort(&mut self, now: SimTime, id: SeqId, out: &mut Outbox);
    /// When to call `advance` next; `None`: only an input can bring work.
    fn next_wakeup(&self) -> Option<SimTime>;
    /// Runs all that is due at or before `now`, in order.
    ///
    /// What would start exactly now may be left to another call at the same instant, so that
    /// inputs can still join it: call until [`Scheduler::next_wakeup`] lies ahead.
    fn advance(&mut self, now: SimTime, out: &mut Outbox);
    /// What an operator does; whether it was done.
    fn command(&mut self, now: SimTime, command: Command, out: &mut Outbox) -> bool;
    /// The prefix cache as it is, in order of the blocks' numbers.
    fn cached_blocks(&self) -> Vec<CachedBlock>;
    /// What a sequence's events do not say; `None`: it does not live, or there is nothing more to know.
    fn progress(&self, _id: SeqId) -> Option<SequenceProgress> {
        None
    }
    /// What the blocks of these numbers are used for, of those from 1 to [`Stats::total_blocks`].
    fn block_use(&self, _numbers: Range<u32>) -> BlockUse {
        BlockUse::default()
    }
    /// Gauges as of the last call.
    fn stats(&self) -> Stats;
    /// What [`LockStep`](lock_step::LockStep) has to do with; `None`: it steps on its own.
    fn rank(&mut self) -> Option<&mut dyn lock_step::Rank> {
        None
    }
}
