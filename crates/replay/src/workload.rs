//! Describes a workload: sessions of requests, whose prompts state only which tokens are equal.

use std::sync::Arc;

use vllm_sim_engine::SimTime;

/// Maximum number of tokens of one prompt or output, which protects memory from mistyped lengths.
pub const MAX_PROMPT_OR_OUTPUT_TOKENS: u64 = 1 << 26;

/// Run of consecutive prompt tokens, described by an id instead of its tokens. Two runs with equal
/// fields hold the same tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PromptTokenRun {
    /// Id of the run's tokens: runs with different ids share no tokens.
    pub id: u64,
    /// Number of tokens in the run.
    pub len: u32,
    /// Whether the run repeats one token (a block of a Mooncake trace); if false, all its tokens
    /// differ.
    pub same: bool,
}

/// Prompt tokens of a turn (one request of a session).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnPrompt {
    /// The turn gives the whole prompt, as runs of all its tokens.
    Whole(Vec<PromptTokenRun>),
    /// The turn gives only the tokens that follow the prompt and output of the previous turn, as
    /// runs.
    Grown(Vec<PromptTokenRun>),
}

/// Turn of a session, which is one request to the server.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionTurn {
    /// Id of the request in the trace, if any.
    pub request_id: Option<Arc<str>>,
    /// Tokens of the turn's prompt.
    pub prompt: TurnPrompt,
    /// Output length in tokens; the engine generates exactly this number.
    pub output: u32,
    /// Delay after the end of the previous turn, in nanoseconds; ignored for the first turn.
    pub delay_ns: u64,
    /// Request priority for the engine's priority scheduling; a smaller value runs first.
    pub priority: i32,
    /// Request priority in the router's queue; a higher value leaves first.
    pub strict_priority: u32,
    /// Text of the prompt, if the trace has it; only a replay over HTTP uses this text.
    pub text: Option<Arc<str>>,
    /// Recorded token times for `--replay-timing`, in nanoseconds after the arrival.
    pub recorded: Option<Arc<[u64]>>,
    /// Name of the LoRA adapter; `None` for the base model.
    pub lora: Option<Arc<str>>,
    /// Dependencies on turns of other sessions, all of which must be fulfilled before this turn is
    /// sent; usually empty.
    pub after: Vec<TurnDependency>,
}

impl SessionTurn {
    /// Creates a turn without request id, delay, priorities or LoRA adapter.
    pub fn new(prompt: TurnPrompt, output_tokens: u32) -> Self {
        Self {
            request_id: None,
            prompt,
            output: output_tokens,
            delay_ns: 0,
            priority: 0,
            strict_priority: 0,
            text: None,
            recorded: None,
            lora: None,
            after: Vec::new(),
        }
    }
}

/// Event in the life of a turn for which another turn may wait, with the event names of agentic
/// traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TurnLifecycleEvent {
    /// The request of the turn was sent.
    Dispatch,
    /// The request of the turn ended.
    Completion,
}

/// Dependency of a turn on a turn of another session (agentic traces).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnDependency {
    /// Index of the session with the awaited turn, in source order.
    pub session: u64,
    /// Index of the awaited turn in its session.
    pub turn: u32,
    /// Event of the awaited turn that fulfils this dependency.
    pub trigger: TurnLifecycleEvent,
    /// Delay of the dependent turn after the awaited event, in nanoseconds.
    pub delay_ns: u64,
}

/// Session of a client: a sequence of requests, each sent after the previous one ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientSession {
    /// Id of the session in the trace, if any.
    pub id: Option<Arc<str>>,
    /// Send time of the session's first turn; ignored in a closed loop.
    pub start: SimTime,
    /// Turns of the session in order, at least one.
    pub turns: Vec<SessionTurn>,
    /// Agent run to which the session belongs, if any.
    pub play: Option<AgentRun>,
}

impl ClientSession {
    /// Creates a session that starts at time 0 and belongs to no agent run.
    pub fn new(id: Option<Arc<str>>, turns: Vec<SessionTurn>) -> Self {
        Self { id, start: SimTime::ZERO, turns, play: None }
    }

    /// Returns whether any turn of the session waits for a turn of another session.
    pub fn has_turn_dependencies(&self) -> bool {
        self.turns.iter().any(|turn| !turn.after.is_empty())
    }
}

/// Agent run (sessions of one agentic task): its index among the runs, and its name.
pub type AgentRun = (u64, Arc<str>);

/// Properties of a workload that are known before its sessions are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkloadFacts {
    /// Whether any turn depends on another session ([`SessionTurn::after`]).
    pub has_dependencies: bool,
    /// Whether the sessions belong to agent runs ([`ClientSession::play`]), whose sessions follow
    /// one another in the source and start together.
    ///
    /// A closed loop then counts runs, because the sessions of a run wait for one another.
    pub has_agent_runs: bool,
    /// Whether every session is certainly a single request without dependencies, and the sessions
    /// come in order of start.
    pub is_single_turn: bool,
    /// Whether the sessions have no start times, so that a closed loop or an arrival process is
    /// needed.
    pub has_no_start_times: bool,
    /// Maximum number of requests in the workload, if known in advance.
    pub max_requests: Option<u64>,
    /// Number of requests that were kept in flight when the workload was recorded in a closed loop;
    /// `None` for other workloads.
    pub recorded_concurrency: Option<u32>,
    /// Number of trace rows that are left out of the workload, because they have no prompt or no
    /// output.
    pub left_out_rows: u64,
    /// Columns of a CSV file that describe its requests but are not part of the workload.
    pub unused_columns: UnusedTraceColumns,
}

/// Names of the columns of a CSV file that describe its requests but are not part of the workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnusedTraceColumns([Option<&'static str>; 7]);

impl UnusedTraceColumns {
    /// Adds the name of a column, unless it was added before.
    pub fn add_column(&mut self, name: &'static str) {
        let place = self.0.iter_mut().find(|place| place.is_none_or(|known| known == name));
        if let Some(place) = place {
            *place = Some(name);
        }
    }

    /// Returns the names of the columns, in the order in which they were added.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.into_iter().flatten()
    }
}

/// Provides the sessions of a workload, in the order of their start.
pub trait WorkloadSource {
    /// Returns the next session, or `None` at the end of the workload.
    ///
    /// # Errors
    /// Returns [`WorkloadError`] with the file, the line and the invalid field.
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError>;

    /// Returns what is known about the workload before its sessions are read.
    fn facts(&self) -> WorkloadFacts {
        WorkloadFacts::default()
    }
}

impl WorkloadSource for Box<dyn WorkloadSource + '_> {
    fn next_session(&mut self) -> Result<Option<ClientSession>, WorkloadError> {
        (**self).next_session()
    }
    fn facts(&self) -> WorkloadFacts {
        (**self).facts()
    }
}

/// Reason why a workload cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// A workload file cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// Path of the unreadable workload file.
        path: std::path::PathBuf,
        /// Error of the operating system while reading the workload file.
        error: std::io::Error,
    },
    /// A line or row of a workload file, or an option, is invalid.
    #[error("{place}: {problem}")]
    Bad {
        /// Location of the invalid line or row as `file:line`, or the name of the invalid option.
        place: String,
        /// Description of the invalid field: its name, its value and the allowed values.
        problem: String,
    },
}
