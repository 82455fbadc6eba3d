//! Describes a workload: sessions of turns, whose content states only which parts are equal.

use std::sync::Arc;

use vllm_sim_engine::SimTime;

/// Maximum number of tokens of one prompt or output, which bounds the memory of a mistyped length.
pub const MAX_TOKENS: u64 = 1 << 26;

/// Run of prompt tokens. Two runs with equal fields hold the same tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenRun {
    /// Identity of the content.
    pub id: u64,
    /// Number of tokens.
    pub len: u32,
    /// Whether one token repeats (a block of a Mooncake trace); otherwise all tokens differ.
    pub same: bool,
}

/// Content of a turn's prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// The complete prompt.
    Whole(Vec<TokenRun>),
    /// The tokens that follow the prompt and output of the previous turn.
    Grown(Vec<TokenRun>),
}

/// One request of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Request id from the trace.
    pub request_id: Option<Arc<str>>,
    /// Content of the prompt.
    pub prompt: Prompt,
    /// Output length in tokens; the engine generates all of them.
    pub output: u32,
    /// Delay after the end of the previous turn, in nanoseconds; ignored for the first turn.
    pub delay_ns: u64,
    /// Priority for the engine's priority policy; a smaller value runs first.
    pub priority: i32,
    /// Priority in the router's queue; a higher value leaves first.
    pub strict_priority: u32,
    /// Text of the prompt, if the trace has it (online only).
    pub text: Option<Arc<str>>,
    /// Recorded token times for `--replay-timing`, in nanoseconds after the arrival.
    pub recorded: Option<Arc<[u64]>>,
    /// Name of the LoRA adapter; `None` for the base model.
    pub lora: Option<Arc<str>>,
}

impl Turn {
    /// Creates a turn without ids, delay, priorities or adapter.
    pub fn new(prompt: Prompt, output: u32) -> Self {
        Self {
            request_id: None,
            prompt,
            output,
            delay_ns: 0,
            priority: 0,
            strict_priority: 0,
            text: None,
            recorded: None,
            lora: None,
        }
    }
}

/// Event in the life of a turn, with the names of agentic traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TurnEvent {
    /// The request was sent.
    Dispatch,
    /// The request ended.
    Completion,
}

/// Dependency of a session on a turn of another session (agentic traces).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// Number of the other session, in source order.
    pub session: u64,
    /// Index of the turn in the other session.
    pub turn: u32,
    /// Awaited event of that turn.
    pub trigger: TurnEvent,
    /// Delay after the event, in nanoseconds.
    pub delay_ns: u64,
}

/// Sequence of requests, each sent after the previous one ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Session id from the trace.
    pub id: Option<Arc<str>>,
    /// Send time of the first turn; ignored in a closed loop.
    pub start: SimTime,
    /// Turns in order, at least one.
    pub turns: Vec<Turn>,
    /// Dependencies of the first turn; usually empty.
    pub after: Vec<Dependency>,
    /// Agent run of the session, if any.
    pub play: Option<AgentRun>,
}

/// Agent run: its index among the runs, and its name.
pub type AgentRun = (u64, Arc<str>);

/// Provides the sessions of a workload, in the order of their start.
pub trait WorkloadSource {
    /// Returns the next session, or `None` at the end.
    ///
    /// # Errors
    /// Returns [`WorkloadError`] with the file, the line and the field.
    fn next(&mut self) -> Result<Option<Session>, WorkloadError>;

    /// Returns the wrapped workload, to which the default implementations of the other methods
    /// delegate.
    fn inner(&self) -> Option<&dyn WorkloadSource> {
        None
    }

    /// Whether any session has an [`Session::after`].
    fn has_dependencies(&self) -> bool {
        self.inner().is_some_and(WorkloadSource::has_dependencies)
    }

    /// Whether every session is guaranteed to be one request without dependencies, in order of
    /// start.
    fn is_single_turn(&self) -> bool {
        self.inner().is_some_and(WorkloadSource::is_single_turn)
    }

    /// Returns the maximum number of requests, if known in advance.
    fn requests(&self) -> Option<u64> {
        self.inner()?.requests()
    }

    /// Whether the sessions have no start times, so that a closed loop or an arrival process is
    /// needed.
    fn untimed(&self) -> bool {
        self.inner().is_some_and(WorkloadSource::untimed)
    }

    /// Returns the concurrency of the recording, if it was made in a closed loop.
    fn concurrency(&self) -> Option<u32> {
        self.inner()?.concurrency()
    }
}

impl WorkloadSource for Box<dyn WorkloadSource + '_> {
    fn next(&mut self) -> Result<Option<Session>, WorkloadError> {
        (**self).next()
    }
    fn inner(&self) -> Option<&dyn WorkloadSource> {
        Some(&**self)
    }
}

/// Reports why a workload cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// The file cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// Path of the file.
        path: std::path::PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// A line, row or option is invalid.
    #[error("{place}: {problem}")]
    Bad {
        /// Location as `file:line`, or the name of the option.
        place: String,
        /// Field, value and allowed values.
        problem: String,
    },
}
