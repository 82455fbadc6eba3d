//! A generation request independent of its protocol, and its reply.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;

use super::prompt::PromptSource;
use super::{
    ConnectionHandle, InFlightSequencesGuard, KvTransfer, LargeBodyReservation, PrefillHandoff,
    RequestFaults, ServerLoadGuard,
};
use crate::fault_control::KvLoadFailureReport;
use crate::generate::tools::{ToolChoice, ToolDefinition};
use crate::generate::{ReplyScript, ReplyScriptCursor};
use vllm_sim_engine::driver::{SequenceHandle, SequenceState};
use vllm_sim_engine::{SequenceEndReason, SimTime};
use vllm_sim_schema_sampler::Constraint;
use vllm_sim_wire::{Fault, SamplingParams};

/// A generation request, independent of its protocol.
///
/// Requests with equal values get equal replies, whichever front end they came from.
#[derive(Default)]
pub struct GenerationRequest {
    /// Request id shown to the client (`chatcmpl-…`).
    pub id: Arc<str>,
    /// Arrival time of the request, from which delays are measured.
    pub arrived: SimTime,
    /// Name of the base model in the request, if responses show another one.
    pub model_alias: Option<Box<str>>,
    /// Texts, token ids or conversations from which the prompts are made.
    pub prompts: PromptSource,
    /// Number of choices per prompt.
    pub n: i128,
    /// Maximum number of output tokens per choice, if the client or the protocol sets it.
    pub max_tokens: Option<i128>,
    /// Upper bound of `max_tokens`, derived from the context length and the prompts.
    pub room: OutputTokenBudget,
    /// Checks to run before the request is submitted to an engine.
    pub checks: RequestSubmissionChecks,
    /// Result of the request checks that do not need the prompt.
    pub validation: DeferredRequestCheck<()>,
    /// Sampling parameters, without the output limit that the context sets; `None`: vLLM's defaults.
    pub sampling: DeferredRequestCheck<Option<Box<SamplingParams>>>,
    /// Regular expressions, a match of which ends an output (SGLang's `stop_regex`).
    pub stop_patterns: Vec<String>,
    /// Structured-output constraint, if the sampling parameters do not contain it.
    pub constraint: Option<Constraint>,
    /// The tools that the model may call, with the rules for calling them.
    pub tools: Option<RequestedTools>,
    /// Whether constrained text is parsed for tool calls.
    pub parses_calls: bool,
    /// Whether every choice repeats its prompt (`echo`).
    pub echo: bool,
    /// Fraction of output tokens that is reasoning, 0 to 1; `None` means no reasoning.
    pub reasoning: Option<f64>,
    /// Scheduling priority; lower values run first under `--scheduling-policy priority`.
    pub priority: i64,
    /// Data-parallel rank in the request; `None` selects the least loaded one.
    pub rank: Option<i64>,
    /// Source and destination of the prompt's KV cache.
    pub transfer: KvTransfer,
    /// Salt and session of the request's KV blocks.
    pub kv_labels: KvBlockSaltAndSession,
    /// Rules for reading the prefix cache.
    pub prefix_cache: PrefixCacheReadRules,
    /// Delay between the last token and the end of a sequence, such as the time to render an image.
    pub tail: DeferredRequestCheck<Duration>,
    /// Trace headers `traceparent` and `tracestate` (W3C trace context).
    pub trace: Option<(Box<str>, Option<Box<str>>)>,
    /// Headers in the conditions of scripted replies, in lower case, with their values.
    pub headers: Box<[(Box<str>, Box<str>)]>,
    /// Injected faults of the request, and the counter of its tokens.
    pub context: RequestContext,
}

/// A request's rules for reading the prefix cache.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PrefixCacheReadRules {
    /// Minimum cached fraction of the prompt, 0 to 1; below it the request ends early.
    pub hit_threshold: Option<f64>,
    /// Whether the prefix cache must not be read, regardless of the sampling parameters.
    pub skip: bool,
}

impl PrefixCacheReadRules {
    /// Creates rules that read the prefix cache, with a minimum cached fraction of the prompt.
    pub const fn with_hit_threshold(hit_threshold: Option<f64>) -> Self {
        Self { hit_threshold, skip: false }
    }
}

/// Labels of a request's KV blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvBlockSaltAndSession {
    /// Salt for the prefix cache, which separates tenants (vLLM's `cache_salt`).
    pub salt: Option<Arc<str>>,
    /// Session of the request, as its KV events name it.
    pub session_id: Option<Arc<str>>,
}

/// The tools of a request, and the rules for calling them.
#[derive(Debug, Clone)]
pub struct RequestedTools {
    /// The tools that the model may call.
    pub tools: Vec<ToolDefinition>,
    /// Rule for tool calls: forbidden, optional, required, or one named tool.
    pub choice: ToolChoice,
    /// Whether one reply may contain several tool calls.
    pub parallel: bool,
}

/// The length against which the output limit of a request is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutputTokenBudget {
    /// The output limit is checked against the context length minus the longest prompt, for all
    /// prompts alike.
    #[default]
    Shared,
    /// The output limit is checked against the context length minus the prompt, for each prompt
    /// separately.
    PerPrompt,
    /// The output limit is checked against the whole context length, regardless of the prompt
    /// (speech).
    Context,
    /// The output has one token, which the client does not ask for (`echo` with `max_tokens` 0).
    OneToken,
}

/// The checks to run before a request is submitted to an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequestSubmissionChecks {
    /// vLLM's checks of the prompt length, token ids and sampling parameters.
    #[default]
    All,
    /// All checks except those of `SamplingParams._verify_args`: a front end has run them, or the
    /// imitated server runs none (beam search).
    AllButSamplingRanges,
    /// Speech requests: only the checks of `SamplingParams._verify_args`, because vLLM makes these
    /// prompts itself.
    OnlySamplingRanges,
}

/// The result of a request check that is computed early and reported later.
///
/// Reporting later keeps vLLM's order of errors for checks that depend on the request alone.
#[derive(Debug, Clone)]
pub struct DeferredRequestCheck<T>(Result<T, Fault>);

impl<T> DeferredRequestCheck<T> {
    /// Returns the value that an early check of a request computed, or the error that the check
    /// found.
    ///
    /// # Errors
    /// The fault found when the check was computed.
    pub fn into_result(self) -> Result<T, Fault> {
        self.0
    }
}

impl<T: Default> Default for DeferredRequestCheck<T> {
    fn default() -> Self {
        Self(Ok(T::default()))
    }
}

impl<T> From<Result<T, Fault>> for DeferredRequestCheck<T> {
    fn from(result: Result<T, Fault>) -> Self {
        Self(result)
    }
}

/// Information about an HTTP request or gRPC call that its headers and body do not contain; stored
/// as an extension of the request.
#[derive(Clone, Default)]
pub struct RequestContext {
    /// Arrival time of the request head, in seconds since the Unix epoch.
    pub started: f64,
    /// Address of the client as text, for the access log; `None` on a Unix socket.
    pub client: Option<Arc<str>>,
    /// Client connection of the request, for injected faults that break it.
    pub connection: Option<Arc<ConnectionHandle>>,
    /// Injected faults of the request; `None` if the request cannot get faults.
    pub faults: Option<Arc<RequestFaults>>,
    /// Counter of the request's tokens, updated when the reply is dropped; `None` if nothing reads it.
    pub usage: Option<Arc<TokenUsage>>,
}

/// A running generation job. Dropping it aborts the sequences that have not ended.
pub struct Reply {
    /// Choices of the job, grouped by prompt: choice s of prompt p has index p·n + s.
    pub choices: Vec<ReplyChoice>,
    /// Number of tokens of each prompt of the job.
    pub prompts: Vec<u32>,
    /// Estimated size of the whole response, in bytes.
    pub size: usize,
    /// Whether sequences stay open for some time after their last token.
    pub has_end_delay: bool,
    pub(crate) usage: Option<Arc<TokenUsage>>,
    pub(crate) load_failure: Option<KvLoadFailureReport>,
    pub(crate) memory_reservation: Option<LargeBodyReservation>,
    /// The request counts in the server's load until this guard is dropped with the reply.
    pub load: Option<ServerLoadGuard>,
    /// Hand-off of the prompt to a decode server; the hand-off ends with the reply.
    handoff: Option<Arc<PrefillHandoff>>,
    _in_flight: InFlightSequencesGuard,
}

/// The token counts of a request, updated when its reply is dropped.
#[derive(Debug, Default)]
pub struct TokenUsage(Mutex<TokenUsageCounts>);

/// Numbers of tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenUsageCounts {
    /// Prompt tokens; each prompt counts once, not once per choice.
    pub prompt: u32,
    /// Number of cached prompt tokens; part of `prompt`.
    pub cached: u32,
    /// Number of output tokens that the engine produced until the end of the request.
    pub generated: u32,
    /// Number of output tokens in the written response; part of `generated`.
    pub delivered: u32,
}

impl TokenUsage {
    /// Returns the token counts; all are 0 until the reply is dropped.
    pub fn token_counts(&self) -> TokenUsageCounts {
        *self.0.lock()
    }

    fn add_counts(&self, more: TokenUsageCounts) {
        let mut counts = self.0.lock();
        *counts = TokenUsageCounts {
            prompt: counts.prompt.saturating_add(more.prompt),
            cached: counts.cached.saturating_add(more.cached),
            generated: counts.generated.saturating_add(more.generated),
            delivered: counts.delivered.saturating_add(more.delivered),
        };
    }
}

/// One sequence of a generation job: its content and its progress in the engine.
pub struct ReplyChoice {
    /// Index of the choice in the reply.
    pub index: usize,
    /// Index of the prompt that the sequence answers.
    pub prompt: usize,
    /// Generated content, complete before the first token is output.
    pub script: ReplyScript,
    /// Token position up to which the front end has written the reply.
    pub cursor: ReplyScriptCursor,
    /// Number of output tokens that the front end has written.
    pub sent: u32,
    /// Reason for the end of the sequence, once the front end writes this end in a stream.
    pub sent_end: Option<SequenceEndReason>,
    /// Whether another server continues the sequence after the prefill on this server.
    pub handed_over: bool,
    handle: SequenceHandle,
}

impl Reply {
    pub(super) fn new(
        scripts: Vec<ReplyScript>,
        handles: Vec<SequenceHandle>,
        prompts: Vec<u32>,
        n: u32,
        size: usize,
        in_flight: InFlightSequencesGuard,
    ) -> Self {
        let choices: Vec<_> = scripts
            .into_iter()
            .zip(handles)
            .enumerate()
            .map(|(index, (script, handle))| ReplyChoice {
                index,
                prompt: index / n.max(1) as usize,
                script,
                cursor: ReplyScriptCursor::default(),
                sent: 0,
                sent_end: None,
                handed_over: false,
                handle,
            })
            .collect();
        Self {
            choices,
            prompts,
            size,
            has_end_delay: false,
            usage: None,
            load_failure: None,
            memory_reservation: None,
            load: None,
            handoff: None,
            _in_flight: in_flight,
        }
    }

    /// Sets the hand-off of the prompt to a decode server; the hand-off ends with the reply.
    pub(super) fn set_handoff(&mut self, handoff: Option<Arc<PrefillHandoff>>) {
        self.choices.iter_mut().for_each(|choice| choice.handed_over = handoff.is_some());
        self.handoff = handoff;
    }

    /// Records that the front end writes all tokens that the engine has output, in a response that
    /// is not a stream.
    pub fn mark_reply_delivered(&mut self) {
        for choice in &mut self.choices {
            choice.sent = choice.released_tokens();
        }
    }

    fn usage_counts(&self) -> TokenUsageCounts {
        let cached = self.prompts.iter().zip(0..).map(|(prompt, index)| {
            // The first choice of a prompt finds what was cached before the request.
            let first = self.choices.iter().find(|choice| choice.prompt == index);
            first.map_or(0, |choice| {
                choice.sequence_progress().reused_prompt_tokens(*prompt).min(*prompt)
            })
        });
        TokenUsageCounts {
            prompt: self.prompt_token_count(),
            cached: saturating_sum(cached),
            generated: saturating_sum(self.choices.iter().map(ReplyChoice::released_tokens)),
            delivered: saturating_sum(self.choices.iter().map(|choice| choice.sent)),
        }
    }

    /// Waits until every choice of the job has ended.
    pub async fn wait_until_choices_ended(&self) {
        poll_fn(|cx| {
            let open = self.choices.iter().any(|choice| choice.poll_end(cx).is_pending());
            if open { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Returns whether any choice of the job ended with an error.
    pub fn has_failed_choice(&self) -> bool {
        let mut choices = self.choices.iter();
        choices.any(|choice| {
            choice.sequence_state() == SequenceState::Ended(SequenceEndReason::Failed)
        })
    }

    /// Returns the number of prompt tokens of the job; each prompt counts once, not once per
    /// choice.
    pub fn prompt_token_count(&self) -> u32 {
        saturating_sum(self.prompts.iter().copied())
    }
}

/// Adds numbers of tokens, limited to the maximum of `u32`, because scripted replies may set any
/// numbers.
fn saturating_sum(tokens: impl Iterator<Item = u32>) -> u32 {
    tokens.fold(0, u32::saturating_add)
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(usage) = &self.usage {
            usage.add_counts(self.usage_counts());
        }
        if let Some(report) = &self.load_failure
            && self.choices.iter().any(|c| c.sequence_progress().has_failed_kv_load())
        {
            report.report_kv_load_failure();
        }
    }
}

impl ReplyChoice {
    /// Returns the state of the sequence in the engine. Read it before [`Self::released_tokens`].
    pub fn sequence_state(&self) -> SequenceState {
        self.handle.progress().state()
    }

    /// Returns the number of the sequence's output tokens that the front end may already write to
    /// the client.
    pub fn released_tokens(&self) -> u32 {
        self.handle.progress().released_output_tokens()
    }

    /// Returns the progress of the sequence in the engine.
    pub fn sequence_progress(&self) -> &vllm_sim_engine::driver::SharedSequenceProgress {
        self.handle.progress()
    }

    /// Registers the task to be woken at the next change of the sequence; check the state again
    /// afterwards.
    pub fn register_waker(&self, cx: &Context<'_>) {
        self.handle.progress().register_waker(cx.waker());
    }

    fn poll_end(&self, cx: &Context<'_>) -> Poll<()> {
        if matches!(self.sequence_state(), SequenceState::Ended(_)) {
            return Poll::Ready(());
        }
        self.register_waker(cx);
        if matches!(self.sequence_state(), SequenceState::Ended(_)) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}
