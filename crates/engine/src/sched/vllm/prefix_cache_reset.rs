//! Empties the prefix cache on demand. vLLM reads such a command when the running step has ended.
//!
//! **Source:** `reset_prefix_cache`, vLLM 0.33 `vllm/v1/core/sched/scheduler.py`.

use crate::{Outbox, PrefixCacheResetScope, SchedulerEvent, SimTime};

use super::seqs::SequenceSlot;
use super::{BatchScheduler, SchedulingRules};

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Empties the prefix cache immediately or when the running step has ended; returns false if
    /// sequences prevent that.
    pub(super) fn reset_prefix_cache(
        &mut self,
        reset: PrefixCacheResetScope,
        now: SimTime,
        out: &mut Outbox,
    ) -> bool {
        if reset != PrefixCacheResetScope::Forget && self.before_inputs.step == Some(now) {
            // A step has just ended, and vLLM reads the command before it plans the next one.
            self.reports.resets.push(reset);
            self.reset_prefix_cache_after_step(now, out);
            return self.pool.used_block_count() == 0;
        }
        if reset != PrefixCacheResetScope::Forget && !self.flight.is_empty() {
            // vLLM reads the command when the running step has ended.
            let succeeds = match reset {
                PrefixCacheResetScope::Preempt => self.fetching == 0 && self.leases.is_empty(),
                _ => self.holds_nothing_after_step(),
            };
            if succeeds || reset == PrefixCacheResetScope::Preempt {
                self.reports.resets.push(reset);
            }
            return succeeds;
        }
        if reset == PrefixCacheResetScope::Preempt {
            self.preempt_for_reset(now, out);
            self.request_scheduling_pass(now);
        }
        if reset != PrefixCacheResetScope::Forget && self.pool.used_block_count() > 0 {
            return false;
        }
        // Steps in flight changed the cache first.
        let (pool, events) = (&mut self.pool, &mut self.reports.events);
        pool.clear_prefix_cache_keeping_blocks(&mut |event| events.push(event));
        true
    }

    /// Returns whether all sequences that hold KV blocks end with the running step.
    fn holds_nothing_after_step(&self) -> bool {
        let step = self.flight.front();
        let ends = |slot: &SequenceSlot| {
            let entries = step.into_iter().flat_map(|step| &step.entries);
            entries.filter(|entry| entry.last).any(|entry| entry.slot == *slot)
        };
        let mut waiting = self.waiting.iter_from_back();
        self.fetching == 0
            && self.leases.is_empty()
            && self.running.iter().all(ends)
            && waiting.all(|slot| self.seqs[slot].table.is_empty())
    }

    /// Preempts all running sequences, and records them for the step log.
    fn preempt_for_reset(&mut self, now: SimTime, out: &mut Outbox) {
        let before = out.len();
        self.preempt_all_running(now, out);
        if self.reports.log.is_some() {
            let preempted = out.iter().skip(before).filter_map(|(_, event)| match event {
                SchedulerEvent::Preempted { id } => Some(*id),
                _ => None,
            });
            self.reports.reset_preempted.extend(preempted);
        }
    }

    /// Performs the resets of the prefix cache that were requested during the step that has ended.
    pub(super) fn reset_prefix_cache_after_step(&mut self, now: SimTime, out: &mut Outbox) {
        for reset in std::mem::take(&mut self.reports.resets) {
            if reset == PrefixCacheResetScope::Preempt {
                self.preempt_for_reset(now, out);
            }
            if self.pool.used_block_count() == 0 {
                let (pool, events) = (&mut self.pool, &mut self.reports.events);
                pool.clear_prefix_cache_keeping_blocks(&mut |event| events.push(event));
            }
        }
    }
}
