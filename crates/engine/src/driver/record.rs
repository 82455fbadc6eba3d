use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::progress::Progress;
use crate::{BlockPlan, Event, SeqId, Sequence, SimTime};

/// Combines a sequence to run with the details of its request.
#[derive(Debug)]
pub struct Submission {
    /// Sequence to run; the driver assigns its id.
    pub sequence: Sequence,
    /// Arrival of the request.
    pub arrived: SimTime,
    /// Details of the request for metrics, traces and KV events.
    pub request: RequestInfo,
}

/// Expected finish reason of a sequence, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlannedFinish {
    /// Ends by itself or by a stop condition.
    Stop,
    /// Ends at its token limit.
    Length,
    /// Ends with tool calls (counted separately by llm-d only).
    ToolCalls,
    /// Prefilled for a remote decode engine (counted separately by llm-d only).
    RemoteDecode,
}

/// Holds the details of a request that metrics, traces and KV events need and scheduling does not.
#[derive(Debug, Clone)]
pub struct RequestInfo {
    /// Request id shown to the client, such as `chatcmpl-…`.
    pub id: Arc<str>,
    /// Maximum number of output tokens.
    pub max_tokens: u32,
    /// Whether the client set `max_tokens`.
    pub limited: bool,
    /// Expected finish reason.
    pub finish: PlannedFinish,
    /// LoRA adapter.
    pub lora: Option<Arc<str>>,
    /// Counts shared by the sequences of a request; `None` if the request has one sequence.
    pub parent: Option<Arc<ParentRequest>>,
    /// Server with the blocks of the prompt, kept until they are read.
    pub kv_source: Option<Arc<KvSource>>,
    /// Attributes of the span; `None` without tracing.
    pub span: Option<Arc<SpanAttributes>>,
    /// Block plan, if KV events are published.
    pub plan: Option<Arc<BlockPlan>>,
}

/// Identifies the server with the blocks of a prefilled prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvSource {
    /// ZeroMQ endpoint of the server.
    pub endpoint: String,
    /// Request id on the server.
    pub request: String,
}

/// Attributes of a request's span, in addition to lengths and times.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanAttributes {
    /// `traceparent` and `tracestate` of the request (W3C trace context).
    pub headers: Option<(Box<str>, Option<Box<str>>)>,
    /// `temperature` of the request.
    pub temperature: f64,
    /// `top_p` of the request.
    pub top_p: f64,
    /// Requested number of choices.
    pub n: u32,
}

/// Counts the sequences of a request; it is reported when the last one ends.
#[derive(Debug)]
pub struct ParentRequest {
    /// Requested number of choices.
    pub n: u32,
    /// Number of unfinished sequences.
    pub open: AtomicU32,
    /// Output tokens of the longest sequence so far.
    pub longest: AtomicU32,
}

impl ParentRequest {
    /// Creates a request with `n` choices per prompt and `sequences` sequences.
    pub fn new(n: u32, sequences: u32) -> Self {
        Self {
            n,
            open: sequences.into(),
            longest: 0.into(),
        }
    }
}

/// Records the state and times of a live sequence.
#[derive(Debug)]
pub struct SequenceRecord {
    pub(super) id: SeqId,
    /// Number of prompt tokens.
    pub prompt: u32,
    /// Number of released tokens.
    pub output: u32,
    /// Arrival of the request.
    pub arrived: SimTime,
    /// Time of the submission.
    pub queued: SimTime,
    /// Time of the first admission.
    pub scheduled: SimTime,
    /// Time of the first token.
    pub first: SimTime,
    /// Time of the latest token.
    pub last: SimTime,
    /// Prompt tokens from the prefix cache.
    pub cached: u32,
    /// Prompt tokens from another engine.
    pub external: u32,
    /// Number of preemptions.
    pub preemptions: u32,
    /// Whether the sequence is running; false while it waits, also after a preemption.
    pub running: bool,
    /// Whether the next released tokens come from a step that verified draft tokens.
    pub(super) drafted: bool,
    /// Whether the sequence may read the prefix cache.
    pub looked_up: bool,
    /// Details of the request for metrics, traces and KV events.
    pub request: RequestInfo,
    pub(super) progress: Arc<Progress>,
}

impl SequenceRecord {
    /// Returns whether the prompt could not be loaded completely.
    pub fn lost_load(&self) -> bool {
        self.progress.lost_load()
    }

    pub(super) fn apply(&mut self, at: SimTime, event: &Event) {
        match event {
            Event::Scheduled {
                cached, external, ..
            } => {
                self.scheduled = at;
                self.running = true;
                (self.cached, self.external) = (*cached, *external);
                self.progress.schedule(at, *cached, *external);
            }
            Event::Tokens { n, .. } => {
                let first = self.output == 0;
                if first {
                    self.first = at;
                }
                if std::mem::take(&mut self.drafted) && *n > 1 {
                    self.progress.group(self.output, self.output + n);
                }
                self.output += n;
                self.last = at;
                self.progress.release(at, self.output, first);
            }
            Event::Drafts {
                proposed, accepted, ..
            } => {
                self.drafted = true;
                self.progress.verify(*proposed, *accepted);
            }
            Event::Preempted { .. } => {
                self.preemptions += 1;
                self.running = false;
            }
            Event::Resumed { .. } => self.running = true,
            Event::Leased { blocks, .. } => self.progress.lease(blocks),
            Event::LoadFailed { .. } => self.progress.lose_load(),
            _ => {}
        }
    }
}
