//! A request for generation as plain data, and what is found out about it on its way.

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

/// A request for generation in no protocol's words.
///
/// Two equal values get equal replies, whichever edge they came through.
#[derive(Default)]
pub struct GenerationRequest {
    /// Id that the client knows (`chatcmpl-…`).
    pub id: Arc<str>,
    /// Moment of arrival, from which the first delay counts.
    pub arrived: SimTime,
    /// Source of the prompts.
    pub prompts: PromptSource,
    /// Choices per prompt.
    pub n: i128,
    /// Most tokens per choice, where the client or the protocol says so.
    pub max_tokens: Option<i128>,
    /// Length that `max_tokens` is measured against.
    pub room: OutputRoom,
    /// Checks that the request passes on its way to the engine.
    pub checks: EngineChecks,
    /// Result of checking the values that need no prompt.
    pub validation: Deferred<()>,
    /// Sampling parameters, without the limit that the context sets.
    pub sampling: Deferred<SamplingRequest>,
    /// Constraint on the text, where the sampling parameters do not hold it.
    pub constraint: Option<Constraint>,
    /// Tools that may be called.
    pub tools: Option<ToolRequest>,
    /// Whether a parser looks for calls in a text under a constraint.
    pub parses_calls: bool,
    /// Whether every choice repeats its prompt.
    pub echo: bool,
    /// Share of reasoning before the content.
    pub reasoning: Option<f64>,
    /// Priority; lower runs first under the priority policy.
    pub priority: i64,
    /// Data-parallel rank asked for.
    pub rank: Option<i64>,
    /// Source and destination of the prompt's KV cache.
    pub transfer: Transfer,
    /// Salt that keeps prompts of different tenants apart in the prefix cache.
    pub cache_salt: Option<Arc<str>>,
    /// Least share of the prompt that must be cached.
    pub hit_threshold: Option<f64>,
    /// Whether the prefix cache may not be read, whatever the parameters say.
    pub skip_cache_read: bool,
    /// Delay between the last token and the end (an image is made).
    pub tail: Deferred<Duration>,
    /// `traceparent` and `tracestate` (W3C trace context).
    pub trace: Option<(Box<str>, Option<Box<str>>)>,
    /// Injected faults.
    pub faults: Option<Arc<RequestFaults>>,
    /// Counter of the tokens, read when the request has gone.
    pub usage: Option<Arc<TokenUsage>>,
}

/// Tools that a request offers to be called.
#[derive(Debug, Clone)]
pub struct ToolRequest {
    /// The tools.
    pub tools: Vec<ToolDef>,
    /// Whether something must be.
    pub choice: ToolChoice,
    /// Whether more than one call is allowed.
    pub parallel: bool,
}

/// The length that the limit on an output is measured against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputRoom {
    /// What the longest prompt leaves of the context, the same for all.
    #[default]
    Shared,
    /// What each prompt leaves.
    PerPrompt,
    /// The whole context: how long a prompt is does not matter (speech).
    Context,
}

/// The checks that a request passes on its way to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChecks {
    /// All of them.
    #[default]
    All,
    /// None: vLLM makes these prompts and parameters itself (speech).
    None,
}

/// A request whose model was found.
///
/// Only [`Service::resolve`](super::Service::resolve) makes one, and
/// [`Service::generate`](super::Service::generate) takes it.
#[derive(Debug)]
pub struct Resolved {
    pub(super) target: Target,
    pub(super) asked: Option<Box<str>>,
}

impl Resolved {
    /// Returns who answers.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns who answers, for a route that generates nothing.
    pub fn into_target(self) -> Target {
        self.target
    }
}

/// Facts of a request that are known once it is ready for the engine.
#[derive(Debug)]
pub struct ReplyFacts {
    /// Id that the client knows.
    pub id: Arc<str>,
    /// Model or adapter that answers.
    pub target: Target,
    /// Prompts, at least one.
    pub prompts: Vec<Prompt>,
    /// Tokens that the context leaves.
    pub budget: i128,
    /// Sampling parameters, complete.
    pub params: Box<SamplingParams>,
    /// Whether tools may be called in the reply.
    pub offers_tools: bool,
}

/// A request that is being answered.
pub struct Generated {
    /// Reply, as it comes.
    pub reply: Reply,
    /// Facts that a renderer needs.
    pub facts: ReplyFacts,
}
