//! When steps end, and what those do that take no time.

use crate::{Event, Outbox, SimTime};

use super::Vllm;
use super::config::Admission;
use super::seqs::SeqState;
use super::step::Step;

impl Vllm {
    pub(super) fn start(&self, step: &mut Step, now: SimTime) {
        let mut computing = self.config.step_time(&step.batch);
        if !step.encoded.is_empty() {
            let inputs = step.encoded.iter().map(|(_, input)| *input);
            computing += self.config.encoder_time(inputs);
        }
        step.begun = now;
        step.end = match step.is_abandoned(&self.seqs) {
            true => now,
            false => now.max(step.copied) + step.loading + computing,
        };
    }

    /// Ends the step that runs if nobody is left in it: the next one must not wait for it.
    pub(super) fn end_abandoned(&mut self, now: SimTime) {
        if let Some(step) = self.flight.front_mut()
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
            self.flight.push_front(step);
        }
    }

    /// The next steps at once, where they take no time and all that run make a token in each, and
    /// nothing else: as many as the blocks and lengths of all allow, and `most` events. They leave
    /// behind what so many calls of `advance` do, in the same order. False: there is no such step.
    pub(super) fn decode_at_once(&mut self, now: SimTime, most: usize, out: &mut Outbox) -> bool {
        let config = &self.config;
        let plain = config.latency.decodes_at_once()
            && config.admission == Admission::Vllm
            && config.drafts() == 0
            && config.free_drafts() == 0
            && config.max_loras == 0
            && config.prefill_schedule_interval <= 1
            && !config.run_lengths
            && self.host.is_none()
            && self.mocker.is_none();
        let kept = [self.timers.next_due(), self.leases.next_due()];
        let next = self.plan_at == Some(now) && kept.iter().flatten().all(|due| *due > now);
        let alone = self.flight.is_empty() && self.waiting.is_empty() && !self.paused;
        let batch = self.running.len();
        if !plain || !next || !alone || batch > config.max_num_batched_tokens as usize {
            return false;
        }
        let mut steps = (most.saturating_sub(out.len()) / (batch + 1)) as u32;
        for &slot in &self.running {
            let seq = &self.seqs[slot];
            let decodes = seq.computed + 1 == seq.known && seq.computed >= seq.prompt;
            if seq.state != SeqState::Running || !decodes {
                return false;
            }
            // The last token ends a sequence, and one without a block needs one.
            let room = seq.settled.saturating_sub(seq.computed);
            steps = steps
                .min(room)
                .min((seq.total - seq.known).saturating_sub(1));
        }
        // So many are in flight at a time.
        steps -= steps % self.depth() as u32;
        if steps == 0 || batch == 0 {
            return false;
        }
        for &slot in &self.running {
            let seq = &mut self.seqs[slot];
            seq.computed += steps;
            seq.known += steps;
            seq.released += steps;
            seq.recent_preemptions = 0;
        }
        let step = Event::Step {
            prompt_tokens: 0,
            output_tokens: batch as u32,
        };
        out.reserve(steps as usize * (batch + 1));
        for _ in 0..steps {
            for &slot in &self.running {
                let id = self.seqs[slot].id;
                out.push_back((now, Event::Tokens { id, n: 1 }));
            }
            out.push_back((now, step.clone()));
        }
        true
    }
}
