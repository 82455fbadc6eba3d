//! The engine as one of several ranks that step together.

use crate::SimTime;
use crate::lock_step::Rank;

use super::{Vllm, VllmConfig};

impl Rank for Vllm {
    fn steps_in_flight(&self) -> usize {
        self.flight.len()
    }

    fn running_step(&self) -> Option<(SimTime, u64)> {
        let step = self.flight.front()?;
        Some((step.begun, step.batch.tokens()))
    }

    fn end_of_step(&self, tokens: f64) -> SimTime {
        let Some(step) = self.flight.front() else {
            return SimTime::ZERO;
        };
        let VllmConfig { latency, speed, .. } = &self.config;
        let alike = latency.spread_experts(step.batch.tokens() as f64, *speed);
        let among_others = latency.spread_experts(tokens, *speed);
        let nanos = step.own_end.nanos() + among_others.as_nanos() as u64;
        SimTime::from_nanos(nanos - (alike.as_nanos() as u64).min(nanos)).max(step.begun)
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
