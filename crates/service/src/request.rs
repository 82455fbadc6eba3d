//! A generation request independent of its protocol, and its state on the way to the engine.

use std::sync::Arc;
use std::time::Duration;

use super::deferred::Deferred;
use super::prompt::PromptSource;
use super::{Reply, RequestFaults, TokenUsage, Transfer};
use crate::generate::request::{Prompt, Target};
use crate::generate::tools::{ToolChoice, ToolDef};
use vllm_sim_engine::SimTime;
use vllm_sim_schema_sampler::Constraint;
use vllm_sim_wire::{SamplingParams, SamplingRequest};

/// A generation request, independent of its protocol.
///
/// Equal values get equal replies, whichever front end they came from.
#[derive(Default)]
pub struct GenerationRequest {
    /// Id shown to the client (`chatcmpl-…`).
    pub id: Arc<str>,
    /// Arrival time, from which the first delay counts.
    pub arrived: SimTime,
    /// Source of the prompts.
    pub prompts: PromptSource,
    /// Number of choices per prompt.
    pub n: i128,
    /// Maximum number of tokens per choice, if the client or the protocol sets it.
    pub max_tokens: Option<i128>,
    /// Part of the context that `max_tokens` may use.
    pub room: OutputBudget,
    /// Checks to run before the request reaches the engine.
    pub checks: SubmissionChecks,
    /// Result of the checks that need no prompt.
    pub validation: Deferred<()>,
    /// Sampling parameters, without the limit that the context sets.
    pub sampling: Deferred<SamplingRequest>,
    /// Constraint on the text, if the sampling parameters do not contain it.
    pub constraint: Option<Constraint>,
    /// Offered tools.
    pub tools: Option<ToolRequest>,
    /// Whether text under a constraint is parsed for tool calls.
    pub parses_calls: bool,
    /// Whether every choice repeats its prompt.
    pub echo: bool,
    /// Fraction of reasoning tokens in the output.
    pub reasoning: Option<f64>,
    /// Priority; lower values run first under `--scheduling-policy priority`.
    pub priority: i64,
    /// Requested data-parallel rank.
    pub rank: Option<i64>,
    /// Source and destination of the prompt's KV cache.
    pub transfer: Transfer,
    /// Salt for the prefix cache, which separates tenants (vLLM's `cache_salt`).
    pub cache_salt: Option<Arc<str>>,
    /// Minimum cached fraction of the prompt; below it the request ends early.
    pub hit_threshold: Option<f64>,
    /// Whether the prefix cache must not be read, regardless of the sampling parameters.
    pub skip_cache_read: bool,
    /// Delay between the last token and the end, such as the time to render an image.
    pub tail: Deferred<Duration>,
    /// Headers `traceparent` and `tracestate` (W3C trace context).
    pub trace: Option<(Box<str>, Option<Box<str>>)>,
    /// Injected faults.
    pub faults: Option<Arc<RequestFaults>>,
    /// Counter of the request's tokens, updated after its end.
    pub usage: Option<Arc<TokenUsage>>,
}

/// The tools of a request, and the rules for calling them.
#[derive(Debug, Clone)]
pub struct ToolRequest {
    /// Tools offered to the model.
    pub tools: Vec<ToolDef>,
    /// Rule for calling: forbidden, optional, required, or one named tool.
    pub choice: ToolChoice,
    /// Whether one reply may contain several calls.
    pub parallel: bool,
}

/// Selects the length against which the output limit is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputBudget {
    /// The context left by the longest prompt, the same for all prompts.
    #[default]
    Shared,
    /// The context left by each prompt.
    PerPrompt,
    /// The whole context, regardless of the prompt (speech).
    Context,
}

/// Selects the checks to run before a request reaches the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SubmissionChecks {
    /// All checks.
    #[default]
    All,
    /// No checks, because vLLM creates these prompts and parameters itself (speech).
    None,
}

/// The served model or LoRA adapter that a request names.
///
/// Created by [`Service::resolve`](super::Service::resolve) and consumed by
/// [`Service::generate`](super::Service::generate).
#[derive(Debug)]
pub struct Resolved {
    pub(super) target: Target,
    pub(super) asked: Option<Box<str>>,
}

impl Resolved {
    /// Returns the served model or LoRA adapter that the request names.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Converts the result of the lookup into its model or LoRA adapter, for routes that generate
    /// nothing.
    pub fn into_target(self) -> Target {
        self.target
    }
}

/// The properties of a validated request that the renderer of its reply needs.
#[derive(Debug)]
pub struct ReplyFacts {
    /// Id shown to the client.
    pub id: Arc<str>,
    /// Served model or LoRA adapter of the request.
    pub target: Target,
    /// Prompts, at least one.
    pub prompts: Vec<Prompt>,
    /// Number of output tokens that the context leaves.
    pub budget: i128,
    /// Complete sampling parameters.
    pub params: Box<SamplingParams>,
    /// Whether the reply may call tools.
    pub offers_tools: bool,
}

/// A running reply and the facts to render it.
pub struct Generated {
    /// Running reply.
    pub reply: Reply,
    /// Properties of the request that the renderer needs.
    pub facts: ReplyFacts,
}
