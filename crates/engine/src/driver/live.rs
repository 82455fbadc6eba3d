//! Real time: one engine behind a lock, one OS thread that turns its deadlines into action.
//!
//! Whoever submits runs the engine himself, under the lock, so a request without delays is
//! answered without a thread switch. The timer thread only serves deadlines: an OS thread, so that
//! its precision does not depend on HTTP load. Under load it looks at most once per
//! [`TimerTuning::quantum`], on a fixed grid, and releases all that became due together: instants are
//! the engine's, so nothing drifts.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::observer::Observer;
use super::progress::{Progress, SequenceState};
use super::record::{RequestInfo, SequenceRecord, Submission};
use super::slack::wake_promptly;
use crate::SimTime;
use crate::{CachedBlock, Command, End, Event, Outbox, Scheduler, SeqId, Stats, SubmitError};

/// How eagerly the timer thread wakes.
#[derive(Debug, Clone, Copy)]
pub struct TimerTuning {
    /// Grid on which deadlines are served while many fall due; zero serves each one exactly.
    pub quantum: Duration,
    /// Events per look from which on the grid is used.
    pub busy: usize,
}

impl Default for TimerTuning {
    fn default() -> Self {
        Self {
            quantum: Duration::from_micros(250),
            busy: 3,
        }
    }
}

/// Seconds since 1970, for observers that stamp what they send.
#[expect(
    clippy::disallowed_methods,
    reason = "the live driver is where the clock enters"
)]
pub fn unix_now() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

/// `instant` in seconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "the live driver is where the clock enters"
)]
pub fn unix_at(instant: Instant) -> f64 {
    unix_now() - Instant::now().duration_since(instant).as_secs_f64()
}

pub(super) struct Core {
    pub(super) engine: Box<dyn Scheduler + Send>,
    observer: Box<dyn Observer>,
    outbox: Outbox,
    pub(super) records: Vec<Option<SequenceRecord>>,
    free: Vec<u32>,
    generation: u64,
    stats: Stats,
    /// [`Observer::hears_lone_steps`].
    hears_lone_steps: bool,
    /// What the timer thread sleeps until.
    sleeps_until: SimTime,
    stopping: bool,
}

/// Events after which observers are told at the latest: a long reply without delay makes them all at once.
const MAX_OUTBOX: usize = 4096;

pub(super) struct Shared {
    pub(super) core: Mutex<Core>,
    wake: Condvar,
    epoch: Instant,
    tune: TimerTuning,
}

/// A live engine. Clones share it; the thread ends with [`LiveEngine::stop`] or the last clone.
#[derive(Clone)]
pub struct LiveEngine {
    pub(super) shared: Arc<Shared>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl LiveEngine {
    /// Starts an engine and its timer thread.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(
        name: &str,
        epoch: Instant,
        engine: Box<dyn Scheduler + Send>,
        observer: Box<dyn Observer>,
        tune: TimerTuning,
    ) -> std::io::Result<Self> {
        let core = Core {
            hears_lone_steps: observer.hears_lone_steps(),
            engine,
            observer,
            outbox: Outbox::new(),
            records: Vec::new(),
            free: Vec::new(),
            generation: 0,
            stats: Stats::default(),
            sleeps_until: SimTime::ZERO,
            stopping: false,
        };
        let shared = Arc::new(Shared {
            core: Mutex::new(core),
            wake: Condvar::new(),
            epoch,
            tune,
        });
        let timer = shared.clone();
        let thread = std::thread::Builder::new()
            .name(name.into())
            .stack_size(256 * 1024)
            .spawn(move || timer.serve_deadlines())?;
        Ok(Self {
            shared,
            thread: Arc::new(Mutex::new(Some(thread))),
        })
    }

    /// The engine's clock.
    pub fn now(&self) -> SimTime {
        self.shared.now()
    }

    /// Plays sequences: all of them, or none and the reason.
    ///
    /// # Errors
    /// The engine's refusal of the first one that does not fit.
    pub fn submit(&self, submissions: Vec<Submission>) -> Result<Vec<Handle>, SubmitError> {
        let mut core = self.shared.core.lock();
        let now = self.shared.now();
        core.advance(now);
        let mut handles = Vec::with_capacity(submissions.len());
        let mut failed = None;
        for submission in submissions {
            match core.submit(now, submission) {
                Ok((id, progress)) => {
                    let live: Arc<dyn Abort> = self.shared.clone();
                    handles.push(Handle { id, progress, live });
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        // What needs no time is done before anybody waits for it.
        core.advance(now);
        if failed.is_some() {
            for handle in &handles {
                core.abort(now, handle.id);
            }
        }
        self.shared.settle(core);
        match failed {
            Some(error) => Err(error),
            None => Ok(handles),
        }
    }

    /// What an operator does; whether it was done.
    pub fn command(&self, command: Command) -> bool {
        let mut core = self.shared.core.lock();
        let now = self.shared.now();
        core.advance(now);
        let Core { engine, outbox, .. } = &mut *core;
        let done = engine.command(now, command, outbox);
        core.deliver();
        self.shared.settle(core);
        done
    }

    /// The prefix cache now.
    pub fn cached_blocks(&self) -> Vec<CachedBlock> {
        let core = self.shared.core.lock();
        core.engine.cached_blocks()
    }

    /// Gauges now.
    pub fn stats(&self) -> Stats {
        let core = self.shared.core.lock();
        core.engine.stats()
    }

    /// Tells the observer of a request for an adapter that is refused when its turn would come.
    pub fn refuse(&self, lora: &Arc<str>) {
        self.shared.core.lock().observer.on_refused(lora);
    }

    /// Ends every sequence whose request matches, as the engine's own doing; how many.
    pub fn cancel_where(&self, matches: impl Fn(&RequestInfo) -> bool) -> usize {
        let mut core = self.shared.core.lock();
        let now = self.shared.now();
        let ids: Vec<SeqId> = core
            .records
            .iter()
            .flatten()
            .filter(|record| matches(&record.request))
            .map(|record| record.id)
            .collect();
        for id in &ids {
            core.cancel(now, *id);
        }
        self.shared.settle(core);
        ids.len()
    }

    /// Ends the timer thread and waits for it.
    pub fn stop(&self) {
        self.shared.core.lock().stopping = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // A panic of the timer thread was already reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Shared {
    #[expect(
        clippy::disallowed_methods,
        reason = "the live driver is where the clock enters"
    )]
    pub(super) fn now(&self) -> SimTime {
        let nanos = Instant::now()
            .saturating_duration_since(self.epoch)
            .as_nanos();
        SimTime::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Lets the lock go and the timer thread know of an earlier deadline.
    fn settle(&self, core: MutexGuard<'_, Core>) {
        let earlier = core.next_wakeup() < core.sleeps_until;
        drop(core);
        if earlier {
            self.wake.notify_one();
        }
    }

    fn serve_deadlines(&self) {
        wake_promptly();
        let grid = self.tune.quantum.as_nanos() as u64;
        let mut core = self.core.lock();
        while !core.stopping {
            let now = self.now();
            let served = if core.next_wakeup() <= now {
                core.advance(now)
            } else {
                0
            };
            let mut until = core.next_wakeup();
            if served >= self.tune.busy && grid > 0 {
                until = until.max(SimTime::from_nanos((now.nanos() / grid + 1) * grid));
            }
            if until > now {
                self.sleep_until(&mut core, until);
            }
        }
    }

    fn sleep_until(&self, core: &mut MutexGuard<'_, Core>, until: SimTime) {
        core.sleeps_until = until;
        if until == SimTime::MAX {
            self.wake.wait(core);
        } else {
            let at = self.epoch + Duration::from_nanos(until.nanos());
            self.wake.wait_until(core, at);
        }
        // Awake: whoever submits now need not notify.
        core.sleeps_until = SimTime::ZERO;
    }
}

impl Core {
    fn next_wakeup(&self) -> SimTime {
        self.engine.next_wakeup().unwrap_or(SimTime::MAX)
    }

    fn submit(
        &mut self,
        now: SimTime,
        submission: Submission,
    ) -> Result<(SeqId, Arc<Progress>), SubmitError> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.records.push(None);
            (self.records.len() - 1) as u32
        });
        self.generation += 1;
        let id = SeqId((self.generation << 32) | u64::from(slot));
        let progress = Arc::new(Progress::new(submission.arrived));
        let mut sequence = submission.sequence;
        sequence.id = id;
        sequence.spent = now.since(submission.arrived);
        self.records[slot as usize] = Some(SequenceRecord {
            id,
            prompt: sequence.prompt,
            output: 0,
            arrived: submission.arrived,
            queued: now,
            scheduled: now,
            first: now,
            last: now,
            cached: 0,
            external: 0,
            preemptions: 0,
            running: false,
            drafted: false,
            looked_up: !sequence.skip_cache_read,
            request: submission.request,
            progress: progress.clone(),
        });
        if let Err(error) = self.engine.submit(now, sequence, &mut self.outbox) {
            self.records[slot as usize] = None;
            self.free.push(slot);
            return Err(error);
        }
        if let Some(Some(record)) = self.records.get(slot as usize) {
            self.observer.on_queued(record);
        }
        // The caller goes on to what is due, and tells of both.
        if !self.outbox.is_empty() || self.next_wakeup() > now {
            self.deliver();
        }
        Ok((id, progress))
    }

    fn abort(&mut self, now: SimTime, id: SeqId) {
        if self.record(id).is_some() {
            self.engine.abort(now, id, &mut self.outbox);
            self.deliver();
        }
    }

    fn cancel(&mut self, now: SimTime, id: SeqId) {
        if self.record(id).is_none() {
            return;
        }
        self.engine.abort(now, id, &mut self.outbox);
        for (_, event) in &mut self.outbox {
            if let Event::Ended { id: ended, end } = event
                && *ended == id
            {
                *end = End::Cancelled;
            }
        }
        self.deliver();
    }

    /// Runs the engine up to `now` and through it; how many events that gave.
    fn advance(&mut self, now: SimTime) -> usize {
        let mut events = 0;
        while self.next_wakeup() <= now {
            // Steps that take no time follow each other: observers hear of many at once.
            self.engine.advance_fully(now, MAX_OUTBOX, &mut self.outbox);
            events += self.outbox.len();
            self.deliver();
        }
        events
    }

    fn record(&mut self, id: SeqId) -> Option<&mut SequenceRecord> {
        self.records
            .get_mut(slot_of(id))?
            .as_mut()
            .filter(|record| record.id == id)
    }

    /// Brings records up to date, calls the observer, wakes the replies.
    fn deliver(&mut self) {
        while let Some((at, event)) = self.outbox.pop_front() {
            let Some(id) = event.sequence() else {
                self.observer.on_engine(at, &event);
                continue;
            };
            let Some(Some(record)) = self.records.get_mut(slot_of(id)) else {
                continue;
            };
            if let Event::LoneSteps { n, .. } = event {
                let at_once = self.hears_lone_steps;
                tell_lone_steps(&mut *self.observer, record, at, n, at_once);
                continue;
            }
            let since = record.last;
            record.apply(at, &event);
            self.observer.on_event(at, &event, record, since);
            match event {
                Event::Tokens { .. } => record.progress.wake(),
                Event::Ended { end, .. } => {
                    record.progress.end(end);
                    record.progress.wake();
                    self.records[slot_of(id)] = None;
                    self.free.push(slot_of(id) as u32);
                }
                _ => {}
            }
        }
        let stats = self.engine.stats();
        if stats != self.stats {
            self.stats = stats;
            self.observer.on_stats(&stats);
        }
        self.observer.on_rest();
    }
}

/// Tells of `n` [`Event::LoneSteps`] of a sequence, `at_once` or as the events that they stand for.
fn tell_lone_steps(
    observer: &mut dyn Observer,
    record: &mut SequenceRecord,
    at: SimTime,
    n: u32,
    at_once: bool,
) {
    let apart = match at_once {
        // Time may have passed before the first of them.
        true => u32::from(!record.made_one_at(at)),
        false => n,
    };
    let token = Event::Tokens {
        id: record.id,
        n: 1,
    };
    let step = Event::Step {
        prompt_tokens: 0,
        output_tokens: 1,
    };
    for _ in 0..apart {
        let since = record.last;
        record.apply(at, &token);
        observer.on_event(at, &token, record, since);
        observer.on_engine(at, &step);
    }
    if apart < n {
        record.make(at, n - apart);
        observer.on_lone_steps(n - apart, record);
    }
    record.progress.wake();
}

/// Where the record of a sequence lies: the low half of its id.
pub(super) fn slot_of(id: SeqId) -> usize {
    (id.0 & 0xffff_ffff) as usize
}

/// Gives sequences up.
trait Abort: Send + Sync {
    fn abort(&self, id: SeqId);
}

impl Abort for Shared {
    fn abort(&self, id: SeqId) {
        let mut core = self.core.lock();
        let now = self.now();
        core.advance(now);
        core.abort(now, id);
        self.settle(core);
    }
}

/// A sequence being played. Dropping it before the end gives the sequence up: its slot and blocks
/// come back at once.
pub struct Handle {
    id: SeqId,
    progress: Arc<Progress>,
    live: Arc<dyn Abort>,
}

impl Handle {
    /// How far it is.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Its name in the engine.
    pub fn id(&self) -> SeqId {
        self.id
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !matches!(self.progress.state(), SequenceState::Ended(_)) {
            self.live.abort(self.id);
        }
    }
}
