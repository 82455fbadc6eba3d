use std::borrow::Cow;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::HandOver;
use super::dialect::RequestRules;
use super::request::{GenerationRequest, OutputRoom, ReplyFacts};
use crate::generate::request::{Bias, StopString, Stops};
use crate::generate::tools::{ToolChoice, ToolDef};
use crate::scripted::ChosenReply;
use vllm_sim_engine::driver::KvSource;
use vllm_sim_schema_sampler::Compiled;
use vllm_sim_wire::SamplingParams;
use vllm_sim_wire::sampling::GREEDY;

/// A request that is ready for the engine: prompts times choices, each one sequence.
pub(crate) struct Job {
    /// The request, its prompts and parameters taken out.
    pub(crate) request: Box<GenerationRequest>,
    /// Prompts, parameters, and who answers.
    pub(crate) facts: ReplyFacts,
    /// Choices per prompt, at least one.
    pub(crate) n: u32,
    /// Most tokens per choice; the context limits it further.
    pub(crate) max_tokens: Option<u32>,
    /// Whether the client set that limit itself.
    pub(crate) limited: bool,
    /// Settings of the sampler.
    pub(crate) sampler: Sampler,
    /// Material of each choice.
    pub(crate) content: Content,
    /// The scripted reply for each prompt, in place of generated text; empty: there are none.
    pub(crate) scripted: Vec<Option<ChosenReply>>,
    /// Whether calls of tools are written to their end, whatever `max_tokens` says.
    pub(crate) whole_calls: bool,
    /// Whether the prefix cache may not be read.
    pub(crate) skip_cache_read: bool,
    /// Delay between the last token and the end (an image is made).
    pub(crate) tail: Duration,
    /// Parts of the answer that its size depends on.
    pub(crate) shown: Shown,
}

/// The settings of the sampler that a script depends on.
pub(crate) struct Sampler {
    /// Seed of the request itself.
    pub(crate) seed: Option<i64>,
    /// Whether only the likeliest token is ever taken (temperature 0 or `top_k` 1), so that equal
    /// requests give equal answers whatever their seed.
    pub(crate) greedy: bool,
    /// Conditions that end a sequence.
    pub(crate) stops: Cow<'static, Stops>,
    /// Preferences among tokens.
    pub(crate) bias: Cow<'static, Bias>,
    /// Most tokens of reasoning before the one that ends it.
    pub(crate) thinking_budget: Option<u32>,
}

/// The parts of an answer besides its text; its size follows from them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Whether every choice repeats its prompt.
    pub(crate) prompt: bool,
    /// Log probabilities besides each token's own; -1 for the whole vocabulary.
    pub(crate) logprobs: Option<i64>,
    /// The same for the prompt, once.
    pub(crate) prompt_logprobs: Option<i64>,
}

/// What most jobs have, made once.
static UNBIASED: LazyLock<Bias> = LazyLock::new(Bias::default);
/// By whether the model's own end is ignored.
static UNSTOPPED: LazyLock<[Stops; 2]> = LazyLock::new(|| {
    [false, true].map(|ignore_eos| Stops {
        ignore_eos,
        ..Stops::default()
    })
});

fn small(n: i128) -> u32 {
    u32::try_from(n.max(0)).unwrap_or(u32::MAX)
}

/// Returns the number of log probabilities that are shown, saturated at 64 bits.
fn top(n: i128) -> i64 {
    n.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

fn ids(ids: &[i128]) -> Vec<u32> {
    let ids = ids.iter();
    ids.filter_map(|id| u32::try_from(*id).ok()).collect()
}

fn stops(params: &SamplingParams) -> Cow<'static, Stops> {
    let stop_ids = params.stop_token_ids.as_deref().unwrap_or_default();
    let strings = params.stop.as_ref().map_or(&[][..], |stop| &stop.0);
    // By hand: two empty lists are compared by a masked read of no memory, which took 2 % of a chat on Zen 5.
    let none = stop_ids.is_empty() && strings.is_empty();
    if none && !params.include_stop_str_in_output && params.min_tokens == 0 {
        return Cow::Borrowed(&UNSTOPPED[usize::from(params.ignore_eos)]);
    }
    let strings = strings.iter().cloned().filter_map(StopString::new);
    Cow::Owned(Stops {
        strings: strings.collect(),
        include: params.include_stop_str_in_output,
        ids: ids(stop_ids).into_iter().collect(),
        ignore_eos: params.ignore_eos,
        min_tokens: small(params.min_tokens),
    })
}

fn bias(params: &SamplingParams) -> Cow<'static, Bias> {
    let bad_words = params.bad_words.as_deref().unwrap_or_default();
    let allowed = params.allowed_token_ids.as_deref();
    if params.logit_bias.is_none() && allowed.is_none() && bad_words.is_empty() {
        return Cow::Borrowed(&UNBIASED);
    }
    let logits = params.logit_bias.iter().flat_map(|bias| &bias.0);
    let logits = logits.filter_map(|(id, bias)| Some((u32::try_from(*id).ok()?, *bias)));
    Cow::Owned(Bias::new(logits, allowed.map(ids), bad_words))
}

impl Sampler {
    fn new(params: &SamplingParams) -> Self {
        Self {
            seed: params.seed.map(|seed| seed as i64),
            greedy: params.temperature < GREEDY || params.top_k == 1,
            stops: stops(params),
            bias: bias(params),
            thinking_budget: params.thinking_token_budget.map(small),
        }
    }
}

impl Job {
    /// Returns the job of a request that was found good.
    pub(crate) fn new(
        rules: &RequestRules,
        request: Box<GenerationRequest>,
        facts: ReplyFacts,
        content: Content,
    ) -> Self {
        let params = &facts.params;
        let asked = request.max_tokens;
        let ids = params.logprob_token_ids.as_ref();
        Self {
            n: small(params.n).max(1),
            max_tokens: match request.room {
                OutputRoom::Shared | OutputRoom::Context => params.max_tokens.map(small),
                // The service cuts further where it must.
                OutputRoom::PerPrompt => asked.map(|n| small(n).max(1)),
            },
            limited: match request.room {
                OutputRoom::Shared => asked.or(rules.defaults.max_tokens).is_some(),
                OutputRoom::PerPrompt | OutputRoom::Context => asked.is_some(),
            },
            sampler: Sampler::new(params),
            content,
            scripted: Vec::new(),
            whole_calls: rules.dialect.writes_whole_calls(),
            skip_cache_read: request.skip_cache_read
                || params.prompt_logprobs.is_some()
                || params.skip_reading_prefix_cache.unwrap_or(false),
            tail: Duration::ZERO,
            shown: Shown {
                prompt: request.echo,
                logprobs: [params.logprobs.map(top), ids.map(|ids| ids.len() as i64)]
                    .into_iter()
                    .flatten()
                    // -1, the whole vocabulary, is the most.
                    .max_by_key(|top| *top as u64),
                prompt_logprobs: params.prompt_logprobs.map(top),
            },
            request,
            facts,
        }
    }
}

/// The material of a choice, before chance has spoken.
#[derive(Debug, Clone, Default)]
pub(crate) enum Content {
    /// Free text.
    #[default]
    Text,
    /// Text under a constraint.
    Constrained(Arc<Compiled>),
    /// Text under a constraint, in which a parser looks for calls of tools.
    Parsed(Arc<Compiled>),
    /// Calls of tools, or free text where the choice allows it.
    Tools {
        /// What may be called.
        tools: Arc<[ToolDef]>,
        /// Whether something must be.
        choice: ToolChoice,
        /// Whether more than one call is allowed.
        parallel: bool,
    },
}

/// Where the KV cache of a prompt comes from and goes to.
#[derive(Debug, Clone, Default)]
pub enum Transfer {
    /// Computed here, used here.
    #[default]
    Local,
    /// Fetched from another server, which may wait to hear of it.
    FromRemote(Option<Arc<KvSource>>),
    /// Computed for another server.
    ForRemote(Arc<HandOver>),
}
