//! Errors of requests that get no reply.

use super::admission::LargeBodyMemoryFull;
use crate::generate::tools::ToolCallPlanError;
use vllm_sim_schema_sampler::ConstraintError;
use vllm_sim_wire::Fault;

/// Maximum number of sequences in one request, prompts times choices.
///
/// The limit is four times the choices that vLLM allows per prompt (`VLLM_MAX_N_SEQUENCES`). The
/// script of each sequence is generated before the first token, so the limit keeps a small request
/// body from allocating millions of scripts.
pub(super) const MAX_REQUEST_SEQUENCES: u32 = 65_536;

/// Error of a request that gets no reply; each front end renders it in its protocol.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No served model or LoRA adapter has the requested name.
    #[error("The model `{0}` does not exist.")]
    UnknownModel(String),
    /// A value of the request is invalid; the message is vLLM's.
    #[error(transparent)]
    Invalid(#[from] Fault),
    /// The service rejected the request, for example at an admission limit.
    #[error(transparent)]
    Serve(#[from] JobSubmissionError),
}

/// Error of submitting a generation job to an engine.
#[derive(Debug, thiserror::Error)]
pub enum JobSubmissionError {
    /// The engine's waiting queue is full (llm-d's limit).
    #[error("Failed to enqueue request, waiting requests queue is full")]
    QueueFull,
    /// The request would exceed the limit on sequences in flight (vLLM's limit).
    #[error(
        "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
    )]
    TooManyRequests,
    /// The prompt tokens in flight have reached their limit (vLLM's limit).
    #[error(
        "The engine has reached its prefill token backlog limit. Please try again later or on a different instance."
    )]
    TooManyTokens,
    /// The server is shutting down.
    #[error("server is shutting down")]
    Draining,
    /// The client disconnected before the job was submitted.
    #[error("the client disconnected")]
    Abandoned,
    /// An operator has paused generation.
    #[error("Generation is paused. Please retry after it resumes.")]
    Paused,
    /// The requested data-parallel rank does not exist.
    #[error("data_parallel_rank {rank} is out of range [0, {ranks}).")]
    Rank {
        /// Requested data-parallel rank, which does not exist.
        rank: i64,
        /// Number of the server's data-parallel ranks.
        ranks: usize,
    },
    /// Prompt and output together can never fit into the KV cache.
    #[error("the prompt and its output need {needed} cache blocks, but there are {total}")]
    TooLarge {
        /// Number of KV blocks that the sequence needs.
        needed: u32,
        /// Number of KV blocks in the whole KV cache.
        total: u32,
    },
    /// The request asks for more sequences than one request may have.
    #[error(
        "The request has {asked} sequences (prompts times n); at most {MAX_REQUEST_SEQUENCES} are \
         allowed. Send fewer prompts or a smaller n."
    )]
    TooManySequences {
        /// Number of requested sequences: prompts times `n`.
        asked: u64,
    },
    /// The planned KV blocks of all sequences exceed the memory that one request may use.
    #[error(
        "The prompts of all sequences (prompts times n) would take more than {most} MiB. Send fewer or shorter prompts or a smaller n."
    )]
    PromptsTooLarge {
        /// Limit of the size of the planned KV blocks, in MiB.
        most: u64,
    },
    /// The estimated size of the response exceeds the limit.
    #[error(
        "The response would take more than {most} MiB. Request fewer or shorter choices, or fewer \
         log probabilities."
    )]
    ReplyTooLarge {
        /// Limit of the size of the response, in MiB.
        most: u64,
    },
    /// All large responses together exceed the memory that they may use.
    #[error(transparent)]
    MessageMemoryFull(#[from] LargeBodyMemoryFull),
    /// The structured-output constraint of the request cannot be satisfied.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// The tool calls of the reply cannot be generated.
    #[error(transparent)]
    Tools(#[from] ToolCallPlanError),
}

impl JobSubmissionError {
    /// Returns whether vLLM reports this rejection of a request only after it has sent the headers
    /// of a stream.
    pub(crate) fn is_reported_after_headers(&self) -> bool {
        match self {
            Self::QueueFull | Self::TooManyRequests | Self::TooManyTokens => false,
            Self::Draining | Self::Abandoned => false,
            Self::TooManySequences { .. }
            | Self::PromptsTooLarge { .. }
            | Self::ReplyTooLarge { .. }
            | Self::MessageMemoryFull(_) => false,
            Self::Paused | Self::Rank { .. } | Self::TooLarge { .. } => true,
            Self::Constraint(_) | Self::Tools(_) => true,
        }
    }
}
