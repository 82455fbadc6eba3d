//! Connects the scheduler with the prefix cache in host memory
//! ([`HostCache`](crate::kv::HostCache)).
//!
//! A sequence with a longer hit in host memory than on the GPU allocates blocks and waits for the
//! copy, as for a remote prompt. It is not running in that time and cannot be preempted.
//!
//! **Source:** vLLM 0.33 `vllm/v1/core/sched/scheduler.py` (`WAITING_FOR_REMOTE_KVS`),
//! `vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`.

use crate::kv::{
    EndedHostLoad, HostCacheChunkCounts, HostCacheLookupRequest, HostCacheLookupResult,
};
use crate::{Outbox, PromptKvTransfer, SimTime};

use super::pass::{AdmissionOutcome, SchedulingPass};
use super::seqs::{FetchStage, SequenceRunState, SequenceSlot};
use super::step::ScheduledStep;
use super::{BatchScheduler, SchedulingRules};

impl<R: SchedulingRules> BatchScheduler<R> {
    /// Starts a load of KV blocks from host memory if they extend the `cached` prefix tokens of a
    /// sequence on the GPU. Returns `None` if the admission continues without a load.
    pub(super) fn start_load_from_host(
        &mut self,
        slot: SequenceSlot,
        cached: u32,
        pass: &mut SchedulingPass,
    ) -> Option<AdmissionOutcome> {
        let seq = &mut self.seqs[slot];
        if !seq.table.is_empty() {
            // Blocks that were loaded enter the GPU prefix cache here.
            if seq.load.tokens > 0 {
                let (plan, upto, events) = (seq.plan.as_ref(), seq.computed, &mut pass.step.events);
                self.pool
                    .cache_full_blocks(&mut seq.table, plan, upto, &mut |event| events.push(event));
                seq.settled = seq.table.tokens_until_block_table_change();
            }
            return None;
        }
        if self.would_reload_sequence_without_progress(slot, pass.now) {
            return None;
        }
        let size = self.config.block_size;
        let seq = &self.seqs[slot];
        let remote = seq.request.transfer == PromptKvTransfer::RemotePrefill;
        let plan = seq
            .plan
            .as_ref()
            .filter(|_| !seq.request.skip_cache_read && !remote && !seq.load.is_lost);
        let (plan, host) = (plan?.clone(), self.host.as_mut()?);
        let request = HostCacheLookupRequest {
            id: seq.id,
            known: seq.known,
            from: cached / size,
            size,
            shares_loads: self.config.enable_prefix_caching,
        };
        let (now, out) = (pass.now, &mut pass.out);
        let hit = host.look_up_host_prefix(now, &plan, &request, &mut |event| {
            out.push_back((now, event));
        });
        let blocks = match hit {
            HostCacheLookupResult::Wait => return Some(AdmissionOutcome::Skip),
            HostCacheLookupResult::Blocks(0) => return None,
            HostCacheLookupResult::Blocks(blocks) => blocks,
        };
        if !self.allocate_blocks_for_load(slot, cached, blocks * size, pass) {
            // No block is in use, so none will be freed; the prompt alone may fit.
            if self.pool.used_block_count() == 0 {
                return None;
            }
            self.seqs.set_fetch_stage(slot, Some(FetchStage::Expected));
            return Some(AdmissionOutcome::Stop);
        }
        self.seqs.set_fetch_stage(slot, Some(FetchStage::Begun));
        if let Some(host) = &mut self.host {
            host.start_host_load(now, &plan, &request, blocks);
        }
        self.waiting.remove_sequence(&self.seqs, slot);
        let rank = self.waiting.block_holder_sort_key(self.config.policy, self.seqs[slot].rank);
        let seq = &mut self.seqs[slot];
        (seq.state, seq.rank) = (SequenceRunState::Fetching, rank);
        seq.step.is_deferred = true;
        (seq.cached, seq.load.tokens) = (cached, blocks * size);
        self.fetching += 1;
        Some(AdmissionOutcome::Next)
    }

    pub(super) fn offer_step_blocks_to_host(&mut self, step: &mut ScheduledStep, now: SimTime) {
        // The step begins when the one in flight ends.
        let begun = self.flight.front().map_or(now, |step| step.end);
        let Some(host) = &mut self.host else {
            return;
        };
        let size = self.config.block_size;
        for entry in &step.entries {
            let seq = &self.seqs[entry.slot];
            let Some(plan) = &seq.plan else { continue };
            let most = match host.offloads_generated_blocks() {
                true => u32::MAX,
                false => seq.prompt,
            };
            let blocks = seq.computed.min(most) / size;
            let (pool, events) = (&self.pool, &mut step.events);
            let is_kept =
                |group, block| pool.is_block_kept_in_prefix_cache(&seq.table, group, block);
            let copy = host.offer_blocks_to_host(seq.id, plan, blocks, is_kept, &mut |event| {
                events.push(event);
            });
            if let Some(mut copy) = copy {
                if !pool.has_layer_groups() {
                    copy.set_source_blocks(seq.table.block_ids());
                }
                step.stores.push(copy);
            }
        }
        let events = &mut step.events;
        let (flushed, later) =
            host.offload_blocks_of_ended_requests(&mut |event| events.push(event));
        step.stores.extend(later);
        for copy in flushed {
            step.copied = step.copied.max(host.start_host_store(begun, copy));
        }
        host.postpone_loads(step.copied);
    }

    /// Starts the copies to host memory of a step without sequences, or adds them to the last step
    /// in flight, if any.
    pub(super) fn start_host_copies_of_empty_step(
        &mut self,
        step: &mut ScheduledStep,
        now: SimTime,
    ) {
        match (&mut self.host, self.flight.back_mut()) {
            (_, Some(last)) => last.stores.append(&mut step.stores),
            (Some(host), None) => {
                for copy in step.stores.drain(..) {
                    host.start_host_store(now, copy);
                }
            }
            (None, None) => {}
        }
    }

    /// Delays a step until copies to host memory for ended sequences no longer read KV blocks that
    /// a sequence of the step received. For a newly admitted sequence, these are all its blocks,
    /// including cached ones; for other sequences, the blocks after the first `held`.
    pub(super) fn delay_step_for_host_reads(
        &mut self,
        slot: SequenceSlot,
        held: u32,
        step: &mut ScheduledStep,
    ) {
        if let Some(host) = &mut self.host
            && !self.pool.has_layer_groups()
        {
            let seq = &self.seqs[slot];
            let ids = seq.table.block_ids();
            let first = match seq.state {
                SequenceRunState::Waiting => 0,
                _ => (held as usize).min(ids.len()),
            };
            step.copied = step.copied.max(host.record_reuse_returning_read_end(&ids[first..]));
        }
    }

    /// Returns whether some prompt blocks of a sequence are not in host memory because host memory
    /// had no room. Every step then tries again to store them.
    pub(super) fn has_prompt_blocks_not_offloaded(&self, slot: SequenceSlot) -> bool {
        let seq = &self.seqs[slot];
        let both = self.host.as_ref().zip(seq.plan.as_ref());
        both.is_some_and(|(host, plan)| {
            host.has_blocks_unoffered_to_host(seq.id, plan, seq.prompt / self.config.block_size)
        })
    }

    /// Completes the copies to and from host memory that ended before this step, and starts the
    /// copies of this step.
    pub(super) fn advance_host_copies(
        &mut self,
        step: &mut ScheduledStep,
        now: SimTime,
        out: &mut Outbox,
    ) {
        self.complete_host_copies(now, out);
        if let Some(host) = &mut self.host {
            for copy in step.stores.drain(..) {
                host.start_host_store(now, copy);
            }
        }
    }

    pub(super) fn next_host_copy_end(&self) -> Option<SimTime> {
        match &self.host {
            Some(host) => host.next_host_copy_end(),
            None => self.rules.next_rule_copy_end(),
        }
    }

    /// Completes a copy to or from host memory that ends while no step runs. Returns false if no
    /// copy has ended.
    pub(super) fn complete_host_copies_while_idle(
        &mut self,
        due: SimTime,
        out: &mut Outbox,
    ) -> bool {
        let Some(at) = self.next_host_copy_end().filter(|&at| at <= due && self.flight.is_empty())
        else {
            return false;
        };
        let before = out.len();
        self.complete_host_copies(at, out);
        if out.iter().skip(before).any(|(_, event)| event.ends_sequence_or_changes_cache()) {
            self.record_processed_step(at, out, before);
        }
        R::complete_rule_copies(self, at, out);
        self.request_scheduling_pass(at);
        true
    }

    fn complete_host_copies(&mut self, now: SimTime, out: &mut Outbox) {
        let Some(host) = &mut self.host else {
            return;
        };
        let loaded = host.complete_host_copies(now, &mut |event| out.push_back((now, event)));
        if !loaded.is_empty() {
            self.record_scheduling_progress();
        }
        for EndedHostLoad(id) in loaded {
            let Some(slot) = self.seqs.find_slot(id) else {
                continue;
            };
            let seq = &mut self.seqs[slot];
            if seq.state != SequenceRunState::Fetching {
                continue;
            }
            if let Some(failure) = seq.load.failure.take() {
                self.report_kv_load_failure(slot, failure, now);
                continue;
            }
            seq.state = SequenceRunState::Waiting;
            // The last token is computed locally, for its logits.
            seq.computed = (seq.cached + seq.load.tokens).min(seq.known - 1);
            self.fetching -= 1;
            self.seqs.set_fetch_stage(slot, Some(FetchStage::Done));
            self.waiting.insert_sequence(&self.seqs, slot);
        }
    }

    /// Delays a step until the blocks of a preempted sequence are copied to host memory.
    pub(super) fn delay_step_for_host_copies(
        &self,
        victim: SequenceSlot,
        step: &mut ScheduledStep,
    ) {
        if let Some(host) = &self.host {
            step.copied = step.copied.max(host.last_host_store_end(self.seqs[victim].id));
        }
    }

    pub(super) fn remove_sequence_from_host_cache(&mut self, slot: SequenceSlot) {
        if let Some(host) = &mut self.host {
            let seq = &self.seqs[slot];
            let blocks = seq.computed.min(seq.prompt) / self.config.block_size;
            let sources = match self.pool.has_layer_groups() {
                true => &[],
                false => seq.table.block_ids(),
            };
            host.record_sequence_end(seq.id, seq.plan.as_ref(), blocks, sources);
        }
    }

    /// Empties the prefix cache in host memory; returns false if there is no such cache.
    pub(super) fn reset_host_cache(&mut self, now: SimTime, out: &mut Outbox) -> bool {
        let Some(host) = &mut self.host else {
            return false;
        };
        // Steps in flight changed the tier first.
        out.extend(self.reports.events.drain(..).map(|event| (now, event)));
        host.clear_host_chunks();
        self.request_scheduling_pass(now);
        true
    }

    /// Returns the number of sequences that wait for a lookup in host memory, and the numbers of
    /// chunks of KV blocks in host memory, by state.
    pub(super) fn deferred_sequences_and_chunk_counts(&self) -> (usize, HostCacheChunkCounts) {
        let host = self.host.as_ref();
        host.map_or_else(Default::default, |host| (host.deferred, host.chunk_counts()))
    }

    /// Returns the keys of all chunks of KV blocks in host memory, sorted.
    pub fn host_cache_keys(&self) -> Vec<crate::BlockKey> {
        let mut keys: Vec<_> = self.host.iter().flat_map(|host| host.chunk_keys()).collect();
        keys.sort_unstable();
        keys
    }
}
