//! Simulates slots without batching: each sequence has its own timeline.
//!
//! A sequence holds one of `slots` slots from start to end; other sequences wait in a FIFO queue.
//! The delays before the first and each further token grow with the number of running sequences
//! when they are drawn.
//!
//! **Source:** llm-d-inference-sim `simulator.go`, `worker.go`, `latencies.go`, `lora.go`.

mod adapters;
mod commands;
mod config;
mod load_failure;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;

use crate::kv::{BlockAllocationRequest, BlockPool, BlockTable, PrefillBlockLeases};
use crate::seq_map::SeqMap;
use crate::{
    CachedBlock, EngineCommand, EngineStats, KvBlockUsage, Outbox, PromptKvTransfer, Scheduler,
    SchedulerEvent, SeqId, Sequence, SequenceEndReason, SequenceSubmitError, SimTime, TimerQueue,
    TokenDelays,
};
use adapters::{LoraAdapterSlots, LoraSlotFit};
pub use config::SlotSchedulerConfig;
use vllm_sim_random::{RandomStreamPurpose, request_rng};

/// Number of later sequences with loaded LoRA adapters that may overtake a sequence that waits for
/// its adapter. After that many, the waiting sequence gets the next adapter slot.
const MAX_ADAPTER_OVERTAKES: u32 = 16;

/// Schedules sequences on independent slots, as llm-d-inference-sim does.
pub struct SlotScheduler {
    config: SlotSchedulerConfig,
    /// Token delays for new sequences. A sequence keeps the delays of its submission, or of its
    /// start with [`SlotSchedulerConfig::delays_at_start`].
    delays: Arc<TokenDelays>,
    timers: TimerQueue<SlotTimer>,
    slots: Vec<Option<Box<RunningSequence>>>,
    free: Vec<u32>,
    locations: SeqMap<SequenceLocation>,
    waiting: VecDeque<WaitingSequence>,
    adapters: LoraAdapterSlots,
    epoch: u32,
    paused: Option<SimTime>,
    /// Whether [`Self::admit_to_free_slots`] is running, so that it does not call itself again.
    admitting: bool,
    blocks: Option<BlockPool>,
    leases: PrefillBlockLeases,
    queries: u64,
    hits: u64,
}

#[derive(Debug, Clone, Copy)]
struct SlotTimer {
    slot: u32,
    epoch: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SequenceLocation {
    Waiting,
    Slot(u32),
}

struct WaitingSequence {
    seq: Sequence,
    passed: u32,
}

struct RunningSequence {
    seq: Sequence,
    released: u32,
    next_no_gap: u32,
    epoch: u32,
    rng: Option<Box<ChaCha8Rng>>,
    table: BlockTable,
    cached: u32,
}

impl SlotScheduler {
    /// Creates a scheduler of `config.slots` independent slots, without sequences.
    pub fn new(config: SlotSchedulerConfig) -> Self {
        Self {
            blocks: config.kv.map(BlockPool::new),
            adapters: LoraAdapterSlots::new(config.max_loras, config.lora_load),
            leases: PrefillBlockLeases::default(),
            delays: Arc::new(config.delays.clone()),
            queries: 0,
            hits: 0,
            config,
            timers: TimerQueue::default(),
            slots: Vec::new(),
            free: Vec::new(),
            locations: SeqMap::default(),
            waiting: VecDeque::new(),
            epoch: 0,
            paused: None,
            admitting: false,
        }
    }

    fn running_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn check_fits(&self, seq: &Sequence) -> Result<(), SequenceSubmitError> {
        let Some(blocks) = &self.blocks else {
            return Ok(());
        };
        let (needed, total) =
            (blocks.blocks_for_tokens(seq.prompt), blocks.config().num_blocks - 1);
        match needed > total {
            true => Err(SequenceSubmitError::TooLarge { needed, total }),
            false => Ok(()),
        }
    }

    fn has_free_slot(&self) -> bool {
        self.running_count() < self.config.slots
    }

    /// Starts a sequence, or returns the sequence if there are not enough free KV blocks for its
    /// prompt.
    fn start_sequence(
        &mut self,
        now: SimTime,
        seq: Sequence,
        out: &mut Outbox,
    ) -> Option<Sequence> {
        let id = seq.id;
        let mut table = BlockTable::default();
        let mut cached = 0;
        if let Some(blocks) = &mut self.blocks {
            let plan = seq.plan.as_ref();
            let found = plan.filter(|_| !seq.skip_cache_read);
            let most = seq.prompt + u32::from(self.config.caches_whole_prompts);
            cached = found.map_or(0, |plan| blocks.cached_prefix_tokens(plan, most));
            let refused =
                seq.hit_threshold.is_some_and(|least| cached_ratio(cached, seq.prompt) < least);
            if refused && !self.config.prompt_blocks_only {
                self.end_below_hit_threshold(now, id, cached, out);
                return None;
            }
            let kept = self.config.cached_prompt_tokens(seq.prompt, blocks.config().block_size);
            let need = BlockAllocationRequest {
                prefix: cached,
                tokens: kept,
                cache: load_failure::prompt_tokens_to_cache(&seq, kept, cached),
                ..BlockAllocationRequest::default()
            };
            if !blocks
                .allocate_blocks(&mut table, plan, &need, &mut |event| out.push_back((now, event)))
            {
                return Some(seq);
            }
            if !seq.skip_cache_read {
                self.queries += u64::from(seq.prompt);
                self.hits += u64::from(cached);
            }
            if refused {
                // llm-d-inference-sim stores the prompt before it checks the threshold.
                blocks.release_block_table(&mut table);
                self.end_below_hit_threshold(now, id, cached, out);
                return None;
            }
        } else if seq.hit_threshold.is_some_and(|least| least > 0.0) {
            self.end_below_hit_threshold(now, id, 0, out);
            return None;
        }
        self.run_sequence(now, seq, table, cached, out);
        None
    }

    /// Runs a sequence whose KV blocks were allocated.
    fn run_sequence(
        &mut self,
        now: SimTime,
        mut seq: Sequence,
        table: BlockTable,
        cached: u32,
        out: &mut Outbox,
    ) {
        let id = seq.id;
        let load_time = self.adapters.take_adapter_slot(now, seq.lora);
        let external = load_failure::prompt_tokens_to_fetch(&mut seq, cached);
        out.push_back((now, SchedulerEvent::Scheduled { id, cached, external }));
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.locations.insert(id, SequenceLocation::Slot(index));
        self.epoch = self.epoch.wrapping_add(1);
        if self.config.delays_at_start {
            seq.delays = Some(self.delays.clone());
        }
        let mut running = Box::new(RunningSequence {
            released: 0,
            next_no_gap: 0,
            epoch: self.epoch,
            rng: None,
            table,
            cached,
            seq,
        });
        let load = self
            .sequence_token_delays(&running.seq)
            .delay_factor_under_load(self.running_count(), self.config.slots);
        let (prompt, transfer) = (running.seq.prompt, running.seq.transfer);
        let first = match self.recorded_token_gap(&running) {
            Some(gap) => gap,
            None => self.draw_sequence_delay(&mut running, |d, rng| {
                d.draw_first_token_delay(prompt, cached, transfer, load, rng)
            }),
        };
        if transfer == PromptKvTransfer::RemotePrefill && running.seq.load_failure.is_none() {
            let (tokens, took) = (external, first);
            out.push_back((now, SchedulerEvent::Fetched { id, tokens, took }));
        }
        let first = first.saturating_sub(running.seq.preparation_time);
        let (due, epoch) = (now + load_time + first, running.epoch);
        self.slots[index as usize] = Some(running);
        if due == now {
            self.release_tokens(now, index, out);
        } else {
            self.timers.schedule_item(due, SlotTimer { slot: index, epoch });
        }
    }

    fn end_below_hit_threshold(&mut self, now: SimTime, id: SeqId, cached: u32, out: &mut Outbox) {
        self.locations.remove(&id);
        out.push_back((now, SchedulerEvent::Scheduled { id, cached, external: 0 }));
        let end = SequenceEndReason::Threshold;
        out.push_back((now, SchedulerEvent::Ended { id, end }));
    }

    fn expire_leases(&mut self, now: SimTime, out: &mut Outbox) {
        let Some(blocks) = &mut self.blocks else {
            return;
        };
        let mut freed = None;
        while let Some((at, came_back)) = self.leases.expire_next_lease(now, blocks) {
            freed = came_back.then_some(at).or(freed);
        }
        if let Some(at) = freed {
            self.admit_to_free_slots(at, out);
        }
    }

    /// Allocates KV blocks for all tokens of a sequence. If the cache is full, the sequence
    /// continues without KV blocks.
    fn allocate_token_blocks(
        &mut self,
        now: SimTime,
        running: &mut RunningSequence,
        out: &mut Outbox,
    ) {
        let keeps_output = !self.config.prompt_blocks_only;
        let Some(blocks) = self.blocks.as_mut().filter(|_| keeps_output) else {
            return;
        };
        let tokens = running.seq.prompt + running.released;
        // The step after a token writes its KV cache entry.
        let need = BlockAllocationRequest {
            tokens,
            cache: tokens - 1,
            ..BlockAllocationRequest::default()
        };
        let plan = running.seq.plan.as_ref();
        let _fits = blocks
            .allocate_blocks(&mut running.table, plan, &need, &mut |e| out.push_back((now, e)));
    }

    fn release_tokens(&mut self, now: SimTime, index: u32, out: &mut Outbox) {
        let Some(mut running) = self.slots[index as usize].take() else {
            return;
        };
        if running.seq.load_failure.is_some() {
            self.handle_kv_load_failure(now, index, running, out);
            return;
        }
        let id = running.seq.id;
        let (mut released, mut due) = (0u32, None);
        if running.seq.timeline.is_none()
            && self.sequence_token_delays(&running.seq).itl.0.is_zero()
        {
            released = running.seq.output.saturating_sub(running.released);
            running.released += released;
        }
        while running.released < running.seq.output {
            released += 1;
            running.released += 1;
            if running.released == running.seq.output {
                break;
            }
            let gap = self.next_token_gap(&mut running);
            if !gap.is_zero() {
                due = Some(now + gap);
                break;
            }
        }
        if released > 0 {
            self.allocate_token_blocks(now, &mut running, out);
            out.push_back((now, SchedulerEvent::Tokens { id, n: released }));
            if due.is_none() && !running.seq.tail.is_zero() {
                due = Some(now + running.seq.tail);
            }
        }
        let epoch = running.epoch;
        self.slots[index as usize] = Some(running);
        match due {
            Some(at) => self.timers.schedule_item(at, SlotTimer { slot: index, epoch }),
            None => self.finish_sequence(now, index, SequenceEndReason::Finished, out),
        }
    }

    fn finish_sequence(
        &mut self,
        now: SimTime,
        index: u32,
        end: SequenceEndReason,
        out: &mut Outbox,
    ) {
        let Some(mut running) = self.slots[index as usize].take() else {
            return;
        };
        self.free.push(index);
        self.locations.remove(&running.seq.id);
        let hands_over = running.seq.transfer == PromptKvTransfer::RemoteDecode
            && end == SequenceEndReason::Finished;
        if let Some(blocks) = &mut self.blocks {
            match self.config.lease {
                Some(term) if hands_over && !running.table.is_empty() => {
                    let (id, table) = (running.seq.id, std::mem::take(&mut running.table));
                    let blocks = self.leases.lease_blocks(now, term, id, table);
                    out.push_back((now, SchedulerEvent::Leased { id, blocks }));
                }
                _ => blocks.release_block_table(&mut running.table),
            }
        }
        self.adapters.release_adapter_slot(now, running.seq.lora);
        let id = running.seq.id;
        out.push_back((now, SchedulerEvent::Ended { id, end }));
        self.admit_to_free_slots(now, out);
    }

    /// Starts sequences from the waiting queue while there are free slots.
    ///
    /// Prefers the first sequence whose LoRA adapter is loaded, then the first whose adapter can be
    /// loaded. No sequence overtakes one that was overtaken [`MAX_ADAPTER_OVERTAKES`] times. A
    /// sequence without delays ends during its start; `admitting` avoids the resulting recursion.
    fn admit_to_free_slots(&mut self, now: SimTime, out: &mut Outbox) {
        if !self.admitting {
            self.admitting = true;
            self.admit_waiting(now, out);
            self.admitting = false;
        }
    }

    fn admit_waiting(&mut self, now: SimTime, out: &mut Outbox) {
        while self.paused.is_none() && self.has_free_slot() {
            let Some(index) = self.next_waiting_index() else {
                return;
            };
            let Some(mut next) = self.waiting.remove(index) else {
                return;
            };
            match self.start_sequence(now, next.seq, out) {
                None => self.waiting.range_mut(..index).for_each(|passed| passed.passed += 1),
                Some(unstarted) => {
                    next.seq = unstarted;
                    self.waiting.insert(index, next);
                    return;
                }
            }
        }
    }

    fn next_waiting_index(&self) -> Option<usize> {
        let mut loadable = None;
        for (index, waiting) in self.waiting.iter().enumerate() {
            let lora = waiting.seq.lora;
            let fit = lora.map_or(LoraSlotFit::Ready, |lora| self.adapters.slot_fit(lora));
            if fit == LoraSlotFit::Ready
                || (fit == LoraSlotFit::Loadable && waiting.passed >= MAX_ADAPTER_OVERTAKES)
            {
                return Some(index);
            }
            if waiting.passed >= MAX_ADAPTER_OVERTAKES {
                // Later sequences may not overtake it: running adapters drain until its adapter
                // fits.
                return loadable;
            }
            if fit == LoraSlotFit::Loadable {
                loadable = loadable.or(Some(index));
            }
        }
        loadable
    }
}

impl SlotScheduler {
    /// Chooses a delay of a sequence at random. The random generator is created on first use, and
    /// not kept if all delays have a standard deviation of zero.
    fn draw_sequence_delay(
        &self,
        running: &mut RunningSequence,
        f: impl FnOnce(&TokenDelays, &mut ChaCha8Rng) -> Duration,
    ) -> Duration {
        let (seed, key) = (self.config.seed, running.seq.key);
        let fresh = || request_rng(seed, key, RandomStreamPurpose::Latency);
        let delays = running.seq.delays.as_deref().unwrap_or(&self.delays);
        if delays.has_deterministic_delays() {
            return f(delays, &mut fresh());
        }
        let rng = running.rng.get_or_insert_with(|| Box::new(fresh()));
        f(delays, rng)
    }

    fn sequence_token_delays<'a>(&'a self, seq: &'a Sequence) -> &'a TokenDelays {
        seq.delays.as_deref().unwrap_or(&self.delays)
    }

    /// Returns the recorded delay before the next token, if the sequence has recorded token times.
    fn recorded_token_gap(&self, running: &RunningSequence) -> Option<Duration> {
        let timeline = running.seq.timeline.as_ref()?;
        let next = running.released as usize;
        let at = *timeline.get(next)?;
        let before = next.checked_sub(1).map_or(Duration::ZERO, |i| timeline[i]);
        Some(self.sequence_token_delays(&running.seq).divide_by_speedup(at.saturating_sub(before)))
    }

    fn next_token_gap(&mut self, running: &mut RunningSequence) -> Duration {
        let tokens_without_gap = &running.seq.tokens_without_gap;
        if tokens_without_gap.get(running.next_no_gap as usize) == Some(&running.released) {
            running.next_no_gap += 1;
            return Duration::ZERO;
        }
        if let Some(gap) = self.recorded_token_gap(running) {
            return gap;
        }
        let delays = self.sequence_token_delays(&running.seq);
        if delays.itl.0.is_zero() {
            return Duration::ZERO;
        }
        let load = delays.delay_factor_under_load(self.running_count(), self.config.slots);
        if delays.itl.1.is_zero() {
            return delays.mean_inter_token_delay(load);
        }
        self.draw_sequence_delay(running, |d, rng| d.draw_inter_token_delay(load, rng))
    }
}

fn cached_ratio(cached: u32, prompt: u32) -> f64 {
    f64::from(cached) / f64::from(prompt.max(1))
}

impl Scheduler for SlotScheduler {
    fn submit(
        &mut self,
        now: SimTime,
        mut seq: Sequence,
        out: &mut Outbox,
    ) -> Result<(), SequenceSubmitError> {
        let startable = self.paused.is_none()
            && self.has_free_slot()
            && self.waiting.is_empty()
            && seq.lora.is_none_or(|lora| self.adapters.slot_fit(lora) != LoraSlotFit::No);
        self.check_fits(&seq)?;
        if seq.delays.is_none() {
            seq.delays = Some(self.delays.clone());
        }
        if startable {
            match self.start_sequence(now, seq, out) {
                None => return Ok(()),
                Some(unstarted) => seq = unstarted,
            }
        }
        if let Some(limit) = self.config.queue.filter(|limit| self.waiting.len() >= *limit) {
            return Err(SequenceSubmitError::QueueFull { limit });
        }
        // A slot is given later than its arrival anyway.
        seq.preparation_time = Duration::ZERO;
        self.locations.insert(seq.id, SequenceLocation::Waiting);
        self.waiting.push_back(WaitingSequence { seq, passed: 0 });
        self.admit_to_free_slots(now, out);
        Ok(())
    }

    fn check_submissions(
        &self,
        job: &mut dyn Iterator<Item = &Sequence>,
    ) -> Result<(), SequenceSubmitError> {
        // At most this many start; the others need places in the queue.
        let mut slots = match self.paused.is_none() && self.waiting.is_empty() {
            true => self.config.slots.saturating_sub(self.running_count()),
            false => 0,
        };
        let mut queued = self.waiting.len();
        for seq in job {
            self.check_fits(seq)?;
            if slots > 0
                && seq.lora.is_none_or(|lora| self.adapters.slot_fit(lora) != LoraSlotFit::No)
            {
                slots -= 1;
                continue;
            }
            match self.config.queue {
                Some(limit) if queued >= limit => {
                    return Err(SequenceSubmitError::QueueFull { limit });
                }
                _ => queued += 1,
            }
        }
        Ok(())
    }

    fn abort(&mut self, now: SimTime, id: SeqId, out: &mut Outbox) {
        match self.locations.get(&id).copied() {
            None => {}
            Some(SequenceLocation::Slot(index)) => {
                self.finish_sequence(now, index, SequenceEndReason::Aborted, out)
            }
            Some(SequenceLocation::Waiting) => {
                self.locations.remove(&id);
                self.waiting.retain(|w| w.seq.id != id);
                let end = SequenceEndReason::Aborted;
                out.push_back((now, SchedulerEvent::Ended { id, end }));
                self.admit_to_free_slots(now, out);
            }
        }
    }

    fn next_wakeup(&self) -> Option<SimTime> {
        let timers = self.paused.is_none().then(|| self.timers.next_due_time());
        let due = [timers.flatten(), self.leases.next_lease_expiry()];
        SimTime::earliest(due)
    }

    fn advance(&mut self, now: SimTime, out: &mut Outbox) {
        self.expire_leases(now, out);
        if self.paused.is_some() {
            return;
        }
        while let Some((due, timer)) = self.timers.pop_due_item(now) {
            let slot = self.slots.get(timer.slot as usize).and_then(Option::as_ref);
            if slot.is_some_and(|running| running.epoch == timer.epoch) {
                self.release_tokens(due, timer.slot, out);
            }
        }
    }

    fn apply_command(&mut self, now: SimTime, command: EngineCommand, out: &mut Outbox) -> bool {
        self.run_engine_command(now, command, out)
    }

    fn cached_blocks(&self) -> Vec<CachedBlock> {
        let blocks = self.blocks.as_ref();
        blocks.map_or_else(Vec::new, BlockPool::cached_blocks)
    }

    fn block_usage(&self, numbers: Range<u32>) -> KvBlockUsage {
        let blocks = self.blocks.as_ref();
        blocks.map_or_else(KvBlockUsage::default, |blocks| blocks.kv_block_usage(numbers))
    }

    fn empty_token_slots(&self) -> u64 {
        let Some(blocks) = &self.blocks else {
            return 0;
        };
        let running = self.slots.iter().flatten();
        let empty = running.map(|running| {
            // The newest output token has no keys and values yet.
            let tokens = running.seq.prompt + running.released.saturating_sub(1);
            blocks.empty_token_slots(&running.table, tokens)
        });
        empty.sum()
    }

    fn stats(&self) -> EngineStats {
        let (used_blocks, total_blocks) = match &self.blocks {
            Some(blocks) => (blocks.block_counts().used, blocks.config().num_blocks - 1),
            None => (0, 0),
        };
        EngineStats {
            running: self.running_count(),
            waiting: self.waiting.len(),
            used_blocks,
            total_blocks,
            cache_queries: self.queries,
            cache_hits: self.hits,
            ..EngineStats::default()
        }
    }
}
