//! Holds the engines under one lock: a single one, or data-parallel ranks that step together.

use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Instant;

use super::core::Core;
use super::live::{LiveEngine, Shared, TimerThread, TimerTuning};
use super::observer::Observer;
use crate::lock_step::LockStep;
use crate::{Scheduler, SimTime};

pub(super) struct Ranks {
    cores: Vec<Core>,
    /// Whether no further data-parallel rank can join.
    closed: bool,
    lock_step: Option<LockStep>,
    pub sleeps_until: SimTime,
}

impl Ranks {
    pub(super) fn single(core: Core) -> Self {
        Self {
            cores: vec![core],
            closed: false,
            lock_step: None,
            sleeps_until: SimTime::ZERO,
        }
    }

    fn in_step() -> Self {
        Self {
            cores: Vec::new(),
            closed: false,
            lock_step: Some(LockStep::default()),
            sleeps_until: SimTime::ZERO,
        }
    }

    pub(super) fn are_stopped(&self) -> bool {
        (self.closed || !self.cores.is_empty()) && self.cores.iter().all(|core| core.stopped)
    }

    pub(super) fn next_wakeup(&self) -> SimTime {
        match &self.cores[..] {
            [core] => core.next_wakeup(),
            cores => {
                let due = cores.iter().map(Core::next_wakeup);
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
            lock_step.settle(now, &mut self.cores, Core::rank);
        }
    }
}

impl Index<usize> for Ranks {
    type Output = Core;

    fn index(&self, rank: usize) -> &Core {
        &self.cores[rank]
    }
}

impl IndexMut<usize> for Ranks {
    fn index_mut(&mut self, rank: usize) -> &mut Core {
        &mut self.cores[rank]
    }
}

/// Group of data-parallel ranks that step together, in one server or several: one lock, one clock,
/// one timer thread. Clones share them.
#[derive(Clone)]
pub struct LiveRanks {
    shared: Arc<Shared>,
    thread: TimerThread,
}

impl LiveRanks {
    /// Starts the timer thread of the ranks. It ends when all joined engines are stopped.
    ///
    /// # Errors
    /// Returns the error of the operating system if the thread cannot start.
    pub fn start(name: &str, epoch: Instant, tune: TimerTuning) -> std::io::Result<Self> {
        let (shared, thread) = Shared::start(name, epoch, Ranks::in_step(), tune)?;
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
    pub fn join(
        &self,
        engine: Box<dyn Scheduler + Send>,
        observer: Box<dyn Observer>,
    ) -> LiveEngine {
        let mut ranks = self.shared.ranks.lock();
        ranks.cores.push(Core::new(engine, observer));
        let rank = ranks.cores.len() - 1;
        drop(ranks);
        LiveEngine::of(self.shared.clone(), self.thread.clone(), rank)
    }
}
