use std::collections::BTreeSet;
use std::sync::Arc;

use crate::engine::sched::Admitted;
use crate::engine::sched::sglang::Sglang;
use crate::engine::sched::vllm::Vllm;
use crate::engine::{End, Event, Outbox, Scheduler, SeqId, Sequence};
use crate::sim::SimTime;

use super::DynamoError;
use super::args::{Engine, Setup};

/// What became of one request.
pub(super) struct Played {
    pub session: usize,
    pub turn: usize,
    pub worker: usize,
    pub arrival: SimTime,
    pub tokens: Vec<SimTime>,
    pub admissions: Vec<Admitted>,
    /// Places in the list of all preemptions.
    pub preemptions: Vec<u64>,
    pub end: Option<(SimTime, End)>,
}

enum Worker {
    Vllm(Box<Vllm>),
    Sglang(Box<Sglang>),
}

impl Worker {
    fn engine(&mut self) -> &mut dyn Scheduler {
        match self {
            Self::Vllm(engine) => engine.as_mut(),
            Self::Sglang(engine) => engine.as_mut(),
        }
    }

    fn next_wakeup(&self) -> Option<SimTime> {
        match self {
            Self::Vllm(engine) => engine.next_wakeup(),
            Self::Sglang(engine) => engine.next_wakeup(),
        }
    }

    fn take_admissions(&mut self) -> Vec<Admitted> {
        match self {
            Self::Vllm(engine) => engine.take_admissions(),
            Self::Sglang(engine) => engine.take_admissions(),
        }
    }
}

/// Time, workers and the requests on their way.
pub(super) struct Replay<'a> {
    setup: &'a Setup,
    workers: Vec<Worker>,
    /// Turns that are due, in the order they are sent: time, session, turn.
    ready: BTreeSet<(SimTime, usize, usize)>,
    /// The next session of a closed loop.
    next_session: usize,
    next_worker: usize,
    preemptions: u64,
    played: Vec<Played>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(setup: &'a Setup) -> Result<Self, DynamoError> {
        let worker = || -> Result<Worker, DynamoError> {
            Ok(match &setup.engine {
                Engine::Vllm(config) => Worker::Vllm(Box::new(Vllm::new((**config).clone())?)),
                Engine::Sglang(config) => {
                    Worker::Sglang(Box::new(Sglang::new((**config).clone())?))
                }
            })
        };
        let mut replay = Self {
            setup,
            workers: (0..setup.workers)
                .map(|_| worker())
                .collect::<Result<_, _>>()?,
            ready: BTreeSet::new(),
            next_session: 0,
            next_worker: 0,
            preemptions: 0,
            played: Vec::new(),
        };
        match setup.concurrency {
            Some(slots) => (0..slots.min(setup.sessions.len()))
                .for_each(|_| replay.open_session(SimTime::ZERO)),
            None => {
                let starts = setup.sessions.iter().enumerate();
                replay.ready = starts.map(|(i, s)| (millis(s.start_ms), i, 0)).collect();
            }
        }
        Ok(replay)
    }

    pub(super) fn run(mut self) -> Vec<Played> {
        let mut out = Outbox::new();
        let limit = self.setup.max_ms.map_or(SimTime::MAX, millis);
        loop {
            let wakeups = self.workers.iter().filter_map(Worker::next_wakeup);
            let arrival = self.ready.first().map(|&(at, _, _)| at);
            let Some(now) = wakeups.chain(arrival).min().filter(|&now| now <= limit) else {
                return self.played;
            };
            // At one instant: passes end, then requests are sent, then passes start (those wait
            // for the next turn of this loop, see the schedulers' `advance`).
            for i in 0..self.workers.len() {
                if self.workers[i].next_wakeup().is_some_and(|due| due <= now) {
                    self.workers[i].engine().advance(now, &mut out);
                    self.collect(i, &mut out);
                }
            }
            while let Some((at, session, turn)) = self.ready.first().copied() {
                if at > now {
                    break;
                }
                self.ready.pop_first();
                self.send(at, now, session, turn, &mut out);
            }
        }
    }

    /// Starts the next session of a closed loop, if there is one.
    fn open_session(&mut self, now: SimTime) {
        if self.next_session < self.setup.sessions.len() {
            self.ready.insert((now, self.next_session, 0));
            self.next_session += 1;
        }
    }

    fn send(&mut self, at: SimTime, now: SimTime, session: usize, turn: usize, out: &mut Outbox) {
        let spec = &self.setup.sessions[session].turns[turn];
        let worker = self.next_worker;
        self.next_worker = (worker + 1) % self.workers.len();
        let id = SeqId(self.played.len() as u64);
        self.played.push(Played {
            session,
            turn,
            worker,
            arrival: at,
            tokens: Vec::with_capacity(spec.output as usize),
            admissions: Vec::new(),
            preemptions: Vec::new(),
            end: None,
        });
        let seq = Sequence {
            plan: Some(Arc::clone(&spec.plan)),
            ..Sequence::new(id, spec.prompt, spec.output)
        };
        if self.workers[worker].engine().submit(now, seq, out).is_err() {
            self.over(id, now, End::Cancelled);
        }
    }

    fn collect(&mut self, worker: usize, out: &mut Outbox) {
        for admitted in self.workers[worker].take_admissions() {
            self.played[admitted.id.0 as usize]
                .admissions
                .push(admitted);
        }
        for (at, event) in out.drain(..) {
            match event {
                Event::Tokens { id, n } => {
                    let tokens = &mut self.played[id.0 as usize].tokens;
                    tokens.extend(std::iter::repeat_n(at, n as usize));
                }
                Event::Preempted { id } => {
                    self.played[id.0 as usize]
                        .preemptions
                        .push(self.preemptions);
                    self.preemptions += 1;
                }
                Event::Ended { id, end } => self.over(id, at, end),
                _ => {}
            }
        }
    }

    /// A request is over: its session goes on, or makes room.
    fn over(&mut self, id: SeqId, at: SimTime, end: End) {
        let played = &mut self.played[id.0 as usize];
        played.end = Some((at, end));
        let (session, turn) = (played.session, played.turn + 1);
        match self.setup.sessions[session].turns.get(turn) {
            Some(next) => {
                let due = at + millis(next.delay_ms).since(SimTime::ZERO);
                self.ready.insert((due, session, turn));
            }
            None if self.setup.concurrency.is_some() => self.open_session(at),
            None => {}
        }
    }
}

/// Milliseconds as an instant, to the nearest nanosecond.
fn millis(ms: f64) -> SimTime {
    SimTime::from_nanos((ms * 1e6).round() as u64)
}
