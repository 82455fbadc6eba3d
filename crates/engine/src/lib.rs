#![doc = include_str!("../README.md")]
//!
//! # Rules
//!
//! A driver calls the methods of [`Scheduler`] in a loop; [`Scheduler::apply_command`] is for
//! operators. At one instant, timers fire first, in the order they were set; then inputs are taken.
//!
//! Invariants, each checked by a property test in `tests/engine/invariants.rs`:
//!
//! 1. every submitted sequence ends exactly once;
//! 2. waiting → running → (preempted → waiting)* → ended;
//! 3. time never decreases;
//! 4. free + referenced + cached-only blocks = all blocks;
//! 5. arrival ≤ start ≤ first token ≤ end;
//! 6. same configuration, seed and inputs → same log, byte for byte;
//! 7. runnable work always has a pending step;
//! 8. a stored block's parent was stored before it;
//! 9. a removed block was stored and has no references;
//! 10. the host tier holds a block at most once and never exceeds its capacity; it loads and evicts
//!     only stored blocks;
//! 11. the encoder cache never exceeds its capacity, and holds no references of ended sequences.

#[cfg(feature = "live")]
pub mod driver;
pub mod duration;
pub mod sched;
mod time;
mod timer_queue;

mod event;
pub mod kv;
pub mod latency;
pub mod lock_step;
mod seq_map;
mod sequence;
pub mod step_log;

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

pub use event::{
    CachedBlock, EngineCommand, EngineStats, HostCacheEvent, HostCopyDirection, KvBlockUsage,
    LayerGroupCacheEvent, PrefixCacheResetScope, SchedulerEvent, SequenceEndReason,
    SequenceProgress,
};
pub use sequence::{
    BlockHashExtraKey, BlockKey, GrammarCompilation, InjectedKvLoadFailure, KvLoadFailurePolicy,
    LoraId, MAX_SIMULATED_DELAY, MediaEncoderKind, PlannedKvBlocks, PromptKvTransfer,
    PromptMediaItem, SeqId, Sequence, StepDraftCounts, TokenDelays, TtftFormula,
};
pub use time::SimTime;
pub use timer_queue::TimerQueue;

/// Queue of a scheduler's events, in the order they happened.
pub type Outbox = VecDeque<(SimTime, SchedulerEvent)>;

/// Reports why the engine rejected a submitted sequence, which the scheduler then does not keep.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SequenceSubmitError {
    /// The waiting queue of the scheduler is full.
    #[error("the waiting queue is full ({limit} sequences)")]
    QueueFull {
        /// Maximum number of sequences in the waiting queue.
        limit: usize,
    },
    /// The sequence needs more KV blocks than the engine has.
    #[error("the sequence needs {needed} blocks, the cache has {total}")]
    TooLarge {
        /// Number of KV blocks that the whole sequence needs.
        needed: u32,
        /// Number of usable KV blocks of the engine.
        total: u32,
    },
}

/// Schedules sequences: the interface of an engine to its driver.
///
/// Times passed in must not decrease. `advance(now)` handles all timers and steps that end at or
/// before `now`. It gives each event the time at which it happened, not `now`.
pub trait Scheduler {
    /// Returns how long the API server of the simulated deployment processes the request of a
    /// sequence before the sequence reaches the scheduler, if the request is sent now.
    ///
    /// The caller passes that time as [`Sequence::front_end_delay`], less what it took itself. Zero
    /// unless the latency model includes an API server.
    fn front_end_delay(&self, _seq: &Sequence) -> Duration {
        Duration::ZERO
    }
    /// Accepts a sequence for scheduling.
    ///
    /// # Errors
    /// [`SequenceSubmitError`] if it can be neither started nor queued.
    fn submit(
        &mut self,
        now: SimTime,
        seq: Sequence,
        out: &mut Outbox,
    ) -> Result<(), SequenceSubmitError>;
    /// Checks whether the given sequences of one request can all be submitted together.
    ///
    /// # Errors
    /// [`SequenceSubmitError`] of the first sequence that would certainly be rejected.
    fn check_submissions(
        &self,
        _job: &mut dyn Iterator<Item = &Sequence>,
    ) -> Result<(), SequenceSubmitError> {
        Ok(())
    }
    /// Ends a waiting or running sequence early; ignores unknown ids.
    fn abort(&mut self, now: SimTime, id: SeqId, out: &mut Outbox);
    /// Returns the next time at which [`Scheduler::advance`] has work; `None` if it will have work
    /// only after a new input.
    fn next_wakeup(&self) -> Option<SimTime>;
    /// Runs all steps, timers and starts of sequences that are scheduled at or before `now`, in
    /// order.
    ///
    /// A step start exactly at `now` may be left to another call with the same time, so that inputs
    /// can join the step. Call until [`Scheduler::next_wakeup`] is later than `now`.
    fn advance(&mut self, now: SimTime, out: &mut Outbox);
    /// Executes an operator command; returns false if the command does not apply to the engine or
    /// the engine's state.
    fn apply_command(&mut self, now: SimTime, command: EngineCommand, out: &mut Outbox) -> bool;
    /// Lists the KV blocks in the prefix cache, by block id.
    fn cached_blocks(&self) -> Vec<CachedBlock>;
    /// Returns the progress of an unfinished sequence; `None` if the sequence is unknown or the
    /// scheduler keeps no progress.
    fn sequence_progress(&self, _id: SeqId) -> Option<SequenceProgress> {
        None
    }
    /// Counts the KV blocks with the ids `numbers` by use; ids go from 1 to
    /// [`EngineStats::total_blocks`].
    fn block_usage(&self, _numbers: Range<u32>) -> KvBlockUsage {
        KvBlockUsage::default()
    }
    /// Returns the current counts of sequences, KV blocks and prefix-cache lookups.
    fn stats(&self) -> EngineStats;
    /// Returns the number of empty token slots (without keys and values yet) in the KV blocks of
    /// sequences: the rest of last blocks, and blocks reserved ahead.
    fn empty_token_slots(&self) -> u64 {
        0
    }
    /// Appends the sequence admissions since this method was last called to `into`, if the
    /// configuration enables their recording. Schedulers without steps record no admissions, but
    /// report them as events.
    fn take_admissions(&mut self, _into: &mut Vec<sched::AdmittedSequence>) {}
    /// Appends the records of the steps planned and processed since this method was last called to
    /// `into`, if the configuration enables such records. Only the vLLM scheduler keeps such
    /// records.
    fn take_step_log(&mut self, _into: &mut Vec<step_log::StepLogRecord>) {}

    // Methods for schedulers with steps.

    /// Returns the end of the running step; `None` if no step runs.
    fn running_step_end(&self) -> Option<SimTime> {
        None
    }
    /// Returns whether a step is running. Drivers change the engine only after the end of the step.
    fn is_busy(&self) -> bool {
        self.running_step_end().is_some()
    }
    /// Postpones the end of the running step to `end`, to keep pace with other data-parallel ranks.
    fn extend_step_to(&mut self, _end: SimTime) {}
    /// Postpones a scheduling pass that was requested for an earlier time to `now`.
    fn postpone_pass_to(&mut self, _now: SimTime) {}

    // Methods for prompts from other engines, coordinated by the caller.

    /// Returns the sequences whose prompts got KV blocks reserved since this method was last
    /// called, each with the number of prompt tokens to transfer.
    fn take_reserved_prompts(&mut self) -> Vec<(SeqId, u32)> {
        Vec::new()
    }
    /// Resumes a sequence whose prompt's KV cache was transferred from another engine; returns
    /// false if the sequence does not wait for a transfer.
    fn resume_transferred(&mut self, _now: SimTime, _id: SeqId, _out: &mut Outbox) -> bool {
        false
    }

    // Methods for ranks in a [`RankLockStep`](lock_step::RankLockStep).

    /// Returns whether the engine is a data-parallel rank that runs each step together with the
    /// other ranks.
    fn is_in_lock_step(&self) -> bool {
        false
    }
    /// Returns whether a dummy step follows the running step: the rank plans steps ahead, but found
    /// no work for the next one.
    fn needs_dummy_step(&self) -> bool {
        false
    }
    /// Returns whether the last step was a dummy step, or left no sequence except sequences that
    /// arrived after the step was planned.
    fn was_idle_after_step(&self) -> bool {
        true
    }
    /// Returns the number of scheduled steps that have not ended; the oldest of these steps is
    /// running.
    fn steps_in_flight(&self) -> usize {
        0
    }
    /// Returns the start of the running step and the number of tokens that the step computes.
    fn running_step(&self) -> Option<(SimTime, u64)> {
        None
    }
    /// Returns the time at which this rank's running step would end without waiting for slower
    /// ranks; the ranks compute `tokens` tokens on average.
    fn own_step_end_at_tokens(&self, _tokens: f64) -> SimTime {
        SimTime::ZERO
    }
    /// Schedules a step without sequences, to keep pace with other data-parallel ranks. The step
    /// starts now unless another step is running.
    fn add_dummy_step(&mut self, _now: SimTime) {}
    /// Marks all data-parallel ranks as idle, so that the oldest step in flight, or otherwise the
    /// next step, is the first of a wave.
    fn end_wave(&mut self) {}
    /// Sets the end of the running step to `end`.
    fn end_step_at(&mut self, _end: SimTime) {}
}
