//! Records of an engine's sequences, the progress that replies see, and the observers of both.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;

use atomic_waker::AtomicWaker;

use crate::{
    EngineStats, PlannedKvBlocks, SchedulerEvent, SeqId, Sequence, SequenceEndReason, SimTime,
};

/// Expected finish reason of a sequence, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlannedFinishReason {
    /// The sequence ends with the end-of-sequence token or by a stop condition.
    Stop,
    /// The sequence ends at the request's token limit.
    Length,
    /// The sequence ends with tool calls; only llm-d's metrics count it separately.
    ToolCalls,
    /// The sequence ends after its prefill for a remote decode engine; only llm-d's metrics count
    /// it separately.
    RemoteDecode,
}

/// Identifies the prefill server that holds the KV blocks of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvSourceServer {
    /// ZeroMQ endpoint of the prefill server.
    pub endpoint: String,
    /// Request id on the prefill server.
    pub request: String,
    /// Id of the engine that holds the KV blocks; empty if the request names none.
    pub engine_id: String,
}

/// Attributes of a request's trace span, in addition to lengths and times.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestSpanAttributes {
    /// Headers `traceparent` and `tracestate` of the request (W3C trace context).
    pub headers: Option<(Box<str>, Option<Box<str>>)>,
    /// Sampling temperature of the request.
    pub temperature: f64,
    /// Sampling parameter `top_p` of the request.
    pub top_p: f64,
    /// Number of choices that the request asks for (`n`).
    pub n: u32,
}

/// Counters over the sequences of one request, which metrics report when the last sequence ends.
#[derive(Debug)]
pub struct ParentRequestCounters {
    /// Number of choices that the request asks for (`n`).
    pub n: u32,
    /// Number of the request's unfinished sequences.
    pub open: AtomicU32,
    /// Number of output tokens of the request's longest sequence so far.
    pub longest: AtomicU32,
}

impl ParentRequestCounters {
    /// Creates the counters of a request with `choices_per_prompt` choices per prompt and
    /// `sequence_count` sequences.
    pub fn new(choices_per_prompt: u32, sequence_count: u32) -> Self {
        Self { n: choices_per_prompt, open: sequence_count.into(), longest: 0.into() }
    }
}

/// A live sequence as observers see it: state and times on the engine's clock, and details of its
/// request that metrics, traces and KV events need and scheduling does not.
#[derive(Debug)]
pub struct SequenceRecord {
    /// Request id shown to the client, such as `chatcmpl-…`.
    pub request_id: Arc<str>,
    /// Arrival time of the request, on the engine's clock.
    pub arrived: SimTime,
    /// Maximum number of output tokens of the request.
    pub max_tokens: u32,
    /// Whether the client set `max_tokens` in the request.
    pub limited: bool,
    /// Finish reason expected for the sequence.
    pub finish: PlannedFinishReason,
    /// LoRA adapter of the request, if any.
    pub lora: Option<Arc<str>>,
    /// Counters of the request for metrics, shared by its sequences; `None` if the request has one
    /// sequence.
    pub parent: Option<Arc<ParentRequestCounters>>,
    /// The prefill server that keeps the prompt's KV blocks until this engine has read them, if
    /// any.
    pub kv_source: Option<Arc<KvSourceServer>>,
    /// Attributes of the request's trace span; `None` without tracing.
    pub span: Option<Arc<RequestSpanAttributes>>,
    /// Hashes of the prompt's KV blocks, if KV events are published.
    pub plan: Option<Arc<PlannedKvBlocks>>,
    pub(super) id: SeqId,
    /// Number of prompt tokens of the sequence.
    pub prompt: u32,
    /// Number of the sequence's output tokens sent to the client so far.
    pub output: u32,
    /// Arrival time of the sequence in the scheduler's queue, after the simulated API server.
    pub queued: SimTime,
    /// Time of the sequence's first admission to the running batch.
    pub scheduled: SimTime,
    /// Time when the sequence's first output token was sent to the client.
    pub first: SimTime,
    /// Time when the sequence's latest output token was sent to the client.
    pub last: SimTime,
    /// Number of the sequence's prompt tokens found in the prefix cache.
    pub cached: u32,
    /// Number of the sequence's prompt tokens loaded from another engine.
    pub external: u32,
    /// Number of preemptions of the sequence.
    pub preemptions: u32,
    /// Whether the sequence is running; false while it waits, also after a preemption.
    pub running: bool,
    /// Whether the sequence's next output tokens come from a step that verified draft tokens.
    pub(super) drafted: bool,
    /// Whether the sequence may reuse KV blocks of the prefix cache.
    pub looked_up: bool,
    pub(super) progress: Arc<SharedSequenceProgress>,
}

impl SequenceRecord {
    /// Creates the record of a sequence before its submission. Details of the request other than its
    /// id and arrival have defaults.
    pub fn new(request_id: Arc<str>, arrived: SimTime, sequence: &Sequence) -> Self {
        Self {
            request_id,
            arrived,
            max_tokens: sequence.output,
            limited: true,
            finish: PlannedFinishReason::Length,
            lora: None,
            parent: None,
            kv_source: None,
            span: None,
            plan: None,
            id: sequence.id,
            prompt: sequence.prompt,
            output: 0,
            queued: arrived,
            scheduled: arrived,
            first: arrived,
            last: arrived,
            cached: 0,
            external: 0,
            preemptions: 0,
            running: false,
            drafted: false,
            looked_up: !sequence.skip_cache_read,
            progress: Arc::new(SharedSequenceProgress::progress_of_waiting_sequence(arrived)),
        }
    }

    /// Sets id and times of a sequence that is submitted at `now`.
    pub(super) fn record_submission(&mut self, id: SeqId, now: SimTime) {
        self.id = id;
        (self.queued, self.scheduled, self.first, self.last) = (now, now, now, now);
    }

    /// Returns whether a part of the prompt's KV blocks could not be loaded from another engine or
    /// from host memory.
    pub fn has_failed_kv_load(&self) -> bool {
        self.progress.has_failed_kv_load()
    }

    pub(super) fn apply_event(&mut self, at: SimTime, event: &SchedulerEvent) {
        match event {
            SchedulerEvent::Scheduled { cached, external, .. } => {
                self.scheduled = at;
                self.running = true;
                (self.cached, self.external) = (*cached, *external);
                self.progress.record_admission(at, *cached, *external);
            }
            SchedulerEvent::Tokens { n, .. } | SchedulerEvent::Decoded { n, .. } => {
                let first = self.output == 0;
                if first {
                    self.first = at;
                }
                if std::mem::take(&mut self.drafted) && *n > 1 {
                    self.progress.record_multi_token_release(self.output, self.output + n);
                }
                self.output += n;
                self.last = at;
                self.progress.record_released_output_tokens(at, self.output, first);
            }
            SchedulerEvent::Drafts { proposed, accepted, .. } => {
                self.drafted = true;
                self.progress.record_verified_drafts(*proposed, *accepted);
            }
            SchedulerEvent::Preempted { .. } => {
                self.preemptions += 1;
                self.running = false;
            }
            SchedulerEvent::Resumed { .. } => self.running = true,
            SchedulerEvent::Leased { blocks, .. } => self.progress.record_leased_blocks(blocks),
            SchedulerEvent::LoadFailed { .. } => self.progress.record_failed_kv_load(),
            _ => {}
        }
    }
}

type VerifiedDrafts = Mutex<Vec<(u8, u8)>>;

/// Ranges `start..end` of output token indices; each range has the tokens that one step emitted.
type TokenGroupRanges = Mutex<VecDeque<(u32, u32)>>;

/// Progress of a sequence, shared between the engine and the reply.
///
/// The engine adds to the counter and wakes the reply, which writes all tokens between those sent
/// and those released. No queue holds single tokens, so a slow client costs one integer.
///
/// The layout is in declaration order: the fields written per token share a cache line, since two
/// cores exchange it.
#[derive(Debug)]
#[repr(C)]
pub struct SharedSequenceProgress {
    waker: AtomicWaker,
    released: AtomicU32,
    state: AtomicU8,
    lost_load: AtomicBool,
    last: AtomicU64,
    /// Groups of output tokens that one step emitted, in order: accepted draft tokens and the token
    /// before them. Only set for sequences with draft tokens.
    groups: OnceLock<Box<TokenGroupRanges>>,
    first: AtomicU64,
    scheduled: AtomicU64,
    /// Arrival time of the request, on the engine's clock.
    pub arrived: SimTime,
    cached: AtomicU32,
    external: AtomicU32,
    drafts: OnceLock<Box<VerifiedDrafts>>,
    leased: OnceLock<Box<[u32]>>,
}

/// State of a sequence in its life cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceState {
    /// The sequence waits in the engine's queue.
    Waiting,
    /// The sequence is in the engine's running batch.
    Running,
    /// The sequence has finished, or was aborted or cancelled.
    Ended(SequenceEndReason),
}

const STATE_WAITING: u8 = 0;
const STATE_RUNNING: u8 = 1;
const STATE_FINISHED: u8 = 2;
const STATE_ABORTED: u8 = 3;
const STATE_CANCELLED: u8 = 4;
const STATE_BELOW_HIT_THRESHOLD: u8 = 5;
const STATE_FAILED: u8 = 6;

impl SharedSequenceProgress {
    /// Creates the progress of a sequence that waits in the queue.
    pub fn progress_of_waiting_sequence(arrival_time: SimTime) -> Self {
        Self {
            released: AtomicU32::new(0),
            state: AtomicU8::new(STATE_WAITING),
            cached: AtomicU32::new(0),
            external: AtomicU32::new(0),
            scheduled: AtomicU64::new(0),
            first: AtomicU64::new(0),
            last: AtomicU64::new(0),
            arrived: arrival_time,
            waker: AtomicWaker::new(),
            groups: OnceLock::new(),
            drafts: OnceLock::new(),
            leased: OnceLock::new(),
            lost_load: AtomicBool::new(false),
        }
    }

    /// Returns the number of the sequence's output tokens sent to the client so far.
    pub fn released_output_tokens(&self) -> u32 {
        self.released.load(Ordering::Acquire)
    }

    /// Returns the life-cycle state of the sequence. Read the state before
    /// [`Self::released_output_tokens`] to see every token of an ended sequence.
    pub fn state(&self) -> SequenceState {
        match self.state.load(Ordering::Acquire) {
            STATE_WAITING => SequenceState::Waiting,
            STATE_RUNNING => SequenceState::Running,
            STATE_FINISHED => SequenceState::Ended(SequenceEndReason::Finished),
            STATE_ABORTED => SequenceState::Ended(SequenceEndReason::Aborted),
            STATE_CANCELLED => SequenceState::Ended(SequenceEndReason::Cancelled),
            STATE_FAILED => SequenceState::Ended(SequenceEndReason::Failed),
            _ => SequenceState::Ended(SequenceEndReason::Threshold),
        }
    }

    /// Returns the number of prompt tokens found in the prefix cache; valid once the sequence runs.
    pub fn cached_prompt_tokens(&self) -> u32 {
        self.cached.load(Ordering::Acquire)
    }

    /// Returns the number of prompt tokens loaded from another engine or from host memory; valid
    /// once the sequence runs.
    pub fn external_computed_tokens(&self) -> u32 {
        self.external.load(Ordering::Acquire)
    }

    /// Returns how many of the `prompt` prompt tokens the engine did not have to compute. If tokens
    /// were loaded from another engine or from host memory, the last prompt token still counts as
    /// computed.
    pub fn reused_prompt_tokens(&self, prompt: u32) -> u32 {
        let cached = self.cached_prompt_tokens();
        let others = prompt.saturating_sub(1).saturating_sub(cached);
        cached + self.external_computed_tokens().min(others)
    }

    /// Returns the times of the sequence's admission, of its first token and of its latest token.
    pub fn admission_first_latest_token_times(&self) -> [SimTime; 3] {
        [&self.scheduled, &self.first, &self.last]
            .map(|at| SimTime::from_nanos(at.load(Ordering::Acquire)))
    }

    /// Returns the ids of the KV blocks kept for another engine to read; valid once the sequence
    /// has ended.
    pub fn leased_block_ids(&self) -> Option<&[u32]> {
        self.leased.get().map(AsRef::as_ref)
    }

    /// Returns the index after the last token of an output chunk that starts at token `from_token`
    /// and has at least `min_tokens` tokens. Tokens of the same step stay in one chunk. The index
    /// may be greater than [`Self::released_output_tokens`].
    pub fn output_chunk_end(&self, from_token: u32, min_tokens: u32) -> u32 {
        let wanted = from_token.saturating_add(min_tokens);
        let Some(groups) = self.groups.get() else {
            return wanted;
        };
        // A panic of another holder of this lock leaves no partial change.
        let mut groups = groups.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while groups.front().is_some_and(|group| group.1 <= from_token) {
            groups.pop_front();
        }
        let cut = groups.iter().find(|group| group.0 < wanted && wanted < group.1);
        cut.map_or(wanted, |group| group.1)
    }

    /// Returns whether some steps emitted several output tokens, by accepted draft tokens.
    pub fn has_tokens_released_together(&self) -> bool {
        self.groups.get().is_some()
    }

    fn record_multi_token_release(&self, from: u32, to: u32) {
        let groups = self.groups.get_or_init(Box::default);
        let mut groups = groups.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        groups.push_back((from, to));
    }

    /// Returns the numbers of proposed and of accepted draft tokens of the sequence, for each step
    /// that verified any.
    pub fn proposed_and_accepted_draft_counts(&self) -> Vec<(u8, u8)> {
        let Some(drafts) = self.drafts.get() else {
            return Vec::new();
        };
        let drafts = drafts.lock();
        drafts.unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn record_verified_drafts(&self, proposed: u32, accepted: u32) {
        let byte = |n: u32| u8::try_from(n).unwrap_or(u8::MAX);
        let drafts = self.drafts.get_or_init(Box::default).lock();
        let mut drafts = drafts.unwrap_or_else(std::sync::PoisonError::into_inner);
        drafts.push((byte(proposed), byte(accepted)));
    }

    /// Registers the waker of the reply's task, to be woken at the next change of the sequence's
    /// progress. Check the progress again after the call.
    pub fn register_waker(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    fn record_admission(&self, at: SimTime, cached: u32, external: u32) {
        self.cached.store(cached, Ordering::Relaxed);
        self.external.store(external, Ordering::Relaxed);
        self.scheduled.store(at.as_nanos(), Ordering::Relaxed);
        self.state.store(STATE_RUNNING, Ordering::Release);
    }

    fn record_released_output_tokens(&self, at: SimTime, total: u32, first: bool) {
        if first {
            self.first.store(at.as_nanos(), Ordering::Relaxed);
        }
        self.last.store(at.as_nanos(), Ordering::Relaxed);
        self.released.store(total, Ordering::Release);
    }

    pub(super) fn record_sequence_end(&self, end: SequenceEndReason) {
        let state = match end {
            SequenceEndReason::Finished => STATE_FINISHED,
            SequenceEndReason::Aborted => STATE_ABORTED,
            SequenceEndReason::Cancelled => STATE_CANCELLED,
            SequenceEndReason::Threshold => STATE_BELOW_HIT_THRESHOLD,
            SequenceEndReason::Failed => STATE_FAILED,
        };
        self.state.store(state, Ordering::Release);
    }

    /// Returns whether some of the prompt's KV blocks could not be loaded from another engine or
    /// from host memory.
    pub fn has_failed_kv_load(&self) -> bool {
        self.lost_load.load(Ordering::Acquire)
    }

    fn record_failed_kv_load(&self) {
        self.lost_load.store(true, Ordering::Release);
    }

    fn record_leased_blocks(&self, blocks: &[u32]) {
        // A sequence ends only once.
        let _ = self.leased.set(blocks.into());
    }

    pub(super) fn wake_reply_task(&self) {
        self.waker.wake();
    }
}

/// Receiver of all events of an engine, called on the thread that runs the engine. Implementations
/// must not block.
pub trait EngineObserver: Send {
    /// Handles the submission of a sequence; called before any other event of the sequence.
    fn on_sequence_queued(&mut self, _record: &SequenceRecord) {}
    /// Handles an event of a sequence, after the update of its record. For token events, `since` is
    /// the time of the sequence's previous output.
    fn on_sequence_event(
        &mut self,
        _at: SimTime,
        _event: &SchedulerEvent,
        _record: &SequenceRecord,
        _since: SimTime,
    ) {
    }
    /// Handles the submission of a sequence with a LoRA adapter, after [`Self::on_sequence_queued`].
    fn on_adapter_queued(&mut self, _adapter: &Arc<str>) {}
    /// Handles an event of a sequence with a LoRA adapter, after [`Self::on_sequence_event`].
    fn on_adapter_event(
        &mut self,
        _adapter: &Arc<str>,
        _event: &SchedulerEvent,
        _record: &SequenceRecord,
    ) {
    }
    /// Handles an engine event without a sequence, such as a KV cache change or a step.
    fn on_engine_event(&mut self, _at: SimTime, _event: &SchedulerEvent) {}
    /// Handles a change of the engine's gauges.
    fn on_engine_stats(&mut self, _stats: &EngineStats) {}
    /// Handles a rejected request for a LoRA adapter, reported by
    /// [`LiveEngine::report_refused_lora`](super::LiveEngine::report_refused_lora).
    fn on_lora_refused(&mut self, _lora: &Arc<str>) {}
    /// Handles the load of a LoRA adapter outside of requests, reported by
    /// [`LiveEngine::report_loaded_lora`](super::LiveEngine::report_loaded_lora).
    fn on_lora_loaded(&mut self, _lora: &Arc<str>) {}
    /// Handles a restart of the engine, which forgets all LoRA adapters; reported by
    /// [`LiveEngine::report_loras_cleared_by_restart`](super::LiveEngine::report_loras_cleared_by_restart).
    fn on_loras_cleared(&mut self) {}
    /// Returns whether the observer needs [`EngineStats::empty_token_slots`].
    fn needs_empty_token_slots(&self) -> bool {
        false
    }
    /// Handles the end of a batch of events, when no further events are pending.
    fn on_events_delivered(&mut self) {}
}

/// Forwards all engine events to several observers, in order.
pub struct EngineObservers(pub Vec<Box<dyn EngineObserver>>);

impl EngineObserver for EngineObservers {
    fn on_sequence_queued(&mut self, record: &SequenceRecord) {
        self.0.iter_mut().for_each(|o| o.on_sequence_queued(record));
        if let Some(adapter) = &record.lora {
            self.0.iter_mut().for_each(|o| o.on_adapter_queued(adapter));
        }
    }

    fn on_sequence_event(
        &mut self,
        at: SimTime,
        event: &SchedulerEvent,
        record: &SequenceRecord,
        since: SimTime,
    ) {
        self.0.iter_mut().for_each(|o| o.on_sequence_event(at, event, record, since));
        if let Some(adapter) = &record.lora {
            self.0.iter_mut().for_each(|o| o.on_adapter_event(adapter, event, record));
        }
    }

    fn on_engine_event(&mut self, at: SimTime, event: &SchedulerEvent) {
        self.0.iter_mut().for_each(|o| o.on_engine_event(at, event));
    }

    fn on_engine_stats(&mut self, stats: &EngineStats) {
        self.0.iter_mut().for_each(|o| o.on_engine_stats(stats));
    }

    fn on_lora_refused(&mut self, lora: &Arc<str>) {
        self.0.iter_mut().for_each(|o| o.on_lora_refused(lora));
    }

    fn on_lora_loaded(&mut self, lora: &Arc<str>) {
        self.0.iter_mut().for_each(|o| o.on_lora_loaded(lora));
    }

    fn on_loras_cleared(&mut self) {
        self.0.iter_mut().for_each(|o| o.on_loras_cleared());
    }

    fn needs_empty_token_slots(&self) -> bool {
        self.0.iter().any(|o| o.needs_empty_token_slots())
    }

    fn on_events_delivered(&mut self) {
        self.0.iter_mut().for_each(|o| o.on_events_delivered());
    }
}
