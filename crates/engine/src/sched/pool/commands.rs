//! Operator commands to a scheduler of independent slots.

use super::SlotScheduler;
use crate::{
    EngineCommand, Outbox, PrefixCacheResetScope, SchedulerEvent, SequenceEndReason, SimTime,
};

impl SlotScheduler {
    pub(super) fn run_engine_command(
        &mut self,
        now: SimTime,
        command: EngineCommand,
        out: &mut Outbox,
    ) -> bool {
        match command {
            EngineCommand::Pause => {
                self.paused.get_or_insert(now);
            }
            EngineCommand::PauseAdmission => return false,
            EngineCommand::Resume => {
                if let Some(since) = self.paused.take() {
                    self.timers.postpone_all_items(now - since);
                    self.admit_to_free_slots(now, out);
                }
            }
            EngineCommand::CancelAll => {
                for waiting in std::mem::take(&mut self.waiting) {
                    self.locations.remove(&waiting.seq.id);
                    let id = waiting.seq.id;
                    out.push_back((
                        now,
                        SchedulerEvent::Ended { id, end: SequenceEndReason::Cancelled },
                    ));
                }
                for index in 0..self.slots.len() as u32 {
                    self.finish_sequence(now, index, SequenceEndReason::Cancelled, out);
                }
            }
            EngineCommand::ResetPrefixCache(reset) => {
                let Some(blocks) = &mut self.blocks else {
                    return true;
                };
                let mut report = |event| out.push_back((now, event));
                match reset {
                    PrefixCacheResetScope::WhenIdle => {
                        return blocks.reset_prefix_cache(&mut report);
                    }
                    PrefixCacheResetScope::Preempt | PrefixCacheResetScope::Forget => {
                        blocks.clear_prefix_cache_keeping_blocks(&mut report)
                    }
                }
            }
            EngineCommand::Caching(on) => {
                self.blocks.iter_mut().for_each(|b| b.set_prefix_caching(on))
            }
            EngineCommand::Release(id) => {
                let blocks = self.blocks.as_mut();
                let held = blocks.is_some_and(|blocks| self.leases.free_leased_blocks(id, blocks));
                self.admit_to_free_slots(now, out);
                return held;
            }
            EngineCommand::Delays(delays) => self.delays = delays,
            EngineCommand::Bounds { running, waiting } => {
                self.config.slots = running.max(1) as usize;
                self.config.queue = waiting.map(|n| n as usize);
                self.admit_to_free_slots(now, out);
            }
            EngineCommand::Speed(_)
            | EngineCommand::StepPause(_)
            | EngineCommand::ResetHostTier
            | EngineCommand::ResetEncoderCache => {
                return false;
            }
        }
        true
    }
}
