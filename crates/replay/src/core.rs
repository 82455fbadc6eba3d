//! The loop over everything that happens, in virtual time.
//!
//! At one instant: steps end, by pool and worker, and what they made is reported (blocks to the router
//! first); workers become ready; turns that are due are sent; workers are added and removed; then
//! steps start, which the engines leave to another round at the same instant.
//! Order: aisimulate-core `src/replay/{agg,event}.rs`.

mod dispatch;
mod handoff;
mod lanes;
mod moment;
pub(crate) mod play;
mod ranks;
mod raster;
mod recorder;
mod reporting;
mod workers;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use vllm_sim_engine::sched::{Admitted, ConfigError};
use vllm_sim_engine::{End, Event, Outbox, SeqId};
use vllm_sim_engine::{SimTime, TimerQueue};

use super::disaggregation::handoff_order;
use super::outcome::{Admission, HandoffTimes, Status};
use super::pool::{PREFILL, SERVING, WorkerPool};
use super::requests::Requests;
use super::route::RouteChoice;
use super::sessions::{NumberedSource, Sessions};
use super::settings::Settings;
use super::worker::WorkerPhase;
use super::workload::WorkloadError;
use handoff::Handoffs;
use moment::{Moment, OrderedSink};
use raster::SampleRaster;

/// Steps that a worker's log may hold before it is looked through.
const LOG_STEPS: usize = 4096;

/// Why a replay cannot be played.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The workload cannot be read.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A scheduler cannot be built.
    #[error(transparent)]
    Engine(#[from] ConfigError),
    /// The settings do not fit together.
    #[error("{0}")]
    Settings(String),
}

/// What a replay says of itself at its end.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Totals {
    /// The last instant at which anything happened.
    pub ended: SimTime,
    /// Requests sent.
    pub requests: u64,
    /// Preemptions on all workers.
    pub preemptions: u64,
    /// Seconds of virtual time that workers existed, prefill workers apart.
    pub worker_seconds: f64,
    /// The same, of prefill workers.
    pub prefill_worker_seconds: f64,
    /// Most workers at a time.
    pub most_workers: u32,
    /// Most requests at a time.
    pub most_requests: u64,
    /// Tokens of prompts, and of output lost, that steps computed; `None`: the engines have no
    /// steps.
    pub prefill_tokens: Option<u64>,
    /// What was played: requests that were sent, and times at which a worker's engine went on.
    pub events: u64,
    /// Sessions that waited for something that never happened.
    pub stuck: Vec<String>,
}

/// A worker: its pool and place.
type Address = (usize, u32);

/// What happens at a time of its own.
#[derive(Debug, Clone, Copy)]
enum Timer {
    /// A worker has started.
    Ready(Address),
    /// The number of workers may change.
    Scale(usize),
    /// So many workers that make output are lost.
    Lose(u32),
    /// The prompt of a request has arrived where its output is made.
    Transferred(u32),
}

struct Core<'a, S, N> {
    settings: &'a Settings,
    sink: S,
    sessions: Sessions<N>,
    /// Number of its first worker in the deployment.
    first_worker: u32,
    requests: Requests,
    /// Prefill workers (none in a plain deployment), then those that make output.
    pools: [WorkerPool; 2],
    split: bool,
    handoffs: Handoffs,
    /// When workers have something to do. Entries may be out of date.
    calendar: BinaryHeap<Reverse<(SimTime, usize, u32)>>,
    due: Vec<Address>,
    timers: TimerQueue<Timer>,
    /// Requests that have a worker but were not handed over.
    outgoing: VecDeque<(usize, u32, RouteChoice)>,
    /// Prompts that were fetched: prefill worker and slot.
    fetched: Vec<(u32, u32)>,
    out: Outbox,
    /// Of one worker, on their way to its requests.
    admissions: Vec<Admitted>,
    tokens: Vec<SimTime>,
    wants_tokens: bool,
    living: u64,
    raster: SampleRaster,
    now: SimTime,
    /// How often [`Core::now`] came up before.
    round: u32,
    totals: Totals,
}

impl<'a, S: OrderedSink, N: NumberedSource> Core<'a, S, N> {
    fn new(
        settings: &'a Settings,
        sessions: Sessions<N>,
        sink: S,
        first_worker: u32,
    ) -> Result<Self, ReplayError> {
        if settings.pace.speedup.is_nan() || settings.pace.speedup <= 0.0 {
            let problem = "the arrival speed-up must be more than 0".to_owned();
            return Err(ReplayError::Settings(problem));
        }
        let wants_tokens = sink.wants_tokens();
        let seed = settings.seed;
        let prefill = settings.prefill.as_ref();
        let mut core = Self {
            settings,
            sink,
            sessions,
            first_worker,
            requests: Requests::default(),
            pools: [
                WorkerPool::new(prefill, seed, true),
                WorkerPool::new(Some(&settings.pool), seed, false),
            ],
            split: prefill.is_some(),
            handoffs: Handoffs::default(),
            calendar: BinaryHeap::new(),
            due: Vec::new(),
            timers: TimerQueue::default(),
            outgoing: VecDeque::new(),
            fetched: Vec::new(),
            out: Outbox::new(),
            admissions: Vec::new(),
            tokens: Vec::new(),
            wants_tokens,
            living: 0,
            raster: SampleRaster::new(settings.sample_every),
            now: SimTime::ZERO,
            round: 0,
            totals: Totals::default(),
        };
        core.pools[SERVING].first = first_worker;
        core.handoffs.order = prefill.and_then(|spec| handoff_order(spec.engines.first()?));
        let order = settings.pool.engines.first().and_then(handoff_order);
        if core.handoffs.order != order {
            core.handoffs.order = None;
        }
        core.pools[SERVING].fetches = core.handoffs.order.is_some();
        for pool in [PREFILL, SERVING] {
            let Some(spec) = core.pools[pool].spec.clone() else {
                continue;
            };
            if spec.engines.is_empty() {
                let problem = "a pool needs at least one worker".to_owned();
                return Err(ReplayError::Settings(problem));
            }
            for _ in 0..spec.engines.len() {
                core.start_worker(pool, spec.cold)?;
            }
            for &(at, _) in &spec.scaling.schedule {
                core.timers.set(at, Timer::Scale(pool));
            }
            for &(at, workers) in &spec.scaling.losses {
                core.timers.set(at, Timer::Lose(workers));
            }
            if let Some(rule) = &spec.scaling.rule {
                core.timers
                    .set(SimTime::ZERO + rule.interval, Timer::Scale(pool));
            }
        }
        Ok(core)
    }

    fn run(&mut self) -> Result<(), ReplayError> {
        self.run_until(self.settings.limit.unwrap_or(SimTime::MAX))
    }

    /// Plays all that happens up to `last` and then.
    fn run_until(&mut self, last: SimTime) -> Result<(), ReplayError> {
        while let Some(now) = self.next_instant().filter(|&now| now <= last) {
            // Not between the rounds of one instant.
            if now > self.now
                && let Some(at) = self.raster.due(now)
            {
                self.sample(at);
            }
            let again = now == self.now && self.totals.events > 0;
            self.round = if again { self.round + 1 } else { 0 };
            self.now = now;
            self.end_steps()?;
            while let Some((_, timer)) = self.timers.pop_due(now) {
                match timer {
                    Timer::Ready(address) => self.worker_ready(address)?,
                    Timer::Scale(pool) => self.scale(pool)?,
                    Timer::Lose(workers) => self.lose(workers)?,
                    Timer::Transferred(slot) => self.handoffs.transfer_done(slot),
                }
            }
            self.run_handoffs()?;
            while let Some(due) = self.sessions.pop_due(now)? {
                self.send(due)?;
            }
            if self.sink.stops() {
                break;
            }
        }
        Ok(())
    }

    /// When something happens next. Without work only a worker that starts can bring some: the
    /// rule of scaling alone does not keep a replay going.
    fn next_instant(&mut self) -> Option<SimTime> {
        while let Some(&Reverse((at, pool, worker))) = self.calendar.peek()
            && self.pools[pool].workers[worker as usize].wake != at
        {
            self.calendar.pop();
        }
        if self.handoffs.is_due() {
            return Some(self.now);
        }
        let step = self.calendar.peek().map(|Reverse((at, ..))| *at);
        let arrival = self.sessions.next_due();
        // Dummy steps of ranks follow the last request for a while, and serve nobody.
        let is_over = self.living == 0 && arrival.is_none();
        let step =
            step.filter(|_| !is_over || self.pools.iter().all(|pool| pool.lock_steps.is_empty()));
        let work = step.into_iter().chain(arrival).min();
        let coming =
            self.handoffs.has_transfers() || self.pools.iter().any(WorkerPool::is_starting);
        if work.is_none() && !coming {
            return None;
        }
        work.into_iter().chain(self.timers.next_due()).min()
    }

    /// Lets all workers that are due now go on.
    fn end_steps(&mut self) -> Result<(), ReplayError> {
        let mut due = std::mem::take(&mut self.due);
        due.clear();
        while let Some(&Reverse((at, pool, worker))) = self.calendar.peek()
            && at <= self.now
        {
            self.calendar.pop();
            let found = &mut self.pools[pool].workers[worker as usize];
            if found.wake == at {
                found.wake = SimTime::MAX;
                due.push((pool, worker));
            }
        }
        for &(pool, worker) in &due {
            let mut out = std::mem::take(&mut self.out);
            let place = self.first_worker + worker;
            self.sink
                .moment(Moment::of_worker(self.now, self.round, place));
            self.totals.events += 1;
            self.pools[pool].workers[worker as usize]
                .engine
                .advance(self.now, &mut out);
            self.wake_deferred((pool, worker), &out);
            self.handle_events((pool, worker), &mut out)?;
            self.out = out;
            self.hand_over()?;
            self.reschedule((pool, worker));
        }
        for pool in [PREFILL, SERVING] {
            if self.pools[pool].ranks > 1 {
                self.align(pool, &due);
            }
        }
        self.due = due;
        Ok(())
    }

    fn reschedule(&mut self, (pool, worker): Address) {
        let found = &mut self.pools[pool].workers[worker as usize];
        let wake = match found.held {
            true => SimTime::MAX,
            false => found.engine.next_wakeup().unwrap_or(SimTime::MAX),
        };
        if wake != found.wake {
            found.wake = wake;
            if wake != SimTime::MAX {
                self.calendar.push(Reverse((wake, pool, worker)));
            }
        }
    }

    /// Takes in the events of a worker's engine.
    fn handle_events(&mut self, address: Address, out: &mut Outbox) -> Result<(), ReplayError> {
        let (pool, at) = address;
        let mut admissions = std::mem::take(&mut self.admissions);
        let worker = &mut self.pools[pool].workers[at as usize];
        worker.engine.take_admissions(&mut admissions);
        for admitted in admissions.drain(..) {
            self.admitted(pool, admitted);
        }
        self.admissions = admissions;
        let steps = self.pools[pool].workers[at as usize].has_steps;
        for (when, event) in out.drain(..) {
            match event {
                Event::Tokens { id, n } => self.record_tokens(address, id, n, when, steps),
                Event::Decoded { id, n } => self.record_run(address, id, n),
                Event::Step { prompt_tokens, .. } => {
                    *self.totals.prefill_tokens.get_or_insert(0) += u64::from(prompt_tokens);
                    self.pools[pool].workers[at as usize].log.close(when);
                }
                Event::Scheduled { id, cached, .. } if !steps => {
                    let admitted = Admitted {
                        id,
                        at: when,
                        cached,
                        host: None,
                        again: false,
                    };
                    self.admitted(pool, admitted);
                }
                Event::Preempted { id } => {
                    let request = self.requests.get_mut(id.0 as u32);
                    request.preemptions.push(self.totals.preemptions);
                    request.preempted.push(when);
                    self.totals.preemptions += 1;
                    self.sink.preempted();
                }
                Event::Ended { id, end } => self.ended(address, id.0 as u32, when, end)?,
                Event::Stored { .. } | Event::Removed { .. } | Event::Cleared => {
                    self.pools[pool].router.observe(at, when, event);
                }
                _ => {}
            }
        }
        self.handle_reserved(address);
        let worker = &self.pools[pool].workers[at as usize];
        if worker.log.len() >= worker.log_limit {
            self.flush_log(address);
        }
        Ok(())
    }

    fn admitted(&mut self, pool: usize, admitted: Admitted) {
        let Admitted {
            id,
            at,
            cached,
            host,
            again,
        } = admitted;
        let request = self.requests.get_mut(id.0 as u32);
        let mut handoff = request.handoff.as_mut();
        if self.handoffs.order.is_some() {
            if let Some(handoff) = handoff.filter(|_| pool == SERVING) {
                handoff.reused = handoff.reused.max(cached);
            }
        } else if let Some(handoff) = handoff.take().filter(|_| !again) {
            handoff.reused = cached;
            (handoff.activated, handoff.released) = (Some(at), Some(at));
            let worker = request.prefill_worker.unwrap_or_default();
            self.fetched.push((worker, id.0 as u32));
        }
        request.admissions.push(Admission {
            at,
            reused: cached,
            host,
            again,
            prefill_pool: pool == PREFILL,
        });
    }

    /// Output tokens came out.
    fn record_tokens(
        &mut self,
        (pool, at): Address,
        id: SeqId,
        n: u32,
        when: SimTime,
        steps: bool,
    ) {
        let slot = id.0 as u32;
        let request = self.requests.get_mut(slot);
        let first = match pool {
            PREFILL => true,
            _ => request.first.is_none() && !self.split,
        };
        if pool == SERVING {
            request.first.get_or_insert(when);
            if steps && n == 1 {
                let log = &mut self.pools[pool].workers[at as usize].log;
                request.tokens.steps(log.current(when), 1);
            } else {
                request.tokens.burst(when, n);
            }
        }
        if first {
            self.pools[pool].router.prefilled(slot);
            self.release_queued(pool);
        }
    }

    /// Output tokens came out, one at the end of each of the last `n` steps.
    fn record_run(&mut self, (pool, at): Address, id: SeqId, n: u32) {
        if pool == SERVING {
            let next = self.pools[pool].workers[at as usize].log.ended();
            let first = next.saturating_sub(n.into());
            self.requests.get_mut(id.0 as u32).tokens.steps(first, n);
        }
    }

    /// Finds workers for requests that need not wait any more.
    fn release_queued(&mut self, pool: usize) {
        let WorkerPool {
            workers, router, ..
        } = &mut self.pools[pool];
        let gauges = |worker: u32| workers[worker as usize].engine.stats();
        while let Some((slot, choice, since)) = router.release(self.now, &gauges) {
            let request = self.requests.get_mut(slot);
            request.queued_ns += self.now.nanos() - since.nanos();
            self.outgoing.push_back((pool, slot, choice));
        }
    }

    /// A sequence is over on its worker.
    fn ended(
        &mut self,
        (pool, at): Address,
        slot: u32,
        when: SimTime,
        end: End,
    ) -> Result<(), ReplayError> {
        if pool == PREFILL && end == End::Finished && self.handoffs.order.is_some() {
            self.prompt_held(slot, when);
            return Ok(());
        }
        if pool == PREFILL && end == End::Finished {
            self.left((pool, at), slot);
            let handoff = HandoffTimes {
                held: Some(when),
                ..HandoffTimes::default()
            };
            self.requests.get_mut(slot).handoff = Some(handoff);
            self.place(SERVING, slot);
            return Ok(());
        }
        let status = match end {
            End::Finished => Status::Completed,
            End::Aborted | End::Cancelled | End::Threshold | End::Failed => Status::Rejected,
        };
        if pool == PREFILL && self.handoffs.order.is_some() {
            self.give_up_destination(slot)?;
        }
        self.over((pool, at), slot, when, status)
    }

    /// A request holds nothing of a worker any more.
    fn left(&mut self, (pool, at): Address, slot: u32) {
        let found = &mut self.pools[pool];
        found.router.finished(slot, at);
        let worker = &mut found.workers[at as usize];
        worker.load -= 1;
        if worker.phase == WorkerPhase::Draining && worker.load == 0 {
            self.remove_worker((pool, at));
        }
        self.release_queued(pool);
    }

    /// A request is over: it is reported, its worker has room, and its session goes on.
    fn over(
        &mut self,
        address: Address,
        slot: u32,
        when: SimTime,
        status: Status,
    ) -> Result<(), ReplayError> {
        let request = self.requests.get(slot);
        let (place, turn) = (request.place, request.turn);
        if let (Some(_), Some(worker), None) =
            (request.handoff, request.prefill_worker, self.handoffs.order)
        {
            self.fetched.push((worker, slot));
        }
        if self.is_kept(slot, when, status) {
            self.left(address, slot);
        } else {
            self.report(slot, when, status);
            self.left(address, slot);
            self.requests.release(slot);
        }
        self.living -= 1;
        self.totals.ended = self.totals.ended.max(when);
        self.sessions.ended(place, turn, when)?;
        Ok(())
    }
}
