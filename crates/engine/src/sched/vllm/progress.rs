//! Keeps sequences from starting forever without a new token.
//!
//! vLLM's queue order lets a preempted sequence start again in the next step. If other sequences
//! hold KV blocks that preemption cannot free, it starts in vain: it is preempted again before its
//! next token. Those blocks belong to loads, to leases and to loaded prompts. In vLLM such a start
//! takes the time of a step, so the load or lease ends after some of them. A step of this engine
//! may take no time, and then the instant would never end.
//!
//! # Contract
//!
//! 1. A preempted sequence without a new token since starts at most once per instant, until the
//!    scheduler makes progress. Progress is a released token, an end, the end of a load or copy, or
//!    a released lease.
//! 2. A sequence that may not start yet keeps its place in the queue, and those after it wait too.
//!    A later instant or progress lifts this.
//! 3. If nothing is running and no event is due, the first waiting sequence can never run, and is
//!    rejected.
//! 4. A sequence that was preempted twice without a new token, and started at this instant,
//!    computes its prompt again instead of loading it from host memory. Two sequences could
//!    otherwise preempt themselves for the load of the other in turn. In vLLM this goes on until
//!    the times of their loads differ, which with constant times may be never. So a sequence that
//!    was preempted [`MAX_LOADS_WITHOUT_PROGRESS`] times without a new token also computes its
//!    prompt.
//! 5. A sequence that would not fit alone is refused when it is submitted
//!    ([`SchedulingRules::check_fits`]).
//!
//! If every step takes time, rules 1 and 2 never apply, and rule 4 only after many preemptions; the
//! order is vLLM's.

use crate::SimTime;

use super::seqs::{ProgressMark, SequenceSlot};
use super::{BatchScheduler, SchedulingRules};

/// Number of preemptions without a new token after which a sequence no longer loads its prompt from
/// host memory.
const MAX_LOADS_WITHOUT_PROGRESS: u8 = 32;

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Records progress: an emitted token, the end of a sequence or load, or freed KV blocks.
    pub(in crate::sched) fn record_scheduling_progress(&mut self) {
        self.counts.progress += 1;
    }

    fn progress_mark(&self, now: SimTime) -> ProgressMark {
        ProgressMark { at: now, changes: self.counts.progress }
    }

    /// Returns whether a sequence was started at `now` and preempted without a new token, and the
    /// scheduler has made no progress since.
    pub(super) fn would_restart_sequence_without_progress(
        &self,
        slot: SequenceSlot,
        now: SimTime,
    ) -> bool {
        R::WAITS_AFTER_VAIN_START && self.seqs[slot].vain_start == Some(self.progress_mark(now))
    }

    /// Returns whether another load of a sequence from host memory would make no progress: the
    /// sequence was preempted twice without a new token, the last time at `now`, or at least
    /// [`MAX_LOADS_WITHOUT_PROGRESS`] times.
    pub(super) fn would_reload_sequence_without_progress(
        &self,
        slot: SequenceSlot,
        now: SimTime,
    ) -> bool {
        let seq = &self.seqs[slot];
        match seq.preemptions.recent {
            0 | 1 => false,
            MAX_LOADS_WITHOUT_PROGRESS.. => true,
            _ => seq.vain_start.is_some_and(|mark| mark.at == now),
        }
    }

    /// Records the start of a sequence that was preempted without a new token.
    pub(super) fn record_restart_after_preemption(&mut self, slot: SequenceSlot, now: SimTime) {
        let mark = self.progress_mark(now);
        let seq = &mut self.seqs[slot];
        seq.vain_start = (seq.preemptions.recent > 0).then_some(mark);
    }
}
