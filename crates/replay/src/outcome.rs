//! Describes the outcome of each request and the state of the workers over time.

use std::ops::Deref;
use std::sync::Arc;

use vllm_sim_engine::SimTime;

/// Final state of a replayed request, such as completed or rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RequestStatus {
    /// All output tokens of the request were generated.
    #[default]
    Completed,
    /// The engine rejected, cancelled or aborted the request.
    Rejected,
    /// The replay ended before the request did.
    Incomplete,
    /// The server returned an error, or the worker of the request was lost.
    Failed,
}

/// Describes one admission of a request to the running batch of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionOutcome {
    /// Virtual time at which the request was admitted to the batch.
    pub at: SimTime,
    /// Number of prompt tokens found in the prefix cache; after a preemption, output tokens may be
    /// included.
    pub reused: u32,
    /// Number of tokens found in the host-memory KV cache, part of `reused`; `None` unless Dynamo's
    /// mocker simulates such a cache.
    pub host: Option<u32>,
    /// Whether the request was preempted before this admission.
    pub again: bool,
    /// Pool of the worker that admitted the request.
    pub pool: PoolRole,
}

impl AdmissionOutcome {
    /// Returns the numbers of prompt tokens found in the KV cache on the GPU and in host memory
    /// when the request was first admitted.
    ///
    /// Returns `None` for a later admission or without a host-memory tier.
    pub(super) fn gpu_and_host_cached_tokens(&self) -> Option<(u32, u32)> {
        let host = self.host.filter(|_| !self.again)?;
        Some((self.reused - host, host))
    }
}

/// Numbers and times of one finished request.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RequestOutcomeFacts {
    /// Index of the session, in the order of the workload source.
    pub session: u64,
    /// Index of the turn in its session, from 0.
    pub turn: u32,
    /// Index of the request in dispatch order, from 0.
    pub number: u64,
    /// Arrival time of the request, from which its latencies are measured.
    pub arrival: SimTime,
    /// Send time of the request, in a replay over HTTP.
    pub sent: Option<SimTime>,
    /// Time of the routing decision, if the request waited in the router's queue.
    pub dispatched: Option<SimTime>,
    /// End time of the request.
    pub ended: SimTime,
    /// Final state of the request, such as completed or rejected.
    pub status: RequestStatus,
    /// Prompt length of the request, in tokens.
    pub input: u32,
    /// Requested output length of the request, in tokens.
    pub requested: u32,
    /// Number of output tokens generated for the request.
    pub output: u32,
    /// Time of the request's first output token.
    pub first: Option<SimTime>,
    /// Time of the request's second output token.
    pub second: Option<SimTime>,
    /// Time of the request's last output token.
    pub last: Option<SimTime>,
    /// Index of the worker that generated the request's output tokens.
    pub worker: Option<u32>,
    /// Index of the worker that computed the prompt, in a disaggregated deployment.
    pub prefill_worker: Option<u32>,
    /// Number of the prompt's KV blocks cached on the chosen worker, as estimated by the router.
    pub overlap: u32,
    /// Maximum number of the prompt's KV blocks that a single worker has cached, as estimated by
    /// the router; `None` if the router does not score prefix caches.
    pub best_overlap: Option<u32>,
    /// Number of tokens per KV block, in which the router counts the cached part of a prompt.
    pub block_size: u32,
    /// Number of data-parallel ranks per worker, each with its own worker number; 0 counts as 1.
    pub ranks: u32,
    /// Whether the decode worker was chosen before the prefill worker.
    pub decode_first: bool,
    /// Waiting time of the request in the router's queue, in nanoseconds.
    pub queued_ns: u64,
}

/// Describes one finished request; its [`RequestOutcomeFacts`] are read like fields.
///
/// The references are valid only during the call of the sink that receives the description.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestOutcome<'a> {
    /// Numbers and times of the request.
    pub facts: RequestOutcomeFacts,
    /// Id of the session in the trace, if any.
    pub session_id: Option<&'a Arc<str>>,
    /// Id of the request in the trace, if any.
    pub request_id: Option<&'a Arc<str>>,
    /// Time of each of the request's output tokens.
    ///
    /// Empty unless [`ReplaySink::wants_token_times`] returns true: [`ReplaySink::on_token_gaps`]
    /// reports the gaps between tokens, aggregated over requests.
    pub tokens: &'a [SimTime],
    /// All admissions of the request to a running batch, in order.
    pub admissions: &'a [AdmissionOutcome],
    /// Preemptions of the request, as indices into the list of all preemptions of the replay.
    pub preemptions: &'a [u64],
    /// Times of the request's preemptions, where known.
    pub preempted: &'a [SimTime],
    /// Times of the KV cache transfer between the pools of a disaggregated deployment.
    pub handoff: Option<PrefillHandoffTimes>,
    /// Error message of a failed request.
    pub error: Option<&'a str>,
    /// Metadata of the HTTP response, in a replay over HTTP.
    pub reply: Option<&'a HttpResponseInfo>,
}

impl Deref for RequestOutcome<'_> {
    type Target = RequestOutcomeFacts;

    fn deref(&self) -> &RequestOutcomeFacts {
        &self.facts
    }
}

/// Metadata of an HTTP response to a replayed request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpResponseInfo {
    /// HTTP status code of the response; `None` if no response arrived.
    pub status: Option<u16>,
    /// Name of the server from a response header, if the target sets one.
    pub pod: Option<String>,
    /// Id of the completion in the response body.
    pub id: Option<String>,
    /// Number of prompt tokens from the prefix cache; `None` if the response does not report this
    /// number.
    pub cached: Option<u32>,
}

/// Times of one KV cache transfer from a prefill worker to a decode worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefillHandoffTimes {
    /// End of the prefill; the prompt's KV blocks are then held for the transfer.
    pub held: Option<SimTime>,
    /// Time of the KV block reservation on the decode worker.
    pub reserved: Option<SimTime>,
    /// End of the KV transfer, when decoding starts.
    pub activated: Option<SimTime>,
    /// Time when the prompt's KV blocks were freed on the prefill worker.
    pub released: Option<SimTime>,
    /// Number of prompt tokens already cached on the decode worker.
    pub reused: u32,
}

/// Describes one step of a simulated engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineStep {
    /// Pool of the worker whose engine ran the step.
    pub pool: PoolRole,
    /// Index, in its pool, of the worker whose engine ran the step.
    pub worker: u32,
    /// Start of the engine step, in virtual time.
    pub begun: SimTime,
    /// End of the engine step, in virtual time.
    pub ended: SimTime,
    /// Number of prompt tokens that the engine step computed, without cached ones.
    pub prompt_tokens: u32,
    /// Number of output tokens that the engine step emitted.
    pub output_tokens: u32,
}

/// Record of the step log of a simulated engine.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedStepRecord {
    /// Pool of the worker whose engine logged the record.
    pub pool: PoolRole,
    /// Index, in its pool, of the worker whose engine logged the record.
    pub worker: u32,
    /// Step log record as a JSON object
    /// ([`StepLogRecord::to_step_log_json`](vllm_sim_engine::step_log::StepLogRecord::to_step_log_json)),
    /// in which requests are named by their [`RequestOutcomeFacts::number`].
    pub record: serde_json::Value,
}

/// Change in the life cycle of a simulated worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkerChange {
    /// The worker was requested and is starting.
    Starting,
    /// The worker is ready and accepts requests.
    Ready,
    /// The worker completes its requests and accepts no new ones.
    Draining,
    /// The worker was removed from its pool.
    Gone,
}

/// Task of the workers of a pool. Each pool numbers its workers from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolRole {
    /// The workers compute the prompts of a disaggregated deployment.
    Prefill,
    /// The workers generate tokens, as the decode pool of a disaggregated deployment or as the only
    /// pool.
    Serving,
}

impl PoolRole {
    /// Returns the word that the HTML page writes before the number of a worker with this task.
    pub(super) fn pool_role_page_label(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Serving => "worker",
        }
    }
}

/// State of one worker at one sample time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkerSample {
    /// Virtual time at which the worker's state was sampled.
    pub at: SimTime,
    /// Index of the sampled worker in its pool.
    pub worker: u32,
    /// Pool of the sampled worker.
    pub pool: PoolRole,
    /// Number of running sequences on the worker.
    pub running: u32,
    /// Number of waiting sequences on the worker.
    pub waiting: u32,
    /// Fraction of the worker's KV cache blocks in use, 0 to 1.
    pub kv_usage: f64,
    /// Total number of KV cache blocks of the worker; 0 if unknown.
    pub kv_blocks: u32,
    /// Number of preemptions on the worker since the start of the replay.
    pub preemptions: u64,
}

/// Receives the events of a replay, for example to build a report or write rows.
pub trait ReplaySink {
    /// Receives the outcome of a finished request.
    fn on_request_finished(&mut self, outcome: &RequestOutcome<'_>);
    /// Receives gaps between two tokens of completed requests: `times` gaps of `nanos` nanoseconds
    /// each.
    ///
    /// Every gap is reported once before the end of the run, in no particular order.
    fn on_token_gaps(&mut self, nanos: u64, times: u64) {
        let _ = (nanos, times);
    }
    /// Returns whether request outcomes must contain the time of every token, which costs CPU time.
    fn wants_token_times(&self) -> bool {
        false
    }
    /// Returns whether the sink receives the steps of engines, which then run on one thread.
    fn wants_steps(&self) -> bool {
        false
    }
    /// Receives a step of an engine, if [`ReplaySink::wants_steps`] returns true.
    fn on_step(&mut self, step: &EngineStep) {
        let _ = step;
    }
    /// Receives a record of an engine's step log, if [`ReplaySink::wants_steps`] returns true and
    /// the engine keeps a log ([`SchedulerSpec::with_step_log`]).
    ///
    /// [`SchedulerSpec::with_step_log`]: vllm_sim_engine::sched::SchedulerSpec::with_step_log
    fn on_step_record(&mut self, record: &LoggedStepRecord) {
        let _ = record;
    }
    /// Returns whether the replay should end early; requests in flight are then reported as
    /// incomplete.
    fn should_stop(&self) -> bool {
        false
    }
    /// Receives a change in the life cycle of a worker.
    fn on_worker_change(&mut self, at: SimTime, worker: u32, pool: PoolRole, change: WorkerChange) {
        let _ = (at, worker, pool, change);
    }
    /// Receives a sample of a worker's gauges, taken at a fixed interval of virtual time.
    fn on_worker_sample(&mut self, sample: &WorkerSample) {
        let _ = sample;
    }
}
