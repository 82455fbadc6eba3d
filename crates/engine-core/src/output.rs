//! The output thread of an engine core: owns the running requests and the output sockets.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::control::lock_unpoisoned;
use super::encode::{
    self, DataParallelWaveChange, EngineCoreEventType, EngineCoreOutput, FinishReason, PrefillStats,
};
use super::logprobs::{RequestedLogprobs, SimulatedLogprobSource};
use super::output_queue::FrontEndOutputQueue;
use super::parts::EngineCoreDependencies;
use super::request_ids::ReservedRequestId;
use super::stats::SchedulerStats;
use super::step::{EngineStepEvent, EngineStepEvents};
use super::waves::DataParallelWaves;
use rmpv::Value;
use vllm_sim_engine::{SequenceEndReason, SimTime};
use vllm_sim_service::Reply;
use vllm_sim_service::generate::{OutputEndReason, StopReason};
use vllm_sim_wire::VllmVersion;

/// Message to the front ends when an engine core fails (vLLM's `ENGINE_CORE_DEAD`).
pub(crate) const ENGINE_CORE_DEAD: &[u8] = b"ENGINE_CORE_DEAD";

/// Minimum and maximum time between attempts to send queued messages to a slow front end.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Message to the output thread of an engine core, sent in the order of events.
pub(crate) enum OutputThreadMessage {
    /// The engine produced the events of one step.
    Step(EngineStepEvents),
    /// A request is being submitted to the engine; the engine may report its events before
    /// `Admitted` is sent.
    Announced(Arc<str>),
    /// The engine accepted a submitted request.
    Admitted(Box<ActiveRequest>),
    /// A request ended immediately: it was rejected, or its pooled result is ready.
    Answered { client: usize, at: SimTime, output: Box<EngineCoreOutput> },
    /// The front end aborted the requests with these ids.
    Abort(Vec<Arc<str>>),
    /// The response to a front end's utility call is ready to be sent.
    Answer { client: usize, message: Vec<u8> },
    /// The engine core stops, as requested or because it failed.
    Stop { dead: bool },
}

pub(crate) struct ActiveRequest {
    pub(crate) id: Arc<str>,
    pub(crate) client: usize,
    pub(crate) reply: Reply,
    /// End-of-sequence token ids of this engine's tokenizer and of the front end's.
    pub(crate) eos: (Option<u32>, Option<u32>),
    logprobs: Option<ActiveRequestLogprobs>,
    trace: Option<Arc<Value>>,
    events: Vec<(EngineCoreEventType, SimTime)>,
    prefill: Option<PrefillStats>,
    /// Number of the step with the request's latest output, and the output's index in that step.
    latest: (u64, usize),
    /// Reservation of the request's id, which ends when this guard is dropped.
    pub(crate) reserved: Option<ReservedRequestId>,
}

pub(crate) struct ActiveRequestLogprobs {
    pub(crate) asked: RequestedLogprobs,
    pub(crate) source: SimulatedLogprobSource,
    /// Prompt token ids of the request, kept until the log probabilities of the prompt are sent.
    pub(crate) prompt: Option<Vec<u32>>,
}

impl ActiveRequest {
    pub(crate) fn new(
        id: Arc<str>,
        client: usize,
        reply: Reply,
        eos: (Option<u32>, Option<u32>),
        logprobs: Option<ActiveRequestLogprobs>,
        trace: Option<Arc<Value>>,
    ) -> Self {
        Self {
            id,
            client,
            reply,
            eos,
            logprobs,
            trace,
            events: Vec::new(),
            prefill: None,
            latest: (0, 0),
            reserved: None,
        }
    }

    fn note_event(&mut self, event: &EngineStepEvent) {
        match event {
            EngineStepEvent::Scheduled { queued, scheduled, prefill } => {
                self.events.push((EngineCoreEventType::Queued, *queued));
                self.events.push((EngineCoreEventType::Scheduled, *scheduled));
                self.prefill = Some(*prefill);
            }
            EngineStepEvent::Preempted(at) => {
                self.events.push((EngineCoreEventType::Preempted, *at))
            }
            EngineStepEvent::Resumed(at) => self.events.push((EngineCoreEventType::Scheduled, *at)),
            EngineStepEvent::Tokens(_) | EngineStepEvent::Ended(_) => {}
        }
    }

    fn extend_output(&mut self, output: &mut EngineCoreOutput, event: &EngineStepEvent) {
        output.events.append(&mut self.events);
        output.prefill = output.prefill.or(self.prefill.take());
        output.trace.clone_from(&self.trace);
        let Some(choice) = self.reply.choices.first_mut() else {
            return;
        };
        match event {
            EngineStepEvent::Tokens(n) => {
                let (from, before) = (choice.sent as usize, output.tokens.len());
                let tokens = choice.script.next_tokens(&mut choice.cursor, *n);
                output.tokens.extend(tokens.map(|token| token.id));
                choice.sent += (output.tokens.len() - before) as u32;
                if let Some(logprobs) = &mut self.logprobs {
                    let (asked, source) = (&logprobs.asked, logprobs.source);
                    if let Some(prompt) = logprobs.prompt.take() {
                        output.prompt_logprobs = asked.prompt_logprob_rows(source, &prompt);
                        output.prompt_scores = asked.requested_token_logprobs(source, &prompt);
                    }
                    let new = &output.tokens[before..];
                    let rows = asked.output_logprob_rows(source, &choice.script, from, new);
                    match (&mut output.logprobs, rows) {
                        (Some(all), Some(rows)) => all.append_logprob_rows(rows),
                        (none, rows) => *none = rows,
                    }
                }
            }
            EngineStepEvent::Ended(SequenceEndReason::Finished | SequenceEndReason::Threshold) => {
                let finish = &choice.script.finish;
                output.finish = Some(match finish.reason {
                    OutputEndReason::Length => FinishReason::Length,
                    OutputEndReason::Stop => FinishReason::Stop,
                });
                let (own, theirs) = self.eos;
                match (&finish.stop, output.tokens.last_mut()) {
                    (Some(StopReason::Token(id)), _) if Some(*id) != theirs => {
                        output.stop = Some(*id);
                    }
                    (None, Some(last))
                        if finish.reason == OutputEndReason::Stop && own == Some(*last) =>
                    {
                        *last = theirs.unwrap_or(*last);
                        if let Some(rows) = &mut output.logprobs {
                            rows.set_last_row_token_id(*last);
                        }
                    }
                    _ => {}
                }
            }
            EngineStepEvent::Ended(SequenceEndReason::Aborted | SequenceEndReason::Cancelled) => {
                output.finish = Some(FinishReason::Abort);
            }
            EngineStepEvent::Ended(SequenceEndReason::Failed) => {
                output.finish = Some(FinishReason::Error)
            }
            _ => {}
        }
    }
}

pub(crate) struct OutputSocketThread {
    rank: u32,
    /// Queues of messages to the front ends, one per front end.
    output_queues: Vec<FrontEndOutputQueue>,
    coordinator: Option<zmq::Socket>,
    /// Number of running and waiting sequences in the last message to the coordinator.
    counts: (usize, usize),
    log_stats: bool,
    /// Label of the model weights; `None` for front ends of vLLM 0.32, which do not know this
    /// label.
    weight_version: Option<Arc<Mutex<String>>>,
    waves: Option<Arc<DataParallelWaves>>,
    is_gone: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Whether this data-parallel rank has requests, and thus is in a wave.
    busy: bool,
    active: HashMap<Arc<str>, ActiveRequest>,
    /// Ids of the requests whose submission to the engine has not finished.
    announced: HashSet<Arc<str>>,
    /// Ids of the requests that the front end aborted before their submission to the engine
    /// finished.
    aborted_early: HashSet<Arc<str>>,
    /// The engine steps whose outputs are held back, because they contain an event of a request
    /// that is still being submitted.
    held: VecDeque<EngineStepEvents>,
    step: u64,
    at: SimTime,
}

impl OutputSocketThread {
    pub(crate) fn new(
        parts: &EngineCoreDependencies,
        sockets: Vec<zmq::Socket>,
        coordinator: Option<zmq::Socket>,
    ) -> Self {
        Self {
            rank: parts.rank,
            output_queues: sockets
                .into_iter()
                .enumerate()
                .map(|(client, socket)| FrontEndOutputQueue::new(client, socket))
                .collect(),
            coordinator,
            counts: (0, 0),
            log_stats: !parts.config.metrics.disable_log_stats,
            weight_version: (parts.config.model.vllm_version >= VllmVersion::V033)
                .then(|| parts.weight_version.clone()),
            waves: parts.waves.clone(),
            is_gone: parts.is_gone.clone(),
            busy: false,
            active: HashMap::new(),
            announced: HashSet::new(),
            aborted_early: HashSet::new(),
            held: VecDeque::new(),
            step: 0,
            at: SimTime::ZERO,
        }
    }

    /// Sends the messages of `queue` to the front ends until stopped; returns `false` after a
    /// panic, of which the front ends are notified.
    pub(crate) fn run_until_stopped(mut self, queue: &Receiver<OutputThreadMessage>) -> bool {
        let sent = catch_unwind(AssertUnwindSafe(|| self.send_until_stopped(queue)));
        if sent.is_err() {
            for output_queue in &mut self.output_queues {
                output_queue.send_last_message(Some(ENGINE_CORE_DEAD));
            }
        }
        sent.is_ok()
    }

    fn send_until_stopped(&mut self, queue: &Receiver<OutputThreadMessage>) {
        loop {
            let Some(item) = self.next_item(queue) else {
                return;
            };
            match item {
                OutputThreadMessage::Step(step) => {
                    self.held.push_back(step);
                    self.send_held_steps();
                }
                OutputThreadMessage::Announced(id) => {
                    self.announced.insert(id);
                }
                OutputThreadMessage::Admitted(active) => {
                    self.announced.remove(&active.id);
                    let wanted = !self.aborted_early.remove(&active.id);
                    match self.output_queues.get_mut(active.client) {
                        None => {
                            tracing::warn!(client = active.client, "no front end has this index");
                        }
                        Some(_) if !wanted => {}
                        Some(output_queue) if output_queue.is_output_queue_full() => {
                            output_queue.defer_abort_notifications([active.id.clone()])
                        }
                        Some(_) => {
                            self.active.insert(active.id.clone(), *active);
                        }
                    }
                    self.send_held_steps();
                }
                OutputThreadMessage::Answered { client, at, output } => {
                    self.announced.remove(&output.id);
                    if !self.aborted_early.remove(&output.id) {
                        self.send_outputs(client, at, &[*output], None);
                    }
                    self.send_held_steps();
                }
                OutputThreadMessage::Abort(ids) => {
                    for id in ids {
                        // Dropping the reply aborts the sequence.
                        if self.active.remove(&id).is_none() && self.announced.contains(&id) {
                            self.aborted_early.insert(id);
                        }
                    }
                }
                OutputThreadMessage::Answer { client, message } => {
                    self.send_message(client, message);
                }
                OutputThreadMessage::Stop { dead } => {
                    for output_queue in &mut self.output_queues {
                        output_queue.send_last_message(dead.then_some(ENGINE_CORE_DEAD));
                    }
                    return;
                }
            }
            self.notify_wave_change();
        }
    }

    /// Returns the next item of `queue`. Until there is one, sends queued messages to front ends.
    fn next_item(&mut self, queue: &Receiver<OutputThreadMessage>) -> Option<OutputThreadMessage> {
        let mut pause = Duration::ZERO;
        while self.output_queues.iter().any(FrontEndOutputQueue::has_pending_messages) {
            match queue.recv_timeout(pause) {
                Ok(item) => return Some(item),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let mut moved = false;
            for output_queue in &mut self.output_queues {
                moved |= output_queue.send_queued_messages(MIN_POLL_INTERVAL);
            }
            for client in 0..self.output_queues.len() {
                self.notify_aborted(client);
            }
            pause = match moved {
                true => Duration::ZERO,
                false => (pause * 2).clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL),
            };
        }
        queue.recv().ok()
    }

    /// Notifies the coordinator when a wave of data-parallel ranks starts or ends on this rank.
    fn notify_wave_change(&mut self) {
        let Some(waves) = &self.waves else {
            return;
        };
        let busy = !self.active.is_empty() || !self.announced.is_empty();
        if busy == std::mem::replace(&mut self.busy, busy) {
            return;
        }
        let edge = match busy {
            true => waves.mark_rank_busy(self.rank).map(DataParallelWaveChange::Begun),
            false => waves.mark_rank_idle(self.rank).map(DataParallelWaveChange::Complete),
        };
        if let (Some(edge), Some(coordinator)) = (edge, &self.coordinator) {
            let _ = coordinator.send(encode::encode_wave_change(self.rank, edge), zmq::DONTWAIT);
        }
    }

    /// Sends the outputs of held-back engine steps that no longer wait for a request's submission.
    fn send_held_steps(&mut self) {
        while let Some(step) = self.held.front() {
            let unknown = |(id, _): &(Arc<str>, EngineStepEvent)| self.announced.contains(id);
            if !self.announced.is_empty() && step.events.iter().any(unknown) {
                return;
            }
            if let Some(step) = self.held.pop_front() {
                self.send_step(step);
            }
        }
    }

    /// Sends the outputs of an engine step, one message to each front end with output; scheduler
    /// statistics go to the first front end.
    fn send_step(&mut self, step: EngineStepEvents) {
        self.step += 1;
        self.at = step.at;
        let mut outputs: Vec<Vec<EngineCoreOutput>> = vec![Vec::new(); self.output_queues.len()];
        for (id, event) in step.events {
            // The front end aborted the request.
            let Some(active) = self.active.get_mut(&id) else {
                continue;
            };
            active.note_event(&event);
            let ended = matches!(event, EngineStepEvent::Ended(_));
            if !ended && !matches!(event, EngineStepEvent::Tokens(_)) {
                continue;
            }
            let Some(outputs) = outputs.get_mut(active.client) else {
                continue;
            };
            if active.latest.0 != self.step {
                active.latest = (self.step, outputs.len());
                outputs.push(EngineCoreOutput::empty_output(id.clone()));
            }
            let index = active.latest.1;
            active.extend_output(&mut outputs[index], &event);
            if ended {
                self.active.remove(&id);
            }
        }
        let mut stats = step.stats;
        if let (Some(stats), Some(waves)) = (&mut stats, &self.waves) {
            stats.wave = waves.current_wave();
        }
        if let Some(stats) = &stats {
            self.publish_stats(step.at, stats);
        }
        let mut stats = stats.filter(|_| self.log_stats);
        for (client, outputs) in outputs.iter().enumerate() {
            if !outputs.is_empty() {
                let stats = stats.take();
                self.send_outputs(client, step.at, outputs, stats.as_deref());
            }
        }
        if let Some(stats) = stats {
            self.send_outputs(0, step.at, &[], Some(&stats));
        }
    }

    /// Notifies the coordinator when the number of running or waiting sequences changed.
    fn publish_stats(&mut self, at: SimTime, stats: &SchedulerStats) {
        let counts = (stats.gauges.running, stats.gauges.waiting);
        if let Some(coordinator) = self.coordinator.as_ref().filter(|_| counts != self.counts) {
            self.counts = counts;
            let message = encode::encode_step_outputs(self.rank, at, &[], Some(stats), None);
            let _ = coordinator.send(message, zmq::DONTWAIT);
        }
    }

    /// Sends outputs to a front end; if the front end's message queue is full, aborts all requests
    /// of this front end.
    fn send_outputs(
        &mut self,
        client: usize,
        at: SimTime,
        outputs: &[EngineCoreOutput],
        stats: Option<&SchedulerStats>,
    ) {
        let weights = self.weight_version.as_ref().map(|version| lock_unpoisoned(version).clone());
        let message =
            encode::encode_step_outputs(self.rank, at, outputs, stats, weights.as_deref());
        if self.send_message(client, message) {
            return;
        }
        let Some(output_queue) = self.output_queues.get_mut(client) else {
            return;
        };
        output_queue.defer_abort_notifications(outputs.iter().map(|output| output.id.clone()));
        // Dropping the replies aborts the sequences.
        let gone = self.active.extract_if(|_, active| active.client == client);
        output_queue.defer_abort_notifications(gone.map(|(id, _)| id));
    }

    /// Notifies a front end that requests of it were aborted; returns `false` if the front end is
    /// unknown or its message queue is full.
    fn notify_aborted(&mut self, client: usize) -> bool {
        let (rank, at) = (self.rank, self.at);
        let Some(output_queue) = self.output_queues.get_mut(client) else {
            return false;
        };
        if output_queue.deferred_abort_ids().is_empty() {
            return true;
        }
        if output_queue.is_output_queue_full() {
            return false;
        }
        let ends = output_queue.deferred_abort_ids().iter().map(|id| EngineCoreOutput {
            finish: Some(FinishReason::Abort),
            ..EngineCoreOutput::empty_output(id.clone())
        });
        let ends: Vec<_> = ends.collect();
        let told = output_queue
            .send_or_queue_message(encode::encode_step_outputs(rank, at, &ends, None, None));
        if told {
            output_queue.clear_deferred_abort_ids();
        }
        told
    }

    /// Sends a message to a front end; returns `false` only if the front end's queue is full.
    fn send_message(&mut self, client: usize, message: Vec<u8>) -> bool {
        if (self.is_gone)() {
            return true;
        }
        if client >= self.output_queues.len() {
            tracing::warn!(client, "no front end has this index");
            return true;
        }
        self.notify_aborted(client) && self.output_queues[client].send_or_queue_message(message)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_panic_is_reported_to_front_ends() {
        let context = zmq::Context::new();
        let open = |kind| context.socket(kind).expect("a socket");
        let (front, own) = (open(zmq::PULL), open(zmq::PUSH));
        front.bind("inproc://front").expect("a free name");
        own.connect("inproc://front").expect("it is there");
        let sender = OutputSocketThread {
            rank: 0,
            output_queues: vec![FrontEndOutputQueue::new(0, own)],
            coordinator: None,
            counts: (0, 0),
            log_stats: true,
            weight_version: None,
            waves: None,
            is_gone: Arc::new(|| panic!("on purpose")),
            busy: false,
            active: HashMap::new(),
            announced: HashSet::new(),
            aborted_early: HashSet::new(),
            held: VecDeque::new(),
            step: 0,
            at: SimTime::ZERO,
        };
        let (queue, items) = channel();
        let answer = OutputThreadMessage::Answer { client: 0, message: vec![0xc0] };
        assert!(queue.send(answer).is_ok());
        assert!(!sender.run_until_stopped(&items));
        assert_eq!(front.recv_bytes(0).as_deref(), Ok(ENGINE_CORE_DEAD));
    }
}
