//! Runs one engine, or data-parallel ranks that step together, with their observers and the records
//! of their sequences.

use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Duration;

use super::record::{EngineObserver, EngineObservers, SequenceRecord, SharedSequenceProgress};
use crate::lock_step::RankLockStep;
use crate::{
    EngineCommand, EngineStats, Outbox, Scheduler, SchedulerEvent, SeqId, Sequence,
    SequenceEndReason, SequenceSubmitError, SimTime,
};

/// Maximum number of engine events collected before the observers are called. A long reply without
/// delay produces all its events at the same time.
const MAX_UNDELIVERED_EVENTS: usize = 4096;

pub(super) struct EngineDriver {
    pub engine: Box<dyn Scheduler + Send>,
    pub observer: Box<dyn EngineObserver>,
    outbox: Outbox,
    pub records: Vec<Option<SequenceRecord>>,
    free: Vec<u32>,
    generation: u64,
    stats: EngineStats,
    /// Whether an observer needs [`EngineStats::empty_token_slots`].
    counts_empty_slots: bool,
    pub progress: EngineProgress,
    pub stopped: bool,
}

impl EngineDriver {
    pub(super) fn new(
        engine: Box<dyn Scheduler + Send>,
        observer: Box<dyn EngineObserver>,
    ) -> Self {
        Self {
            counts_empty_slots: observer.needs_empty_token_slots(),
            progress: EngineProgress::default(),
            engine,
            observer,
            outbox: Outbox::new(),
            records: Vec::new(),
            free: Vec::new(),
            generation: 0,
            stats: EngineStats::default(),
            stopped: false,
        }
    }

    pub(super) fn add_observer(&mut self, observer: Box<dyn EngineObserver>) {
        self.counts_empty_slots |= observer.needs_empty_token_slots();
        let first = std::mem::replace(&mut self.observer, Box::new(EngineObservers(Vec::new())));
        self.observer = Box::new(EngineObservers(vec![first, observer]));
    }

    pub(super) fn next_engine_wakeup_time(&self) -> SimTime {
        match self.stopped {
            true => SimTime::MAX,
            false => self.engine.next_wakeup().unwrap_or(SimTime::MAX),
        }
    }

    /// Returns the engine's scheduler, if the engine is a data-parallel rank that steps together
    /// with others and is not stopped.
    pub(super) fn scheduler_in_lock_step(&mut self) -> Option<&mut dyn Scheduler> {
        match self.stopped || !self.engine.is_in_lock_step() {
            true => None,
            false => Some(&mut *self.engine),
        }
    }

    pub(super) fn apply_command(&mut self, now: SimTime, command: EngineCommand) -> bool {
        let done = self.engine.apply_command(now, command, &mut self.outbox);
        self.deliver_events();
        done
    }

    pub(super) fn submit_sequence(
        &mut self,
        now: SimTime,
        mut sequence: Sequence,
        mut record: SequenceRecord,
    ) -> Result<(SeqId, Arc<SharedSequenceProgress>), SequenceSubmitError> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.records.push(None);
            (self.records.len() - 1) as u32
        });
        self.generation += 1;
        let id = SeqId((self.generation << 32) | u64::from(slot));
        sequence.id = id;
        sequence.preparation_time = now.duration_since(record.arrived);
        // What the caller took itself counts.
        let rest = sequence.front_end_delay.saturating_sub(sequence.preparation_time);
        sequence.front_end_delay = rest;
        record.record_submission(id, now + sequence.front_end_delay);
        let progress = record.progress.clone();
        self.records[slot as usize] = Some(record);
        if let Err(error) = self.engine.submit(now, sequence, &mut self.outbox) {
            self.records[slot as usize] = None;
            self.free.push(slot);
            return Err(error);
        }
        if let Some(Some(record)) = self.records.get(slot as usize) {
            self.progress.record_submission(now);
            self.observer.on_sequence_queued(record);
        }
        // Otherwise the caller advances the engine next, which delivers these events too.
        if !self.outbox.is_empty() || self.next_engine_wakeup_time() > now {
            self.deliver_events();
        }
        Ok((id, progress))
    }

    pub(super) fn abort_sequence(&mut self, now: SimTime, id: SeqId) {
        if self.sequence_record(id).is_some() {
            self.engine.abort(now, id, &mut self.outbox);
            self.deliver_events();
        }
    }

    pub(super) fn cancel_sequence(&mut self, now: SimTime, id: SeqId) {
        if self.sequence_record(id).is_none() {
            return;
        }
        self.engine.abort(now, id, &mut self.outbox);
        for (_, event) in &mut self.outbox {
            if let SchedulerEvent::Ended { id: ended, end } = event
                && *ended == id
            {
                *end = SequenceEndReason::Cancelled;
            }
        }
        self.deliver_events();
    }

    /// Runs the engine up to and including `now` and delivers its events to the observer. Returns
    /// the number of events.
    pub(super) fn run_engine_until(&mut self, now: SimTime) -> usize {
        let mut events = 0;
        let mut has_work = self.next_engine_wakeup_time() <= now;
        while has_work {
            self.engine.advance(now, &mut self.outbox);
            has_work = self.next_engine_wakeup_time() <= now;
            // Steps of zero duration follow each other: deliver their events in batches.
            if !has_work || self.outbox.len() >= MAX_UNDELIVERED_EVENTS {
                events += self.outbox.len();
                self.deliver_events();
            }
        }
        events
    }

    /// Runs the work of the engine that is due at `now`, but not the further work at `now` that
    /// results from it. Returns the number of events.
    pub(super) fn run_due_engine_work(&mut self, now: SimTime) -> usize {
        self.engine.advance(now, &mut self.outbox);
        let events = self.outbox.len();
        self.deliver_events();
        events
    }

    fn sequence_record(&mut self, id: SeqId) -> Option<&mut SequenceRecord> {
        self.records.get_mut(sequence_record_index(id))?.as_mut().filter(|record| record.id == id)
    }

    fn deliver_events(&mut self) {
        while let Some((at, event)) = self.outbox.pop_front() {
            let Some(id) = event.sequence_id() else {
                self.observer.on_engine_event(at, &event);
                continue;
            };
            let Some(Some(record)) = self.records.get_mut(sequence_record_index(id)) else {
                continue;
            };
            let since = record.last;
            record.apply_event(at, &event);
            self.observer.on_sequence_event(at, &event, record, since);
            match event {
                SchedulerEvent::Tokens { .. } | SchedulerEvent::Decoded { .. } => {
                    self.progress.record_output(at);
                    record.progress.wake_reply_task();
                }
                SchedulerEvent::Ended { end, .. } => {
                    self.progress.record_end(at);
                    record.progress.record_sequence_end(end);
                    record.progress.wake_reply_task();
                    self.records[sequence_record_index(id)] = None;
                    self.free.push(sequence_record_index(id) as u32);
                }
                _ => {}
            }
        }
        let mut stats = self.engine.stats();
        if self.counts_empty_slots {
            stats.empty_token_slots = self.engine.empty_token_slots();
        }
        if stats != self.stats {
            self.stats = stats;
            self.observer.on_engine_stats(&stats);
        }
        self.observer.on_events_delivered();
    }
}

/// Tracks whether an engine with sequences makes progress.
///
/// **Source:** `check_ready` of vllm-project/vllm#43122, as its tests describe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineProgress {
    sequences: usize,
    busy_since: SimTime,
    last_output: Option<SimTime>,
}

impl EngineProgress {
    fn record_submission(&mut self, now: SimTime) {
        if self.sequences == 0 {
            (self.busy_since, self.last_output) = (now, None);
        }
        self.sequences += 1;
    }

    fn record_output(&mut self, at: SimTime) {
        self.last_output = Some(at);
    }

    fn record_end(&mut self, at: SimTime) {
        self.sequences = self.sequences.saturating_sub(1);
        self.last_output = Some(at);
    }

    /// Returns whether the engine has unfinished sequences but no output for too long: more than
    /// `first_output_timeout` since it became busy, or more than `next_output_timeout` since its
    /// last output.
    pub fn is_stalled(
        &self,
        now: SimTime,
        first_output_timeout: Duration,
        next_output_timeout: Duration,
    ) -> bool {
        if self.sequences == 0 {
            return false;
        }
        match self.last_output {
            Some(at) => now.duration_since(at) > next_output_timeout,
            None => now.duration_since(self.busy_since) > first_output_timeout,
        }
    }
}

/// Returns the index of a sequence's record: the low 32 bits of the sequence id.
pub(super) fn sequence_record_index(id: SeqId) -> usize {
    (id.0 & 0xffff_ffff) as usize
}

/// The engines that share one lock: a single engine, or data-parallel ranks that step together.
pub(super) struct EngineRankGroup {
    pub cores: Vec<EngineDriver>,
    /// Whether the group of data-parallel ranks accepts no further ranks.
    pub closed: bool,
    lock_step: Option<RankLockStep>,
    pub sleeps_until: SimTime,
}

impl EngineRankGroup {
    pub(super) fn from_single_engine(core: EngineDriver) -> Self {
        Self { cores: vec![core], closed: false, lock_step: None, sleeps_until: SimTime::ZERO }
    }

    pub(super) fn new_lock_step_group() -> Self {
        Self {
            cores: Vec::new(),
            closed: false,
            lock_step: Some(RankLockStep::default()),
            sleeps_until: SimTime::ZERO,
        }
    }

    pub(super) fn are_all_engines_stopped(&self) -> bool {
        (self.closed || !self.cores.is_empty()) && self.cores.iter().all(|core| core.stopped)
    }

    pub(super) fn next_group_wakeup_time(&self) -> SimTime {
        match &self.cores[..] {
            [core] => core.next_engine_wakeup_time(),
            cores => {
                let due = cores.iter().map(EngineDriver::next_engine_wakeup_time);
                due.min().unwrap_or(SimTime::MAX)
            }
        }
    }

    pub(super) fn advance_ranks(&mut self, now: SimTime) -> usize {
        if self.lock_step.is_none() {
            return self.cores[0].run_engine_until(now);
        }
        let mut events = 0;
        loop {
            let due = self.next_group_wakeup_time();
            if due > now {
                return events;
            }
            for core in &mut self.cores {
                if core.next_engine_wakeup_time() <= due {
                    events += core.run_due_engine_work(due);
                }
            }
            if self.next_group_wakeup_time() > due {
                self.synchronize_ranks(due);
            }
        }
    }

    /// Synchronizes the steps of all data-parallel ranks at `now`.
    pub(super) fn synchronize_ranks(&mut self, now: SimTime) {
        if let Some(lock_step) = &mut self.lock_step {
            lock_step.synchronize_rank_steps(
                now,
                &mut self.cores,
                EngineDriver::scheduler_in_lock_step,
            );
        }
    }
}

impl Index<usize> for EngineRankGroup {
    type Output = EngineDriver;

    fn index(&self, rank: usize) -> &EngineDriver {
        &self.cores[rank]
    }
}

impl IndexMut<usize> for EngineRankGroup {
    fn index_mut(&mut self, rank: usize) -> &mut EngineDriver {
        &mut self.cores[rank]
    }
}
