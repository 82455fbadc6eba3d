use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::progress::Progress;
use crate::{BlockPlan, Event, SeqId, Sequence, SimTime};

/// A sequence to play, with what observers learn about it.
#[derive(Debug)]
pub struct Submission {
    /// What the engine plays; its id is set by the driver.
    pub sequence: Sequence,
    /// When the request arrived.
    pub arrived: SimTime,
    /// What observers learn about it.
    pub request: RequestInfo,
}

/// How a sequence will end if nothing interferes; what it counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlannedFinish {
    /// By itself or by a stop condition.
    Stop,
    /// By its limit.
    Length,
    /// With calls of tools (counted apart by llm-d only).
    ToolCalls,
    /// Prefilled for somebody else (counted apart by llm-d only).
    RemoteDecode,
}

/// What observers learn about a sequence, besides its lengths and instants.
#[derive(Debug, Clone)]
pub struct RequestInfo {
    /// The request's id, as the client knows it.
    pub id: Arc<str>,
    /// Its token limit.
    pub max_tokens: u32,
    /// Whether the limit was asked for.
    pub limited: bool,
    /// How it is planned to end.
    pub finish: PlannedFinish,
    /// Its adapter.
    pub lora: Option<Arc<str>>,
    /// The request it is one of several sequences of.
    pub parent: Option<Arc<ParentRequest>>,
    /// Who keeps the blocks of its prompt until they are read.
    pub kv_source: Option<Arc<KvSource>>,
    /// What its span shows; `None`: nobody traces.
    pub span: Option<Arc<SpanAttributes>>,
    /// Names of its blocks, when somebody follows them.
    pub plan: Option<Arc<BlockPlan>>,
}

/// Where blocks of a prompt lie that another server computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvSource {
    /// Its ZeroMQ endpoint.
    pub endpoint: String,
    /// What the request is called there.
    pub request: String,
}

/// What the span of a request shows besides lengths and instants.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanAttributes {
    /// `traceparent` and `tracestate` of the request (W3C trace context).
    pub headers: Option<(Box<str>, Option<Box<str>>)>,
    /// `temperature` of the request.
    pub temperature: f64,
    /// `top_p` of the request.
    pub top_p: f64,
    /// Choices asked for.
    pub n: u32,
}

/// A request of several sequences, counted when the last one ends.
#[derive(Debug)]
pub struct ParentRequest {
    /// Choices asked for.
    pub n: u32,
    /// Sequences that have not ended.
    pub open: AtomicU32,
    /// Output tokens of the longest sequence so far.
    pub longest: AtomicU32,
}

impl ParentRequest {
    /// A request of `n` choices of each prompt, and so many sequences.
    pub fn new(n: u32, sequences: u32) -> Self {
        Self {
            n,
            open: sequences.into(),
            longest: 0.into(),
        }
    }
}

/// What is known about a live sequence.
#[derive(Debug)]
pub struct SequenceRecord {
    /// Its id in the engine.
    pub(super) id: SeqId,
    /// Prompt tokens.
    pub prompt: u32,
    /// Released tokens.
    pub output: u32,
    /// When the request arrived.
    pub arrived: SimTime,
    /// When it entered the engine.
    pub queued: SimTime,
    /// When it left the queue.
    pub scheduled: SimTime,
    /// When its first token came out.
    pub first: SimTime,
    /// When its latest token came out.
    pub last: SimTime,
    /// Prompt tokens from the prefix cache.
    pub cached: u32,
    /// Prompt tokens from another engine.
    pub external: u32,
    /// How often it was preempted.
    pub preemptions: u32,
    /// Whether it runs; else it waits, for the first time or preempted.
    pub running: bool,
    /// Whether drafts were verified with the tokens that come next.
    pub(super) drafted: bool,
    /// Whether it may read the prefix cache.
    pub looked_up: bool,
    /// What came with it.
    pub request: RequestInfo,
    pub(super) progress: Arc<Progress>,
}

impl SequenceRecord {
    /// Whether its prompt was to be loaded, and was not, or not all of it.
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
