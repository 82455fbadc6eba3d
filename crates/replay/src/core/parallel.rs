//! Runs independent workers one after another, or several in parallel on threads.
//!
//! When routing depends only on the requests, the assignment to workers is known before they run.
//! Each worker then simulates a stretch of time on its own, which keeps its state in the CPU cache.
//! A merge restores the report order of the event loop over all workers, so results are equal byte
//! for byte.

use std::collections::VecDeque;
use std::thread;

use vllm_sim_engine::SimTime;

use crate::content::lora_root_block_key;
use crate::outcome::{PoolRole, ReplaySink, WorkerChange};
use crate::route::{RouteRequest, Router, RouterConfig};
use crate::scale::WorkerScaling;
use crate::sessions::{ArrivalPacing, NumberedSessionSource, SessionQueue};
use crate::settings::{PoolSpec, ReplaySettings};
use crate::workload::{ClientSession, WorkloadError, WorkloadSource};

use super::recorder::{InFlightRequestCounts, ReplaySinkCallRecorder, forward_recorded_sink_calls};
use super::report_position::EventLoopPosition;
use super::sample_clock::WorkerSampleClock;
use super::workers::samples_of_pools;
use super::{EventLoop, ReplayError, ReplayTotals};

/// Maximum number of requests, per worker and in total, that are simulated in one stretch of
/// virtual time; bounds the memory for buffered reports.
const MAX_REQUESTS_PER_STRETCH: (usize, usize) = (128, 1 << 17);

/// Minimum length of a simulated stretch of virtual time after the last arrival, in nanoseconds.
const MIN_DRAIN_NANOS: u64 = 1_000_000_000;

/// Returns whether the workers of this replay are independent of each other.
pub(super) fn workers_are_independent(
    settings: &ReplaySettings,
    source: &dyn WorkloadSource,
) -> bool {
    let pool = &settings.pool;
    let fixed = pool.scaling == WorkerScaling::default();
    let ready = !pool.cold || pool.startup.is_zero();
    let mut sizes = pool.engines.iter().map(|engine| engine.block_size());
    let size = sizes.next();
    settings.prefill.is_none()
        && settings.pace.concurrency.is_none()
        && settings.pace.plays.is_none()
        && settings.pace.speedup > 0.0
        && pool.ranks <= 1
        && pool.engines.len() > 1
        && pool.router.ignores_worker_state()
        && fixed
        && ready
        && sizes.all(|other| Some(other) == size)
        && source.facts().is_single_turn
}

/// Runs the workload to its end, with the same results as one event loop over all workers.
pub(super) fn run_workers_in_parallel(
    settings: &ReplaySettings,
    source: &mut dyn WorkloadSource,
    sink: &mut dyn ReplaySink,
) -> Result<ReplayTotals, ReplayError> {
    let workers = settings.pool.engines.iter();
    let own: Vec<ReplaySettings> =
        workers.map(|engine| settings_of_one_worker(settings, engine)).collect();
    let mut recorders: Vec<_> = own.iter().map(|_| ReplaySinkCallRecorder::new(sink)).collect();
    let cores = own.iter().zip(&mut recorders).zip(0u32..).map(|((own, recorder), at)| {
        let sessions = SessionQueue::new(AssignedSessions::default(), ArrivalPacing::default())?;
        EventLoop::new(own, sessions, recorder, at)
    });
    let cores: Vec<WorkerCore<'_>> = cores.collect::<Result<_, _>>()?;
    for at in 0..cores.len() as u32 {
        sink.on_worker_change(SimTime::ZERO, at, PoolRole::Serving, WorkerChange::Starting);
        sink.on_worker_change(SimTime::ZERO, at, PoolRole::Serving, WorkerChange::Ready);
    }
    let mut worker_cores = ParallelRun {
        arrivals: SessionAssigner::new(settings, source, cores.len() as u32)?,
        worker_cores: cores,
        counts: InFlightRequestCounts::default(),
        sample_clock: WorkerSampleClock::new(settings.sample_every),
        threads: settings.threads.max(1),
    };
    worker_cores.run_to_limit(settings.limit.unwrap_or(SimTime::MAX), sink)?;
    Ok(worker_cores.finish_and_sum_totals(settings.limit, sink))
}

fn settings_of_one_worker(
    settings: &ReplaySettings,
    engine: &vllm_sim_engine::sched::SchedulerSpec,
) -> ReplaySettings {
    ReplaySettings {
        seed: settings.seed,
        without_tokens: settings.without_tokens,
        ..ReplaySettings::new(PoolSpec::new(engine.clone(), 1, RouterConfig::RoundRobin))
    }
}

type WorkerCore<'a> = EventLoop<'a, ReplaySinkCallRecorder, AssignedSessions>;

#[derive(Debug, Default)]
struct AssignedSessions(VecDeque<(u64, ClientSession)>);

impl NumberedSessionSource for AssignedSessions {
    const IN_ORDER: bool = true;

    fn next(&mut self) -> Result<Option<(u64, ClientSession)>, WorkloadError> {
        Ok(self.0.pop_front())
    }
}

struct SessionAssigner<'a> {
    source: &'a mut dyn WorkloadSource,
    pace: ArrivalPacing,
    router: Router,
    next: Option<ClientSession>,
    given: u64,
    /// Positions, in the order of one event loop, of the requests sent in the current stretch of
    /// virtual time.
    sent: Vec<EventLoopPosition>,
}

impl<'a> SessionAssigner<'a> {
    fn new(
        settings: &ReplaySettings,
        source: &'a mut dyn WorkloadSource,
        workers: u32,
    ) -> Result<Self, WorkloadError> {
        let mut router = Router::new(settings.pool.router.clone(), settings.seed, 1);
        (0..workers).for_each(|worker| router.add_worker(worker, 0));
        let mut arrivals =
            Self { source, pace: settings.pace, router, next: None, given: 0, sent: Vec::new() };
        arrivals.read_next_session()?;
        Ok(arrivals)
    }

    fn read_next_session(&mut self) -> Result<(), WorkloadError> {
        self.next = self.source.next_session()?;
        if let Some(session) = &mut self.next {
            session.start =
                SimTime::from_nanos(self.pace.divide_by_speedup(session.start.as_nanos()));
        }
        Ok(())
    }

    fn next_start(&self) -> Option<SimTime> {
        self.next.as_ref().map(|session| session.start)
    }

    /// Assigns the sessions that start before or at `last` to workers, and returns the time up to
    /// which all sessions are assigned.
    ///
    /// Stops before the first new start time after `most` assignments.
    fn assign_sessions_until(
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
                return Ok(SimTime::from_nanos(start.as_nanos() - 1));
            }
            at = start;
            // All requests of one instant are sent in its first round.
            self.sent.push(EventLoopPosition::sent_request_position(start, 0, self.given));
            let session = self.next.take();
            let (worker, session) = match session {
                Some(session) => (self.choose_worker(&session), session),
                None => break,
            };
            let core = &mut worker_cores[worker as usize];
            core.sessions.source.0.push_back((self.given, session));
            self.given += 1;
            self.read_next_session()?;
        }
        Ok(last)
    }

    fn choose_worker(&mut self, session: &ClientSession) -> u32 {
        let turn = session.turns.first();
        let ask = RouteRequest {
            slot: 0,
            number: self.given,
            session: self.given,
            adapter: turn.and_then(|turn| turn.lora.as_deref()).map(lora_root_block_key),
            plan: None,
            prompt: 0,
            priority: 0,
            strict_priority: 0,
        };
        let gauges = |_: u32| vllm_sim_engine::EngineStats::default();
        let choice = self.router.route_or_queue_request(ask, SimTime::ZERO, &gauges);
        choice.map_or(0, |choice| choice.worker)
    }
}

struct ParallelRun<'a> {
    arrivals: SessionAssigner<'a>,
    worker_cores: Vec<WorkerCore<'a>>,
    counts: InFlightRequestCounts,
    sample_clock: WorkerSampleClock,
    threads: usize,
}

impl ParallelRun<'_> {
    fn run_to_limit(
        &mut self,
        limit: SimTime,
        sink: &mut dyn ReplaySink,
    ) -> Result<(), ReplayError> {
        let most =
            (MAX_REQUESTS_PER_STRETCH.0 * self.worker_cores.len()).min(MAX_REQUESTS_PER_STRETCH.1);
        let mut stretch = MIN_DRAIN_NANOS;
        while let Some(begin) = self.next_instant().filter(|&next| next <= limit)
            && !sink.should_stop()
        {
            if let Some(at) = self.sample_clock.pop_due_sample_time(begin) {
                let samples = self.worker_cores.iter();
                let samples =
                    samples.flat_map(|core| samples_of_pools(&core.pools, core.first_worker, at));
                samples.for_each(|sample| sink.on_worker_sample(&sample));
            }
            let mut last =
                self.sample_clock.next_sample_time().map_or(limit, |next| next.min(limit));
            if self.arrivals.next.is_none() {
                let rest = begin.as_nanos().saturating_add(stretch);
                last = last.min(SimTime::from_nanos(rest));
            }
            let last = last.max(begin);
            let last = self.arrivals.assign_sessions_until(&mut self.worker_cores, most, last)?;
            stretch = stretch.max(last.as_nanos().saturating_sub(begin.as_nanos()));
            self.run_workers_until(last)?;
            let parts = self.worker_cores.iter_mut().map(|core| &mut *core.sink);
            forward_recorded_sink_calls(parts, &self.arrivals.sent, &mut self.counts, sink);
        }
        Ok(())
    }

    fn next_instant(&mut self) -> Option<SimTime> {
        let start = self.arrivals.next_start();
        let worker_cores = self.worker_cores.iter_mut().filter_map(EventLoop::next_instant);
        worker_cores.chain(start).min()
    }

    fn run_workers_until(&mut self, last: SimTime) -> Result<(), ReplayError> {
        let share = self.worker_cores.len().div_ceil(self.threads);
        let play = |worker_cores: &mut [WorkerCore<'_>]| {
            worker_cores.iter_mut().try_for_each(|core| {
                core.sessions.resume_reading_sessions()?;
                core.run_until(last)
            })
        };
        let (mine, others) = self.worker_cores.split_at_mut(share);
        thread::scope(|scope| {
            let others = others.chunks_mut(share);
            let others: Vec<_> =
                others.map(|worker_cores| scope.spawn(move || play(worker_cores))).collect();
            let mine = play(mine);
            let ended = others.into_iter().map(|thread| match thread.join() {
                Ok(ended) => ended,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            mine.and(ended.collect())
        })
    }

    fn finish_and_sum_totals(
        mut self,
        limit: Option<SimTime>,
        sink: &mut dyn ReplaySink,
    ) -> ReplayTotals {
        let now = self.worker_cores.iter().map(|core| core.now).max();
        let now = now.unwrap_or(SimTime::ZERO);
        let end = limit.filter(|_| self.counts.in_flight > 0).unwrap_or(now);
        for core in &mut self.worker_cores {
            core.now = now;
            core.report_unfinished_requests(end);
        }
        let mut all = ReplayTotals {
            most_workers: self.worker_cores.len() as u32,
            most_requests: self.counts.most,
            ..ReplayTotals::default()
        };
        let parts = self.worker_cores.iter_mut().map(|core| &mut *core.sink);
        forward_recorded_sink_calls(parts, &[], &mut self.counts, sink);
        for core in &mut self.worker_cores {
            all.add_worker_totals(&core.totals);
        }
        all
    }
}

impl ReplayTotals {
    fn add_worker_totals(&mut self, part: &Self) {
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
