//! Use cases without protocol: what every edge (HTTP, gRPC) calls.

mod admission;
mod backlog;
mod block_plan;
mod content;
mod control;
mod deferred;
pub mod dialect;
pub mod fault;
mod fault_control;
mod fault_injector;
pub mod generate;
mod generation;
mod hand_over;
mod job;
mod leases;
pub mod logprobs;
mod models;
mod ngram;
mod off_thread;
pub mod pooling;
pub mod prompt;
mod refusal;
mod reply;
mod reply_size;
mod request;
mod request_context;
mod request_faults;
pub mod scenario;
pub mod scripted;
mod settings;
mod submit;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::fault::AdmissionBound;
use crate::generate::Generator;
use crate::generate::tools::ToolError;
use scripted::ScriptedReplies;
use vllm_sim_engine::SimTime;
use vllm_sim_engine::driver::LiveEngine;
use vllm_sim_engine::kv::Hasher;
use vllm_sim_schema_sampler::{ConstraintError, SchemaCache};

pub use admission::Admission;
pub use control::{Asset, Control, Halt};
pub use deferred::Deferred;
pub use dialect::{Dialect, RequestRules, ToolSchemas};
pub use fault_control::{FaultControl, LiveSettings};
pub use fault_injector::{FaultInjector, GRACE, InjectorAction};
pub use hand_over::HandOver;
pub use job::Transfer;
pub use models::{Adapter, LoadError, LoadMode, Models};
pub use ngram::NgramLookup;
pub use off_thread::{long_work, off_thread, takes_long};
pub use refusal::{Refusal, Refused};
pub use reply::{Choice, Reply, TokenUsage};
pub use request::{
    EngineChecks, Generated, GenerationRequest, OutputRoom, ReplyFacts, Resolved, ToolRequest,
};
pub use request_context::RequestContext;
pub use request_faults::RequestFaults;
pub use settings::{Role, Settings};
pub use vllm_sim_engine::{CachedBlock, Command, Reset};

/// Most sequences of one request: four times the choices that vLLM allows one prompt
/// (`VLLM_MAX_N_SEQUENCES`). Each has its script written before the first token, so that a few
/// bytes of JSON must not ask for millions.
const MAX_SEQUENCES: u32 = 65_536;

/// Why a job was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The engine's queue is full (llm-d's bound).
    #[error("Failed to enqueue request, waiting requests queue is full")]
    QueueFull,
    /// More requests than the server admits (vLLM's bound).
    #[error(
        "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
    )]
    TooManyRequests,
    /// More prompt tokens than the server admits (vLLM's bound).
    #[error(
        "The engine has reached its prefill token backlog limit. Please try again later or on a different instance."
    )]
    TooManyTokens,
    /// The server shuts down.
    #[error("server is shutting down")]
    Draining,
    /// Nobody waits for the answer any more.
    #[error("the client has left")]
    Abandoned,
    /// Generation is paused.
    #[error("Generation is paused. Please retry after it resumes.")]
    Paused,
    /// No such rank.
    #[error("data_parallel_rank {rank} is out of range [0, {ranks}).")]
    Rank {
        /// What was asked for.
        rank: i64,
        /// How many there are.
        ranks: usize,
    },
    /// The request, prompt and answer, can never fit into the cache.
    #[error("the prompt and its answer need {needed} cache blocks, there are {total}")]
    TooLarge {
        /// Blocks needed.
        needed: u32,
        /// Blocks that exist.
        total: u32,
    },
    /// More sequences than one request may have.
    #[error(
        "The request asks for {asked} sequences (prompts times n), the most is {MAX_SEQUENCES}. Send fewer prompts or a smaller n."
    )]
    TooManySequences {
        /// What was asked for.
        asked: u64,
    },
    /// More prompt in all of its sequences than one request may have.
    #[error(
        "The prompts of all sequences (prompts times n) would take more than {most} MiB. Send fewer or shorter prompts or a smaller n."
    )]
    PromptsTooLarge {
        /// The most, in MiB.
        most: u64,
    },
    /// More text than one answer may hold.
    #[error(
        "The answer would take more than {most} MiB. Ask for fewer or shorter choices, or for fewer log probabilities."
    )]
    AnswerTooLarge {
        /// The most, in MiB.
        most: u64,
    },
    /// The constraint has no text that satisfies it.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The tools cannot be called.
    #[error(transparent)]
    Tools(#[from] ToolError),
}

impl ServeError {
    /// Whether vLLM finds it only after a stream's headers are out.
    pub(crate) fn is_late(&self) -> bool {
        match self {
            Self::QueueFull | Self::TooManyRequests | Self::TooManyTokens => false,
            Self::Draining | Self::Abandoned => false,
            Self::TooManySequences { .. }
            | Self::PromptsTooLarge { .. }
            | Self::AnswerTooLarge { .. } => false,
            Self::Paused | Self::Rank { .. } | Self::TooLarge { .. } => true,
            Self::Constraint(_) | Self::Tools(_) => true,
        }
    }
}

/// The server behind its edges.
pub struct Service {
    /// Who answers to which name.
    pub models: Models,
    /// What is said.
    pub generator: Generator,
    /// Whether the engines work.
    pub control: Control,
    /// What may go wrong, and what an operator may change.
    pub faults: FaultControl,
    /// What is said to messages that match.
    pub replies: ScriptedReplies,
    /// Media of prompts, as far as they are remembered.
    pub media_cache: prompt::MediaCache,
    /// The adapters of the command line.
    adapters: Arc<Vec<Adapter>>,
    ranks: Vec<LiveEngine>,
    hasher: Option<Hasher>,
    schemas: SchemaCache,
    settings: Settings,
    leases: leases::Leases,
    arrivals: AtomicU64,
    next_rank: AtomicUsize,
    in_flight: Arc<AtomicU32>,
    backlog: backlog::Backlog,
    draining: std::sync::atomic::AtomicBool,
}

/// Sequences that count as in flight.
#[derive(Debug)]
pub struct InFlightGuard {
    sequences: u32,
    in_flight: Arc<AtomicU32>,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(self.sequences, Ordering::Relaxed);
    }
}

impl Service {
    /// A service over started engines, one per data-parallel rank (at least one).
    pub fn new(
        models: Models,
        generator: Generator,
        ranks: Vec<LiveEngine>,
        settings: Settings,
    ) -> Self {
        Self {
            adapters: models.adapters(),
            models,
            generator,
            control: Control::default(),
            faults: FaultControl::default(),
            replies: ScriptedReplies::default(),
            media_cache: prompt::MediaCache::default(),
            ranks,
            schemas: SchemaCache::default(),
            hasher: settings.hashes.clone().map(Hasher::new),
            settings,
            leases: leases::Leases::default(),
            arrivals: AtomicU64::new(0),
            next_rank: AtomicUsize::new(0),
            in_flight: Arc::default(),
            backlog: backlog::Backlog::default(),
            draining: false.into(),
        }
    }

    /// Loses all that a process loses that is killed and started again with the same command line.
    /// What an operator of the simulation has set stays: faults and scripted replies.
    pub fn restart(&self) {
        // Without `..`: who adds a field decides.
        let Self {
            models,
            generator: _,
            control,
            faults: _,
            replies: _,
            media_cache,
            adapters,
            ranks: _,
            hasher: _,
            schemas: _,
            settings: _,
            leases,
            arrivals,
            next_rank,
            in_flight: _,
            backlog: _,
            draining: _,
        } = self;
        self.command(&Command::CancelAll);
        self.command(&Command::ResetPrefixCache(Reset::Forget));
        self.command(&Command::ResetHostTier);
        self.command(&Command::ResetEncoderCache);
        models.restore(adapters);
        media_cache.clear();
        leases.clear();
        arrivals.store(0, Ordering::Relaxed);
        next_rank.store(0, Ordering::Relaxed);
        control.restart(self);
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Its engines.
    pub fn ranks(&self) -> &[LiveEngine] {
        &self.ranks
    }

    /// The engines' clock.
    pub fn now(&self) -> SimTime {
        self.ranks[0].now()
    }

    /// Sequences in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// From now on jobs are refused.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether jobs are refused because the server shuts down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    fn admission(&self) -> Admission {
        match self.faults.is_armed() {
            true => self.faults.settings().admission,
            false => self.settings.admission,
        }
    }

    /// Whether another job of `sequences` would be admitted. A refusal is counted.
    ///
    /// # Errors
    /// [`ServeError::Draining`], [`ServeError::TooManyRequests`] or [`ServeError::TooManyTokens`].
    pub fn admits(&self, sequences: u32) -> Result<(), ServeError> {
        if self.is_draining() {
            return Err(ServeError::Draining);
        }
        let Admission { requests, tokens } = self.admission();
        if requests.is_some_and(|max| self.in_flight().saturating_add(sequences) > max) {
            return Err(self.refused(AdmissionBound::Requests));
        }
        if tokens.is_some_and(|max| self.backlog.tokens() >= max) {
            return Err(self.refused(AdmissionBound::Tokens));
        }
        Ok(())
    }

    fn refused(&self, bound: AdmissionBound) -> ServeError {
        self.faults.refused(bound);
        match bound {
            AdmissionBound::Requests => ServeError::TooManyRequests,
            AdmissionBound::Tokens => ServeError::TooManyTokens,
        }
    }

    /// Reserves places for so many sequences, which count as in flight until the guard is dropped:
    /// of several that come together none is admitted beyond the bound.
    ///
    /// # Errors
    /// As [`Self::admits`].
    pub fn enter(&self, sequences: u32) -> Result<InFlightGuard, ServeError> {
        if self.is_draining() {
            return Err(ServeError::Draining);
        }
        let Admission { requests, tokens } = self.admission();
        let fits = |now: u32| {
            let then = now.saturating_add(sequences);
            requests.is_none_or(|max| then <= max).then_some(then)
        };
        let count = self.in_flight.as_ref();
        if (count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)).is_err() {
            return Err(self.refused(AdmissionBound::Requests));
        }
        let guard = InFlightGuard {
            sequences,
            in_flight: self.in_flight.clone(),
        };
        if tokens.is_some_and(|max| self.backlog.tokens() >= max) {
            return Err(self.refused(AdmissionBound::Tokens));
        }
        Ok(guard)
    }

    /// Reserves room for prompt tokens that are to be computed, where that is bounded: `None` where
    /// it is not.
    ///
    /// # Errors
    /// [`ServeError::TooManyTokens`] at the bound.
    fn queue_tokens(&self, tokens: u64) -> Result<Option<backlog::Reserved<'_>>, ServeError> {
        let Some(max) = self.admission().tokens else {
            return Ok(None);
        };
        let reserved = self.backlog.reserve(tokens, max);
        let refused = || self.refused(AdmissionBound::Tokens);
        reserved.map(Some).ok_or_else(refused)
    }

    /// Room for output behind a prompt of `prompt` tokens.
    pub fn room(&self, prompt: usize) -> u32 {
        self.settings
            .max_model_len
            .saturating_sub(u32::try_from(prompt).unwrap_or(u32::MAX))
    }
}
