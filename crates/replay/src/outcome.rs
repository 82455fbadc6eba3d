//! What came of it: one record per request, and what the pools looked like over time.

use std::sync::Arc;

use vllm_sim_engine::SimTime;

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// All tokens came.
    Completed,
    /// Nothing could serve it.
    Rejected,
    /// The time limit came first.
    Incomplete,
    /// The server answered an error (online only).
    Failed,
}

/// One try of an engine to run a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admission {
    /// When.
    pub at: SimTime,
    /// Tokens found in the cache; after a preemption output may be among them.
    pub reused: u32,
    /// Of these, tokens found in the memory of the host; `None`: there is none of the mocker's.
    pub host: Option<u32>,
    /// After a preemption.
    pub again: bool,
    /// On a prefill worker of a split pool.
    pub prefill_pool: bool,
}

impl Admission {
    /// Of a first try, where there is a tier in the memory of the host: tokens that were on the GPU, and
    /// there.
    pub(super) fn tiers(&self) -> Option<(u32, u32)> {
        let host = self.host.filter(|_| !self.again)?;
        Some((self.reused - host, host))
    }
}

/// One request, over. Slices are lent for the time of the call.
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'a> {
    /// Number of its session, in the order of the source.
    pub session: u64,
    /// Name of its session.
    pub session_id: Option<&'a Arc<str>>,
    /// Which turn of the session.
    pub turn: u32,
    /// Name of the request.
    pub request_id: Option<&'a Arc<str>>,
    /// Position in the order of dispatch.
    pub number: u64,
    /// When the latency clock started.
    pub arrival: SimTime,
    /// When it was really sent (online only).
    pub sent: Option<SimTime>,
    /// When the router gave it to a worker, if it did not at once.
    pub dispatched: Option<SimTime>,
    /// When it ended.
    pub ended: SimTime,
    /// How.
    pub status: Status,
    /// Prompt tokens.
    pub input: u32,
    /// Output tokens asked for.
    pub requested: u32,
    /// Output tokens made.
    pub output: u32,
    /// When the first output token came.
    pub first: Option<SimTime>,
    /// When the second one came.
    pub second: Option<SimTime>,
    /// When the last one came.
    pub last: Option<SimTime>,
    /// When each output token came. Empty unless [`Sink::wants_tokens`]: the gaps between them are
    /// reported by [`Sink::gaps`] for many requests together.
    pub tokens: &'a [SimTime],
    /// Worker that made the output tokens.
    pub worker: Option<u32>,
    /// Worker that computed the prompt, in split pools.
    pub prefill_worker: Option<u32>,
    /// Every admission, in order.
    pub admissions: &'a [Admission],
    /// Its preemptions, as numbers in the order of all preemptions of the run.
    pub preemptions: &'a [u64],
    /// When they were, where that is known.
    pub preempted: &'a [SimTime],
    /// How its cache moved between split pools.
    pub handoff: Option<HandoffTimes>,
    /// Blocks in which the router believed the prompt to be cached on the chosen worker.
    pub overlap: u32,
    /// The same of the best worker, of routers that look for them.
    pub best_overlap: Option<u32>,
    /// Tokens of such a block.
    pub block_size: u32,
    /// Data-parallel ranks of a worker; each counts as a worker here.
    pub ranks: u32,
    /// In split pools: the decode worker was chosen before the prefill worker.
    pub decode_first: bool,
    /// Time in the router's queue, nanoseconds.
    pub queued_ns: u64,
    /// The words of a failure (online only).
    pub error: Option<&'a str>,
    /// What the answer said of itself (online only).
    pub reply: Option<&'a HttpReply>,
}

impl Outcome<'_> {
    /// The same without names, lists, errors and replies.
    pub(crate) fn without_lists(&self) -> Outcome<'static> {
        Outcome {
            session: self.session,
            session_id: None,
            turn: self.turn,
            request_id: None,
            number: self.number,
            arrival: self.arrival,
            sent: self.sent,
            dispatched: self.dispatched,
            ended: self.ended,
            status: self.status,
            input: self.input,
            requested: self.requested,
            output: self.output,
            first: self.first,
            second: self.second,
            last: self.last,
            tokens: &[],
            worker: self.worker,
            prefill_worker: self.prefill_worker,
            admissions: &[],
            preemptions: &[],
            preempted: &[],
            handoff: self.handoff,
            overlap: self.overlap,
            best_overlap: self.best_overlap,
            block_size: self.block_size,
            ranks: self.ranks,
            decode_first: self.decode_first,
            queued_ns: self.queued_ns,
            error: None,
            reply: None,
        }
    }
}

/// What an answer over HTTP says besides its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpReply {
    /// Its status; `None`: no answer came.
    pub status: Option<u16>,
    /// The server that it names in its headers, where they were asked for.
    pub pod: Option<String>,
    /// The id of the completion.
    pub id: Option<String>,
    /// Prompt tokens from the prefix cache; `None`: it does not say.
    pub cached: Option<u32>,
}

/// The way of a request's cache from a prefill worker to a decode worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HandoffTimes {
    /// The prompt is computed; its blocks are held for the transfer.
    pub held: Option<SimTime>,
    /// The decode worker has room for them.
    pub reserved: Option<SimTime>,
    /// The transfer is over.
    pub activated: Option<SimTime>,
    /// The prefill worker has its blocks back.
    pub released: Option<SimTime>,
    /// Prompt tokens that the decode worker had already.
    pub reused: u32,
}

/// What became of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkerChange {
    /// It was asked for and starts.
    Starting,
    /// It serves.
    Ready,
    /// It ends what it has and takes nothing new.
    Draining,
    /// It is gone.
    Gone,
}

/// One worker at one instant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkerSample {
    /// When.
    pub at: SimTime,
    /// Which worker.
    pub worker: u32,
    /// It serves prompts only.
    pub prefill_pool: bool,
    /// Sequences in the batch.
    pub running: u32,
    /// Sequences that wait for capacity.
    pub waiting: u32,
    /// Share of the blocks in use, 0 to 1.
    pub kv_usage: f64,
    /// Blocks that it has; 0 where that is not known.
    pub kv_blocks: u32,
    /// Preemptions since the start.
    pub preemptions: u64,
}

/// Who listens: the report, a file of rows, the page.
pub trait Sink {
    /// A request is over.
    fn request(&mut self, outcome: &Outcome<'_>);
    /// So many gaps between two tokens of a completed request were this long (nanoseconds). Called
    /// before the end of the run for every gap once, in no particular order.
    fn gaps(&mut self, nanos: u64, times: u64);
    /// Whether outcomes must carry the instant of every token, which costs time.
    fn wants_tokens(&self) -> bool {
        false
    }
    /// Whether nobody wants any more: the run ends with what there is.
    fn stops(&self) -> bool {
        false
    }
    /// A worker changed.
    fn worker(&mut self, at: SimTime, worker: u32, prefill_pool: bool, change: WorkerChange) {
        let _ = (at, worker, prefill_pool, change);
    }
    /// A worker was looked at (at a fixed interval of virtual time).
    fn sample(&mut self, sample: &WorkerSample) {
        let _ = sample;
    }
}

impl Sink for &mut (dyn Sink + '_) {
    fn request(&mut self, outcome: &Outcome<'_>) {
        (**self).request(outcome);
    }
    fn gaps(&mut self, nanos: u64, times: u64) {
        (**self).gaps(nanos, times);
    }
    fn wants_tokens(&self) -> bool {
        (**self).wants_tokens()
    }
    fn stops(&self) -> bool {
        (**self).stops()
    }
    fn worker(&mut self, at: SimTime, worker: u32, prefill_pool: bool, change: WorkerChange) {
        (**self).worker(at, worker, prefill_pool, change);
    }
    fn sample(&mut self, sample: &WorkerSample) {
        (**self).sample(sample);
    }
}
