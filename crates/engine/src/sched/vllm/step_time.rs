//! Computes when engine steps end.

use crate::SimTime;

use super::step::ScheduledStep;
use super::{BatchScheduler, SchedulingRules, VllmConfig};

impl<R: SchedulingRules> BatchScheduler<R> {
    pub(super) fn start_step(&self, step: &mut ScheduledStep, now: SimTime) {
        let mut computing = self.config.step_time(&step.batch);
        if !step.encoded.is_empty() {
            let inputs = step.encoded.iter().map(|(.., input)| *input);
            computing += self.config.encoder_time(inputs);
        }
        step.begun = now;
        // In a lock step, other ranks still wait for this step.
        let is_over = R::ABANDONED_STEPS_END && step.have_all_sequences_ended(&self.seqs);
        step.end = match is_over && !self.config.lock_step {
            true => now,
            false => now.max(step.copied) + step.loading + computing,
        };
        step.own_end = step.end;
    }

    /// Ends the running step at `now` if all its sequences have ended.
    pub(super) fn end_abandoned_step(&mut self, now: SimTime) {
        if R::ABANDONED_STEPS_END
            && !self.config.lock_step
            && let Some(step) = self.flight.front_mut()
            && step.have_all_sequences_ended(&self.seqs)
        {
            step.end = step.end.min(now);
        }
    }

    /// Recomputes the end of the running step after a change of the configuration.
    pub(super) fn recompute_step_end(&mut self, now: SimTime) {
        if let Some(mut step) = self.flight.pop_front() {
            let begun = step.begun;
            self.start_step(&mut step, begun);
            step.end = step.end.max(now);
            step.own_end = step.end;
            self.flight.push_front(step);
        }
    }

    /// Returns the end that the running step would have if all data-parallel ranks computed
    /// `tokens` tokens on average and none was slower.
    pub(super) fn step_end_with_average_tokens(&self, tokens: f64) -> SimTime {
        let Some(step) = self.flight.front() else {
            return SimTime::ZERO;
        };
        let VllmConfig { latency, speed, .. } = &self.config;
        let alike = latency.spread_expert_time(step.batch.computed_tokens() as f64, *speed);
        let among_others = latency.spread_expert_time(tokens, *speed);
        let nanos = step.own_end.as_nanos() + among_others.as_nanos() as u64;
        SimTime::from_nanos(nanos - (alike.as_nanos() as u64).min(nanos)).max(step.begun)
    }

    /// Starts a step without sequences, because other data-parallel ranks have work.
    pub(super) fn start_dummy_step(&mut self, now: SimTime) {
        let mut step = self.spare.pop().unwrap_or_default();
        (step.is_dummy, step.number) = (true, 0);
        self.cadence.wave_steps += 1;
        // It runs as many kernels as a decode of one token (vLLM's `_dummy_run(1)`).
        step.batch.add_decode(1, 1, self.window);
        if self.flight.is_empty() {
            self.start_step(&mut step, now);
        }
        self.flight.push_back(step);
    }
}
