//! Drives an engine in real time: one lock per engine (or per group of ranks) and one timer thread
//! for its deadlines.
//!
//! A submitter runs the engine on its own thread, under the lock, so a request without delays needs
//! no thread switch. The timer thread is an OS thread, so its precision does not depend on HTTP
//! load. Under load it wakes on a grid of [`TimerThreadSettings::quantum`], under high load of
//! twice that, and releases all tokens due by then. Token times are those of the engine, so they do
//! not drift.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::core::{EngineDriver, EngineProgress, EngineRankGroup};
use super::record::{EngineObserver, SequenceRecord, SequenceState, SharedSequenceProgress};
use crate::SimTime;
use crate::{
    CachedBlock, EngineCommand, EngineStats, Scheduler, SeqId, Sequence, SequenceSubmitError,
};

/// Settings for the wakeups of the timer thread that drives engines in real time.
#[derive(Debug, Clone, Copy)]
pub struct TimerThreadSettings {
    /// Time grid for wakeups of the timer thread under load; zero: the thread wakes up exactly at
    /// each deadline. Default: 200 us.
    pub quantum: Duration,
    /// Minimum number of events per wakeup of the timer thread for wakeups to follow the time grid.
    /// Default: 3.
    pub busy: usize,
    /// Minimum number of events per wakeup of the timer thread for the spacing of the time grid to
    /// be doubled. Default: 20.
    ///
    /// Above this number, waking reply tasks costs more than writing their tokens.
    pub crowded: usize,
}

impl Default for TimerThreadSettings {
    fn default() -> Self {
        Self { quantum: Duration::from_micros(200), busy: 3, crowded: 20 }
    }
}

/// Returns the current time in seconds since the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "the live driver is where the clock enters")]
pub fn unix_now_secs() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// Converts `instant` to seconds since the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "the live driver is where the clock enters")]
pub fn unix_secs_at(instant: Instant) -> f64 {
    unix_now_secs() - Instant::now().duration_since(instant).as_secs_f64()
}

pub(super) struct SharedRankGroup {
    pub ranks: Mutex<EngineRankGroup>,
    pub wake: Condvar,
    pub epoch: Instant,
    tune: TimerThreadSettings,
}

/// Runs an engine in real time. Clones share the engine, whose timer thread ends with
/// [`LiveEngine::stop_engine`].
#[derive(Clone)]
pub struct LiveEngine {
    pub(super) shared: Arc<SharedRankGroup>,
    thread: TimerThreadHandle,
    pub(super) rank: usize,
}

pub(super) type TimerThreadHandle = Arc<Mutex<Option<JoinHandle<()>>>>;

impl LiveEngine {
    /// Starts an engine and its timer thread.
    ///
    /// # Errors
    /// Returns the error of the operating system if the thread cannot start.
    pub fn start_engine(
        name: &str,
        epoch: Instant,
        engine: Box<dyn Scheduler + Send>,
        observer: Box<dyn EngineObserver>,
        tune: TimerThreadSettings,
    ) -> std::io::Result<Self> {
        let ranks = EngineRankGroup::from_single_engine(EngineDriver::new(engine, observer));
        let (shared, thread) = SharedRankGroup::start_timer_thread(name, epoch, ranks, tune)?;
        Ok(Self::new_engine_of_rank(shared, thread, 0))
    }

    pub(super) fn new_engine_of_rank(
        shared: Arc<SharedRankGroup>,
        thread: TimerThreadHandle,
        rank: usize,
    ) -> Self {
        Self { shared, thread, rank }
    }

    /// Returns the current time on the engine's clock.
    pub fn now(&self) -> SimTime {
        self.shared.now()
    }

    /// Submits all given sequences of requests to the engine, or none of them; the engine assigns
    /// the ids of the sequences.
    ///
    /// # Errors
    /// Returns the error of the first sequence that does not fit.
    pub fn submit_sequences(
        &self,
        submissions: Vec<(Sequence, SequenceRecord)>,
    ) -> Result<Vec<SequenceHandle>, SequenceSubmitError> {
        let mut ranks = self.shared.ranks.lock();
        let now = self.shared.now();
        ranks.advance_ranks(now);
        if let [_, _, ..] = submissions[..] {
            let mut job = submissions.iter().map(|(sequence, _)| sequence);
            if let Err(error) = ranks[self.rank].engine.check_submissions(&mut job) {
                self.shared.wake_timer_if_earlier(ranks);
                return Err(error);
            }
        }
        let mut handles = Vec::with_capacity(submissions.len());
        let mut failed = None;
        // The sequences of a request pass the API server together.
        let first = submissions.first().map(|(sequence, _)| sequence);
        let front_end = first.map(|first| ranks[self.rank].engine.front_end_delay(first));
        for (mut sequence, record) in submissions {
            sequence.front_end_delay = front_end.unwrap_or_default();
            match ranks[self.rank].submit_sequence(now, sequence, record) {
                Ok((id, progress)) => handles.push(SequenceHandle {
                    id,
                    progress,
                    live: self.shared.clone(),
                    rank: self.rank,
                }),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        // Finish everything of zero duration before a reply task waits for it.
        ranks.advance_ranks(now);
        if failed.is_some() {
            for handle in &handles {
                ranks[self.rank].abort_sequence(now, handle.id);
            }
        }
        self.shared.wake_timer_if_earlier(ranks);
        match failed {
            Some(error) => Err(error),
            None => Ok(handles),
        }
    }

    /// Executes an operator command on the engine; returns false if the command does not apply to
    /// the engine or the engine's state.
    pub fn apply_command(&self, command: EngineCommand) -> bool {
        let mut ranks = self.shared.ranks.lock();
        let now = self.shared.now();
        ranks.advance_ranks(now);
        let done = ranks[self.rank].apply_command(now, command);
        ranks.synchronize_ranks(now);
        self.shared.wake_timer_if_earlier(ranks);
        done
    }

    /// Locks engines and their observers until the returned value is dropped.
    pub fn lock_engines(engines: &[Self]) -> EngineLockGuards<'_> {
        // Ranks of a lock step share a lock.
        let mut all: Vec<&SharedRankGroup> = engines.iter().map(|engine| &*engine.shared).collect();
        all.sort_by_key(|shared| std::ptr::from_ref(*shared));
        all.dedup_by_key(|shared| std::ptr::from_ref(*shared));
        EngineLockGuards { _locks: all.into_iter().map(|shared| shared.ranks.lock()).collect() }
    }

    /// Returns the KV blocks in the engine's prefix cache.
    pub fn cached_blocks(&self) -> Vec<CachedBlock> {
        let ranks = self.shared.ranks.lock();
        ranks[self.rank].engine.cached_blocks()
    }

    /// Returns the engine's gauges for metrics, such as queue lengths and KV cache usage.
    pub fn stats(&self) -> EngineStats {
        let ranks = self.shared.ranks.lock();
        ranks[self.rank].engine.stats()
    }

    /// Adds an observer of the engine's events from now on.
    pub fn add_observer(&self, observer: Box<dyn EngineObserver>) {
        self.shared.ranks.lock()[self.rank].add_observer(observer);
    }

    /// Returns the current [`EngineProgress`], by which callers detect an engine that has sequences
    /// but produces no output.
    pub fn engine_progress(&self) -> EngineProgress {
        let mut ranks = self.shared.ranks.lock();
        ranks.advance_ranks(self.shared.now());
        let progress = ranks[self.rank].progress;
        self.shared.wake_timer_if_earlier(ranks);
        progress
    }

    /// Reports to the observer that the LoRA adapter `lora` was loaded.
    pub fn report_loaded_lora(&self, lora: &Arc<str>) {
        let mut ranks = self.shared.ranks.lock();
        ranks[self.rank].observer.on_lora_loaded(lora);
    }

    /// Reports to the observer that the engine restarts without LoRA adapters.
    pub fn report_loras_cleared_by_restart(&self) {
        let mut ranks = self.shared.ranks.lock();
        ranks[self.rank].observer.on_loras_cleared();
    }

    /// Reports to the observer that a request for the LoRA adapter `lora` was rejected.
    pub fn report_refused_lora(&self, lora: &Arc<str>) {
        let mut ranks = self.shared.ranks.lock();
        ranks[self.rank].observer.on_lora_refused(lora);
    }

    /// Cancels every sequence whose record satisfies `matches`. Returns the number of cancelled
    /// sequences.
    pub fn cancel_matching_sequences(&self, matches: impl Fn(&SequenceRecord) -> bool) -> usize {
        let mut ranks = self.shared.ranks.lock();
        let now = self.shared.now();
        // Tokens that are already due still belong to these sequences.
        ranks.advance_ranks(now);
        let core = &mut ranks[self.rank];
        let ids: Vec<SeqId> = core
            .records
            .iter()
            .flatten()
            .filter(|record| matches(record))
            .map(|record| record.id)
            .collect();
        for id in &ids {
            core.cancel_sequence(now, *id);
        }
        self.shared.wake_timer_if_earlier(ranks);
        ids.len()
    }

    /// Returns whether the engine has a sequence whose record satisfies `matches`.
    pub fn has_matching_sequence(&self, matches: impl Fn(&SequenceRecord) -> bool) -> bool {
        let mut ranks = self.shared.ranks.lock();
        ranks.advance_ranks(self.shared.now());
        let mut records = ranks[self.rank].records.iter().flatten();
        let found = records.any(matches);
        self.shared.wake_timer_if_earlier(ranks);
        found
    }

    /// Stops the engine. Stopping the last engine of a timer thread also ends and joins the thread.
    pub fn stop_engine(&self) {
        let mut ranks = self.shared.ranks.lock();
        ranks[self.rank].stopped = true;
        if !ranks.are_all_engines_stopped() {
            return;
        }
        drop(ranks);
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // A panic of the timer thread was already reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl SharedRankGroup {
    pub(super) fn start_timer_thread(
        name: &str,
        epoch: Instant,
        ranks: EngineRankGroup,
        tune: TimerThreadSettings,
    ) -> std::io::Result<(Arc<Self>, TimerThreadHandle)> {
        let shared = Arc::new(Self { ranks: Mutex::new(ranks), wake: Condvar::new(), epoch, tune });
        let timer = shared.clone();
        let thread = std::thread::Builder::new()
            .name(name.into())
            .stack_size(256 * 1024)
            .spawn(move || timer.run_timer_loop())?;
        Ok((shared, Arc::new(Mutex::new(Some(thread)))))
    }

    #[expect(clippy::disallowed_methods, reason = "the live driver is where the clock enters")]
    pub(super) fn now(&self) -> SimTime {
        let nanos = Instant::now().saturating_duration_since(self.epoch).as_nanos();
        SimTime::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Unlocks the engines. Wakes the timer thread if an engine's next deadline is before the end
    /// of the thread's sleep.
    fn wake_timer_if_earlier(&self, ranks: MutexGuard<'_, EngineRankGroup>) {
        let earlier = ranks.next_group_wakeup_time() < ranks.sleeps_until;
        drop(ranks);
        if earlier {
            self.wake.notify_one();
        }
    }

    fn run_timer_loop(&self) {
        minimize_timer_slack();
        let quantum = self.tune.quantum.as_nanos() as u64;
        let mut ranks = self.ranks.lock();
        while !ranks.are_all_engines_stopped() {
            let now = self.now();
            let served =
                if ranks.next_group_wakeup_time() <= now { ranks.advance_ranks(now) } else { 0 };
            let mut until = ranks.next_group_wakeup_time();
            if served >= self.tune.busy && quantum > 0 {
                let grid = quantum * if served < self.tune.crowded { 1 } else { 2 };
                until = until.max(SimTime::from_nanos((now.as_nanos() / grid + 1) * grid));
            }
            if until > now {
                self.sleep_until(&mut ranks, until);
            }
        }
    }

    fn sleep_until(&self, ranks: &mut MutexGuard<'_, EngineRankGroup>, until: SimTime) {
        ranks.sleeps_until = until;
        if until == SimTime::MAX {
            self.wake.wait(ranks);
        } else {
            let at = self.epoch + Duration::from_nanos(until.as_nanos());
            self.wake.wait_until(ranks, at);
        }
        // While this thread is awake, submitters need not notify it.
        ranks.sleeps_until = SimTime::ZERO;
    }

    fn abort_sequence(&self, rank: usize, id: SeqId) {
        let mut ranks = self.ranks.lock();
        let now = self.now();
        ranks.advance_ranks(now);
        ranks[rank].abort_sequence(now, id);
        self.wake_timer_if_earlier(ranks);
    }
}

/// Group of data-parallel ranks that step together, in one server or several: one lock, one clock,
/// one timer thread. Clones of this handle share the group.
#[derive(Clone)]
pub struct LiveRankGroup {
    shared: Arc<SharedRankGroup>,
    thread: TimerThreadHandle,
}

impl LiveRankGroup {
    /// Starts the timer thread of a group of data-parallel ranks. The thread ends when all joined
    /// engines are stopped.
    ///
    /// # Errors
    /// Returns the error of the operating system if the thread cannot start.
    pub fn start_rank_group(
        name: &str,
        epoch: Instant,
        timer_settings: TimerThreadSettings,
    ) -> std::io::Result<Self> {
        let (shared, thread) = SharedRankGroup::start_timer_thread(
            name,
            epoch,
            EngineRankGroup::new_lock_step_group(),
            timer_settings,
        )?;
        Ok(Self { shared, thread })
    }

    /// Ends the timer thread of the data-parallel ranks if no engine has joined them; no engine can
    /// join afterwards.
    pub fn stop_accepting_engines(&self) {
        self.shared.ranks.lock().closed = true;
        self.shared.wake.notify_all();
    }

    /// Returns the zero point of the clock that the data-parallel ranks share.
    pub fn clock_epoch(&self) -> Instant {
        self.shared.epoch
    }

    /// Adds an engine to the group as a data-parallel rank. The engine's scheduler must have
    /// [`VllmSchedulerConfig::lock_step`](crate::sched::vllm::VllmSchedulerConfig::lock_step) set.
    pub fn add_engine_as_rank(
        &self,
        engine: Box<dyn Scheduler + Send>,
        observer: Box<dyn EngineObserver>,
    ) -> LiveEngine {
        let mut ranks = self.shared.ranks.lock();
        ranks.cores.push(EngineDriver::new(engine, observer));
        let rank = ranks.cores.len() - 1;
        drop(ranks);
        LiveEngine::new_engine_of_rank(self.shared.clone(), self.thread.clone(), rank)
    }
}

/// Holds the locks of several engines, which do not advance until this guard is dropped.
pub struct EngineLockGuards<'e> {
    _locks: Vec<MutexGuard<'e, EngineRankGroup>>,
}

/// Handle of a submitted sequence. Dropping the handle before the sequence ends aborts the sequence
/// and frees its slot and KV blocks.
pub struct SequenceHandle {
    id: SeqId,
    progress: Arc<SharedSequenceProgress>,
    live: Arc<SharedRankGroup>,
    rank: usize,
}

impl SequenceHandle {
    /// Returns the progress of the sequence, shared with the engine.
    pub fn progress(&self) -> &Arc<SharedSequenceProgress> {
        &self.progress
    }

    /// Returns the sequence's id in the engine.
    pub fn id(&self) -> SeqId {
        self.id
    }
}

impl Drop for SequenceHandle {
    fn drop(&mut self) {
        if !matches!(self.progress.state(), SequenceState::Ended(_)) {
            self.live.abort_sequence(self.rank, self.id);
        }
    }
}

/// Sets the timer slack of this thread to its minimum (`PR_SET_TIMERSLACK`, prctl(2)).
///
/// By default Linux ends sleeps up to 50 us late to batch wakeups, except for threads with
/// real-time priority.
pub fn minimize_timer_slack() {
    #[cfg(target_os = "linux")]
    {
        // An error keeps the default slack of 50 us.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    }
}
