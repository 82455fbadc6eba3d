//! Takes accepted sequences into the waiting queue, after the time that their requests spend in the
//! simulated API server.

use std::time::Duration;

use vllm_sim_random::{RandomStreamPurpose, request_rng};

use super::encoder_cache::MediaReferences;
use super::seqs::WaitingClass;
use super::{BatchScheduler, SchedulingPolicy, SchedulingRules};
use crate::{Outbox, PromptKvTransfer, SchedulerEvent, Sequence, SequenceEndReason, SimTime};

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Returns how long vLLM's API server processes the request of a sequence that is sent now.
    ///
    /// Zero after a remote prefill, whose own API server has the same work: a prompt of 8,192 tokens
    /// that takes 242 ms through both servers of a split deployment (`tests/fixtures/capacity`) is
    /// predicted too slow even with one of them.
    pub(super) fn api_server_time(&self, seq: &Sequence) -> Duration {
        if !R::HAS_API_SERVER || seq.transfer == PromptKvTransfer::RemotePrefill {
            return Duration::ZERO;
        }
        let others = (self.seqs.len() + self.waiting.in_api_server.len()) as u32;
        let others = others.min(self.config.max_num_seqs);
        self.config.latency.front_end_delay(seq.prompt, others, self.config.speed)
    }

    /// Adds a sequence that reaches the engine at `now` to the waiting queue.
    pub(super) fn queue_sequence(&mut self, now: SimTime, seq: Sequence, out: &mut Outbox) {
        let is_idle = self.flight.is_empty() && self.seqs.len() == 0 && self.leases.is_empty();
        if is_idle && self.plan_at.is_none() {
            // Without requests, vLLM's engine core empties its queue of steps. A request that comes
            // when the last one ends is read before.
            self.reports.has_empty_step = false;
        }
        let order = self.counts.arrivals as i64;
        let rank = match self.config.policy {
            SchedulingPolicy::Fcfs => (WaitingClass::Plain, 0, order),
            SchedulingPolicy::Priority => (WaitingClass::Plain, seq.priority, order),
        };
        let draws = self.config.speculation.as_ref().map(|_| {
            Box::new(request_rng(self.config.seed, seq.key, RandomStreamPurpose::Latency))
        });
        let grammar = seq.grammar;
        let most = self.rules.max_sequence_tokens(&self.config);
        let media = self.encoder.as_ref().and(seq.media.clone());
        let slot = self.seqs.insert(seq, most, self.counts.arrivals);
        self.counts.arrivals += 1;
        let seq = &mut self.seqs[slot];
        seq.media = media.map(MediaReferences::new_boxed_media_references);
        seq.rank = rank;
        seq.draws = draws;
        if let Some(grammar) = grammar {
            seq.step.is_deferred = true;
            self.timers.schedule_item(now + grammar.takes, (slot, seq.generation));
        }
        if R::accept_remote_prompt(self, slot, now, out) {
            return;
        }
        self.waiting.insert_sequence(&self.seqs, slot);
        self.request_scheduling_pass(now);
    }

    /// Ends the sequences whose requests are still in the API server.
    pub(super) fn cancel_sequences_in_api_server(&mut self, now: SimTime, out: &mut Outbox) {
        while let Some((_, seq)) = self.waiting.in_api_server.pop_due_item(SimTime::MAX) {
            let end = SequenceEndReason::Cancelled;
            out.push_back((now, SchedulerEvent::Ended { id: seq.id, end }));
        }
    }
}
