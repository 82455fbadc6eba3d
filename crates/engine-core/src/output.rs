//! The thread that writes: it has everything that is being answered, and the output sockets.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::encode::{self, EventType, FinishReason, Output, PrefillStats, WaveEdge};
use super::logprobs::{RequestedLogprobs, Source};
use super::parts::Parts;
use super::step::{Step, StepEvent};
use super::waves::Waves;
use vllm_sim_engine::{End, SimTime};
use vllm_sim_service::Reply;
use vllm_sim_service::generate::{Reason, StopReason};

/// What an engine core says when it dies.
pub(crate) const DEAD: &[u8] = b"ENGINE_CORE_DEAD";

/// What the writing thread hears, in the order in which it happens.
pub(crate) enum Item {
    /// A step of the engine.
    Step(Step),
    /// A request is being submitted: its steps may come before it does.
    Announced(Arc<str>),
    /// It was taken.
    Admitted(Box<Active>),
    /// It was answered at once: refused, or pooled.
    Answered {
        client: usize,
        at: SimTime,
        output: Box<Output>,
    },
    /// Its front end does not want it any more.
    Abort(Vec<Arc<str>>),
    /// The answer to a utility call, ready to be sent.
    Answer { client: usize, message: Vec<u8> },
    /// The end: by itself, or because something broke.
    Stop { dead: bool },
}

/// A request that is being answered.
pub(crate) struct Active {
    pub(crate) id: Arc<str>,
    pub(crate) client: usize,
    pub(crate) reply: Reply,
    /// This engine's end of sequence, and that of the front end.
    pub(crate) eos: (Option<u32>, Option<u32>),
    logprobs: Option<Logprobs>,
    events: Vec<(EventType, SimTime)>,
    prefill: Option<PrefillStats>,
    /// Its latest output: of which step, and the how manieth there.
    latest: (u64, usize),
}

/// What a request wants to know of its tokens.
pub(crate) struct Logprobs {
    pub(crate) asked: RequestedLogprobs,
    pub(crate) source: Source,
    /// Until it was told of them.
    pub(crate) prompt: Option<Vec<u32>>,
}

impl Active {
    pub(crate) fn new(
        id: Arc<str>,
        client: usize,
        reply: Reply,
        eos: (Option<u32>, Option<u32>),
        logprobs: Option<Logprobs>,
    ) -> Self {
        Self {
            id,
            client,
            reply,
            eos,
            logprobs,
            events: Vec::new(),
            prefill: None,
            latest: (0, 0),
        }
    }

    /// Writes down what the next output shows besides its tokens.
    fn note(&mut self, event: &StepEvent) {
        match event {
            StepEvent::Scheduled {
                queued,
                scheduled,
                prefill,
            } => {
                self.events.push((EventType::Queued, *queued));
                self.events.push((EventType::Scheduled, *scheduled));
                self.prefill = Some(*prefill);
            }
            StepEvent::Preempted(at) => self.events.push((EventType::Preempted, *at)),
            StepEvent::Resumed(at) => self.events.push((EventType::Scheduled, *at)),
            StepEvent::Tokens(_) | StepEvent::Ended(_) => {}
        }
    }

    /// Appends what came out to its output.
    fn extend(&mut self, output: &mut Output, event: &StepEvent) {
        output.events.append(&mut self.events);
        output.prefill = output.prefill.or(self.prefill.take());
        let Some(choice) = self.reply.choices.first_mut() else {
            return;
        };
        match event {
            StepEvent::Tokens(n) => {
                let (from, before) = (choice.sent as usize, output.tokens.len());
                for _ in 0..*n {
                    let Some(token) = choice.script.next(&mut choice.cursor) else {
                        break;
                    };
                    choice.sent += 1;
                    output.tokens.push(token.id);
                }
                if let Some(logprobs) = &mut self.logprobs {
                    let (asked, source) = (&logprobs.asked, logprobs.source);
                    if let Some(prompt) = logprobs.prompt.take() {
                        output.prompt_logprobs = asked.prompt_rows(source, &prompt);
                    }
                    let new = &output.tokens[before..];
                    let rows = asked.rows(source, &choice.script, from, new);
                    match (&mut output.logprobs, rows) {
                        (Some(all), Some(rows)) => all.append(rows),
                        (none, rows) => *none = rows,
                    }
                }
            }
            StepEvent::Ended(End::Finished | End::Threshold) => {
                let finish = &choice.script.finish;
                output.finish = Some(match finish.reason {
                    Reason::Length => FinishReason::Length,
                    Reason::Stop => FinishReason::Stop,
                });
                let (own, theirs) = self.eos;
                match (&finish.stop, output.tokens.last_mut()) {
                    (Some(StopReason::Token(id)), _) if Some(*id) != theirs => {
                        output.stop = Some(*id);
                    }
                    (None, Some(last)) if finish.reason == Reason::Stop && own == Some(*last) => {
                        *last = theirs.unwrap_or(*last);
                    }
                    _ => {}
                }
            }
            StepEvent::Ended(End::Aborted | End::Cancelled) => {
                output.finish = Some(FinishReason::Abort);
            }
            _ => {}
        }
    }
}

/// Sends what the engine does.
pub(crate) struct Sender {
    rank: u32,
    /// One socket for each front end.
    sockets: Vec<zmq::Socket>,
    coordinator: Option<zmq::Socket>,
    waves: Option<Arc<Waves>>,
    is_gone: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Whether this rank is in a wave.
    busy: bool,
    active: HashMap<Arc<str>, Active>,
    /// Requests that are being submitted.
    announced: HashSet<Arc<str>>,
    /// Of these, those that were given up meanwhile.
    given_up: HashSet<Arc<str>>,
    /// Steps that wait for one of them.
    held: VecDeque<Step>,
    /// Steps so far.
    step: u64,
}

impl Sender {
    pub(crate) fn new(
        parts: &Parts,
        sockets: Vec<zmq::Socket>,
        coordinator: Option<zmq::Socket>,
    ) -> Self {
        Self {
            rank: parts.rank,
            sockets,
            coordinator,
            waves: parts.waves.clone(),
            is_gone: parts.is_gone.clone(),
            busy: false,
            active: HashMap::new(),
            announced: HashSet::new(),
            given_up: HashSet::new(),
            held: VecDeque::new(),
            step: 0,
        }
    }

    /// Sends until the end is said.
    pub(crate) fn run(mut self, queue: &Receiver<Item>) {
        while let Ok(item) = queue.recv() {
            match item {
                Item::Step(step) => {
                    self.held.push_back(step);
                    self.catch_up();
                }
                Item::Announced(id) => {
                    self.announced.insert(id);
                }
                Item::Admitted(active) => {
                    self.announced.remove(&active.id);
                    let wanted = !self.given_up.remove(&active.id);
                    if active.client >= self.sockets.len() {
                        tracing::warn!(client = active.client, "no front end has this index");
                    } else if wanted {
                        self.active.insert(active.id.clone(), *active);
                    }
                    self.catch_up();
                }
                Item::Answered { client, at, output } => {
                    self.announced.remove(&output.id);
                    if !self.given_up.remove(&output.id) {
                        self.send(client, encode::outputs(self.rank, at, &[*output], None));
                    }
                    self.catch_up();
                }
                Item::Abort(ids) => {
                    for id in ids {
                        // With its reply goes the sequence.
                        if self.active.remove(&id).is_none() && self.announced.contains(&id) {
                            self.given_up.insert(id);
                        }
                    }
                }
                Item::Answer { client, message } => self.send(client, message),
                Item::Stop { dead } => {
                    if dead {
                        for socket in &self.sockets {
                            let _ = socket.send(DEAD, zmq::DONTWAIT);
                        }
                    }
                    return;
                }
            }
            self.note_wave();
        }
    }

    /// Tells the coordinator when a wave begins or is complete with what this rank has to do.
    fn note_wave(&mut self) {
        let Some(waves) = &self.waves else {
            return;
        };
        let busy = !self.active.is_empty() || !self.announced.is_empty();
        if busy == std::mem::replace(&mut self.busy, busy) {
            return;
        }
        let edge = match busy {
            true => waves.begin(self.rank).map(WaveEdge::Begun),
            false => waves.end(self.rank).map(WaveEdge::Complete),
        };
        if let (Some(edge), Some(coordinator)) = (edge, &self.coordinator) {
            let _ = coordinator.send(encode::wave(self.rank, edge), zmq::DONTWAIT);
        }
    }

    /// Sends the steps whose requests are known.
    fn catch_up(&mut self) {
        while let Some(step) = self.held.front() {
            let unknown = |(id, _): &(Arc<str>, StepEvent)| self.announced.contains(id);
            if !self.announced.is_empty() && step.events.iter().any(unknown) {
                return;
            }
            if let Some(step) = self.held.pop_front() {
                self.send_step(step);
            }
        }
    }

    /// One message for each front end that something came out for; the statistics go with the
    /// first one, or alone.
    fn send_step(&mut self, step: Step) {
        self.step += 1;
        let mut outputs: Vec<Vec<Output>> = vec![Vec::new(); self.sockets.len()];
        for (id, event) in step.events {
            // Nobody waits for what its front end gave up.
            let Some(active) = self.active.get_mut(&id) else {
                continue;
            };
            active.note(&event);
            let ended = matches!(event, StepEvent::Ended(_));
            if !ended && !matches!(event, StepEvent::Tokens(_)) {
                continue;
            }
            let Some(outputs) = outputs.get_mut(active.client) else {
                continue;
            };
            if active.latest.0 != self.step {
                active.latest = (self.step, outputs.len());
                outputs.push(Output::new(id.clone()));
            }
            let index = active.latest.1;
            active.extend(&mut outputs[index], &event);
            if ended {
                self.active.remove(&id);
            }
        }
        let mut stats = step.stats;
        if let (Some(stats), Some(waves)) = (&mut stats, &self.waves) {
            stats.wave = waves.current();
        }
        if let (Some(coordinator), Some(stats)) = (&self.coordinator, &stats) {
            let message = encode::outputs(self.rank, step.at, &[], Some(stats));
            let _ = coordinator.send(message, zmq::DONTWAIT);
        }
        let mut alone = true;
        for (client, outputs) in outputs.iter().enumerate() {
            if !outputs.is_empty() {
                alone = false;
                let stats = stats.take();
                let message = encode::outputs(self.rank, step.at, outputs, stats.as_deref());
                self.send(client, message);
            }
        }
        if let (true, Some(stats)) = (alone, stats) {
            let message = encode::outputs(self.rank, step.at, &[], Some(&stats));
            self.send(0, message);
        }
    }

    fn send(&self, client: usize, message: Vec<u8>) {
        if (self.is_gone)() {
            return;
        }
        let Some(socket) = self.sockets.get(client) else {
            tracing::warn!(client, "no front end has this index");
            return;
        };
        if let Err(error) = socket.send(message, 0) {
            tracing::warn!(client, %error, "cannot send to the front end");
        }
    }
}
