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
    /// Returns whether it may take all of these now; the refusal of the first that it would certainly not take.
    ///
    /// # Errors
    /// [`SubmitError`] of that one.
    fn admits(&self, _job: &mut dyn Iterator<Item = &Sequence>) -> Result<(), SubmitError> {
        Ok(())
    }
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
    /// Moves the admissions since the last call into a list, when the configuration asks for them;
    /// schedulers without steps report admissions as events alone.
    fn take_admissions(&mut self, _into: &mut Vec<sched::Admitted>) {}

    // Steps, of schedulers that have some.

    /// Returns the end of the running step; `None` if none runs.
    fn step_end(&self) -> Option<SimTime> {
        None
    }
    /// Returns whether a step runs. What is done to an engine waits for its end.
    fn is_busy(&self) -> bool {
        self.step_end().is_some()
    }
    /// Ends the step that runs later, with those of other engines.
    fn stretch(&mut self, _end: SimTime) {}
    /// Schedules now what was to be scheduled before.
    fn postpone(&mut self, _now: SimTime) {}

    // Prompts that another engine computes, moved here under the eye of somebody above.

    /// Returns the sequences that got the blocks of their prompts since the last call, and how many
    /// tokens of these are not there.
    fn take_reserved(&mut self) -> Vec<(SeqId, u32)> {
        Vec::new()
    }
    /// Takes note that the prompt of a sequence is here; false: nobody waits for it.
    fn activate(&mut self, _now: SimTime, _id: SeqId, _out: &mut Outbox) -> bool {
        false
    }

    // Ranks whose steps begin and end together ([`LockStep`](lock_step::LockStep)).

    /// Returns whether it is such a rank.
    fn is_in_lock_step(&self) -> bool {
        false
    }
    /// Steps that are scheduled and have not ended; the first one runs.
    fn steps_in_flight(&self) -> usize {
        0
    }
    /// Returns the start of the running step and the number of tokens it computes.
    fn running_step(&self) -> Option<(SimTime, u64)> {
        None
    }
    /// Returns the end of the running step if no rank were slower; `tokens`: what ranks compute on
    /// average.
    fn own_step_end(&self, _tokens: f64) -> SimTime {
        SimTime::ZERO
    }
    /// Schedules a step that computes nothing for anybody. It runs from now on unless another does.
    fn add_dummy_step(&mut self, _now: SimTime) {}
    /// Ends the step that runs at this instant.
    fn end_step_at(&mut self, _end: SimTime) {}
}
