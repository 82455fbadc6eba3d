use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::exchange::GenerationResponse;
use super::options::{OnlineReplayError, OnlineReplayOptions, OnlineReplaySummary};
use super::pacer::RequestSendTimer;
use super::prompt::{ChatHistory, PromptTextWriter};
use super::target::{TargetServer, TurnIdentityHeaders};
use crate::outcome::{
    AdmissionOutcome, PoolRole, ReplaySink, RequestOutcome, RequestOutcomeFacts, RequestStatus,
    WorkerSample,
};
use crate::workload::{
    AgentRun, ClientSession, TurnDependency, TurnLifecycleEvent, WorkloadFacts, WorkloadSource,
};
use vllm_sim_engine::SimTime;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// Duration of the preparation of a session before the session's start, so that its first request
/// is sent on time.
const PREPARE_LEAD: Duration = Duration::from_millis(20);

struct OnlineRun {
    options: OnlineReplayOptions,
    targets: Vec<Arc<TargetServer>>,
    writer: PromptTextWriter,
    epoch: Instant,
    pacer: RequestSendTimer,
    number: AtomicU64,
    /// Sent requests without a reported result, by request number.
    unreported: Mutex<BTreeMap<u64, SentRequest>>,
    /// Send and end times of each session's turns, for workloads with dependencies.
    reached: Mutex<BTreeMap<u64, SessionTimes>>,
    facts: WorkloadFacts,
    /// Semaphore for limiting the sessions in flight or, in an open loop with dependencies, the
    /// requests in flight.
    places: Arc<Semaphore>,
    moved: Notify,
    out: mpsc::Sender<SessionTaskEvent>,
}

/// Send and end times of the turns of one session, in turn order.
#[derive(Default)]
struct SessionTimes {
    sent: Vec<Instant>,
    over: Vec<Instant>,
    /// End time of the session; turns that were not sent count as sent and ended at this time.
    ended: Option<Instant>,
}

impl SessionTimes {
    /// Returns the time at which the awaited turn of a dependency was sent or ended; `None` if the
    /// turn was not sent or has not ended yet.
    fn dependency_time(&self, dependency: &TurnDependency) -> Option<Instant> {
        let times = match dependency.trigger {
            TurnLifecycleEvent::Completion => &self.over,
            TurnLifecycleEvent::Dispatch => &self.sent,
        };
        times.get(dependency.turn as usize).copied().or(self.ended)
    }
}

enum SessionTaskEvent {
    Over(Box<FinishedRequest>),
    SessionOver,
}

#[derive(Clone)]
struct SentRequest {
    /// Numbers and times of the request, as far as they are known.
    facts: RequestOutcomeFacts,
    session_id: Option<Arc<str>>,
    request_id: Option<Arc<str>>,
}

struct FinishedRequest {
    request: SentRequest,
    tokens: Vec<SimTime>,
    result: GenerationResponse,
}

impl FinishedRequest {
    /// Creates the record of a request that was still in flight when the replay ended at `ended`.
    fn unfinished(mut request: SentRequest, ended: SimTime) -> Self {
        (request.facts.status, request.facts.ended) = (RequestStatus::Incomplete, ended);
        Self { request, tokens: Vec::new(), result: GenerationResponse::default() }
    }
}

#[expect(clippy::disallowed_methods, reason = "latencies of real servers are measured")]
pub(super) fn real_time_now() -> Instant {
    Instant::now()
}

impl OnlineRun {
    fn replay_time(&self) -> SimTime {
        self.to_replay_time(real_time_now())
    }

    fn to_replay_time(&self, instant: Instant) -> SimTime {
        SimTime::ZERO + instant.saturating_duration_since(self.epoch)
    }

    /// Returns the facts about a request that was due at `due` and sent at `sent`.
    fn sent_request_facts(&self, due: Instant, sent: Instant) -> RequestOutcomeFacts {
        let (arrival, sent) = (self.to_replay_time(due), Some(self.to_replay_time(sent)));
        RequestOutcomeFacts { arrival, sent, dispatched: sent, ranks: 1, ..Default::default() }
    }

    fn divide_by_speedup(&self, nanos: u64) -> Duration {
        Duration::from_nanos((nanos as f64 / self.options.speedup) as u64)
    }

    fn target_index_of_turn(&self, session: u64, turn: usize) -> usize {
        let places = self.options.placement.as_ref();
        let place = places.and_then(|places| places.get(session as usize)?.get(turn).copied());
        let place = place.map_or(session as usize, |place| place as usize);
        place % self.targets.len()
    }

    /// Returns the time at which the replay over HTTP must stop.
    fn deadline(&self) -> tokio::time::Instant {
        let limit = self.options.limit;
        let limit = limit.unwrap_or(Duration::from_secs(u32::MAX.into()));
        tokio::time::Instant::from_std(self.epoch) + limit
    }

    /// Reports the requests in flight at the end of the run, `end`.
    fn report_unfinished(&self, sink: &mut dyn ReplaySink, end: SimTime) {
        for request in std::mem::take(&mut *self.unreported.lock()).into_values() {
            report_finished_request(sink, &FinishedRequest::unfinished(request, end));
        }
    }

    /// Returns a function that reports each finished request. The function also keeps the maximum
    /// delay of a request in `latest`, and reports the number of finished requests to `progress`.
    fn finished_reporter<'a>(
        &'a self,
        latest: &'a mut Duration,
        progress: &'a mut dyn FnMut(u64),
    ) -> impl FnMut(&mut dyn ReplaySink, &FinishedRequest) + 'a {
        let mut ended = 0;
        move |sink, done| {
            ended += 1;
            *latest = self.report_finished(sink, done).max(*latest);
            progress(ended);
        }
    }

    /// Reports a request that has ended, and returns how much later than scheduled the request was
    /// sent.
    fn report_finished(&self, sink: &mut dyn ReplaySink, done: &FinishedRequest) -> Duration {
        let facts = &done.request.facts;
        self.unreported.lock().remove(&facts.number);
        report_finished_request(sink, done);
        facts.sent.unwrap_or_default().duration_since(facts.arrival)
    }

    fn sample_targets(&self, sink: &mut dyn ReplaySink) {
        let at = self.replay_time();
        for (worker, target) in self.targets.iter().enumerate() {
            let (running, waiting) = target.running_and_waiting_requests();
            sink.on_worker_sample(&WorkerSample {
                at,
                worker: worker as u32,
                pool: PoolRole::Serving,
                running,
                waiting,
                kv_usage: 0.0,
                kv_blocks: 0,
                preemptions: 0,
            });
        }
    }
}

pub(super) async fn send_workload(
    source: &mut dyn WorkloadSource,
    options: &OnlineReplayOptions,
    sink: &mut dyn ReplaySink,
    progress: &mut dyn FnMut(u64),
) -> Result<OnlineReplaySummary, OnlineReplayError> {
    let mut targets = Vec::new();
    for url in &options.targets {
        targets.push(Arc::new(TargetServer::parse_server_url("--target", url, options)?));
    }
    let none = || OnlineReplayError::Option("no --target is given".to_owned());
    let first = targets.first().ok_or_else(none)?;
    let model = match &options.model {
        Some(model) => model.clone(),
        None => first.first_model_name(options.timeout).await?,
    };
    let tokenizer = match &options.tokenizer {
        Some(url) => Arc::new(TargetServer::parse_server_url("--target", url, options)?),
        None => first.clone(),
    };
    let writer =
        PromptTextWriter::calibrate_prompt_token_counts(&tokenizer, model, options).await?;
    let (out, mut news) = mpsc::channel(1024);
    let places = options.concurrency.unwrap_or(options.max_in_flight);
    let shared = Arc::new(OnlineRun {
        options: options.clone(),
        targets,
        writer,
        epoch: real_time_now(),
        pacer: RequestSendTimer::start_timer_thread().map_err(OnlineReplayError::Runtime)?,
        number: AtomicU64::new(0),
        unreported: Mutex::default(),
        reached: Mutex::new(BTreeMap::new()),
        facts: source.facts(),
        places: Arc::new(Semaphore::new(places.min(options.max_in_flight) as usize)),
        moved: Notify::new(),
        out,
    });
    let mut feed = SessionStarter { next: source.next_session()?, ..SessionStarter::default() };
    let (mut in_flight, mut latest) = (0u64, Duration::ZERO);
    let mut report = shared.finished_reporter(&mut latest, progress);
    let mut sample_timer = tokio::time::interval(SAMPLE_INTERVAL);
    sample_timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let deadline = shared.deadline();
    while feed.next.is_some() || in_flight > 0 {
        tokio::select! {
            Some(news) = news.recv() => match news {
                SessionTaskEvent::SessionOver => in_flight -= 1,
                SessionTaskEvent::Over(done) => report(sink, &done),
            },
            () = tokio::time::sleep_until(deadline) => break,
            _ = sample_timer.tick() => shared.sample_targets(sink),
            place = feed.wait_until_next_due(&shared), if feed.next.is_some() => {
                if let Some(session) = feed.next.take() {
                    feed.start_session(&shared, session, place);
                    in_flight += 1;
                }
                feed.next = source.next_session()?;
            }
        }
    }
    // At the deadline, requests that ended before it may still wait in the channel.
    while let Ok(news) = news.try_recv() {
        if let SessionTaskEvent::Over(done) = news {
            report(sink, &done);
        }
    }
    drop(report);
    let wall = shared.replay_time();
    shared.report_unfinished(sink, wall);
    Ok(OnlineReplaySummary {
        requests: feed.requests,
        wall: wall.duration_since(SimTime::ZERO),
        latest,
        held_up: feed.held_up,
    })
}

#[derive(Default)]
struct SessionStarter {
    next: Option<ClientSession>,
    sessions: u64,
    requests: u64,
    held_up: u64,
    timer: Option<oneshot::Receiver<()>>,
    is_held_up: bool,
    /// Last started agent run of a closed loop, with the permit that the run's sessions share.
    run: Option<(AgentRun, SessionPermit)>,
}

/// Permit of a session in flight, which the sessions of an agent run share.
type SessionPermit = Arc<OwnedSemaphorePermit>;

impl SessionStarter {
    /// Waits for a session permit and for the start time of the next session (less
    /// [`PREPARE_LEAD`]).
    ///
    /// Cancel safe.
    async fn wait_until_next_due(&mut self, shared: &OnlineRun) -> Option<SessionPermit> {
        let is_open = shared.options.concurrency.is_none();
        if let Some(session) = self.next.as_ref().filter(|_| is_open) {
            let start = shared.epoch + shared.divide_by_speedup(session.start.as_nanos());
            if self.timer.is_none() {
                let early = start.checked_sub(PREPARE_LEAD).unwrap_or(start);
                self.timer = shared.pacer.timer_receiver_at_instant(early);
            }
        }
        if let Some(timer) = &mut self.timer {
            let _ = timer.await;
            self.timer = None;
        }
        if is_open && shared.facts.has_dependencies {
            return None;
        }
        let run = self.next.as_ref().and_then(|next| next.play.clone());
        let run = run.filter(|_| shared.facts.has_agent_runs && !is_open);
        if let Some((last, place)) = &self.run
            && run.as_ref() == Some(last)
        {
            return Some(Arc::clone(place));
        }
        self.run = None;
        let place = match Arc::clone(&shared.places).try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                self.is_held_up = is_open;
                // The semaphore is never closed.
                Arc::clone(&shared.places).acquire_owned().await.ok()?
            }
        };
        let place = Arc::new(place);
        self.run = run.map(|run| (run, Arc::clone(&place)));
        Some(place)
    }

    fn start_session(
        &mut self,
        shared: &Arc<OnlineRun>,
        session: ClientSession,
        place: Option<SessionPermit>,
    ) {
        self.timer = None;
        self.held_up += u64::from(std::mem::take(&mut self.is_held_up));
        let number = self.sessions;
        self.sessions += 1;
        self.requests += session.turns.len() as u64;
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            send_session_turns(&shared, number, session).await;
            drop(place);
            // The receiver is gone after the end of the run.
            let _ = shared.out.send(SessionTaskEvent::SessionOver).await;
        });
    }
}

/// Sends the turns of a session one after another; a failed turn ends the session.
async fn send_session_turns(shared: &OnlineRun, number: u64, session: ClientSession) {
    let is_open = shared.options.concurrency.is_none();
    let mut planned = match is_open {
        true => shared.epoch + shared.divide_by_speedup(session.start.as_nanos()),
        false => real_time_now(),
    };
    let mut history = ChatHistory::default();
    let follows = session.turns.len() > 1;
    for (n, turn) in session.turns.iter().enumerate() {
        if n > 0 {
            planned = real_time_now() + shared.divide_by_speedup(turn.delay_ns);
        }
        for dependency in &turn.after {
            planned = planned.max(
                wait_for_dependency(shared, dependency).await
                    + shared.divide_by_speedup(dependency.delay_ns),
            );
        }
        let which = shared.target_index_of_turn(number, n);
        let target = &shared.targets[which];
        let body = shared.writer.generation_request_body(turn, &mut history, follows).await;
        shared.pacer.sleep_until(planned).await;
        // The semaphore is never closed.
        let place = match is_open && shared.facts.has_dependencies {
            true => shared.places.acquire().await.ok(),
            false => None,
        };
        let order = shared.number.fetch_add(1, Ordering::Relaxed);
        update_turn_times(shared, number, |times| times.sent.push(real_time_now()));
        let gateway = shared.options.identity.as_ref();
        let identity = TurnIdentityHeaders {
            gateway: gateway.map(|names| (names, number, n as u32)),
            session_id: session.id.as_deref(),
        };
        let sent = real_time_now();
        // A closed loop sends as soon as possible, so the latency clock starts at the send.
        let due = if is_open { planned.min(sent) } else { sent };
        let request = SentRequest {
            facts: RequestOutcomeFacts {
                session: number,
                turn: n as u32,
                number: order,
                worker: Some(which as u32),
                requested: turn.output,
                ..shared.sent_request_facts(due, sent)
            },
            session_id: session.id.clone(),
            request_id: turn.request_id.clone(),
        };
        shared.unreported.lock().insert(order, request.clone());
        let result = target
            .send_generation_request(&body, identity, turn.output, shared.options.timeout)
            .await;
        drop(place);
        let failed = result.error.is_some();
        history.push_response(&result);
        let done = finished_request(shared, request, result);
        update_turn_times(shared, number, |times| times.over.push(real_time_now()));
        if shared.out.send(SessionTaskEvent::Over(Box::new(done))).await.is_err() || failed {
            break;
        }
    }
    // Releases sessions that depend on turns that were not sent.
    update_turn_times(shared, number, |times| times.ended = Some(real_time_now()));
}

fn finished_request(
    shared: &OnlineRun,
    mut request: SentRequest,
    result: GenerationResponse,
) -> FinishedRequest {
    let tokens: Vec<SimTime> = result.tokens.iter().map(|at| shared.to_replay_time(*at)).collect();
    let last = tokens.last().copied();
    request.facts = RequestOutcomeFacts {
        status: match result.error {
            Some(_) => RequestStatus::Failed,
            None => RequestStatus::Completed,
        },
        ended: last.filter(|_| result.error.is_none()).unwrap_or_else(|| shared.replay_time()),
        input: result.prompt_tokens.unwrap_or(0),
        output: tokens.len() as u32,
        first: tokens.first().copied(),
        second: tokens.get(1).copied(),
        last,
        ..request.facts
    };
    FinishedRequest { request, tokens, result }
}

fn update_turn_times(shared: &OnlineRun, session: u64, change: impl FnOnce(&mut SessionTimes)) {
    if !shared.facts.has_dependencies {
        return;
    }
    change(shared.reached.lock().entry(session).or_default());
    shared.moved.notify_waiters();
}

async fn wait_for_dependency(shared: &OnlineRun, dependency: &TurnDependency) -> Instant {
    loop {
        let moved = shared.moved.notified();
        tokio::pin!(moved);
        // Registers before the check, so that no notification is missed.
        moved.as_mut().enable();
        let at = {
            let reached = shared.reached.lock();
            let times = reached.get(&dependency.session);
            times.and_then(|times| times.dependency_time(dependency))
        };
        if let Some(at) = at {
            return at;
        }
        moved.await;
    }
}

fn report_finished_request(sink: &mut dyn ReplaySink, done: &FinishedRequest) {
    let (SentRequest { facts, session_id, request_id }, tokens) = (&done.request, &done.tokens);
    let admission = AdmissionOutcome {
        at: facts.sent.unwrap_or_default(),
        reused: done.result.reply.cached.unwrap_or(0).min(facts.input),
        host: None,
        again: false,
        pool: PoolRole::Serving,
    };
    let is_complete = facts.status == RequestStatus::Completed;
    for pair in tokens.windows(2).filter(|_| is_complete) {
        sink.on_token_gaps(pair[1].as_nanos().saturating_sub(pair[0].as_nanos()), 1);
    }
    sink.on_request_finished(&RequestOutcome {
        facts: *facts,
        session_id: session_id.as_ref(),
        request_id: request_id.as_ref(),
        tokens: if sink.wants_token_times() { tokens } else { &[] },
        admissions: &[admission],
        error: done.result.error.as_deref(),
        reply: Some(&done.result.reply),
        ..RequestOutcome::default()
    });
}
