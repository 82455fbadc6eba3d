//! Steps that take no time, many at once.
//!
//! They leave behind what so many calls of [`Scheduler::advance`](crate::Scheduler::advance) do, and the
//! same events in the same order; those of a lone sequence as [`Event::LoneSteps`].

use crate::kv::BlockRequest;
use crate::{Event, Outbox, SimTime};

use super::Vllm;
use super::config::{Admission, VllmConfig};
use super::seqs::{Seq, SeqState, Slot};
use super::step::Step;

impl VllmConfig {
    /// Whether a step in which all decode takes no time, and does nothing else.
    fn decodes_at_once(&self) -> bool {
        self.latency.decodes_at_once()
            && self.admission == Admission::Vllm
            && self.speculation.is_none()
            && self.drafting.is_none()
            && self.weights_from_host.is_zero()
            && self.max_loras == 0
            && self.prefill_schedule_interval <= 1
            && !self.run_lengths
            && !self.handoff
            && self.host_tier.is_none()
            && self.mocker_tier.is_none()
    }
}

impl Seq {
    /// Whether it lacks nothing but its next token.
    fn decodes(&self) -> bool {
        let lacks_one = self.computed + 1 == self.known && self.computed >= self.prompt;
        self.state == SeqState::Running && lacks_one
    }

    /// It decodes in so many steps, which are over.
    fn decode(&mut self, steps: u32) {
        self.computed += steps;
        self.known += steps;
        self.released += steps;
        self.recent_preemptions = 0;
    }
}

impl Vllm {
    /// The next steps at once, where they take no time and all that run make a token in each, and
    /// nothing else. `most` bounds the events, about. False: there is no such step.
    pub(super) fn decode_at_once(&mut self, now: SimTime, most: usize, out: &mut Outbox) -> bool {
        let kept = [self.timers.next_due(), self.leases.next_due()];
        let next = self.plan_at == Some(now) && kept.iter().flatten().all(|due| *due > now);
        let alone = self.flight.is_empty() && self.waiting.is_empty() && !self.paused;
        let fits = self.running.len() <= self.config.max_num_batched_tokens as usize;
        let plain = next && alone && fits && self.config.decodes_at_once();
        if !plain || !self.running.iter().all(|&slot| self.seqs[slot].decodes()) {
            return false;
        }
        match *self.running {
            [] => false,
            [slot] if self.has_room_to_end(slot) => {
                self.decode_alone(slot, now, most, out);
                true
            }
            _ => self.decode_together(now, most, out),
        }
    }

    /// Whether there are blocks for all tokens that a sequence will have.
    fn has_room_to_end(&self, slot: Slot) -> bool {
        let seq = &self.seqs[slot];
        let missing = self
            .pool
            .blocks_for(seq.total)
            .saturating_sub(seq.table.len());
        missing <= self.pool.free() && !self.pool.has_groups()
    }

    /// The steps of the only sequence to its end, or until there are `most` events.
    fn decode_alone(&mut self, slot: Slot, now: SimTime, most: usize, out: &mut Outbox) {
        let id = self.seqs[slot].id;
        let mut step = self.spare.pop().unwrap_or_default();
        let (mut made, mut untold) = (0, 0);
        let tell = |untold: &mut u32, out: &mut Outbox| {
            let n = std::mem::take(untold);
            if n > 0 {
                out.push_back((now, Event::LoneSteps { id, n }));
            }
        };
        loop {
            let seq = &mut self.seqs[slot];
            // The last token ends it, and one without a block needs one.
            let left = seq.total - seq.known;
            let steps = seq.settled.saturating_sub(seq.computed).min(left - 1);
            seq.decode(steps);
            (made, untold) = (made + steps, untold + steps);
            let last = steps + 1 == left;
            if !last && out.len() >= most && made % self.depth() as u32 == 0 {
                // No step is in flight.
                tell(&mut untold, out);
                break;
            }
            self.settle_next(slot, &mut step);
            if last || !step.events.is_empty() {
                tell(&mut untold, out);
                out.extend(step.events.drain(..).map(|event| (now, event)));
            }
            if last {
                self.decode_last(slot, now, out);
                break;
            }
            self.seqs[slot].decode(1);
            (made, untold) = (made + 1, untold + 1);
        }
        self.spare.push(step);
    }

    /// The block of the next token, and the names of those that it fills.
    fn settle_next(&mut self, slot: Slot, step: &mut Step) {
        let seq = &self.seqs[slot];
        let tokens = seq.computed + 1;
        let need = BlockRequest {
            tokens,
            cache: tokens.min(seq.named(seq.known)),
            processed: seq.computed,
            ..BlockRequest::default()
        };
        let done = self.allocate(slot, &need, step);
        debug_assert!(done, "there is room to the end");
    }

    /// The step with the last token of the only sequence.
    fn decode_last(&mut self, slot: Slot, now: SimTime, out: &mut Outbox) {
        let seq = &mut self.seqs[slot];
        seq.decode(1);
        seq.state = SeqState::Draining;
        let id = seq.id;
        out.push_back((now, Event::Tokens { id, n: 1 }));
        self.complete(slot, now, out);
        out.push_back((now, decode_step(1)));
        // One with a tail keeps its place in the batch.
        if self.seqs[slot].state != SeqState::Draining {
            self.running.clear();
            self.plan_at = None;
        }
    }

    /// The next steps of several: as many as the blocks and lengths of all allow.
    fn decode_together(&mut self, now: SimTime, most: usize, out: &mut Outbox) -> bool {
        let batch = self.running.len();
        let mut steps = (most.saturating_sub(out.len()) / (batch + 1)) as u32;
        for &slot in &self.running {
            let seq = &self.seqs[slot];
            // The last token ends a sequence, and one without a block needs one.
            let room = seq.settled.saturating_sub(seq.computed);
            steps = steps
                .min(room)
                .min((seq.total - seq.known).saturating_sub(1));
        }
        // So many are in flight at a time.
        steps -= steps % self.depth() as u32;
        if steps == 0 {
            return false;
        }
        for &slot in &self.running {
            self.seqs[slot].decode(steps);
        }
        out.reserve(steps as usize * (batch + 1));
        for _ in 0..steps {
            for &slot in &self.running {
                let id = self.seqs[slot].id;
                out.push_back((now, Event::Tokens { id, n: 1 }));
            }
            out.push_back((now, decode_step(batch as u32)));
        }
        true
    }
}

/// A step without prompt work in which so many sequences made a token.
fn decode_step(output_tokens: u32) -> Event {
    Event::Step {
        prompt_tokens: 0,
        output_tokens,
    }
}
