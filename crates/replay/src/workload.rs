//! What is asked: sessions of turns, with content that shows only which parts are equal.

use std::sync::Arc;

use vllm_sim_engine::SimTime;

/// Most tokens of one prompt or output, so that a slip of the pen cannot fill the memory.
pub const MAX_TOKENS: u64 = 1 << 26;

/// A stretch of prompt tokens. Two runs with equal fields hold the same tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenRun {
    /// Which content.
    pub id: u64,
    /// Tokens in it.
    pub len: u32,
    /// One token again and again (a block of a Mooncake trace) rather than all different ones.
    pub same: bool,
}

/// What the prompt of a turn is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// The whole prompt.
    Whole(Vec<TokenRun>),
    /// What follows the prompt and the output of the turn before.
    Grown(Vec<TokenRun>),
}

/// One request of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Its name in the trace.
    pub request_id: Option<Arc<str>>,
    /// Its prompt.
    pub prompt: Prompt,
    /// Output tokens it asks for, all of which are made.
    pub output: u32,
    /// Nanoseconds between the end of the turn before and this one; without meaning in a first
    /// turn.
    pub delay_ns: u64,
    /// Smaller is served first under the priority policy of the engine.
    pub priority: i32,
    /// Router queue: higher goes before all lower ones.
    pub strict_priority: u32,
    /// The text itself, where the trace has it (only online mode can use it).
    pub text: Option<Arc<str>>,
    /// As recorded, for `--replay-timing`: nanoseconds from arrival to each token.
    pub recorded: Option<Arc<[u64]>>,
    /// Adapter, empty for the base model.
    pub lora: Option<Arc<str>>,
}

impl Turn {
    /// A plain turn.
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

/// What has to happen before a session may start (agentic traces).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// Number of the session waited for, in the order the source gave them.
    pub session: u64,
    /// Turn of that session.
    pub turn: u32,
    /// Wait for its end rather than for its dispatch.
    pub completion: bool,
    /// Nanoseconds after that.
    pub delay_ns: u64,
}

/// Requests that follow one another.
#[derive(Debug, Clone, PartialEq)]
pub struct Session {
    /// Its name in the trace; plain requests have none.
    pub id: Option<Arc<str>>,
    /// When the first turn is sent; without meaning in a closed loop.
    pub start: SimTime,
    /// At least one.
    pub turns: Vec<Turn>,
    /// Empty for most.
    pub after: Vec<Dependency>,
    /// The run of an agent that it is part of; `None` for most.
    pub play: Option<Play>,
}

/// A run of an agent: its place among others, and its name.
pub type Play = (u64, Arc<str>);

/// Where sessions come from, in the order of their start.
pub trait WorkloadSource {
    /// The next one; `None` at the end.
    ///
    /// # Errors
    /// [`WorkloadError`] names the file, the line and the field.
    fn next(&mut self) -> Result<Option<Session>, WorkloadError>;

    /// The workload that this one changes: it answers all that follows.
    fn inner(&self) -> Option<&dyn WorkloadSource> {
        None
    }

    /// Whether any session has an [`Session::after`].
    fn has_dependencies(&self) -> bool {
        self.inner().is_some_and(WorkloadSource::has_dependencies)
    }

    /// Whether it is certain that every session is one request that waits for nothing, and that none
    /// starts before the one before it.
    fn is_single_turn(&self) -> bool {
        self.inner().is_some_and(WorkloadSource::is_single_turn)
    }

    /// How many requests there are at most, where that is known beforehand.
    fn requests(&self) -> Option<u64> {
        self.inner()?.requests()
    }

    /// Whether starts mean nothing, so that a closed loop or arrivals of its own are needed.
    fn untimed(&self) -> bool {
        self.inner().is_some_and(WorkloadSource::untimed)
    }

    /// Requests in flight when this was recorded, where the recording kept them at a fixed number.
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

/// Why a workload cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// A file cannot be read.
    #[error("{path}: {error}")]
    Io {
        /// Which.
        path: std::path::PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A line, row or option is wrong.
    #[error("{place}: {problem}")]
    Bad {
        /// `file:line`, or the name of the option.
        place: String,
        /// Field, value and what is allowed.
        problem: String,
    },
}
