//! The one road that every request for generation takes: who answers, is there room, are the
//! values good, the prompt, what the context leaves, the sampler's parameters, what the engine
//! says of them, the content, the job.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::content::{ToolRequest, content};
use super::policy::{AdmitAt, CallLength, Policy, ToolSchemas, ValidateAt};
use super::{
    Content, Job, Refusal, Refused, Reply, RequestFaults, ServeError, Service, Shown, TokenUsage,
    Transfer, long_work,
};
use crate::fault::FaultOrigin;
use crate::generate::request::{Prompt, Target};
use crate::scripted::ScriptedReply;
use vllm_sim_engine::SimTime;
use vllm_sim_schema_sampler::Constraint;
use vllm_sim_wire::sampling::output_budget;
use vllm_sim_wire::{Fault, SamplingParams};

/// From so many sequences on a job takes long to write.
const MANY_SEQUENCES: usize = 256;
/// From so many tokens on, if all are written that may be, it does so too.
const MANY_TOKENS: usize = 16_384;

/// What is asked, in no protocol's words.
pub struct GenerationRequest<'r> {
    /// The id the client knows (`chatcmpl-…`).
    pub id: Arc<str>,
    /// When it arrived.
    pub arrived: SimTime,
    /// The model by name.
    pub model: Option<&'r str>,
    /// Choices per prompt.
    pub n: i128,
    /// Prompts, as far as they are counted before they are made.
    pub prompts: usize,
    /// Most tokens per choice, where the client or the protocol says so.
    pub max_tokens: Option<i128>,
    /// What that limit is measured against.
    pub room: OutputRoom,
    /// Which checks it passes on its way to the engine.
    pub checks: EngineChecks,
    /// What the text has to satisfy, where the sampler's parameters do not say it.
    pub constraint: Option<Constraint>,
    /// Tools that may be called.
    pub tools: Option<ToolRequest>,
    /// Whether a parser looks for calls in a text under a constraint.
    pub parses_calls: bool,
    /// Whether every choice repeats its prompt.
    pub echo: bool,
    /// Share of reasoning before the content.
    pub reasoning: Option<f64>,
    /// Lower runs first under the priority policy.
    pub priority: i64,
    /// Data-parallel rank asked for.
    pub rank: Option<i64>,
    /// Keeps prompts of different tenants apart in the prefix cache.
    pub cache_salt: Option<Arc<str>>,
    /// Least share of the prompt that must be cached.
    pub hit_threshold: Option<f64>,
    /// Whether the prefix cache may not be read, whatever the parameters say.
    pub skip_cache_read: bool,
    /// `traceparent` and `tracestate` (W3C trace context).
    pub trace: Option<(Box<str>, Option<Box<str>>)>,
    /// What befalls it on purpose.
    pub faults: Option<Arc<RequestFaults>>,
    /// Who wants to know its tokens when it has gone.
    pub usage: Option<Arc<TokenUsage>>,
}

/// What the length of an answer is measured against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputRoom {
    /// What the longest prompt leaves of the context, the same for all.
    Shared,
    /// What each prompt leaves.
    PerPrompt,
    /// The whole context: how long a prompt is does not matter (speech).
    Context,
}

/// Which checks a request passes on its way to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineChecks {
    /// All of them.
    All,
    /// None: vLLM makes these prompts and parameters itself (speech).
    None,
}

/// What only the protocol of a request knows. Each question is asked once, in this order.
pub trait Protocol: Send {
    /// What the shape of the answer depends on.
    type View: Send;

    /// What is refused before the model is looked up.
    ///
    /// # Errors
    /// The refusal.
    fn check_first(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// What is looked up for a model that is there, before it is seen whether there is room.
    ///
    /// # Errors
    /// The refusal.
    fn look_up(&mut self, _request: &mut GenerationRequest<'_>) -> Result<(), Fault> {
        Ok(())
    }

    /// What is refused of the values, before or after the prompt ([`Policy::validation`]).
    ///
    /// # Errors
    /// The first refusal.
    fn validate(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// The prompts, at least one.
    ///
    /// # Errors
    /// Why they cannot be made, or that one fills more than the context.
    fn prompts(
        &mut self,
        target: &Target,
    ) -> impl Future<Output = Result<Vec<Prompt>, Refusal>> + Send;

    /// What the sampler is asked to do, with at most `budget` tokens.
    ///
    /// # Errors
    /// The first refusal.
    fn sampling_params(&mut self, budget: i128) -> Result<Box<SamplingParams>, Fault>;

    /// The shape of the answer, and where the KV cache of the prompt comes from and goes to.
    fn view(&mut self, ready: &Prepared) -> (Self::View, Transfer);

    /// Completes the shape now that the content is known; the time between the last token and the
    /// end (an image is made).
    ///
    /// # Errors
    /// The refusal of a header that says it wrongly.
    fn complete(&self, _view: &mut Self::View, _content: &Content) -> Result<Duration, Fault> {
        Ok(Duration::ZERO)
    }
}

/// A request that would be answered, as far as it is known before the headers of a stream go out.
pub struct Prepared {
    /// The id the client knows.
    pub id: Arc<str>,
    /// Who answers.
    pub target: Target,
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// Tokens that the context leaves.
    pub budget: i128,
    /// What the sampler is asked to do.
    pub params: Box<SamplingParams>,
}

/// A request that is being answered.
pub struct Served<V> {
    /// The shape of the answer.
    pub view: V,
    /// The answer, as it comes.
    pub reply: Reply,
}

impl Service {
    /// Answers a request under the rules of its protocol.
    ///
    /// # Errors
    /// [`Refused`]; nothing of the request stays behind.
    pub async fn serve<P: Protocol>(
        self: &Arc<Self>,
        policy: &Policy,
        // Not by value: a future has room twice for what it is given, and is moved with it.
        request: &mut GenerationRequest<'_>,
        protocol: &mut P,
    ) -> Result<Served<P::View>, Refused<P::View>> {
        let ready = self.prepare(policy, request, protocol).await?;
        let scripted = self.scripted(request, &ready)?;
        let (mut view, transfer) = protocol.view(&ready);
        let late = self.check_late(policy, request, &ready);
        let strict = policy.tool_schemas == ToolSchemas::Whitelisted;
        let content = match late {
            Ok(()) => content(request, &ready, strict).await,
            Err(refusal) => Err(refusal),
        };
        let content = match content {
            Ok(content) => content,
            Err(refusal) => return Err(Refused::Late(refusal, view)),
        };
        let tail = protocol
            .complete(&mut view, &content)
            .map_err(Refusal::Invalid)?;
        let content = scripted.map_or(content, Content::Scripted);
        let job = job(policy, request, ready, content, transfer, tail);
        let reply = match self.generate_here(job) {
            Ok(reply) => reply,
            Err(job) => self.generate_away(job).await,
        };
        match reply {
            Ok(mut reply) => {
                reply.usage = request.usage.take();
                let faults = request.faults.take().filter(|f| f.lost_blocks().is_some());
                reply.load_failure = faults.and_then(|f| self.faults.felt(&f.settings.origin));
                Ok(Served { view, reply })
            }
            Err(error) if error.is_late() => Err(Refused::Late(error.into(), view)),
            Err(error) => Err(Refused::Early(error.into())),
        }
    }

    /// What a script has in store for a request: a reply, or nothing.
    ///
    /// # Errors
    /// A failure.
    fn scripted(
        &self,
        request: &GenerationRequest<'_>,
        ready: &Prepared,
    ) -> Result<Option<Arc<ScriptedReply>>, Refusal> {
        let text = ready.prompts.first().map_or("", |prompt| &*prompt.echo);
        let asked = request.model.filter(|name| !name.is_empty());
        let model = asked.unwrap_or(self.models.displayed());
        self.replies.choose(text, model).map_err(|(fault, name)| {
            let settings = request.faults.as_ref().map(|faults| &faults.settings);
            let origin = settings.map_or_else(FaultOrigin::default, |s| s.origin.clone());
            self.faults.count(name, &origin);
            Refusal::Invalid(fault)
        })
    }

    /// What vLLM does before the headers of a stream go out.
    async fn prepare<P: Protocol>(
        &self,
        policy: &Policy,
        request: &mut GenerationRequest<'_>,
        protocol: &mut P,
    ) -> Result<Prepared, Refusal> {
        protocol.check_first()?;
        let target = self.target(policy, request.model)?;
        protocol.look_up(request)?;
        if policy.admission == AdmitAt::Arrival {
            let sequences = request.n.saturating_mul(request.prompts as i128);
            self.admits(sequences.clamp(1, i128::from(u32::MAX)) as u32)?;
        }
        if policy.validation == ValidateAt::BeforePrompt {
            protocol.validate()?;
        }
        let prompts = protocol.prompts(&target).await?;
        let lengths = || prompts.iter().map(|prompt| prompt.tokens.len());
        if request.checks == EngineChecks::All {
            let fits = policy.whole_fits(lengths(), request.max_tokens);
            if let (Err(_), Target::Lora { name, .. }, Some(engine)) =
                (&fits, &target, self.ranks.first())
            {
                engine.refuse(name);
            }
            fits?;
        }
        if policy.validation == ValidateAt::AfterPrompt {
            protocol.validate()?;
        }
        let longest = match request.room {
            OutputRoom::Shared | OutputRoom::PerPrompt => lengths().max().unwrap_or(0),
            OutputRoom::Context => 0,
        };
        let (limits, defaults) = (&policy.limits, &policy.defaults);
        let budget = output_budget(limits, request.max_tokens, longest, defaults);
        Ok(Prepared {
            id: request.id.clone(),
            target,
            prompts,
            budget,
            params: protocol.sampling_params(budget)?,
        })
    }

    /// What vLLM's engine checks, after the headers of a stream are out.
    fn check_late(
        &self,
        policy: &Policy,
        request: &GenerationRequest<'_>,
        ready: &Prepared,
    ) -> Result<(), Refusal> {
        if request.checks == EngineChecks::None {
            return Ok(());
        }
        let limits = &policy.limits;
        self.check_bad_words(policy, &ready.params)?;
        ready.params.verify_engine(limits)?;
        for prompt in &ready.prompts {
            limits.prompt_ids(&prompt.tokens)?;
            ready.params.verify_prompt(prompt.tokens.len())?;
        }
        Ok(limits.data_parallel_rank(request.rank.map(i128::from))?)
    }

    /// A word counts once as it stands, and once more where a blank before it makes another token
    /// of it. Source: vLLM 0.33 `sampling_params.py`, `update_from_tokenizer`.
    fn check_bad_words(&self, policy: &Policy, params: &SamplingParams) -> Result<(), Fault> {
        let words = params.bad_words.as_deref().unwrap_or_default();
        let most = policy.max_bad_words;
        let tokenizer = self.generator.tokenizer();
        let mut count = 0;
        for word in words {
            let word = word.trim_start();
            let plain = tokenizer.encode(word, false);
            let spaced = tokenizer.encode(&format!(" {word}"), false);
            count += 1;
            if plain.len() == spaced.len() && plain.first() != spaced.first() {
                count += 1;
            }
            if count > most {
                let text = format!(
                    "Too many bad words after tokenization: {}. The max number is {most}.",
                    most + 1
                );
                let shown = vllm_sim_python::repr(&words.to_vec().into());
                return Err(Fault::value(text, "bad_words", shown));
            }
        }
        Ok(())
    }

    /// Writes the scripts of a job and lets the engine play them, unless it is one of very many sequences or
    /// tokens, or of a text that has to satisfy a constraint, which is given back: the async threads would
    /// answer nobody else meanwhile.
    fn generate_here(&self, job: Job) -> Result<Result<Reply, ServeError>, Box<Job>> {
        let sequences = (job.n as usize).saturating_mul(job.prompts.len());
        let tokens = sequences.saturating_mul(job.max_tokens.unwrap_or(0) as usize);
        let constrained = matches!(job.content, Content::Constrained(_) | Content::Parsed(_));
        if sequences < MANY_SEQUENCES && tokens < MANY_TOKENS && !constrained {
            return Ok(self.generate(&job, None));
        }
        Err(Box::new(job))
    }

    /// Writes the scripts of a job away from the async threads, and lets the engine play them.
    ///
    /// # Errors
    /// [`ServeError`]; nothing of the job stays behind.
    async fn generate_away(self: &Arc<Self>, job: Box<Job>) -> Result<Reply, ServeError> {
        let service = self.clone();
        // A task that runs is not stopped from outside.
        let caller = Arc::new(());
        let waits = Arc::downgrade(&caller);
        // Boxed: what is done here has no room for it.
        let written = long_work(async move { service.generate(&job, Some(&waits)) });
        let reply = Box::pin(written).await;
        drop(caller);
        reply
    }
}

/// What the engine is to play for a request that was found good.
fn job(
    policy: &Policy,
    request: &mut GenerationRequest<'_>,
    ready: Prepared,
    content: Content,
    transfer: Transfer,
    tail: Duration,
) -> Job {
    let asked = request.max_tokens;
    let own = Job::new(ready.id, &ready.params, request.arrived);
    Job {
        target: ready.target,
        prompts: ready.prompts,
        max_tokens: match request.room {
            OutputRoom::Shared | OutputRoom::Context => own.max_tokens,
            // The service cuts further where it must.
            OutputRoom::PerPrompt => asked.map(|n| n.clamp(1, i128::from(u32::MAX)) as u32),
        },
        limited: match request.room {
            OutputRoom::Shared => asked.or(policy.defaults.max_tokens).is_some(),
            OutputRoom::PerPrompt | OutputRoom::Context => asked.is_some(),
        },
        content,
        whole_calls: policy.calls == CallLength::Whole,
        reasoning: request.reasoning,
        priority: request.priority,
        rank: request.rank,
        transfer,
        cache_salt: request.cache_salt.take(),
        hit_threshold: request.hit_threshold,
        skip_cache_read: own.skip_cache_read || request.skip_cache_read,
        tail,
        shown: Shown {
            prompt: request.echo,
            ..own.shown
        },
        trace: request.trace.take(),
        lost_blocks: request.faults.as_ref().and_then(|f| f.lost_blocks()),
        settings: request.faults.as_ref().map(|f| f.settings.clone()),
        ..own
    }
}
