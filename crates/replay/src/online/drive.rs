use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};

use super::exchange::Exchange;
use super::options::{OnlineError, OnlineOptions, OnlineSummary};
use super::prompt::{ChatHistory, PromptWriter};
use super::target::Target;
use crate::outcome::{Admission, Outcome, Sink, Status, WorkerSample};
use crate::workload::{Dependency, Session, Turn, WorkloadSource};
use vllm_sim_engine::SimTime;
use vllm_sim_engine::driver::wake_promptly;

/// How often what is in flight is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// How early tokio's timer is asked to wake, so that it is not late.
const COARSE: Duration = Duration::from_millis(2);

/// What tasks share.
struct Shared {
    options: OnlineOptions,
    targets: Vec<Arc<Target>>,
    writer: PromptWriter,
    epoch: Instant,
    /// Requests sent so far.
    number: AtomicU64,
    /// Per session: turns sent, turns over.
    reached: Mutex<BTreeMap<u64, (u32, u32)>>,
    moved: Notify,
    out: mpsc::Sender<SessionEvent>,
}

/// From a session's task.
enum SessionEvent {
    Over(Box<FinishedRequest>),
    SessionOver,
}

/// A request, over.
struct FinishedRequest {
    session: u64,
    session_id: Option<Arc<str>>,
    turn: u32,
    request_id: Option<Arc<str>>,
    number: u64,
    sent: SimTime,
    ended: SimTime,
    target: u32,
    input: u32,
    requested: u32,
    tokens: Vec<SimTime>,
    result: Exchange,
}

#[expect(
    clippy::disallowed_methods,
    reason = "latencies of real servers are measured"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Waits until an instant. tokio's timer counts whole milliseconds, which a server's scheduler
/// would notice: the rest is slept on a thread. May be given up and begun again.
#[expect(
    clippy::disallowed_methods,
    reason = "real servers get their requests in real time"
)]
async fn exactly(instant: Instant) {
    if let Some(early) = instant.checked_sub(COARSE)
        && early > now()
    {
        tokio::time::sleep_until(early.into()).await;
    }
    if instant > now() {
        // It fails only when the run is over.
        let sleep = move || {
            wake_promptly();
            std::thread::sleep(instant.saturating_duration_since(now()));
        };
        let _ = tokio::task::spawn_blocking(sleep).await;
    }
}

impl Shared {
    fn time(&self) -> SimTime {
        self.at(now())
    }

    fn at(&self, instant: Instant) -> SimTime {
        SimTime::ZERO + instant.saturating_duration_since(self.epoch)
    }

    /// Nanoseconds of the workload as real time.
    fn scaled(&self, nanos: u64) -> Duration {
        Duration::from_nanos((nanos as f64 / self.options.speedup) as u64)
    }

    fn sample(&self, sink: &mut dyn Sink) {
        let at = self.time();
        for (worker, target) in self.targets.iter().enumerate() {
            let (running, waiting) = target.in_flight();
            sink.sample(&WorkerSample {
                at,
                worker: worker as u32,
                prefill_pool: false,
                running,
                waiting,
                kv_usage: 0.0,
                preemptions: 0,
            });
        }
    }
}

pub(super) async fn drive(
    source: &mut dyn WorkloadSource,
    options: &OnlineOptions,
    sink: &mut dyn Sink,
    progress: &mut dyn FnMut(u64),
) -> Result<OnlineSummary, OnlineError> {
    let mut targets = Vec::new();
    for url in &options.targets {
        targets.push(Arc::new(Target::parse("--target", url, options)?));
    }
    let none = || OnlineError::Option("no --target is named".to_owned());
    let first = targets.first().ok_or_else(none)?;
    let model = match &options.model {
        Some(model) => model.clone(),
        None => first.model(options.timeout).await?,
    };
    let tokenizer = match &options.tokenizer {
        Some(url) => Arc::new(Target::parse("--target", url, options)?),
        None => first.clone(),
    };
    let writer = PromptWriter::prepare(&tokenizer, model, options).await?;
    let (out, mut news) = mpsc::channel(1024);
    let places = options.concurrency.unwrap_or(options.max_in_flight);
    let places = Arc::new(Semaphore::new(places.min(options.max_in_flight) as usize));
    let shared = Arc::new(Shared {
        options: options.clone(),
        targets,
        writer,
        epoch: now(),
        number: AtomicU64::new(0),
        reached: Mutex::new(BTreeMap::new()),
        moved: Notify::new(),
        out,
    });
    let mut feed = SessionFeed {
        next: source.next()?,
        sessions: 0,
        requests: 0,
        latest: Duration::ZERO,
    };
    let (mut ended, mut in_flight) = (0u64, 0u64);
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let limit = options
        .limit
        .unwrap_or(Duration::from_secs(u32::MAX.into()));
    let deadline = tokio::time::Instant::from_std(shared.epoch) + limit;
    while feed.next.is_some() || in_flight > 0 {
        tokio::select! {
            Some(news) = news.recv() => match news {
                SessionEvent::SessionOver => in_flight -= 1,
                SessionEvent::Over(done) => {
                    ended += 1;
                    report(sink, &done);
                    progress(ended);
                }
            },
            () = tokio::time::sleep_until(deadline) => break,
            _ = look.tick() => shared.sample(sink),
            place = feed.due(&shared, &places), if feed.next.is_some() => {
                if let Some(session) = feed.next.take() {
                    feed.start(&shared, session, place);
                    in_flight += 1;
                }
                feed.next = source.next()?;
            }
        }
    }
    Ok(OnlineSummary {
        requests: feed.requests,
        wall: shared.time().since(SimTime::ZERO),
        latest: feed.latest,
    })
}

/// Sessions as their time comes.
struct SessionFeed {
    next: Option<Session>,
    sessions: u64,
    requests: u64,
    latest: Duration,
}

impl SessionFeed {
    /// Waits until the next session may start: for its time, and for a place.
    async fn due(&self, shared: &Shared, places: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        if shared.options.concurrency.is_none()
            && let Some(session) = &self.next
        {
            let start = shared.epoch + shared.scaled(session.start.nanos());
            exactly(start).await;
        }
        // It is never closed.
        Arc::clone(places).acquire_owned().await.ok()
    }

    fn start(
        &mut self,
        shared: &Arc<Shared>,
        session: Session,
        place: Option<OwnedSemaphorePermit>,
    ) {
        if shared.options.concurrency.is_none() && session.after.is_empty() {
            let planned = SimTime::ZERO + shared.scaled(session.start.nanos());
            self.latest = self.latest.max(shared.time().since(planned));
        }
        let number = self.sessions;
        self.sessions += 1;
        self.requests += session.turns.len() as u64;
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            play(&shared, number, session).await;
            drop(place);
            // Nobody listens once the run is over.
            let _ = shared.out.send(SessionEvent::SessionOver).await;
        });
    }
}

/// Plays the turns of a session one after the other; a failure ends it.
async fn play(shared: &Shared, number: u64, session: Session) {
    for dependency in &session.after {
        wait_for(shared, dependency).await;
    }
    let which = number as usize % shared.targets.len();
    let target = &shared.targets[which];
    let mut history = ChatHistory::default();
    let follows = session.turns.len() > 1;
    for (n, turn) in session.turns.iter().enumerate() {
        if n > 0 {
            exactly(now() + shared.scaled(turn.delay_ns)).await;
        }
        let body = shared.writer.body(turn, &mut history, follows).await;
        let order = shared.number.fetch_add(1, Ordering::Relaxed);
        reached(shared, number, |turns| turns.0 = n as u32 + 1);
        let identity = shared.options.identity.as_ref();
        let identity = identity.map(|identity| (identity, number, n as u32));
        let sent = shared.time();
        let result = target
            .send(&body, identity, turn.output, shared.options.timeout)
            .await;
        let failed = result.error.is_some();
        history.remember(&result);
        let done = done(
            shared,
            (number, n as u32, order, which),
            &session,
            turn,
            sent,
            result,
        );
        reached(shared, number, |turns| turns.1 = n as u32 + 1);
        if shared
            .out
            .send(SessionEvent::Over(Box::new(done)))
            .await
            .is_err()
            || failed
        {
            break;
        }
    }
    // What was not sent can be waited for no longer.
    reached(shared, number, |turns| *turns = (u32::MAX, u32::MAX));
}

fn done(
    shared: &Shared,
    (number, n, order, which): (u64, u32, u64, usize),
    session: &Session,
    turn: &Turn,
    sent: SimTime,
    result: Exchange,
) -> FinishedRequest {
    FinishedRequest {
        session: number,
        session_id: session.id.clone(),
        turn: n,
        request_id: turn.request_id.clone(),
        number: order,
        sent,
        ended: shared.time(),
        target: which as u32,
        input: result.prompt_tokens.unwrap_or(0),
        requested: turn.output,
        tokens: result.tokens.iter().map(|at| shared.at(*at)).collect(),
        result,
    }
}

fn reached(shared: &Shared, session: u64, change: impl FnOnce(&mut (u32, u32))) {
    change(shared.reached.lock().entry(session).or_default());
    shared.moved.notify_waiters();
}

async fn wait_for(shared: &Shared, dependency: &Dependency) {
    loop {
        let moved = shared.moved.notified();
        tokio::pin!(moved);
        // Listening begins before looking, so that nothing is missed in between.
        moved.as_mut().enable();
        let turns = shared.reached.lock().get(&dependency.session).copied();
        let (sent, over) = turns.unwrap_or((0, 0));
        let turns = if dependency.completion { over } else { sent };
        if turns > dependency.turn {
            break;
        }
        moved.await;
    }
    tokio::time::sleep(shared.scaled(dependency.delay_ns)).await;
}

fn report(sink: &mut dyn Sink, done: &FinishedRequest) {
    let tokens = &done.tokens;
    let admission = Admission {
        at: done.sent,
        reused: done.result.reply.cached.unwrap_or(0).min(done.input),
        again: false,
        prefill_pool: false,
    };
    let error = done.result.error.as_deref();
    for pair in tokens.windows(2).filter(|_| error.is_none()) {
        sink.gaps(pair[1].nanos().saturating_sub(pair[0].nanos()), 1);
    }
    sink.request(&Outcome {
        session: done.session,
        session_id: done.session_id.as_ref(),
        turn: done.turn,
        request_id: done.request_id.as_ref(),
        number: done.number,
        arrival: done.sent,
        dispatched: Some(done.sent),
        ended: tokens
            .last()
            .copied()
            .filter(|_| error.is_none())
            .unwrap_or(done.ended),
        status: match error {
            Some(_) => Status::Failed,
            None => Status::Completed,
        },
        input: done.input,
        requested: done.requested,
        output: tokens.len() as u32,
        first: tokens.first().copied(),
        second: tokens.get(1).copied(),
        last: tokens.last().copied(),
        tokens: if sink.wants_tokens() { tokens } else { &[] },
        worker: Some(done.target),
        prefill_worker: None,
        admissions: &[admission],
        preemptions: &[],
        handoff: None,
        overlap: 0,
        best_overlap: None,
        block_size: 0,
        ranks: 1,
        decode_first: false,
        queued_ns: 0,
        error,
        reply: Some(&done.result.reply),
    });
}
