//! Runs independent workers one after another, or several in parallel on threads.
//!
//! When routing depends only on the requests, the assignment to workers is known before they run.
//! Each worker then simulates a stretch of time on its own, which keeps its state in the CPU cache.
//! A merge restores the report order of the event loop over all workers, so results are equal byte
//! for byte.

use std::collections::VecDeque;
use std::thread;

use vllm_sim_engine::SimTime;

use crate::content::adapter_key;
use crate::outcome::{PoolRole, Sink, WorkerChange};
use crate::route::{RouteRequest, Router, RouterConfig};
use crate::scale::Scaling;
use crate::sessions::{ArrivalPacing, NumberedSource, Sessions};
use crate::settings::{PoolSpec, Settings};
use crate::workload::{Session, WorkloadError, WorkloadSource};

use super::recorder::{LiveCounts, Recorder, forward_reports};
use super::report_position::ReportPosition;
use super::sample_clock::SampleClock;
use super::{Core, ReplayError, Totals};

/// Maximum number of requests in one stretch of simulated time, per worker and in total; bounds the
/// buffers.
const STRETCH_REQUESTS: (usize, usize) = (128, 1 << 17);

/// Minimum length of a stretch of simulated time after the last arrival, in nanoseconds.
const MIN_DRAIN_NANOS: u64 = 1_000_000_000;

/// Returns whether the workers of this replay are independent of each other.
pub(super) fn fits(settings: &Settings, source: &dyn WorkloadSource) -> bool {
    let pool = &settings.pool;
    let fixed = pool.scaling == Scaling::default();
    let ready = !pool.cold || pool.startup.is_zero();
    let mut sizes = pool.engines.iter().map(|engine| engine.block_size());
    let size = sizes.next();
    settings.prefill.is_none()
        && !settings.step_log
        && settings.pace.concurrency.is_none()
        && settings.pace.plays.is_none()
        && settings.pace.speedup > 0.0
        && pool.ranks <= 1
        && pool.engines.len() > 1
        && pool.router.is_blind()
        && fixed
        && ready
        && sizes.all(|other| Some(other) == size)
        && source.is_single_turn()
}

/// Runs the workload to its end, with the same results as one event loop over all workers.
pub(super) fn run(
    settings: &Settings,
    source: &mut dyn WorkloadSource,
    sink: &mut dyn Sink,
) -> Result<Totals, ReplayError> {
    let workers = settings.pool.engines.iter();
    let own: Vec<Settings> = workers.map(|engine| one_worker(settings, engine)).collect();
    let cores = own.iter().zip(0u32..).map(|(own, at)| {
        let sessions = Sessions::new(AssignedSessions::default(), ArrivalPacing::default())?;
        Core::new(own, sessions, Recorder::new(sink), at)
    });
    let cores: Vec<WorkerCore<'_>> = cores.collect::<Result<_, _>>()?;
    for at in 0..cores.len() as u32 {
        sink.worker(SimTime::ZERO, at, PoolRole::Serving, WorkerChange::Starting);
        sink.worker(SimTime::ZERO, at, PoolRole::Serving, WorkerChange::Ready);
    }
    let mut worker_cores = ParallelRun {
        arrivals: Arrivals::new(settings, source, cores.len() as u32)?,
        worker_cores: cores,
        counts: LiveCounts::default(),
        sample_clock: SampleClock::new(settings.sample_every),
        threads: settings.threads.max(1),
    };
    worker_cores.play(settings.limit.unwrap_or(SimTime::MAX), sink)?;
    Ok(worker_cores.finish(settings.limit, sink))
}

fn one_worker(settings: &Settings, engine: &vllm_sim_engine::sched::EngineSpec) -> Settings {
    Settings {
        seed: settings.seed,
        without_tokens: settings.without_tokens,
        ..Settings::new(PoolSpec::new(engine.clone(), 1, RouterConfig::RoundRobin))
    }
}

type WorkerCore<'a> = Core<'a, Recorder, AssignedSessions>;

#[derive(Debug, Default)]
struct AssignedSessions(VecDeque<(u64, Session)>);

impl NumberedSource for AssignedSessions {
    const IN_ORDER: bool = true;

    fn next(&mut self) -> Result<Option<(u64, Session)>, WorkloadError> {
        Ok(self.0.pop_front())
    }
}

struct Arrivals<'a> {
    source: &'a mut dyn WorkloadSource,
    pace: ArrivalPacing,
    router: Router,
    next: Option<Session>,
    given: u64,
    /// Positions of the requests sent in the current stretch of simulated time.
    sent: Vec<ReportPosition>,
}

impl<'a> Arrivals<'a> {
    fn new(
        settings: &Settings,
        source: &'a mut dyn WorkloadSource,
        workers: u32,
    ) -> Result<Self, WorkloadError> {
        let mut router = Router::new(settings.pool.router.clone(), settings.seed, 1);
        (0..workers).for_each(|worker| router.add(worker, 0));
        let mut arrivals = Self {
            source,
            pace: settings.pace,
            router,
            next: None,
            given: 0,
            sent: Vec::new(),
        };
        arrivals.step()?;
        Ok(arrivals)
    }

    fn step(&mut self) -> Result<(), WorkloadError> {
        self.next = self.source.next()?;
        if let Some(session) = &mut self.next {
            session.start = SimTime::from_nanos(self.pace.shorten(session.start.nanos()));
        }
        Ok(())
    }

    fn next_start(&self) -> Option<SimTime> {
        self.next.as_ref().map(|session| session.start)
    }

    /// Assigns the sessions that start up to `last` to workers, and returns the time up to which
    /// all are assigned.
    ///
    /// Stops before the first new start time after `most` assignments.
    fn assign(
        &mut self,
        worker_cores: &mut [WorkerCore<'_>],
        most: usize,
        last: SimTime,
    ) -> Result<SimTime, WorkloadError> {
        self.sent.clear();
        let mut at = SimTime::ZERO;
        while let Some(start) = self.next_start() {
            if start > last {
                break;
            }
            if self.sent.len() >= most && start > at {
                return Ok(SimTime::from_nanos(start.nanos() - 1));
            }
            at = start;
            // All requests of one instant are sent in its first round.
            self.sent
                .push(ReportPosition::of_request(start, 0, self.given));
            let session = self.next.take();
            let (worker, session) = match session {
                Some(session) => (self.choose(&session), session),
                None => break,
            };
            let core = &mut worker_cores[worker as usize];
            core.sessions.source().0.push_back((self.given, session));
            self.given += 1;
            self.step()?;
        }
        Ok(last)
    }

    fn choose(&mut self, session: &Session) -> u32 {
        let turn = session.turns.first();
        let ask = RouteRequest {
            slot: 0,
            number: self.given,
            session: self.given,
            adapter: turn.and_then(|turn| turn.lora.as_deref()).map(adapter_key),
            plan: None,
            prompt: 0,
            priority: 0,
            strict_priority: 0,
        };
        let gauges = |_: u32| vllm_sim_engine::Stats::default();
        let choice = self.router.place(ask, SimTime::ZERO, &gauges);
        choice.map_or(0, |choice| choice.worker)
    }
}

struct ParallelRun<'a> {
    arrivals: Arrivals<'a>,
    worker_cores: Vec<WorkerCore<'a>>,
    counts: LiveCounts,
    sample_clock: SampleClock,
    threads: usize,
}

impl ParallelRun<'_> {
    fn play(&mut self, limit: SimTime, sink: &mut dyn Sink) -> Result<(), ReplayError> {
        let most = (STRETCH_REQUESTS.0 * self.worker_cores.len()).min(STRETCH_REQUESTS.1);
        let mut stretch = MIN_DRAIN_NANOS;
        while let Some(begin) = self.next_instant().filter(|&next| next <= limit)
            && !sink.stops()
        {
            if let Some(at) = self.sample_clock.due(begin) {
                let samples = self.worker_cores.iter().flat_map(|core| core.samples(at));
                samples.for_each(|sample| sink.sample(&sample));
            }
            let mut last = self
                .sample_clock
                .next()
                .map_or(limit, |next| next.min(limit));
            if self.arrivals.next.is_none() {
                let rest = begin.nanos().saturating_add(stretch);
                last = last.min(SimTime::from_nanos(rest));
            }
            let last = last.max(begin);
            let last = self.arrivals.assign(&mut self.worker_cores, most, last)?;
            stretch = stretch.max(last.nanos().saturating_sub(begin.nanos()));
            self.play_until(last)?;
            let parts = self.worker_cores.iter_mut().map(|core| &mut core.sink);
            forward_reports(parts, &self.arrivals.sent, &mut self.counts, sink);
        }
        Ok(())
    }

    fn next_instant(&mut self) -> Option<SimTime> {
        let start = self.arrivals.next_start();
        let worker_cores = self.worker_cores.iter_mut().filter_map(Core::next_instant);
        worker_cores.chain(start).min()
    }

    fn play_until(&mut self, last: SimTime) -> Result<(), ReplayError> {
        let share = self.worker_cores.len().div_ceil(self.threads);
        let play = |worker_cores: &mut [WorkerCore<'_>]| {
            worker_cores.iter_mut().try_for_each(|core| {
                core.sessions.resume()?;
                core.run_until(last)
            })
        };
        let (mine, others) = self.worker_cores.split_at_mut(share);
        thread::scope(|scope| {
            let others = others.chunks_mut(share);
            let others: Vec<_> = others
                .map(|worker_cores| scope.spawn(move || play(worker_cores)))
                .collect();
            let mine = play(mine);
            let ended = others.into_iter().map(|thread| match thread.join() {
                Ok(ended) => ended,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            mine.and(ended.collect())
        })
    }

    fn finish(mut self, limit: Option<SimTime>, sink: &mut dyn Sink) -> Totals {
        let now = self.worker_cores.iter().map(|core| core.now).max();
        let now = now.unwrap_or(SimTime::ZERO);
        let end = limit.filter(|_| self.counts.in_flight > 0).unwrap_or(now);
        for core in &mut self.worker_cores {
            core.now = now;
            core.finish(end);
        }
        let mut all = Totals {
            most_workers: self.worker_cores.len() as u32,
            most_requests: self.counts.most,
            ..Totals::default()
        };
        let parts = self.worker_cores.iter_mut().map(|core| &mut core.sink);
        forward_reports(parts, &[], &mut self.counts, sink);
        for core in &mut self.worker_cores {
            all.add(&core.totals);
        }
        all
    }
}

impl Totals {
    fn add(&mut self, part: &Self) {
        self.ended = self.ended.max(part.ended);
        self.requests += part.requests;
        self.events += part.events;
        self.preemptions += part.preemptions;
        self.worker_seconds += part.worker_seconds;
        if let Some(tokens) = part.prefill_tokens {
            *self.prefill_tokens.get_or_insert(0) += tokens;
        }
    }
}
