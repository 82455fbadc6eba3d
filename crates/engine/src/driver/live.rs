//! Real time: one engine behind a lock, one OS thread that turns its deadlines into action.
//!
//! Whoever submits runs the engine himself, under the lock, so a request without delays is
//! answered without a thread switch. The timer thread only serves deadlines: an OS thread, so that
//! its precision does not depend on HTTP load. Under load it looks at most once per
//! [`Tune::quantum`], on a fixed grid, and releases all that became due together: instants are
//! the engine's, so nothing drifts.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::progress::{Progress, State};
use super::slack::wake_promptly;
use crate::SimTime;
use crate::{
    CachedBlock, Command, End, Event, Outbox, Plan, Scheduler, SeqId, Sequence, Stats, SubmitError,
};

/// How eagerly the timer thread wakes.
#[derive(Debug, Clone, Copy)]
pub struct Tune {
    /// Grid on which deadlines are served while many fall due; zero serves each one exactly.
    pub quantum: Duration,
    /// Events per look from which on the grid is used.
    pub busy: usize,
}

impl Default for Tune {
    fn default() -> Self {
        Self {
            quantum: Duration::from_micros(250),
            busy: 3,
        }
    }
}

/// A sequence to play, with what the observer is told about it.
#[derive(Debug)]
pub struct Ticket {
    /// What the engine plays; its id is set by the driver.
    pub sequence: Sequence,
    /// When the request arrived.
    pub arrived: SimTime,
    /// What observers are told about it.
    pub tag: Tag,
}

/// How a sequence will end if nothing interferes; what it counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planned {
    /// By itself or by a stop condition.
    Stop,
    /// By its limit.
    Length,
    /// With calls of tools (counted apart by llm-d only).
    ToolCalls,
    /// Prefilled for somebody else (counted apart by llm-d only).
    RemoteDecode,
}

/// What observers are told about a sequence, besides its lengths and instants.
#[derive(Debug, Clone)]
pub struct Tag {
    /// The request's id, as the client knows it.
    pub request: Arc<str>,
    /// Its token limit.
    pub max_tokens: u32,
    /// How it is planned to end.
    pub planned: Planned,
    /// Its adapter.
    pub lora: Option<Arc<str>>,
    /// The request it is one of several sequences of.
    pub group: Option<Arc<Group>>,
    /// Who keeps the blocks of its prompt until they are read.
    pub source: Option<Arc<Source>>,
    /// What its span shows; `None`: nobody traces.
    pub traced: Option<Arc<Traced>>,
    /// Names of its blocks, when somebody follows them.
    pub plan: Option<Arc<Plan>>,
}

/// Where blocks of a prompt lie that another server computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Its ZeroMQ endpoint.
    pub endpoint: String,
    /// What the request is called there.
    pub request: String,
}

/// What the span of a request shows besides lengths and instants.
#[derive(Debug, Clone, PartialEq)]
pub struct Traced {
    /// `traceparent` and `tracestate` of the request (W3C trace context).
    pub headers: Option<(Box<str>, Option<Box<str>>)>,
    /// As the sampler is told.
    pub temperature: f64,
    /// As the sampler is told.
    pub top_p: f64,
    /// Choices asked for.
    pub n: u32,
}

/// A request of several sequences, counted when the last one ends.
#[derive(Debug)]
pub struct Group {
    /// Choices asked for.
    pub n: u32,
    /// Sequences that have not ended.
    pub open: AtomicU32,
    /// Output tokens of the longest sequence so far.
    pub longest: AtomicU32,
}

/// What is known about a live sequence.
#[derive(Debug)]
pub struct Record {
    id: SeqId,
    /// Prompt tokens.
    pub prompt: u32,
    /// Released tokens.
    pub output: u32,
    /// When the request arrived, was queued, left the queue, gave its first and latest token.
    pub arrived: SimTime,
    /// When it entered the engine.
    pub queued: SimTime,
    /// When it left the queue.
    pub scheduled: SimTime,
    /// When its first token came out.
    pub first: SimTime,
    /// When its latest token came out.
    pub last: SimTime,
    /// Prompt tokens from the prefix cache.
    pub cached: u32,
    /// Prompt tokens from another engine.
    pub external: u32,
    /// How often it was preempted.
    pub preemptions: u32,
    /// Whether it may read the prefix cache.
    pub looked_up: bool,
    /// What came with it.
    pub tag: Tag,
    progress: Arc<Progress>,
}

/// Hears everything an engine does, on the thread that runs it. It must not block.
pub trait Observer: Send {
    /// A sequence entered the engine; called before its first event.
    fn on_queued(&mut self, record: &Record);
    /// An event of a sequence, after its record was brought up to date. For tokens, `since` is the
    /// instant of the previous output.
    fn on_event(&mut self, at: SimTime, event: &Event, record: &Record, since: SimTime);
    /// An event of no sequence (cache, steps).
    fn on_engine(&mut self, at: SimTime, event: &Event);
    /// Gauges, after each look at the engine that changed anything.
    fn on_stats(&mut self, stats: &Stats);
    /// The engine has said all it has to say for now.
    fn on_rest(&mut self) {}
}

/// Several observers, told in order.
pub struct Observers(pub Vec<Box<dyn Observer>>);

impl Observer for Observers {
    fn on_queued(&mut self, record: &Record) {
        self.0.iter_mut().for_each(|o| o.on_queued(record));
    }

    fn on_event(&mut self, at: SimTime, event: &Event, record: &Record, since: SimTime) {
        self.0
            .iter_mut()
            .for_each(|o| o.on_event(at, event, record, since));
    }

    fn on_engine(&mut self, at: SimTime, event: &Event) {
        self.0.iter_mut().for_each(|o| o.on_engine(at, event));
    }

    fn on_stats(&mut self, stats: &Stats) {
        self.0.iter_mut().for_each(|o| o.on_stats(stats));
    }

    fn on_rest(&mut self) {
        self.0.iter_mut().for_each(|o| o.on_rest());
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

struct Core {
    engine: Box<dyn Scheduler + Send>,
    observer: Box<dyn Observer>,
    outbox: Outbox,
    records: Vec<Option<Record>>,
    free: Vec<u32>,
    generation: u64,
    stats: Stats,
    /// What the timer thread sleeps until.
    sleeps_until: SimTime,
    stopping: bool,
}

struct Shared {
    core: Mutex<Core>,
    wake: Condvar,
    epoch: Instant,
    tune: Tune,
}

/// A live engine. Clones share it; the thread ends with [`Live::stop`] or the last clone.
#[derive(Clone)]
pub struct Live {
    shared: Arc<Shared>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Live {
    /// Starts an engine and its timer thread.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(
        name: &str,
        epoch: Instant,
        engine: Box<dyn Scheduler + Send>,
        observer: Box<dyn Observer>,
        tune: Tune,
    ) -> std::io::Result<Self> {
        let core = Core {
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
    pub fn submit(&self, tickets: Vec<Ticket>) -> Result<Vec<Handle>, SubmitError> {
        let mut core = self.shared.core.lock();
        let now = self.shared.now();
        core.advance(now);
        let mut handles = Vec::with_capacity(tickets.len());
        let mut failed = None;
        for ticket in tickets {
            match core.submit(now, ticket) {
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

    /// Ends every sequence whose tag matches, as the engine's own doing; how many.
    pub fn cancel_where(&self, matches: impl Fn(&Tag) -> bool) -> usize {
        let mut core = self.shared.core.lock();
        let now = self.shared.now();
        let ids: Vec<SeqId> = core
            .records
            .iter()
            .flatten()
            .filter(|record| matches(&record.tag))
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
    fn now(&self) -> SimTime {
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
        ticket: Ticket,
    ) -> Result<(SeqId, Arc<Progress>), SubmitError> {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.records.push(None);
            (self.records.len() - 1) as u32
        });
        self.generation += 1;
        let id = SeqId((self.generation << 32) | u64::from(slot));
        let progress = Arc::new(Progress::new(ticket.arrived));
        let mut sequence = ticket.sequence;
        sequence.id = id;
        sequence.spent = now.since(ticket.arrived);
        self.records[slot as usize] = Some(Record {
            id,
            prompt: sequence.prompt,
            output: 0,
            arrived: ticket.arrived,
            queued: now,
            scheduled: now,
            first: now,
            last: now,
            cached: 0,
            external: 0,
            preemptions: 0,
            looked_up: !sequence.skip_cache_read,
            tag: ticket.tag,
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
        self.deliver();
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

    /// Runs the engine up to `now`; how many events that gave.
    ///
    /// A step that starts exactly at `now` is left to the next call by the schedulers, so that
    /// inputs of that instant can join it: hence the loop.
    fn advance(&mut self, now: SimTime) -> usize {
        let mut events = 0;
        while self.next_wakeup() <= now {
            self.engine.advance(now, &mut self.outbox);
            events += self.outbox.len();
            self.deliver();
        }
        events
    }

    fn record(&mut self, id: SeqId) -> Option<&mut Record> {
        self.records
            .get_mut(id.slot())?
            .as_mut()
            .filter(|record| record.id == id)
    }

    /// Brings records up to date, tells the observer, wakes the replies.
    fn deliver(&mut self) {
        while let Some((at, event)) = self.outbox.pop_front() {
            let Some(id) = event.sequence() else {
                self.observer.on_engine(at, &event);
                continue;
            };
            let Some(Some(record)) = self.records.get_mut(id.slot()) else {
                continue;
            };
            let since = record.last;
            record.apply(at, &event);
            self.observer.on_event(at, &event, record, since);
            match event {
                Event::Tokens { .. } => record.progress.wake(),
                Event::Ended { end, .. } => {
                    record.progress.end(end);
                    record.progress.wake();
                    self.records[id.slot()] = None;
                    self.free.push(id.slot() as u32);
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

impl Record {
    fn apply(&mut self, at: SimTime, event: &Event) {
        match event {
            Event::Scheduled {
                cached, external, ..
            } => {
                self.scheduled = at;
                (self.cached, self.external) = (*cached, *external);
                self.progress.schedule(at, *cached, *external);
            }
            Event::Tokens { n, .. } => {
                let first = self.output == 0;
                if first {
                    self.first = at;
                }
                self.output += n;
                self.last = at;
                self.progress.release(at, self.output, first);
            }
            Event::Preempted { .. } => self.preemptions += 1,
            Event::Leased { blocks, .. } => self.progress.lease(blocks),
            _ => {}
        }
    }
}

impl SeqId {
    fn slot(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
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
        if !matches!(self.progress.state(), State::Ended(_)) {
            self.live.abort(self.id);
        }
    }
}
