//! When steps end.

use crate::SimTime;

use super::Vllm;
use super::step::Step;

impl Vllm {
    pub(super) fn start(&self, step: &mut Step, now: SimTime) {
        let mut computing = self.config.step_time(&step.batch);
        if !step.encoded.is_empty() {
            let inputs = step.encoded.iter().map(|(_, input)| *input);
            computing += self.config.encoder_time(inputs);
        }
        step.begun = now;
        // Other ranks cannot do without one that has nobody left.
        step.end = match step.is_abandoned(&self.seqs) && !self.config.lock_step {
            true => now,
            false => now.max(step.copied) + step.loading + computing,
        };
        step.own_end = step.end;
    }

    /// Ends the step that runs if nobody is left in it: the next one must not wait for it.
    pub(super) fn end_abandoned(&mut self, now: SimTime) {
        if !self.config.lock_step
            && let Some(step) = self.flight.front_mut()
            && step.is_abandoned(&self.seqs)
        {
            step.end = step.end.min(now);
        }
    }

    /// Gives the step that runs the end that it would have had under the present settings.
    pub(super) fn retime(&mut self, now: SimTime) {
        if let Some(mut step) = self.flight.pop_front() {
            let begun = step.begun;
            self.start(&mut step, begun);
            step.end = step.end.max(now);
            step.own_end = step.end;
            self.flight.push_front(step);
        }
    }
}
