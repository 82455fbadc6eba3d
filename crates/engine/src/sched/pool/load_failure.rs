//! Simulates KV cache transfers from another engine that fail.

use super::{RunningSequence, SlotScheduler, SlotTimer};
use crate::kv::BlockAllocationRequest;
use crate::{
    KvLoadFailurePolicy, Outbox, PromptKvTransfer, SchedulerEvent, Sequence, SequenceEndReason,
    SimTime,
};

/// Returns the number of prompt tokens that enter the prefix cache: all, or only the cached ones if
/// the KV transfer will fail.
pub(super) fn prompt_tokens_to_cache(seq: &Sequence, tokens: u32, cached: u32) -> u32 {
    match seq.load_failure.is_some() && seq.transfer == PromptKvTransfer::RemotePrefill {
        true => cached,
        false => tokens,
    }
}

/// Returns the number of prompt tokens to fetch from another engine. If there are none, removes the
/// injected failure of the fetch.
pub(super) fn prompt_tokens_to_fetch(seq: &mut Sequence, cached: u32) -> u32 {
    let missing = match seq.transfer {
        PromptKvTransfer::RemotePrefill => seq.prompt.saturating_sub(cached),
        PromptKvTransfer::Local | PromptKvTransfer::RemoteDecode => 0,
    };
    seq.load_failure = seq.load_failure.filter(|_| missing > 0);
    match seq.load_failure {
        Some(_) => 0,
        None => missing,
    }
}

impl SlotScheduler {
    /// Handles a failed KV transfer: ends the sequence, or computes locally the part of its prompt
    /// whose KV cache was not loaded.
    pub(super) fn handle_kv_load_failure(
        &mut self,
        now: SimTime,
        index: u32,
        mut running: Box<RunningSequence>,
        out: &mut Outbox,
    ) {
        let Some(failure) = running.seq.load_failure.take() else {
            return;
        };
        let (prompt, cached) = (running.seq.prompt, running.cached);
        let event = SchedulerEvent::LoadFailed {
            id: running.seq.id,
            tokens: prompt.saturating_sub(cached),
            policy: failure.policy,
            remote: true,
        };
        out.push_back((now, event));
        if failure.policy == KvLoadFailurePolicy::Fail {
            self.slots[index as usize] = Some(running);
            self.finish_sequence(now, index, SequenceEndReason::Failed, out);
            return;
        }
        if let Some(blocks) = &mut self.blocks {
            let tokens = self.config.cached_prompt_tokens(prompt, blocks.config().block_size);
            let need = BlockAllocationRequest {
                tokens,
                cache: tokens,
                ..BlockAllocationRequest::default()
            };
            let plan = running.seq.plan.as_ref();
            // The blocks are already allocated.
            let _fits = blocks.allocate_blocks(&mut running.table, plan, &need, &mut |event| {
                out.push_back((now, event));
            });
        }
        let delays = self.sequence_token_delays(&running.seq);
        let load = delays.delay_factor_under_load(self.running_count(), self.config.slots);
        let computing = self.draw_sequence_delay(&mut running, |delays, rng| {
            delays.draw_first_token_delay(prompt, cached, PromptKvTransfer::Local, load, rng)
        });
        let epoch = running.epoch;
        self.slots[index as usize] = Some(running);
        match computing.is_zero() {
            true => self.release_tokens(now, index, out),
            false => self.timers.schedule_item(now + computing, SlotTimer { slot: index, epoch }),
        }
    }
}
