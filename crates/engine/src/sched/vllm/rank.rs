//! The engine as one of several ranks that step together.

use crate::SimTime;
use crate::lock_step::Rank;

use super::Vllm;

impl Rank for Vllm {
    fn steps_in_flight(&self) -> usize {
        self.flight.len()
    }

    fn running_step(&self) -> Option<(SimTime, SimTime)> {
        self.flight.front().map(|step| (step.begun, step.own_end))
    }

    fn add_dummy_step(&mut self, now: SimTime) {
        let mut step = self.spare.pop().unwrap_or_default();
        (step.is_dummy, step.number) = (true, 0);
        // As many kernels as a decode of one token (vLLM's `_dummy_run(1)`).
        step.batch.add_decode(1, 1, self.window);
        if self.flight.is_empty() {
            self.start(&mut step, now);
        }
        self.flight.push_back(step);
    }

    fn end_step_at(&mut self, end: SimTime) {
        if let Some(step) = self.flight.front_mut() {
            step.end = end;
        }
    }
}
