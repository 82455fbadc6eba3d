//! Simulates KV cache transfers from another engine that fail.

use super::{Pool, RunningSeq, SlotTimer};
use crate::kv::BlockRequest;
use crate::{End, Event, LoadFailurePolicy, Outbox, Sequence, SimTime, Transfer};

/// Returns the number of prompt tokens that enter the prefix cache: all, or only the cached ones if
/// the KV transfer will fail.
pub(super) fn certain(seq: &Sequence, tokens: u32, cached: u32) -> u32 {
    match seq.load_failure.is_some() && seq.transfer == Transfer::RemotePrefill {
        true => cached,
        false => tokens,
    }
}

/// Returns the number of prompt tokens to fetch from another engine. Clears the injected failure if
/// none are missing.
pub(super) fn fetched(seq: &mut Sequence, cached: u32) -> u32 {
    let missing = match seq.transfer {
        Transfer::RemotePrefill => seq.prompt.saturating_sub(cached),
        Transfer::Local | Transfer::RemoteDecode => 0,
    };
    seq.load_failure = seq.load_failure.filter(|_| missing > 0);
    match seq.load_failure {
        Some(_) => 0,
        None => missing,
    }
}

impl Pool {
    /// Handles a failed KV transfer: ends the sequence, or computes the missing part of its prompt
    /// locally.
    pub(super) fn load_failed(
        &mut self,
        now: SimTime,
        index: u32,
        mut running: Box<RunningSeq>,
        out: &mut Outbox,
    ) {
        let Some(failure) = running.seq.load_failure.take() else {
            return;
        };
        let (prompt, cached) = (running.seq.prompt, running.cached);
        let event = Event::LoadFailed {
            id: running.seq.id,
            tokens: prompt.saturating_sub(cached),
            policy: failure.policy,
            remote: true,
        };
        out.push_back((now, event));
        if failure.policy == LoadFailurePolicy::Fail {
            self.slots[index as usize] = Some(running);
            self.finish(now, index, End::Failed, out);
            return;
        }
        if let Some(blocks) = &mut self.blocks {
            let tokens = self.config.kept_prompt(prompt, blocks.config().block_size);
            let need = BlockRequest {
                tokens,
                cache: tokens,
                ..BlockRequest::default()
            };
            let plan = running.seq.plan.as_ref();
            // The blocks are already allocated.
            let _fits = blocks.allocate(&mut running.table, plan, &need, &mut |event| {
                out.push_back((now, event));
            });
        }
        let delays = self.delays(&running.seq);
        let load = delays.load(self.running(), self.config.slots);
        let computing = self.draw(&mut running, |delays, rng| {
            delays.first(prompt, cached, Transfer::Local, load, rng)
        });
        let epoch = running.epoch;
        self.slots[index as usize] = Some(running);
        match computing.is_zero() {
            true => self.release(now, index, out),
            false => self
                .timers
                .set(now + computing, SlotTimer { slot: index, epoch }),
        }
    }
}
