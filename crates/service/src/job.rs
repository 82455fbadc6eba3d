use std::borrow::Cow;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::{HandOver, LiveSettings};
use crate::generate::request::{Bias, Prompt, StopString, Stops, Target};
use crate::generate::tools::{ToolChoice, ToolDef};
use crate::scripted::ScriptedReply;
use vllm_sim_engine::SimTime;
use vllm_sim_engine::driver::KvSource;
use vllm_sim_schema_sampler::Compiled;
use vllm_sim_wire::SamplingParams;
use vllm_sim_wire::sampling::GREEDY;

/// A request: prompts times choices, each one sequence.
#[derive(Debug, Clone)]
pub struct Job {
    /// The id the client knows (`chatcmpl-…`).
    pub id: Arc<str>,
    /// Who answers.
    pub target: Target,
    /// Prompts, at least one.
    pub prompts: Vec<Prompt>,
    /// Choices per prompt, at least one.
    pub n: u32,
    /// Most tokens per choice; the context limits it further.
    pub max_tokens: Option<u32>,
    /// Whether the client set that limit itself.
    pub limited: bool,
    /// Seed of the request itself.
    pub seed: Option<i64>,
    /// Whether only the likeliest token is ever taken (temperature 0 or `top_k` 1), so that equal
    /// requests give equal answers whatever their seed.
    pub greedy: bool,
    /// How a sequence may end.
    pub stops: Cow<'static, Stops>,
    /// What steers the choice of tokens.
    pub bias: Cow<'static, Bias>,
    /// What each choice is made of.
    pub content: Content,
    /// Whether calls of tools are written to their end, whatever `max_tokens` says.
    pub whole_calls: bool,
    /// Share of reasoning before the content.
    pub reasoning: Option<f64>,
    /// Most tokens of reasoning before the one that ends it.
    pub thinking_budget: Option<u32>,
    /// Whether special tokens show no text.
    pub skip_special_tokens: bool,
    /// Lower runs first under the priority policy.
    pub priority: i64,
    /// Data-parallel rank asked for.
    pub rank: Option<i64>,
    /// Where the KV cache of the prompt comes from and goes to.
    pub transfer: Transfer,
    /// Its prompt cannot be loaded: percent of the blocks that come; `None`: it can.
    pub lost_blocks: Option<u8>,
    /// Keeps prompts of different tenants apart in the prefix cache.
    pub cache_salt: Option<Arc<str>>,
    /// Least share of the prompt that must be cached.
    pub hit_threshold: Option<f64>,
    /// Whether the prefix cache may not be read.
    pub skip_cache_read: bool,
    /// Delay between the last token and the end (an image is made).
    pub tail: Duration,
    /// `traceparent` and `tracestate` (W3C trace context).
    pub trace: Option<(Box<str>, Option<Box<str>>)>,
    /// Temperature and `top_p`, for the span of the request.
    pub sampling: (f64, f64),
    /// What the answer shows besides its text.
    pub shown: Shown,
    /// When the request arrived.
    pub arrived: SimTime,
    /// The settings in force when it arrived; `None`: those of the start.
    pub settings: Option<Arc<LiveSettings>>,
}

/// What an answer shows besides its text; its size follows from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shown {
    /// Whether every choice repeats its prompt.
    pub prompt: bool,
    /// Log probabilities besides each token's own; -1 for the whole vocabulary.
    pub logprobs: Option<i64>,
    /// The same for the prompt, once.
    pub prompt_logprobs: Option<i64>,
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

impl Job {
    /// A job with what the sampler is asked to do, for the base model.
    pub fn new(id: Arc<str>, params: &SamplingParams, arrived: SimTime) -> Self {
        Self {
            id,
            target: Target::Base,
            prompts: Vec::new(),
            n: small(params.n).max(1),
            max_tokens: params.max_tokens.map(small),
            limited: params.max_tokens.is_some(),
            seed: params.seed.map(|seed| seed as i64),
            greedy: params.temperature < GREEDY || params.top_k == 1,
            stops: stops(params),
            bias: bias(params),
            content: Content::Text,
            whole_calls: false,
            reasoning: None,
            thinking_budget: params.thinking_token_budget.map(small),
            skip_special_tokens: params.skip_special_tokens,
            priority: 0,
            rank: None,
            transfer: Transfer::Local,
            lost_blocks: None,
            cache_salt: None,
            hit_threshold: None,
            skip_cache_read: params.prompt_logprobs.is_some()
                || params.skip_reading_prefix_cache.unwrap_or(false),
            tail: Duration::ZERO,
            trace: None,
            sampling: (params.temperature, params.top_p),
            shown: Shown {
                prompt: false,
                logprobs: params.logprobs.map(|top| top as i64).or(params
                    .logprob_token_ids
                    .as_ref()
                    .map(|ids| ids.len() as i64)),
                prompt_logprobs: params.prompt_logprobs.map(|top| top as i64),
            },
            arrived,
            settings: None,
        }
    }
}

/// What a choice is made of, before chance has spoken.
#[derive(Debug, Clone, Default)]
pub enum Content {
    /// Free text.
    #[default]
    Text,
    /// What a script says, whatever was asked for.
    Scripted(Arc<ScriptedReply>),
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
