//! A validated request on its way to the engine: its content, sampler settings, KV transfer and
//! response size.

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use serde_json::Value;

use super::dialect::{AllowedToolSchemas, RequestRules};
use super::request::{GenerationRequest, OutputTokenBudget};
use super::{JobSubmissionError, RequestError, run_blocking};
use crate::generate::request::{
    OutputTokenConstraints, StopConditions, StopPattern, StopString, TokenizedPrompt,
};
use crate::generate::tools::{ToolChoice, ToolDefinition, validate_llmd_tool_parameters};
use crate::models::LoraAdapter;
use crate::scripted::ReservedReply;
use vllm_sim_engine::SequenceEndReason;
use vllm_sim_engine::driver::{KvSourceServer, SequenceState, SharedSequenceProgress};
use vllm_sim_random::{RandomStreamPurpose, request_rng};
use vllm_sim_schema_sampler::{
    CompiledConstraint, Constraint, ConstraintError, SampleLimits, compile_constraint,
};
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::openai::shared_request_fields::StructuredOutputs;
use vllm_sim_wire::sampling::GREEDY_TEMPERATURE;
use vllm_sim_wire::{Fault, SamplingParams};

/// A validated request, with everything that its sequences in the engine and the renderer of its
/// reply need. Each choice of each prompt is one sequence.
pub struct GenerationJob {
    /// The request, without its prompts and sampling parameters, which are fields of this job.
    pub request: Box<GenerationRequest>,
    /// LoRA adapter of the request; `None` for the base model.
    pub lora: Option<Arc<LoraAdapter>>,
    /// Tokenized prompts, at least one.
    pub prompts: Vec<TokenizedPrompt>,
    /// Sampling parameters, complete with defaults and the limit of the output.
    pub params: Box<SamplingParams>,
    /// Number of choices per prompt, at least 1.
    pub(crate) n: u32,
    /// Maximum number of output tokens per choice; the context limits it further.
    pub(crate) max_tokens: Option<u32>,
    /// Whether the client set `max_tokens` in the request.
    pub(crate) limited: bool,
    pub(crate) seed: Option<i64>,
    /// Whether temperature 0 or `top_k` 1 makes equal requests give equal replies despite their
    /// seed.
    pub(crate) greedy: bool,
    pub(crate) stops: Cow<'static, StopConditions>,
    pub(crate) bias: Cow<'static, OutputTokenConstraints>,
    pub(crate) thinking_budget: Option<u32>,
    pub(crate) content: ReplyContent,
    /// Scripted reply for each prompt, in place of generated text; may be empty.
    pub(crate) scripted: Vec<Option<ReservedReply>>,
    /// Whether tool calls are completed regardless of `max_tokens`, as in llm-d-inference-sim.
    pub(crate) whole_calls: bool,
    pub(crate) skip_cache_read: bool,
    /// Delay between the last token and the end of a sequence, such as the time to render an image.
    pub(crate) tail: Duration,
    pub(crate) shown: ResponseSizeOptions,
}

/// The rejection of a request, with the moment at which vLLM would report it.
pub struct RejectedRequest<E> {
    /// Error of the rejected request.
    pub error: E,
    /// The validated request of a late error, which vLLM reports in the body of a stream whose
    /// headers it has sent; `None` for an error before the headers.
    pub late: Option<Box<GenerationJob>>,
}

impl<E> From<E> for RejectedRequest<E> {
    fn from(error: E) -> Self {
        Self { error, late: None }
    }
}

/// The optional members of a response that add to its size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ResponseSizeOptions {
    /// Whether every choice repeats its prompt (`echo`).
    pub(crate) prompt: bool,
    /// Number of alternative log probabilities per output token; -1 for the whole vocabulary.
    pub(crate) logprobs: Option<i64>,
    /// Number of log probabilities per prompt token; -1 for the whole vocabulary.
    pub(crate) prompt_logprobs: Option<i64>,
}

static NO_STEERING: LazyLock<OutputTokenConstraints> =
    LazyLock::new(OutputTokenConstraints::default);
/// Stop conditions of requests without stop strings and stop tokens, indexed by `ignore_eos`.
static NO_STOP_CONDITIONS: LazyLock<[StopConditions; 2]> = LazyLock::new(|| {
    [false, true].map(|ignore_eos| StopConditions { ignore_eos, ..StopConditions::default() })
});

fn clamp_to_u32(n: i128) -> u32 {
    u32::try_from(n.max(0)).unwrap_or(u32::MAX)
}

fn clamp_to_i64(n: i128) -> i64 {
    n.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

fn to_token_ids(ids: &[i128]) -> Vec<u32> {
    let ids = ids.iter();
    ids.filter_map(|id| u32::try_from(*id).ok()).collect()
}

fn stop_conditions(
    params: &SamplingParams,
    patterns: Vec<StopPattern>,
) -> Cow<'static, StopConditions> {
    let stop_ids = params.stop_token_ids.as_deref().unwrap_or_default();
    let strings = params.stop.as_ref().map_or(&[][..], |stop| &stop.0);
    // Two comparisons, because comparing empty lists by slice took 2 % of a chat request on Zen 5.
    let none = stop_ids.is_empty() && strings.is_empty() && patterns.is_empty();
    if none && !params.include_stop_str_in_output && params.min_tokens == 0 {
        return Cow::Borrowed(&NO_STOP_CONDITIONS[usize::from(params.ignore_eos)]);
    }
    let strings = strings.iter().cloned().filter_map(StopString::new);
    Cow::Owned(StopConditions {
        strings: strings.collect(),
        patterns,
        include: params.include_stop_str_in_output,
        ids: to_token_ids(stop_ids).into_iter().collect(),
        ignore_eos: params.ignore_eos,
        min_tokens: clamp_to_u32(params.min_tokens),
    })
}

fn token_steering(params: &SamplingParams) -> Cow<'static, OutputTokenConstraints> {
    let bad_words = params.bad_words.as_deref().unwrap_or_default();
    let allowed = params.allowed_token_ids.as_deref();
    if params.logit_bias.is_none() && allowed.is_none() && bad_words.is_empty() {
        return Cow::Borrowed(&NO_STEERING);
    }
    let logits = params.logit_bias.iter().flat_map(|bias| &bias.0);
    let logits = logits.filter_map(|(id, bias)| Some((u32::try_from(*id).ok()?, *bias)));
    Cow::Owned(OutputTokenConstraints::new(logits, allowed.map(to_token_ids), bad_words))
}

impl GenerationJob {
    /// Returns whether the reply may call tools.
    pub fn offers_tools(&self) -> bool {
        matches!(self.content, ReplyContent::Tools { .. })
    }

    /// Returns how the text of a reply shows special tokens.
    pub(crate) fn special_tokens(&self) -> SpecialTokenHandling {
        SpecialTokenHandling::from_bool(!self.params.skip_special_tokens)
    }

    /// Creates a job from the checked parts of a request.
    pub fn new(
        rules: &RequestRules,
        request: Box<GenerationRequest>,
        lora: Option<Arc<LoraAdapter>>,
        prompts: Vec<TokenizedPrompt>,
        params: Box<SamplingParams>,
        stop_patterns: Vec<StopPattern>,
    ) -> Self {
        let asked = request.max_tokens;
        let ids = params.logprob_token_ids.as_ref();
        Self {
            n: clamp_to_u32(params.n).max(1),
            max_tokens: match request.room {
                OutputTokenBudget::Shared | OutputTokenBudget::Context => {
                    params.max_tokens.map(clamp_to_u32)
                }
                // The script also applies the limit of the context.
                OutputTokenBudget::PerPrompt | OutputTokenBudget::OneToken => {
                    asked.map(|n| clamp_to_u32(n).max(1))
                }
            },
            limited: match request.room {
                OutputTokenBudget::Shared => asked.or(rules.defaults.max_tokens).is_some(),
                OutputTokenBudget::PerPrompt
                | OutputTokenBudget::Context
                | OutputTokenBudget::OneToken => asked.is_some(),
            },
            seed: params.seed.map(|seed| seed as i64),
            greedy: params.temperature < GREEDY_TEMPERATURE || params.top_k == 1,
            stops: stop_conditions(&params, stop_patterns),
            bias: token_steering(&params),
            thinking_budget: params.thinking_token_budget.map(clamp_to_u32),
            content: ReplyContent::Text,
            scripted: Vec::new(),
            whole_calls: rules.dialect.writes_whole_calls(),
            skip_cache_read: request.prefix_cache.skip
                || params.prompt_logprobs.is_some()
                || params.skip_reading_prefix_cache.unwrap_or(false),
            tail: Duration::ZERO,
            shown: ResponseSizeOptions {
                prompt: request.echo,
                logprobs: [params.logprobs.map(clamp_to_i64), ids.map(|ids| ids.len() as i64)]
                    .into_iter()
                    .flatten()
                    // As `u64`, -1 (the whole vocabulary) is the maximum.
                    .max_by_key(|top| *top as u64),
                prompt_logprobs: params.prompt_logprobs.map(clamp_to_i64),
            },
            request,
            lora,
            prompts,
            params,
        }
    }
}

/// The kind of content that each choice of a request gets.
#[derive(Debug, Clone, Default)]
pub(crate) enum ReplyContent {
    #[default]
    Text,
    Constrained(Arc<CompiledConstraint>),
    /// Reply content: a text for a structured-output constraint; the text is parsed for tool calls.
    Parsed(Arc<CompiledConstraint>),
    /// Reply content: tool calls, or free text if the rule for tool calls (`choice`) allows it.
    Tools {
        tools: Arc<[ToolDefinition]>,
        choice: ToolChoice,
        parallel: bool,
    },
}

/// Callback for the end of a prefill hand-off; its argument is true if this server has prefilled
/// the prompt.
type EndReport = Box<dyn Fn(bool) + Send + Sync>;

/// The hand-off of a prompt that is prefilled on this server for another server to decode.
pub struct PrefillHandoff {
    /// Request id by which the decode server names the KV cache (`remote_request_id`).
    pub request: String,
    placed: OnceLock<(u32, Arc<SharedSequenceProgress>)>,
    on_end: Option<EndReport>,
}

impl fmt::Debug for PrefillHandoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefillHandoff").field("request", &self.request).finish_non_exhaustive()
    }
}

impl Drop for PrefillHandoff {
    fn drop(&mut self) {
        if let Some(report) = &self.on_end {
            report(self.block_ids_and_output_tokens().is_some());
        }
    }
}

impl PrefillHandoff {
    /// Creates the hand-off of a prefill request that is not yet submitted.
    pub fn new(request_id: String) -> Self {
        Self { request: request_id, placed: OnceLock::new(), on_end: None }
    }

    /// Creates a hand-off whose drop calls `on_end`, with true if the prompt was prefilled. The
    /// drop occurs at the end of the reply or after a refusal.
    pub fn with_end_callback(
        request_id: String,
        on_end: impl Fn(bool) + Send + Sync + 'static,
    ) -> Self {
        Self { request: request_id, placed: OnceLock::new(), on_end: Some(Box::new(on_end)) }
    }

    /// Returns the index of the data-parallel rank that prefills the prompt; `None` before
    /// submission.
    pub fn prefill_rank(&self) -> Option<u32> {
        self.placed.get().map(|(rank, _)| *rank)
    }

    /// Returns the prompt's KV block ids and the number of output tokens; `None` until the request
    /// has finished.
    pub fn block_ids_and_output_tokens(&self) -> Option<(&[u32], u32)> {
        let (_, progress) = self.placed.get()?;
        let finished = progress.state() == SequenceState::Ended(SequenceEndReason::Finished);
        finished.then(|| {
            (progress.leased_block_ids().unwrap_or_default(), progress.released_output_tokens())
        })
    }

    pub(super) fn set_rank_and_progress(
        &self,
        rank: usize,
        progress: &Arc<SharedSequenceProgress>,
    ) {
        // Runs once per request.
        let _ = self.placed.set((rank as u32, Arc::clone(progress)));
    }
}

/// The source and destination of the KV cache of a prompt.
#[derive(Debug, Clone, Default)]
pub enum KvTransfer {
    /// KV transfer: none, as the KV cache is computed and used on this server.
    #[default]
    Local,
    /// KV transfer: the KV cache is fetched from another server, which may need a notification
    /// afterwards.
    FromRemote(Option<Arc<KvSourceServer>>),
    /// KV transfer that failed: the KV cache was to be fetched from another server, which does not
    /// answer or is incompatible.
    FromLostRemote,
    /// KV transfer: the prompt is prefilled here, and another server fetches the KV cache and
    /// decodes.
    ForRemote(Arc<PrefillHandoff>),
    /// KV transfer to negotiate: the prefill and decode servers of a pair first agree on the kind
    /// of transfer.
    Negotiated(KvTransferNegotiation),
}

/// Future of the agreement of two servers on the transfer of a prompt's KV cache.
pub type KvTransferAgreementFuture =
    Pin<Box<dyn Future<Output = Result<KvTransfer, Fault>> + Send>>;

/// Negotiation between a prefill and a decode server on a request's KV transfer, not yet begun.
#[derive(Clone)]
pub struct KvTransferNegotiation(Arc<dyn Fn() -> KvTransferAgreementFuture + Send + Sync>);

impl fmt::Debug for KvTransferNegotiation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvTransferNegotiation").finish_non_exhaustive()
    }
}

impl KvTransferNegotiation {
    /// Creates a negotiation of a KV transfer, which `begin` starts once the request has passed all
    /// checks.
    pub fn new(begin: impl Fn() -> KvTransferAgreementFuture + Send + Sync + 'static) -> Self {
        Self(Arc::new(begin))
    }

    /// Starts the negotiation of a KV transfer; dropping the returned future ends the negotiation.
    pub(crate) fn begin_negotiation(&self) -> KvTransferAgreementFuture {
        (self.0)()
    }
}

/// Returns the kind of content that each choice of a request must have, such as free text or tool
/// calls.
///
/// # Errors
/// A constraint or tool schema that cannot be satisfied, or a tool whose schema is not on llm-d's
/// whitelist.
pub(super) async fn choose_reply_content(
    job: &GenerationJob,
    schemas: AllowedToolSchemas,
) -> Result<ReplyContent, RequestError> {
    let request = &job.request;
    let outputs = job.params.structured_outputs.as_ref();
    let described = compile_prompt_schema(job).await;
    let asked = request.constraint.clone();
    let asked = asked.or_else(|| outputs.and_then(structured_outputs_constraint));
    if let Some(constraint) = asked.filter(|_| !tools_replace_constraint(request)) {
        let compiled = match (constraint, described) {
            (Constraint::JsonObject, Some(described)) => Ok(described),
            (constraint @ (Constraint::JsonObject | Constraint::Choice(_)), _) => {
                compile_constraint(&constraint)
            }
            // A few bytes of such a constraint may take long to compile.
            (constraint, _) => {
                Box::pin(run_blocking(async move { compile_constraint(&constraint) })).await
            }
        };
        let compiled = compiled.map_err(JobSubmissionError::Constraint)?;
        return Ok(match request.parses_calls {
            true => ReplyContent::Parsed(Arc::new(compiled)),
            false => ReplyContent::Constrained(Arc::new(compiled)),
        });
    }
    let Some(offered) = &request.tools else {
        let described = described.map(Arc::new);
        return Ok(described.map_or(ReplyContent::Text, ReplyContent::Constrained));
    };
    if schemas == AllowedToolSchemas::Whitelisted {
        for tool in &offered.tools {
            let parameters = tool.parameters.clone().unwrap_or_default();
            validate_llmd_tool_parameters(&parameters)
                .map_err(|e| Fault::bad_request(format!("Tool validation failed: {e}")))?;
        }
    }
    Ok(ReplyContent::Tools {
        tools: offered.tools.clone().into(),
        choice: offered.choice.clone(),
        parallel: offered.parallel,
    })
}

/// Compiles the JSON Schema that the prompt describes; `None` if no value satisfies it.
async fn compile_prompt_schema(job: &GenerationJob) -> Option<CompiledConstraint> {
    let schema = job.prompts.first()?.schema.as_ref()?;
    let constraint = Constraint::Json(schema.as_ref().clone());
    let read = run_blocking(async move {
        let compiled = compile_constraint(&constraint)?;
        compiled.sample_text(
            &mut request_rng(0, 0, RandomStreamPurpose::Structured),
            &SampleLimits::default(),
        )?;
        Ok::<_, ConstraintError>(compiled)
    });
    Box::pin(read).await.ok()
}

/// Returns whether a constraint for tool calls replaces the request's own constraint.
///
/// It does if the request requires a tool call, or if the model may call a tool with a strict
/// schema.
///
/// Source: vLLM 0.33 `parser/abstract_parser.py`, `_apply_structural_tag`, and
/// `tool_parsers/abstract_tool_parser.py`, `adjust_request`.
fn tools_replace_constraint(request: &GenerationRequest) -> bool {
    let Some(offered) = &request.tools else {
        return false;
    };
    match offered.choice {
        ToolChoice::Required | ToolChoice::Named(_) => true,
        ToolChoice::Auto => {
            let strict = |tool: &ToolDefinition| tool.strict == Some(true);
            request.parses_calls && offered.tools.iter().any(strict)
        }
        ToolChoice::None => false,
    }
}

/// Converts the request field `structured_outputs`, of which exactly one member is set, to a
/// constraint.
fn structured_outputs_constraint(outputs: &StructuredOutputs) -> Option<Constraint> {
    if let Some(schema) = &outputs.json {
        // Clients may send the schema as a JSON string.
        let parsed = schema.as_str().and_then(|text| serde_json::from_str(text).ok());
        return Some(Constraint::Json(parsed.unwrap_or_else(|| schema.clone())));
    }
    if let Some(regex) = &outputs.regex {
        return Some(Constraint::Regex(regex.clone()));
    }
    if let Some(choice) = &outputs.choice {
        return Some(Constraint::Choice(choice.clone()));
    }
    if let Some(grammar) = &outputs.grammar {
        return Some(Constraint::Grammar(grammar.clone()));
    }
    if let Some(tag) = &outputs.structural_tag {
        let tag = serde_json::from_str(tag).unwrap_or_else(|_| Value::String(tag.clone()));
        return Some(Constraint::StructuralTag(tag));
    }
    outputs.json_object.unwrap_or(false).then_some(Constraint::JsonObject)
}

pub(super) const MAX_REPLY_BYTES: u64 = 256 << 20;
/// Estimated size of a token's text and id in a response, in bytes.
const RESPONSE_BYTES_PER_TOKEN: u64 = 8;
/// Estimated size of a log probability in a JSON response, in bytes.
const RESPONSE_BYTES_PER_LOGPROB: u64 = 96;

pub(super) struct ReplySize {
    bytes: u64,
    per_token: u64,
}

impl ReplySize {
    /// Returns the response size that the echoed prompts and their log probabilities need, in
    /// bytes.
    ///
    /// `None` if it exceeds [`MAX_REPLY_BYTES`]. A count of -1 log probabilities means the whole
    /// vocabulary.
    pub(super) fn reply_size_of_job(
        job: &GenerationJob,
        vocabulary: impl Fn() -> u32,
    ) -> Option<Self> {
        let prompts = job.prompts.iter();
        let tokens = prompts.map(|prompt| prompt.tokens.len() as u64).sum();
        Self::of_options(job.shown, job.n, tokens, vocabulary)
    }

    fn of_options(
        shown: ResponseSizeOptions,
        choices: u32,
        prompt_tokens: u64,
        vocabulary: impl Fn() -> u32,
    ) -> Option<Self> {
        let logprobs = |top: Option<i64>| match top.map(u64::try_from) {
            None => 0,
            // A row has the chosen token and, at most once, each token of the vocabulary.
            Some(Ok(top)) => {
                let top = top.min(vocabulary().into());
                top.saturating_add(1).saturating_mul(RESPONSE_BYTES_PER_LOGPROB)
            }
            Some(Err(_)) => u64::from(vocabulary()).saturating_mul(RESPONSE_BYTES_PER_LOGPROB),
        };
        let per_token = RESPONSE_BYTES_PER_TOKEN.saturating_add(logprobs(shown.logprobs));
        let echoes = match shown.prompt {
            true => u64::from(choices),
            false => 0,
        };
        let per_prompt_token =
            per_token.saturating_mul(echoes).saturating_add(logprobs(shown.prompt_logprobs));
        let size = Self { bytes: prompt_tokens.saturating_mul(per_prompt_token), per_token };
        size.within_limit()
    }

    /// Adds the size of a choice of `tokens` output tokens; `None` if the size then exceeds
    /// [`MAX_REPLY_BYTES`].
    pub(super) fn add_choice_size(mut self, tokens: u32) -> Option<Self> {
        let bytes = u64::from(tokens).saturating_mul(self.per_token);
        self.bytes = self.bytes.saturating_add(bytes);
        self.within_limit()
    }

    pub(super) fn reply_size_bytes(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    fn within_limit(self) -> Option<Self> {
        (self.bytes <= MAX_REPLY_BYTES).then_some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logprobs::LogprobInputs;
    use proptest::prelude::*;

    fn edges() -> impl Strategy<Value = i64> {
        let near = |edge: i64| (-2..=2_i64).prop_map(move |by| edge.saturating_add(by));
        prop_oneof![
            any::<i64>(),
            near(i64::MIN),
            near(i64::MAX),
            near(1 << 32),
            near(0),
            -1..100_000_i64,
        ]
    }

    proptest! {
        #[test]
        fn an_answer_is_refused_or_below_the_bound(
            logprobs in proptest::option::of(edges()),
            prompt_logprobs in proptest::option::of(edges()),
            prompt in any::<bool>(),
            choices in 1..=16_384_u32,
            tokens in any::<u32>(),
            prompt_tokens in 0..2_000_000_u64,
            vocabulary in prop_oneof![Just(u32::MAX), Just(4096), any::<u32>()],
        ) {
            let shown = ResponseSizeOptions { prompt, logprobs, prompt_logprobs };
            let size = ReplySize::of_options(shown, choices, prompt_tokens, || vocabulary);
            let size = size.and_then(|size| size.add_choice_size(tokens));
            let row = |top: Option<i64>| match top {
                None => 0,
                Some(top) if top < 0 => u128::from(vocabulary),
                Some(top) => (top as u128).min(vocabulary.into()) + 1,
            };
            let rows = u128::from(tokens) + u128::from(prompt_tokens) * u128::from(choices) * u128::from(prompt);
            let entries = rows * row(logprobs) + u128::from(prompt_tokens) * row(prompt_logprobs);
            if size.is_some() {
                prop_assert!(entries * u128::from(RESPONSE_BYTES_PER_LOGPROB) <= u128::from(MAX_REPLY_BYTES));
            }
            if rows * 8 + entries * u128::from(RESPONSE_BYTES_PER_LOGPROB) <= u128::from(MAX_REPLY_BYTES) {
                prop_assert!(size.is_some(), "refused without need");
            }
        }
    }

    #[test]
    fn a_row_has_no_more_entries_than_the_vocabulary() {
        let position = LogprobInputs { vocabulary: 50, context: 3, temperature: 1.0 };
        assert_eq!(position.chosen_and_top_tokens(7, usize::MAX).len(), 51);
        assert_eq!(position.deduplicated_chosen_and_top_tokens(7, usize::MAX).len(), 50);
    }
}
