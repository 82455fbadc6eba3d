//! Runs all workers of a deployment in one event loop, in virtual time.
//!
//! Order within one instant of virtual time: steps end, by pool and worker, and their KV events and
//! tokens are reported; timers fire (workers become ready, pools scale); due turns are sent; then
//! engines start their next steps in another round of the same instant. Order: aisimulate-core
//! `src/replay/{agg,event}.rs`.

mod dispatch;
mod handoff;
mod parallel;
mod ranks;
mod recorder;
mod report_position;
mod reporting;
pub(crate) mod run_replay;
mod sample_clock;
mod workers;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use vllm_sim_engine::sched::{AdmittedSequence, SchedulerConfigError};
use vllm_sim_engine::{
    Outbox, Scheduler, SchedulerEvent, SeqId, SequenceEndReason, SimTime, TimerQueue,
};

use super::disaggregation::prefill_handoff_order;
use super::outcome::{
    AdmissionOutcome, EngineStep, LoggedStepRecord, PoolRole, PrefillHandoffTimes, RequestStatus,
};
use super::pool::{DECODE_OR_UNIFIED_POOL_INDEX, PREFILL_POOL_INDEX, WorkerPool};
use super::requests::RequestSlab;
use super::route::RouteChoice;
use super::sessions::{NumberedSessionSource, SessionQueue};
use super::settings::ReplaySettings;
use super::worker::WorkerPhase;
use super::workload::WorkloadError;
use handoff::PrefillHandoffQueue;
use report_position::{EventLoopPosition, PositionedReplaySink};
use sample_clock::WorkerSampleClock;
use workers::samples_of_pools;

/// Length of a worker's step log, in steps, at which the inter-token gaps of the logged steps are
/// reported and these steps are removed.
const STEP_LOG_FLUSH_LEN: usize = 4096;

/// Reason why a replay cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The workload source cannot be read.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The scheduler of an engine cannot be built.
    #[error(transparent)]
    Engine(#[from] SchedulerConfigError),
    /// The settings of the replay contradict each other.
    #[error("{0}")]
    Settings(String),
}

/// Totals of a finished replay: requests, preemptions and worker lifetimes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReplayTotals {
    /// Virtual time at which the last request ended.
    pub ended: SimTime,
    /// Number of requests sent during the replay.
    pub requests: u64,
    /// Number of preemptions on all workers during the replay.
    pub preemptions: u64,
    /// Total lifetime of the workers that decode, in seconds of virtual time.
    pub worker_seconds: f64,
    /// Total lifetime of the prefill workers, in seconds of virtual time.
    pub prefill_worker_seconds: f64,
    /// Maximum number of workers that existed at one time.
    pub most_workers: u32,
    /// Maximum number of requests in flight at one time.
    pub most_requests: u64,
    /// Number of prompt tokens that engine steps computed, including output tokens recomputed after
    /// preemptions; `None` for engines without steps.
    pub prefill_tokens: Option<u64>,
    /// Number of simulated events: requests sent and wakeups of engines.
    pub events: u64,
    /// Ids of sessions whose dependencies were never fulfilled; for a session without an id, its
    /// number.
    pub stuck: Vec<String>,
}

/// Index of a worker's pool, and index of the worker in that pool.
type WorkerAddress = (usize, u32);

#[derive(Debug, Clone, Copy)]
enum TimerEvent {
    Ready(WorkerAddress),
    Scale(usize),
    /// Scheduled failure of the oldest decode workers; the value is their number.
    Lose(u32),
    /// Completed KV transfer to a decode worker; the value is the index of the request in
    /// [`RequestSlab`].
    Transferred(u32),
}

struct EventLoop<'a, S: ?Sized, N> {
    settings: &'a ReplaySettings,
    sink: &'a mut S,
    sessions: SessionQueue<N>,
    /// Index, within the whole deployment, of this event loop's first worker.
    first_worker: u32,
    requests: RequestSlab,
    /// The prefill pool (empty unless disaggregated), then the decode pool.
    pools: [WorkerPool; 2],
    split: bool,
    handoffs: PrefillHandoffQueue,
    /// Wakeup times of the workers, each with the pool and index of its worker. Entries may be
    /// stale.
    calendar: BinaryHeap<Reverse<(SimTime, usize, u32)>>,
    due: Vec<WorkerAddress>,
    timers: TimerQueue<TimerEvent>,
    /// Queue of routed requests that are not submitted to their worker yet.
    outgoing: VecDeque<(usize, u32, RouteChoice)>,
    /// Prefill worker and request index of each prompt whose KV blocks the decode worker has
    /// fetched.
    fetched: Vec<(u32, u32)>,
    out: Outbox,
    admissions: Vec<AdmittedSequence>,
    tokens: Vec<SimTime>,
    wants_tokens: bool,
    wants_steps: bool,
    in_flight: u64,
    sample_clock: WorkerSampleClock,
    now: SimTime,
    /// Number of earlier iterations of the event loop at the current virtual time.
    round: u32,
    totals: ReplayTotals,
}

impl<'a, S: PositionedReplaySink + ?Sized, N: NumberedSessionSource> EventLoop<'a, S, N> {
    fn new(
        settings: &'a ReplaySettings,
        sessions: SessionQueue<N>,
        sink: &'a mut S,
        first_worker: u32,
    ) -> Result<Self, ReplayError> {
        if settings.pace.speedup.is_nan() || settings.pace.speedup <= 0.0 {
            let problem = "the arrival speed-up must be more than 0".to_owned();
            return Err(ReplayError::Settings(problem));
        }
        let (wants_tokens, wants_steps) = (sink.wants_token_times(), sink.wants_steps());
        let seed = settings.seed;
        let prefill = settings.prefill.as_ref();
        let mut core = Self {
            settings,
            sink,
            sessions,
            first_worker,
            requests: RequestSlab::default(),
            pools: [
                WorkerPool::new(prefill, seed, PoolRole::Prefill),
                WorkerPool::new(Some(&settings.pool), seed, PoolRole::Serving),
            ],
            split: prefill.is_some(),
            handoffs: PrefillHandoffQueue::default(),
            calendar: BinaryHeap::new(),
            due: Vec::new(),
            timers: TimerQueue::default(),
            outgoing: VecDeque::new(),
            fetched: Vec::new(),
            out: Outbox::new(),
            admissions: Vec::new(),
            tokens: Vec::new(),
            wants_tokens,
            wants_steps,
            in_flight: 0,
            sample_clock: WorkerSampleClock::new(settings.sample_every),
            now: SimTime::ZERO,
            round: 0,
            totals: ReplayTotals::default(),
        };
        core.pools[DECODE_OR_UNIFIED_POOL_INDEX].first = first_worker;
        core.handoffs.order = prefill.and_then(|spec| prefill_handoff_order(spec.engines.first()?));
        let order = settings.pool.engines.first().and_then(prefill_handoff_order);
        if core.handoffs.order != order {
            core.handoffs.order = None;
        }
        core.pools[DECODE_OR_UNIFIED_POOL_INDEX].fetches = core.handoffs.order.is_some();
        for pool in [PREFILL_POOL_INDEX, DECODE_OR_UNIFIED_POOL_INDEX] {
            let Some(spec) = core.pools[pool].spec.clone() else {
                continue;
            };
            if spec.engines.is_empty() {
                let problem = "a pool needs at least one worker".to_owned();
                return Err(ReplayError::Settings(problem));
            }
            let first_startup = if spec.cold { spec.startup } else { Duration::ZERO };
            for _ in 0..spec.engines.len() {
                core.start_worker(pool, first_startup)?;
            }
            for &(at, _) in &spec.scaling.schedule {
                core.timers.schedule_item(at, TimerEvent::Scale(pool));
            }
            for &(at, workers) in &spec.scaling.losses {
                core.timers.schedule_item(at, TimerEvent::Lose(workers));
            }
            if let Some(rule) = &spec.scaling.rule {
                core.timers.schedule_item(SimTime::ZERO + rule.interval, TimerEvent::Scale(pool));
            }
        }
        Ok(core)
    }

    fn run_until(&mut self, last: SimTime) -> Result<(), ReplayError> {
        while let Some(now) = self.next_instant().filter(|&now| now <= last) {
            // Samples are taken only before the first round of an instant.
            if now > self.now
                && let Some(at) = self.sample_clock.pop_due_sample_time(now)
            {
                for sample in samples_of_pools(&self.pools, self.first_worker, at) {
                    self.sink.on_worker_sample(&sample);
                }
            }
            let again = now == self.now && self.totals.events > 0;
            self.round = if again { self.round + 1 } else { 0 };
            self.now = now;
            self.handle_ended_steps()?;
            while let Some((_, timer)) = self.timers.pop_due_item(now) {
                match timer {
                    TimerEvent::Ready(address) => self.handle_worker_ready(address)?,
                    TimerEvent::Scale(pool) => self.scale_pool_to_target(pool)?,
                    TimerEvent::Lose(workers) => self.fail_oldest_decode_workers(workers)?,
                    TimerEvent::Transferred(slot) => self.handoffs.finish_kv_transfer(slot),
                }
            }
            self.run_prefill_handoffs()?;
            while let Some(due) = self.sessions.pop_due_turn(now)? {
                self.send_due_turn(due)?;
            }
            if self.sink.should_stop() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the time of the next event, or `None` at the end of the replay.
    ///
    /// When no request is in flight or planned, only starting workers and KV transfers keep the
    /// replay running, not the autoscaler.
    fn next_instant(&mut self) -> Option<SimTime> {
        while let Some(&Reverse((at, pool, worker))) = self.calendar.peek()
            && self.pools[pool].workers[worker as usize].wake != at
        {
            self.calendar.pop();
        }
        if self.handoffs.has_due_handoff_actions() {
            return Some(self.now);
        }
        let step = self.calendar.peek().map(|Reverse((at, ..))| *at);
        let arrival = self.sessions.next_turn_due_time();
        // Ranks run dummy steps for a while after the last request; they serve no request.
        let is_over = self.in_flight == 0 && arrival.is_none();
        let step =
            step.filter(|_| !is_over || self.pools.iter().all(|pool| pool.lock_steps.is_empty()));
        let work = step.into_iter().chain(arrival).min();
        let coming = self.handoffs.has_running_kv_transfers()
            || self.pools.iter().any(WorkerPool::has_starting_workers);
        if work.is_none() && !coming {
            return None;
        }
        work.into_iter().chain(self.timers.next_due_time()).min()
    }

    fn handle_ended_steps(&mut self) -> Result<(), ReplayError> {
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
                .set_position(EventLoopPosition::worker_step_position(self.now, self.round, place));
            self.totals.events += 1;
            self.pools[pool].workers[worker as usize].engine.advance(self.now, &mut out);
            self.queue_deferred_handoff_actions((pool, worker), &out);
            self.handle_events((pool, worker), &mut out)?;
            self.out = out;
            self.submit_routed_requests()?;
            self.update_next_wakeup((pool, worker));
        }
        for pool in [PREFILL_POOL_INDEX, DECODE_OR_UNIFIED_POOL_INDEX] {
            if self.pools[pool].ranks > 1 {
                self.synchronize_lockstep_ranks(pool, &due);
            }
        }
        self.due = due;
        Ok(())
    }

    #[inline]
    fn update_next_wakeup(&mut self, (pool, worker): WorkerAddress) {
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

    /// Calls `change` with the engine of a worker and the current time, and handles the events that
    /// the engine emits.
    fn change_engine(
        &mut self,
        address: WorkerAddress,
        change: impl FnOnce(&mut dyn Scheduler, SimTime, &mut Outbox),
    ) -> Result<(), ReplayError> {
        let (pool, at) = address;
        let mut out = std::mem::take(&mut self.out);
        change(&mut *self.pools[pool].workers[at as usize].engine, self.now, &mut out);
        self.handle_events(address, &mut out)?;
        self.out = out;
        self.update_next_wakeup(address);
        Ok(())
    }

    fn handle_events(
        &mut self,
        address: WorkerAddress,
        out: &mut Outbox,
    ) -> Result<(), ReplayError> {
        let (pool, at) = address;
        let mut admissions = std::mem::take(&mut self.admissions);
        let worker = &mut self.pools[pool].workers[at as usize];
        worker.engine.take_admissions(&mut admissions);
        for admitted in admissions.drain(..) {
            self.record_admission(pool, admitted);
        }
        self.admissions = admissions;
        if self.wants_steps {
            self.report_step_records(address);
        }
        let steps = self.pools[pool].workers[at as usize].has_steps;
        for (when, event) in out.drain(..) {
            match event {
                SchedulerEvent::Tokens { id, n } => self.record_tokens(address, id, n, when),
                SchedulerEvent::Decoded { id, n } => {
                    self.record_tokens_of_last_steps(address, id, n)
                }
                SchedulerEvent::Step { begun, prompt_tokens, output_tokens, .. } => {
                    if self.wants_steps {
                        let (pool, worker) = (self.pools[pool].role, self.first_worker + at);
                        self.sink.on_step(&EngineStep {
                            pool,
                            worker,
                            begun,
                            ended: when,
                            prompt_tokens,
                            output_tokens,
                        });
                    }
                    *self.totals.prefill_tokens.get_or_insert(0) += u64::from(prompt_tokens);
                    self.pools[pool].workers[at as usize].log.close_step(when);
                }
                SchedulerEvent::Scheduled { id, cached, .. } if !steps => {
                    let admitted =
                        AdmittedSequence { id, at: when, cached, host: None, again: false };
                    self.record_admission(pool, admitted);
                }
                SchedulerEvent::Preempted { id } => {
                    let request = self.requests.get_mut(id.0 as u32);
                    request.preemptions.push(self.totals.preemptions);
                    request.preempted.push(when);
                    self.totals.preemptions += 1;
                    self.sink.count_preemption();
                }
                SchedulerEvent::Ended { id, end } => {
                    self.handle_sequence_end(address, id.0 as u32, when, end)?
                }
                SchedulerEvent::Stored { .. }
                | SchedulerEvent::Removed { .. }
                | SchedulerEvent::Group(_)
                | SchedulerEvent::Cleared => {
                    self.pools[pool].router.observe_engine_event(at, when, event);
                }
                _ => {}
            }
        }
        self.handle_decode_kv_reservations(address);
        let worker = &self.pools[pool].workers[at as usize];
        if worker.log.len() >= worker.log_limit {
            self.flush_worker_step_log(address);
        }
        Ok(())
    }

    /// Reports the step log records of a worker, if it keeps any. Called before the end of requests
    /// that the records name.
    fn report_step_records(&mut self, (pool, at): WorkerAddress) {
        let mut records = Vec::new();
        self.pools[pool].workers[at as usize].engine.take_step_log(&mut records);
        let (pool, worker) = (self.pools[pool].role, self.first_worker + at);
        for record in records {
            let name = |id: SeqId| self.requests.get(id.0 as u32).number.into();
            let record = record.to_step_log_json(name);
            self.sink.on_step_record(&LoggedStepRecord { pool, worker, record });
        }
    }

    fn record_admission(&mut self, pool: usize, admitted: AdmittedSequence) {
        let AdmittedSequence { id, at, cached, host, again } = admitted;
        let request = self.requests.get_mut(id.0 as u32);
        let mut handoff = request.handoff.as_mut();
        if self.handoffs.order.is_some() {
            if let Some(handoff) = handoff.filter(|_| pool == DECODE_OR_UNIFIED_POOL_INDEX) {
                handoff.reused = handoff.reused.max(cached);
            }
        } else if let Some(handoff) = handoff.take().filter(|_| !again) {
            handoff.reused = cached;
            (handoff.activated, handoff.released) = (Some(at), Some(at));
            let worker = request.prefill_worker.unwrap_or_default();
            self.fetched.push((worker, id.0 as u32));
        }
        request.admissions.push(AdmissionOutcome {
            at,
            reused: cached,
            host,
            again,
            pool: self.pools[pool].role,
        });
    }

    fn record_tokens(&mut self, (pool, at): WorkerAddress, id: SeqId, n: u32, when: SimTime) {
        let slot = id.0 as u32;
        let request = self.requests.get_mut(slot);
        let first = match pool {
            PREFILL_POOL_INDEX => true,
            _ => request.first.is_none() && !self.split,
        };
        if pool == DECODE_OR_UNIFIED_POOL_INDEX {
            request.first.get_or_insert(when);
            let worker = &mut self.pools[pool].workers[at as usize];
            if worker.has_steps && n == 1 {
                request.tokens.add_step_tokens(worker.log.current_step_number(when), 1);
            } else {
                request.tokens.add_simultaneous_tokens(when, n);
            }
        }
        if first {
            self.pools[pool].router.record_prefill_end(slot);
            self.place_queued_requests(pool);
        }
    }

    /// Records one output token of a sequence at the end of each of the worker's last `n` steps.
    fn record_tokens_of_last_steps(&mut self, (pool, at): WorkerAddress, id: SeqId, n: u32) {
        if pool == DECODE_OR_UNIFIED_POOL_INDEX {
            let next = self.pools[pool].workers[at as usize].log.next_unclosed_step();
            let first = next.saturating_sub(n.into());
            self.requests.get_mut(id.0 as u32).tokens.add_step_tokens(first, n);
        }
    }

    fn place_queued_requests(&mut self, pool: usize) {
        let WorkerPool { workers, router, .. } = &mut self.pools[pool];
        let gauges = |worker: u32| workers[worker as usize].engine.stats();
        while let Some((slot, choice, since)) = router.release_queued_request(self.now, &gauges) {
            let request = self.requests.get_mut(slot);
            request.queued_ns += self.now.as_nanos() - since.as_nanos();
            self.outgoing.push_back((pool, slot, choice));
        }
    }

    fn handle_sequence_end(
        &mut self,
        (pool, at): WorkerAddress,
        slot: u32,
        when: SimTime,
        end: SequenceEndReason,
    ) -> Result<(), ReplayError> {
        if pool == PREFILL_POOL_INDEX
            && end == SequenceEndReason::Finished
            && self.handoffs.order.is_some()
        {
            self.record_prompt_computed(slot, when);
            return Ok(());
        }
        if pool == PREFILL_POOL_INDEX && end == SequenceEndReason::Finished {
            self.remove_from_worker((pool, at), slot);
            let handoff =
                PrefillHandoffTimes { held: Some(when), ..PrefillHandoffTimes::default() };
            self.requests.get_mut(slot).handoff = Some(handoff);
            self.route_request_to_worker(DECODE_OR_UNIFIED_POOL_INDEX, slot);
            return Ok(());
        }
        let request = self.requests.get(slot);
        let is_unserved = request.output > 0 && request.tokens.output_token_count() == 0;
        let status = match end {
            SequenceEndReason::Finished if is_unserved => self.settings.without_tokens,
            SequenceEndReason::Finished => RequestStatus::Completed,
            SequenceEndReason::Aborted
            | SequenceEndReason::Cancelled
            | SequenceEndReason::Threshold
            | SequenceEndReason::Failed => RequestStatus::Rejected,
        };
        if pool == PREFILL_POOL_INDEX && self.handoffs.order.is_some() {
            self.abort_request_on_decode_worker(slot)?;
        }
        self.complete_request((pool, at), slot, when, status)
    }

    /// Removes a request from its worker; then a queued request may be routed, or a draining worker
    /// removed.
    fn remove_from_worker(&mut self, (pool, at): WorkerAddress, slot: u32) {
        let found = &mut self.pools[pool];
        found.router.record_request_end(slot, at);
        let worker = &mut found.workers[at as usize];
        worker.load -= 1;
        if worker.phase == WorkerPhase::Draining && worker.load == 0 {
            self.remove_worker((pool, at));
        }
        self.place_queued_requests(pool);
    }

    /// Reports an ended request, frees its worker's capacity and continues its session.
    fn complete_request(
        &mut self,
        address: WorkerAddress,
        slot: u32,
        when: SimTime,
        status: RequestStatus,
    ) -> Result<(), ReplayError> {
        let request = self.requests.get(slot);
        let (place, turn) = (request.place, request.turn);
        if let (Some(_), Some(worker), None) =
            (request.handoff, request.prefill_worker, self.handoffs.order)
        {
            self.fetched.push((worker, slot));
        }
        if self.defer_report_until_prompt_release(slot, when, status) {
            self.remove_from_worker(address, slot);
        } else {
            self.report_ended_request(slot, when, status);
            self.remove_from_worker(address, slot);
            self.requests.release_request_slot(slot);
        }
        self.in_flight -= 1;
        self.totals.ended = self.totals.ended.max(when);
        self.sessions.record_turn_end(place, turn, when)?;
        Ok(())
    }
}
