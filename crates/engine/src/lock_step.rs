//! Synchronizes the data-parallel ranks of a mixture-of-experts model, which begin and end each
//! step together.
//!
//! A step takes as long as that of the slowest rank. Its experts take as long as the tokens of all
//! ranks need. A rank without work runs a dummy step, so that all ranks have equally many steps in
//! flight. If no rank has work, dummy steps go on until the next synchronization.
//!
//! **Source:** vLLM 0.33 `vllm/v1/engine/core.py`, `DPEngineCoreProc.run_busy_loop`.

use crate::{Scheduler, SimTime};

/// Number of steps from one check of whether any rank has work to the next check (vLLM's
/// `dp_sync_interval`).
const WORK_CHECK_INTERVAL_STEPS: u32 = 16;

/// Synchronizes the steps of the data-parallel ranks; called by the driver of their engines.
#[derive(Debug, Default)]
pub struct RankLockStep {
    /// Number of steps since all data-parallel ranks were last idle.
    steps: u32,
    begun: Option<SimTime>,
}

impl RankLockStep {
    /// Synchronizes all data-parallel ranks at `now`. Call this after all timers, step ends and
    /// inputs at `now` are handled on all ranks.
    ///
    /// `rank` returns the engine of an item, or `None` if it is stopped or in no lock step.
    pub fn synchronize_rank_steps<T>(
        &mut self,
        now: SimTime,
        items: &mut [T],
        rank: impl Fn(&mut T) -> Option<&mut dyn Scheduler>,
    ) {
        let (mut most, mut running) = (0, None);
        for rank in items.iter_mut().filter_map(&rank) {
            let dummies = usize::from(rank.needs_dummy_step());
            most = most.max(rank.steps_in_flight() + dummies);
            running = running.max(rank.running_step().map(|(begun, _)| begun));
        }
        if self.begun.is_some() && running != self.begun {
            self.begun = None;
            self.end_wave_if_ranks_idle(items, &rank);
        }
        if most == 0 {
            if self.steps == 0 {
                return;
            }
            most = 1;
        }
        let mut begun = SimTime::ZERO;
        let (mut ranks, mut tokens) = (0_u32, 0);
        for rank in items.iter_mut().filter_map(&rank) {
            while rank.steps_in_flight() < most {
                rank.add_dummy_step(now);
            }
            if let Some((own_begin, own_tokens)) = rank.running_step() {
                begun = begun.max(own_begin);
                (ranks, tokens) = (ranks + 1, tokens + own_tokens);
            }
        }
        let tokens = tokens as f64 / f64::from(ranks.max(1));
        let mut end = SimTime::ZERO;
        for rank in items.iter_mut().filter_map(&rank) {
            end = end.max(rank.own_step_end_at_tokens(tokens));
        }
        for rank in items.iter_mut().filter_map(&rank) {
            rank.end_step_at(end);
        }
        if self.begun != Some(begun) {
            self.begun = Some(begun);
            self.steps = self.steps.wrapping_add(1);
        }
    }

    /// Ends the wave of steps if the ranks check for work after the step that has just ended, and
    /// no rank had any work in it. Sequences that arrived during the step belong to the next wave.
    fn end_wave_if_ranks_idle<T>(
        &mut self,
        items: &mut [T],
        rank: impl Fn(&mut T) -> Option<&mut dyn Scheduler>,
    ) {
        let checks = self.steps == 1 || self.steps.is_multiple_of(WORK_CHECK_INTERVAL_STEPS);
        if checks && items.iter_mut().filter_map(&rank).all(|rank| rank.was_idle_after_step()) {
            self.steps = 0;
            items.iter_mut().filter_map(&rank).for_each(|rank| rank.end_wave());
        }
    }
}
