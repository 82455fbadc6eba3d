//! What came of it: one record per request, and what the pools looked like over time.

use std::sync::Arc;

use crate::sim::SimTime;

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
    /// Prompt tokens found in the cache.
    pub reused: u32,
    /// After a preemption.
    pub again: bool,
    /// On a prefill worker of a split pool.
    pub prefill_pool: bool,
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
    /// When the router gave it to a worker.
    pub dispatched: Option<SimTime>,
    /// When it ended.
    pub ended: SimTime,
    /// How.
    pub status: Status,
    /// Prompt tokens.
    pub input: u32,
    /// Output tokens asked for.
    pub requested: u32,
    /// When each output token came; its length is the output made.
    pub tokens: &'a [SimTime],
    /// Worker that made the output tokens.
    pub worker: Option<u32>,
    /// Worker that computed the prompt, in split pools.
    pub prefill_worker: Option<u32>,
    /// Every admission, in order.
    pub admissions: &'a [Admission],
    /// Blocks in which the router believed the prompt to be cached on the chosen worker.
    pub overlap: u32,
    /// Time in the router's queue, nanoseconds.
    pub queued_ns: u64,
    /// The words of a failure (online only).
    pub error: Option<&'a str>,
}

/// One worker at one instant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
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
    /// Preemptions since the start.
    pub preemptions: u64,
}

/// Who listens: the report, a file of rows, the page.
pub trait Sink {
    /// A request is over.
    fn request(&mut self, outcome: &Outcome<'_>);
    /// A worker was looked at (at a fixed interval of virtual time).
    fn sample(&mut self, sample: &Sample) {
        let _ = sample;
    }
}
