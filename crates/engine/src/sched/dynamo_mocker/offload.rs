//! Simulates the use of host memory by Dynamo's mocker
//! ([`DynamoMockerHostCacheConfig`](crate::kv::DynamoMockerHostCacheConfig)).
//!
//! A request that finds further prompt blocks in host memory allocates blocks only for these and
//! waits for their copy. Requests that wait for a copy are tried before all others.
//!
//! **Source:** aisimulate-core 0.13.0 `src/engine/scheduler/vllm/{core,host_offload}.rs`.

use crate::kv::{BlockAllocationRequest, DynamoMockerHostBlockState};
use crate::{BlockKey, Outbox, SimTime};

use super::DynamoMockerScheduler;
use crate::sched::vllm::pass::{AdmissionOutcome, SchedulingPass};
use crate::sched::vllm::seqs::{ScheduledSequence, SequenceRunState, SequenceSlot, WaitingClass};
use crate::sched::vllm::step::ScheduledStep;

fn prompt_block_keys(seq: &ScheduledSequence, size: u32) -> &[BlockKey] {
    let keys = seq.plan.as_ref().map_or(&[][..], |plan| &plan.keys);
    &keys[..keys.len().min((seq.prompt / size) as usize)]
}

impl DynamoMockerScheduler {
    /// Starts a load of KV blocks from host memory if they extend the prompt's cached prefix on the
    /// GPU. Returns `None` if the admission continues without a load.
    pub(super) fn load_from_host_cache(
        &mut self,
        slot: SequenceSlot,
        pass: &mut SchedulingPass,
    ) -> Option<AdmissionOutcome> {
        let size = self.config.block_size;
        let owed = self.blocks_owed_to_host_loads();
        let offload = self.rules.offload.as_mut()?;
        let seq = &self.seqs[slot];
        let (id, known) = (seq.id, seq.known);
        if offload.waiting_for_copy.contains(&id) {
            return Some(AdmissionOutcome::Skip);
        }
        // Steps of zero time could preempt each other forever before a copy ends.
        if seq.preemptions.recent == u8::MAX && offload.next_host_copy_end().is_some() {
            return Some(AdmissionOutcome::Skip);
        }
        if !seq.table.is_empty() {
            // Its blocks are loaded; the rest must fit too.
            let all = self.pool.blocks_for_tokens(known);
            let rest = all.saturating_sub(seq.table.len());
            return (rest > self.pool.free_block_count()).then_some(AdmissionOutcome::Stop);
        }
        let own = offload.seqs.entry(id).or_default();
        if let Some(store) = own.store {
            if offload.tier.is_host_copy_unfinished(store) {
                return Some(self.skip_until_copy_ends(slot));
            }
            own.store = None;
        }
        let keys = prompt_block_keys(seq, size);
        let on_gpu = keys.iter().take_while(|key| self.pool.is_block_cached(**key));
        let from = on_gpu.count();
        let states = keys[from..].iter().map(|key| offload.tier.host_block_state(*key));
        let found =
            states.take_while(|state| !matches!(state, DynamoMockerHostBlockState::Missing));
        let (hit, busy) = found.fold((0, 0), |(hit, busy), state| {
            (hit + 1, busy + usize::from(matches!(state, DynamoMockerHostBlockState::Busy)))
        });
        offload.tier.mark_prompt_blocks_used(keys);
        if hit == 0 {
            return None;
        }
        if busy > 0 {
            return Some(self.skip_until_copy_ends(slot));
        }
        self.start_host_load(slot, from, hit, owed, pass)
    }

    /// Allocates GPU blocks for the `hit` blocks of a prompt in host memory that follow its `from`
    /// blocks on the GPU, and starts the copy.
    fn start_host_load(
        &mut self,
        slot: SequenceSlot,
        from: usize,
        hit: usize,
        owed: u32,
        pass: &mut SchedulingPass,
    ) -> Option<AdmissionOutcome> {
        let size = self.config.block_size;
        let seq = &self.seqs[slot];
        let (id, known) = (seq.id, seq.known);
        let wanted: Vec<BlockKey> = prompt_block_keys(seq, size)[from..from + hit].to_vec();
        let plan = seq.plan.clone()?;
        // At least one block is computed.
        let credited = (from as u32).min(known.saturating_sub(1) / size);
        let held = self.pool.cached_prefix_blocks_in_use(&plan, credited);
        let all = self.pool.blocks_for_tokens(known);
        if all - held > self.pool.free_block_count().saturating_sub(owed) {
            return Some(AdmissionOutcome::Stop);
        }
        let need = BlockAllocationRequest {
            prefix: from as u32 * size,
            tokens: (from + hit) as u32 * size,
            cache: from as u32 * size,
            ..BlockAllocationRequest::default()
        };
        let (seq, events) = (&mut self.seqs[slot], &mut pass.step.events);
        let done = self
            .pool
            .allocate_blocks(&mut seq.table, Some(&plan), &need, &mut |event| events.push(event));
        if !done {
            return Some(AdmissionOutcome::Stop);
        }
        let offload = self.rules.offload.as_mut()?;
        let fresh = &seq.table.block_ids()[from..];
        let begins = offload.tier.last_block_read_end(fresh).max(pass.now);
        let own = offload.seqs.entry(id).or_default();
        own.load = Some(offload.tier.start_host_load(id, wanted, begins));
        own.loaded = Some(((from + hit) as u32, all));
        (seq.cached, seq.load.tokens) = (from as u32 * size, hit as u32 * size);
        self.skip_until_copy_ends(slot);
        self.waiting.remove_sequence(&self.seqs, slot);
        self.seqs[slot].state = SequenceRunState::Fetching;
        self.fetching += 1;
        Some(AdmissionOutcome::Skip)
    }

    /// Makes a sequence wait for a copy from host memory. After a copy ends, the scheduler tries
    /// sequences that waited for copies before sequences that only wait for room.
    fn skip_until_copy_ends(&mut self, slot: SequenceSlot) -> AdmissionOutcome {
        if let Some(offload) = &mut self.rules.offload {
            offload.waiting_for_copy.insert(self.seqs[slot].id);
            if self.seqs[slot].rank.1 >= 0 {
                self.waiting.remove_sequence(&self.seqs, slot);
                offload.waited += 1;
                self.seqs[slot].rank = (WaitingClass::Plain, -1, offload.waited);
                self.waiting.insert_sequence(&self.seqs, slot);
            }
        }
        AdmissionOutcome::Skip
    }

    fn blocks_owed_to_host_loads(&self) -> u32 {
        let owed = self.running.iter().map(|&slot| {
            let seq = &self.seqs[slot];
            match seq.computed < seq.prompt {
                true => self.pool.blocks_for_tokens(seq.known).saturating_sub(seq.table.len()),
                false => 0,
            }
        });
        let loads =
            self.rules.offload.as_ref().map_or(0, |offload| offload.blocks_needed_after_loads());
        owed.sum::<u32>().saturating_add(loads)
    }

    pub(super) fn take_loaded_tokens(&mut self, slot: SequenceSlot) -> Option<u32> {
        let size = self.config.block_size;
        let offload = self.rules.offload.as_mut()?;
        let seq = &self.seqs[slot];
        let own = offload.seqs.entry(seq.id).or_default();
        if own.loaded.take().is_some() {
            own.offered = (seq.cached + seq.load.tokens) / size;
        }
        Some(seq.load.tokens)
    }

    /// Registers the prompt blocks of a step, to be copied to host memory after the step has
    /// computed them.
    pub(super) fn offer_to_host_cache(&mut self, step: &mut ScheduledStep) {
        let size = self.config.block_size;
        let Some(offload) = &mut self.rules.offload else {
            return;
        };
        for entry in &step.entries {
            let seq = &self.seqs[entry.slot];
            let keys = prompt_block_keys(seq, size);
            let end = (seq.computed.min(seq.prompt) / size).min(keys.len() as u32);
            let own = offload.seqs.entry(seq.id).or_default();
            if end <= own.offered {
                continue;
            }
            let range = own.offered as usize..end as usize;
            let missing = keys[range.clone()].iter().any(|key| {
                offload.tier.host_block_state(*key) == DynamoMockerHostBlockState::Missing
            });
            if !missing {
                own.offered = end;
                continue;
            }
            let ids = seq.table.block_ids();
            let blocks = range.map(|at| (keys[at], ids[at]));
            let blocks: Vec<(BlockKey, u32)> = blocks.collect();
            if let Some(copy) = offload.tier.prepare_host_store(seq.id, &blocks) {
                own.store = Some(copy);
                own.offered = end;
                offload.tier.mark_prompt_blocks_used(keys);
            }
        }
        step.copied = step.copied.max(offload.compute_after);
    }

    /// Delays the next computation until no copy to host memory reads the KV blocks newly allocated
    /// to a sequence.
    pub(super) fn delay_computation_for_host_reads(
        &mut self,
        slot: SequenceSlot,
        blocks_before: u32,
    ) {
        if let Some(offload) = &mut self.rules.offload {
            let ids = self.seqs[slot].table.block_ids();
            let until =
                offload.tier.last_block_read_end(&ids[(blocks_before as usize).min(ids.len())..]);
            offload.compute_after = offload.compute_after.max(until);
        }
    }

    /// Delays the next computation until the blocks of a preempted sequence are copied to host
    /// memory.
    pub(super) fn delay_computation_for_host_store(&mut self, slot: SequenceSlot) {
        if let Some(offload) = &mut self.rules.offload
            && let Some(own) = offload.seqs.get(&self.seqs[slot].id)
            && let Some(end) = own.store.and_then(|store| offload.tier.host_copy_end_time(store))
        {
            offload.compute_after = offload.compute_after.max(end);
        }
    }

    pub(super) fn start_host_copies(&mut self, now: SimTime, out: &mut Outbox) {
        if let Some(offload) = &mut self.rules.offload {
            offload.tier.start_prepared_host_stores(now);
            self.complete_mocker_copies(now, out);
        }
    }

    pub(super) fn complete_mocker_copies(&mut self, now: SimTime, out: &mut Outbox) {
        while let Some(offload) = &mut self.rules.offload
            && let Some(copy) = offload.tier.pop_finished_host_copy(now)
        {
            offload.waiting_for_copy.clear();
            let Some(slot) = self.seqs.find_slot(copy.seq).filter(|_| !copy.to_host) else {
                continue;
            };
            let seq = &mut self.seqs[slot];
            if seq.state != SequenceRunState::Fetching {
                continue;
            }
            if let Some(own) = offload.seqs.get_mut(&copy.seq) {
                own.load = None;
            }
            let (plan, upto) = (seq.plan.as_ref(), seq.cached + seq.load.tokens);
            self.pool.cache_full_blocks(&mut seq.table, plan, upto, &mut |event| {
                out.push_back((now, event));
            });
            seq.settled = seq.table.tokens_until_block_table_change();
            // The last block is computed locally if all blocks are present.
            let most = (seq.known - 1) / self.config.block_size * self.config.block_size;
            seq.cached = seq.cached.min(most);
            seq.load.tokens = seq.load.tokens.min(most - seq.cached);
            seq.computed = seq.cached + seq.load.tokens;
            seq.state = SequenceRunState::Waiting;
            self.fetching -= 1;
            self.waiting.insert_sequence(&self.seqs, slot);
        }
    }

    pub(super) fn remove_sequence_from_mocker_cache(&mut self, slot: SequenceSlot) {
        if let Some(offload) = &mut self.rules.offload {
            let id = self.seqs[slot].id;
            offload.waiting_for_copy.remove(&id);
            if let Some(load) = offload.seqs.remove(&id).and_then(|own| own.load) {
                offload.tier.cancel_host_load(load);
                offload.waiting_for_copy.clear();
            }
        }
    }
}
