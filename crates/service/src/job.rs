use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::PrefillHandoff;
use super::dialect::RequestRules;
use super::request::{GenerationRequest, OutputBudget, ReplyFacts};
use crate::generate::request::{StopConditions, StopString, TokenSteering};
use crate::generate::tools::{ToolChoice, ToolDef};
use crate::scripted::ReservedReply;
use vllm_sim_engine::driver::KvSourceServer;
use vllm_sim_schema_sampler::CompiledConstraint;
use vllm_sim_wire::sampling::GREEDY_TEMPERATURE;
use vllm_sim_wire::{Fault, SamplingParams};

/// A validated request, ready for the engine: each choice of each prompt is one sequence.
pub(crate) struct GenerationJob {
    /// Request without prompts and sampling parameters, which `facts` holds.
    pub(crate) request: Box<GenerationRequest>,
    pub(crate) facts: ReplyFacts,
    /// Number of choices per prompt, at least 1.
    pub(crate) n: u32,
    /// Maximum number of output tokens per choice; the context limits it further.
    pub(crate) max_tokens: Option<u32>,
    /// Whether the client set `max_tokens` in the request.
    pub(crate) limited: bool,
    pub(crate) sampler: SamplerSettings,
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

/// The sampler settings that affect the content of a reply.
pub(crate) struct SamplerSettings {
    pub(crate) seed: Option<i64>,
    /// Whether temperature 0 or `top_k` 1 makes equal requests give equal replies despite their
    /// seed.
    pub(crate) greedy: bool,
    pub(crate) stops: Cow<'static, StopConditions>,
    pub(crate) bias: Cow<'static, TokenSteering>,
    pub(crate) thinking_budget: Option<u32>,
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

static NO_STEERING: LazyLock<TokenSteering> = LazyLock::new(TokenSteering::default);
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

fn stop_conditions(params: &SamplingParams) -> Cow<'static, StopConditions> {
    let stop_ids = params.stop_token_ids.as_deref().unwrap_or_default();
    let strings = params.stop.as_ref().map_or(&[][..], |stop| &stop.0);
    // Two comparisons, because comparing empty lists by slice took 2 % of a chat request on Zen 5.
    let none = stop_ids.is_empty() && strings.is_empty();
    if none && !params.include_stop_str_in_output && params.min_tokens == 0 {
        return Cow::Borrowed(&NO_STOP_CONDITIONS[usize::from(params.ignore_eos)]);
    }
    let strings = strings.iter().cloned().filter_map(StopString::new);
    Cow::Owned(StopConditions {
        strings: strings.collect(),
        include: params.include_stop_str_in_output,
        ids: to_token_ids(stop_ids).into_iter().collect(),
        ignore_eos: params.ignore_eos,
        min_tokens: clamp_to_u32(params.min_tokens),
    })
}

fn token_steering(params: &SamplingParams) -> Cow<'static, TokenSteering> {
    let bad_words = params.bad_words.as_deref().unwrap_or_default();
    let allowed = params.allowed_token_ids.as_deref();
    if params.logit_bias.is_none() && allowed.is_none() && bad_words.is_empty() {
        return Cow::Borrowed(&NO_STEERING);
    }
    let logits = params.logit_bias.iter().flat_map(|bias| &bias.0);
    let logits = logits.filter_map(|(id, bias)| Some((u32::try_from(*id).ok()?, *bias)));
    Cow::Owned(TokenSteering::new(logits, allowed.map(to_token_ids), bad_words))
}

impl SamplerSettings {
    fn new(params: &SamplingParams) -> Self {
        Self {
            seed: params.seed.map(|seed| seed as i64),
            greedy: params.temperature < GREEDY_TEMPERATURE || params.top_k == 1,
            stops: stop_conditions(params),
            bias: token_steering(params),
            thinking_budget: params.thinking_token_budget.map(clamp_to_u32),
        }
    }
}

impl GenerationJob {
    pub(crate) fn new(
        rules: &RequestRules,
        request: Box<GenerationRequest>,
        facts: ReplyFacts,
        content: ReplyContent,
    ) -> Self {
        let params = &facts.params;
        let asked = request.max_tokens;
        let ids = params.logprob_token_ids.as_ref();
        Self {
            n: clamp_to_u32(params.n).max(1),
            max_tokens: match request.room {
                OutputBudget::Shared | OutputBudget::Context => params.max_tokens.map(clamp_to_u32),
                // The script also applies the limit of the context.
                OutputBudget::PerPrompt => asked.map(|n| clamp_to_u32(n).max(1)),
            },
            limited: match request.room {
                OutputBudget::Shared => asked.or(rules.defaults.max_tokens).is_some(),
                OutputBudget::PerPrompt | OutputBudget::Context => asked.is_some(),
            },
            sampler: SamplerSettings::new(params),
            content,
            scripted: Vec::new(),
            whole_calls: rules.dialect.writes_whole_calls(),
            skip_cache_read: request.skip_cache_read
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
            facts,
        }
    }
}

/// The kind of content that a choice gets.
#[derive(Debug, Clone, Default)]
pub(crate) enum ReplyContent {
    #[default]
    Text,
    Constrained(Arc<CompiledConstraint>),
    /// Text under a constraint, parsed for tool calls.
    Parsed(Arc<CompiledConstraint>),
    /// Tool calls, or free text if `choice` allows it.
    Tools {
        tools: Arc<[ToolDef]>,
        choice: ToolChoice,
        parallel: bool,
    },
}

/// The source and destination of the KV cache of a prompt.
#[derive(Debug, Clone, Default)]
pub enum KvTransfer {
    /// The KV cache is computed and used on this server.
    #[default]
    Local,
    /// The KV cache is fetched from another server, which may need a notification afterwards.
    FromRemote(Option<Arc<KvSourceServer>>),
    /// The KV cache was to be fetched from another server, which does not answer or does not fit.
    FromLostRemote,
    /// The prompt is prefilled here, and another server fetches the KV cache and decodes.
    ForRemote(Arc<PrefillHandoff>),
    /// The servers of a pair first agree on one of the others.
    Negotiated(KvTransferNegotiation),
}

/// Future of the agreement of two servers on the transfer of a prompt's KV cache.
pub type KvTransferAgreement = Pin<Box<dyn Future<Output = Result<KvTransfer, Fault>> + Send>>;

/// Begins the agreement with the other server of a prefill/decode pair on a request.
#[derive(Clone)]
pub struct KvTransferNegotiation(Arc<dyn Fn() -> KvTransferAgreement + Send + Sync>);

impl fmt::Debug for KvTransferNegotiation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KvTransferNegotiation").finish_non_exhaustive()
    }
}

impl KvTransferNegotiation {
    /// Creates a negotiation that `begin` starts, once the request has passed all checks.
    pub fn new(begin: impl Fn() -> KvTransferAgreement + Send + Sync + 'static) -> Self {
        Self(Arc::new(begin))
    }

    /// Starts the negotiation. Dropping the future ends it.
    pub(crate) fn begin(&self) -> KvTransferAgreement {
        (self.0)()
    }
}
