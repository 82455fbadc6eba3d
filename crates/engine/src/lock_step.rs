//! Data-parallel ranks of a model with experts: they share the expert layers, so that all of them
//! begin and end each step together.
//!
//! A step takes as long as the slowest rank's, its experts as long as the tokens of all ranks take. A rank that has nothing to compute runs a dummy step,
//! so that all have as many steps in flight. When nobody has work, dummy steps follow until the ranks
//! next ask each other.
//!
//! **Source:** vLLM 0.33 `vllm/v1/engine/core.py`, `DPEngineCoreProc.run_busy_loop`.

use crate::{Scheduler, SimTime};

/// Steps from one question whether any rank has work to the next (vLLM's `dp_sync_interval`).
const SYNC_INTERVAL: u32 = 16;

/// What keeps ranks in step. A value like the engines: whoever plays these calls it.
#[derive(Debug, Default)]
pub struct LockStep {
    /// Steps since the ranks last asked each other for work, or since all were idle.
    steps: u32,
    /// When the newest of them began.
    begun: Option<SimTime>,
}

impl LockStep {
    /// To be called whenever all that is due at `now` has been done on all ranks, inputs included;
    /// `rank` gives the rank of an item, `None` for one that takes part no more.
    pub fn settle<T>(
        &mut self,
        now: SimTime,
        items: &mut [T],
        rank: impl Fn(&mut T) -> Option<&mut dyn Scheduler>,
    ) {
        let mut most = 0;
        for rank in items.iter_mut().filter_map(&rank) {
            most = most.max(rank.steps_in_flight());
        }
        if most == 0 {
            // Nobody has a step: only the next question ends the wave.
            self.begun = None;
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
            end = end.max(rank.own_step_end(tokens));
        }
        for rank in items.iter_mut().filter_map(&rank) {
            rank.end_step_at(end);
        }
        if self.begun != Some(begun) {
            self.begun = Some(begun);
            self.steps = (self.steps + 1) % SYNC_INTERVAL;
        }
    }
}
