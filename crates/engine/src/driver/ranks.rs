//! Holds the engines under one lock: a single one, or data-parallel ranks that step together.

use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Instant;

use super::core::EngineDriver;
use super::live::{LiveEngine, SharedRanks, TimerThread, TimerTuning};
use super::observer::EngineObserver;
use crate::lock_step::RankLockStep;
use crate::{Scheduler, SimTime};

pub(super) struct RankGroup {
    cores: Vec<EngineDriver>,
    /// Whether no further data-parallel rank can join.
    closed: bool,
    lock_step: Option<RankLockStep>,
    pub sleeps_until: SimTime,
}

impl RankGroup {
    pub(super) fn single_engine(core: EngineDriver) -> Self {
        Self { cores: vec![core], closed: false, lock_step: None, sleeps_until: SimTime::ZERO }
    }

    fn lock_step_group() -> Self {
        Self {
            cores: Vec::new(),
            closed: false,
            lock_step: Some(RankLockStep::default()),
            sleeps_until: SimTime::ZERO,
        }
    }

    pub(super) fn are_all_stopped(&self) -> bool {
        (self.closed || !self.cores.is_empty()) && self.cores.iter().all(|core| core.stopped)
    }

    pub(super) fn next_wakeup(&self) -> SimTime {
        match &self.cores[..] {
            [core] => core.next_wakeup(),
            cores => {
                let due = cores.iter().map(EngineDriver::next_wakeup);
                due.min().unwrap_or(SimTime::MAX)
            }
        }
    }

    pub(super) fn advance(&mut self, now: SimTime) -> usize {
        if self.lock_step.is_none() {
            return self.cores[0].advance(now);
        }
        let mut events = 0;
        loop {
            let due = self.next_wakeup();
            if due > now {
                return events;
            }
            for core in &mut self.cores {
                if core.next_wakeup() <= due {
                    events += core.advance_once(due);
                }
            }
            if self.next_wakeup() > due {
                self.synchronize_ranks(due);
            }
        }
    }

    /// Synchronizes the steps of all data-parallel ranks at `now`.
    pub(super) fn synchronize_ranks(&mut self, now: SimTime) {
        if let Some(lock_step) = &mut self.lock_step {
            lock_step.synchronize_steps(now, &mut self.cores, EngineDriver::lock_step_rank);
        }
    }
}

impl Index<usize> for RankGroup {
    type Output = EngineDriver;

    fn index(&self, rank: usize) -> &EngineDriver {
        &self.cores[rank]
    }
}

impl IndexMut<usize> for RankGroup {
    fn index_mut(&mut self, rank: usize) -> &mut EngineDriver {
        &mut self.cores[rank]
    }
}

/// Group of data-parallel ranks that step together, in one server or several: one lock, one clock,
/// one timer thread. Clones share them.
#[derive(Clone)]
pub struct LiveRankGroup {
    shared: Arc<SharedRanks>,
    thread: TimerThread,
}

impl LiveRankGroup {
    /// Starts the timer thread of the ranks. It ends when all joined engines are stopped.
    ///
    /// # Errors
    /// Returns the error of the operating system if the thread cannot start.
    pub fn start(name: &str, epoch: Instant, tune: TimerTuning) -> std::io::Result<Self> {
        let (shared, thread) =
            SharedRanks::start_timer_thread(name, epoch, RankGroup::lock_step_group(), tune)?;
        Ok(Self { shared, thread })
    }

    /// Ends the timer thread of the ranks if no engine joined; no engine can join afterwards.
    pub fn close(&self) {
        self.shared.ranks.lock().closed = true;
        self.shared.wake.notify_all();
    }

    /// Returns the zero point of the ranks' clock.
    pub fn epoch(&self) -> Instant {
        self.shared.epoch
    }

    /// Adds an engine to the group as a data-parallel rank. It must have
    /// [`VllmConfig::lock_step`](crate::sched::vllm::VllmConfig::lock_step) set.
    pub fn join_engine(
        &self,
        engine: Box<dyn Scheduler + Send>,
        observer: Box<dyn EngineObserver>,
    ) -> LiveEngine {
        let mut ranks = self.shared.ranks.lock();
        ranks.cores.push(EngineDriver::new(engine, observer));
        let rank = ranks.cores.len() - 1;
        drop(ranks);
        LiveEngine::for_rank(self.shared.clone(), self.thread.clone(), rank)
    }
}
