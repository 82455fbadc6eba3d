//! Use cases without protocol: what every edge (HTTP, gRPC) calls.

mod admission;
mod backlog;
mod block_plan;
mod content;
mod control;
pub mod fault;
mod fault_control;
mod fault_injector;
pub mod generate;
mod hand_over;
mod job;
mod leases;
pub mod logprobs;
mod models;
mod ngram;
mod off_thread;
mod policy;
pub mod pooling;
mod refusal;
mod reply;
mod reply_size;
mod request_faults;
pub mod scenario;
pub mod scripted;
mod serve;
mod settings;

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::fault::AdmissionBound;
use crate::generate::request::{GenerateRequest, OutputForm, Prompt, Target};
use crate::generate::tools::{ToolError, plan_calls};
use crate::generate::{CONTEXT_START, Generator, Reason, Script, context_after};
use reply_size::{MAX_BYTES, ReplySize};
use scripted::ScriptedReplies;
use vllm_sim_engine::driver::{
    LiveEngine, ParentRequest, PlannedFinish, RequestInfo, SpanAttributes, Submission,
};
use vllm_sim_engine::kv::Hasher;
use vllm_sim_engine::{
    BlockPlan, LoadFailure, LoraId, SeqId, Sequence, SimTime, SubmitError,
    Transfer as EngineTransfer,
};
use vllm_sim_random::{Purpose, mix, stream};
use vllm_sim_schema_sampler::{Compiled, ConstraintError, SchemaCache};

pub use admission::Admission;
pub use content::ToolRequest;
pub use control::{Asset, Control, Halt};
pub use fault_control::{FaultControl, LiveSettings};
pub use fault_injector::{FaultInjector, GRACE, InjectorAction};
pub use hand_over::HandOver;
pub use job::{Content, Job, Shown, Transfer};
pub use models::{Adapter, LoadError, Models};
pub use ngram::NgramLookup;
pub use off_thread::{long_work, off_thread, takes_long};
pub use policy::{AdmitAt, CallLength, ContextCheck, ModelName, Policy, ToolSchemas, ValidateAt};
pub use refusal::{Refusal, Refused};
pub use reply::{Choice, Reply, TokenUsage};
pub use request_faults::RequestFaults;
pub use serve::{EngineChecks, GenerationRequest, OutputRoom, Prepared, Protocol, Served};
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
    /// The prompt can never fit into the cache.
    #[error("the prompt needs {needed} cache blocks, there are {total}")]
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
            models,
            generator,
            control: Control::default(),
            faults: FaultControl::default(),
            replies: ScriptedReplies::default(),
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
            self.faults.refused(AdmissionBound::Requests);
            return Err(ServeError::TooManyRequests);
        }
        if tokens.is_some_and(|max| self.backlog.tokens() >= max) {
            self.faults.refused(AdmissionBound::Tokens);
            return Err(ServeError::TooManyTokens);
        }
        Ok(())
    }

    /// Counts work that needs no engine as so many sequences in flight, until the guard is dropped.
    ///
    /// # Errors
    /// As [`Self::admits`].
    pub fn enter(&self, sequences: u32) -> Result<InFlightGuard, ServeError> {
        self.admits(sequences)?;
        self.in_flight.fetch_add(sequences, Ordering::Relaxed);
        Ok(InFlightGuard {
            sequences,
            in_flight: self.in_flight.clone(),
        })
    }

    /// Room for output behind a prompt of `prompt` tokens.
    pub fn room(&self, prompt: usize) -> u32 {
        self.settings
            .max_model_len
            .saturating_sub(u32::try_from(prompt).unwrap_or(u32::MAX))
    }

    /// Writes the scripts of a job and lets the engine play them; `caller` is gone with who waits for it.
    ///
    /// # Errors
    /// [`ServeError`]; nothing of the job stays behind.
    fn generate(&self, job: &Job, caller: Option<&Weak<()>>) -> Result<Reply, ServeError> {
        let asked = u64::from(job.n).saturating_mul(job.prompts.len() as u64);
        let sequences = u32::try_from(asked)
            .ok()
            .filter(|asked| *asked <= MAX_SEQUENCES)
            .ok_or(ServeError::TooManySequences { asked })?;
        self.admits(sequences)?;
        if self.control.refuses() {
            return Err(ServeError::Paused);
        }
        let rank = self.rank(job.rank)?;
        let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
        let parent = Arc::new(ParentRequest::new(job.n, sequences));
        let most = MAX_BYTES >> 20;
        let too_large = || ServeError::AnswerTooLarge { most };
        if let Some(hasher) = &self.hasher
            && !block_plan::fits(hasher, job)
        {
            let most = block_plan::MAX_BYTES >> 20;
            return Err(ServeError::PromptsTooLarge { most });
        }
        let vocabulary = || self.generator.tokenizer().vocab_size();
        let mut size = ReplySize::of(job, vocabulary).ok_or_else(too_large)?;
        // Tokens of an answer for which room is made before it is written.
        let answer = job.max_tokens.unwrap_or(0).min(256) as usize;
        let mut scripts = Vec::with_capacity(sequences as usize);
        let mut submissions = Vec::with_capacity(sequences as usize);
        for prompt in &job.prompts {
            let context = prompt.tokens.iter().copied();
            let context = context.fold(CONTEXT_START, context_after);
            let key = self.key(job, prompt, context, arrival);
            let media = prompt.encoder_inputs();
            let hasher = self.hasher.as_ref();
            let extras = hasher.map(|_| block_plan::extras(&self.models, job, prompt));
            let hasher = hasher.zip(extras.as_ref());
            let mut chain = hasher.map(|(hasher, extras)| {
                let mut chain = hasher.chain(extras, prompt.tokens.len() + answer);
                chain.extend(&prompt.tokens);
                chain
            });
            for choice in 0..job.n {
                if caller.is_some_and(|caller| caller.strong_count() == 0) {
                    return Err(ServeError::Abandoned);
                }
                // The likeliest answer is the same in every choice.
                let key = mix(key, if job.greedy { 0 } else { u64::from(choice) });
                let mut script = self.script(job, prompt, key)?;
                script.prompt = context;
                size = size.with(script.len()).ok_or_else(too_large)?;
                // The blocks of the prompt are those of all its choices.
                let own = match choice + 1 == job.n {
                    true => chain.take(),
                    false => chain.clone(),
                };
                let plan = own.map(|chain| block_plan::finish(chain, &script));
                let mut submission =
                    self.submission(job, prompt, key, &script, plan, parent.clone());
                submission.sequence.media = media.clone();
                let settings = job.settings.as_ref();
                submission.sequence.delays = settings.and_then(|s| s.delays.get(rank).cloned());
                submissions.push(submission);
                scripts.push(script);
            }
        }
        let handles = self.ranks[rank]
            .submit(submissions)
            .map_err(|error| match error {
                SubmitError::QueueFull { .. } => ServeError::QueueFull,
                SubmitError::TooLarge { needed, total } => ServeError::TooLarge { needed, total },
            })?;
        if let (Transfer::ForRemote(hand_over), Some(handle)) = (&job.transfer, handles.first()) {
            hand_over.place(rank, handle.progress());
            let name = hand_over.request.clone();
            self.leases.note(name, rank, handle.id(), self.now());
        }
        let prompts: Vec<_> = job.prompts.iter().map(|p| p.tokens.len() as u32).collect();
        if self.admission().tokens.is_some() {
            for (index, handle) in handles.iter().enumerate() {
                let prompt = prompts.get(index / job.n.max(1) as usize);
                self.backlog
                    .note(handle.progress(), prompt.copied().unwrap_or(0));
            }
        }
        let in_flight = self.in_flight.clone();
        let mut reply = Reply::new(scripts, handles, prompts, job.n, size.bytes(), in_flight);
        reply.lingers = !job.tail.is_zero();
        Ok(reply)
    }

    /// Key of the random streams of a prompt: its content and, unless only the likeliest token is
    /// ever taken, the request's seed, or the number of its arrival when the answer is not to
    /// repeat. How long an answer may be is no part of it: more tokens go on with the same text.
    fn key(&self, job: &Job, prompt: &Prompt, context: u64, arrival: u64) -> u64 {
        let audio = prompt.audio;
        let mut key = audio.map_or(context, |audio| mix(context, audio.key));
        if let Target::Lora { name, .. } = &job.target {
            key = name
                .bytes()
                .fold(key, |key, byte| mix(key, u64::from(byte)));
        }
        match job.seed {
            _ if job.greedy => key,
            Some(seed) => mix(key, seed as u64),
            None if self.settings.repeatable => key,
            None => mix(key, arrival),
        }
    }

    fn script(&self, job: &Job, prompt: &Prompt, key: u64) -> Result<Script, ServeError> {
        let room = self.room(prompt.tokens.len()).max(1);
        let limit = match self.settings.role {
            Role::Prefill => 1,
            Role::Whole | Role::Decode => job.max_tokens.map_or(room, |max| max.min(room)).max(1),
        };
        let form = match &job.content {
            Content::Text => OutputForm::Text,
            Content::Scripted(reply) => OutputForm::Scripted(reply.clone()),
            Content::Constrained(compiled) => OutputForm::Exact(self.sample(compiled, key)?),
            Content::Parsed(compiled) => OutputForm::Parsed(self.sample(compiled, key)?),
            Content::Tools {
                tools,
                choice,
                parallel,
            } => {
                let mut rng = stream(self.settings.seed, key, Purpose::Structured);
                let mut calls =
                    plan_calls(tools, choice, &self.settings.tools, &self.schemas, &mut rng)?;
                if !parallel {
                    calls.truncate(1);
                }
                if calls.is_empty() {
                    OutputForm::Text
                } else {
                    OutputForm::Calls(calls)
                }
            }
        };
        let limit = match self.settings.role {
            Role::Whole | Role::Decode if job.whole_calls && form.calls() => room,
            _ => limit,
        };
        Ok(self.generator.script(&GenerateRequest {
            key,
            limit,
            limited: job.limited,
            echo: &prompt.echo,
            echo_ids: prompt.echo_ids.as_deref(),
            stops: &job.stops,
            bias: &job.bias,
            form,
            reasoning: job.reasoning,
            thought_start: prompt.thought_start.as_deref().unwrap_or_default(),
            thinking_budget: job.thinking_budget,
            skip_special_tokens: job.skip_special_tokens,
            arrived: job.arrived,
            hashes: self.generator.hashes(prompt),
            length: prompt.audio.map(|audio| audio.tokens),
        }))
    }

    fn sample(&self, compiled: &Compiled, key: u64) -> Result<Arc<str>, ConstraintError> {
        let mut rng = stream(self.settings.seed, key, Purpose::Structured);
        Ok(compiled.sample(&mut rng, &Default::default())?.into())
    }

    fn submission(
        &self,
        job: &Job,
        prompt: &Prompt,
        key: u64,
        script: &Script,
        plan: Option<Arc<BlockPlan>>,
        parent: Arc<ParentRequest>,
    ) -> Submission {
        let tokens = prompt.tokens.len().max(1) as u32;
        let mut sequence = Sequence::new(SeqId(0), tokens, script.len());
        sequence.key = key;
        sequence.plan = plan;
        let followed = self.settings.followed.then(|| sequence.plan.clone());
        sequence.priority = job.priority;
        sequence.timeline = script.times.clone();
        let ngram = self.settings.ngram.as_ref();
        sequence.drafts = ngram.map(|ngram| ngram.of_script(&prompt.tokens, script));
        if script.calls.len() > 1 {
            sequence.no_gap = script.further_calls();
        }
        sequence.skip_cache_read = job.skip_cache_read;
        sequence.hit_threshold = job.hit_threshold;
        sequence.tail = job.tail;
        let (transfer, kv_source) = match &job.transfer {
            Transfer::Local if self.settings.role == Role::Decode => {
                (EngineTransfer::RemotePrefill, None)
            }
            Transfer::Local => (EngineTransfer::Local, None),
            Transfer::FromRemote(source) => (EngineTransfer::RemotePrefill, source.clone()),
            Transfer::ForRemote(_) => (EngineTransfer::RemoteDecode, None),
        };
        sequence.transfer = transfer;
        sequence.load_failure = job.lost_blocks.map(|loaded| LoadFailure {
            policy: self.settings.load_failure_policy,
            loaded: f32::from(loaded) / 100.0,
        });
        let lora = match &job.target {
            Target::Base => None,
            Target::Lora { name, id } => {
                sequence.lora = Some(LoraId(*id));
                Some(name.clone())
            }
        };
        let finish = match (script.finish.reason, transfer) {
            (_, EngineTransfer::RemoteDecode) => PlannedFinish::RemoteDecode,
            (Reason::Length, _) => PlannedFinish::Length,
            (Reason::Stop, _) if !script.calls.is_empty() => PlannedFinish::ToolCalls,
            (Reason::Stop, _) => PlannedFinish::Stop,
        };
        let room = self.room(prompt.tokens.len()).max(1);
        let max_tokens = job.max_tokens.map_or(room, |max| max.min(room));
        Submission {
            sequence,
            arrived: job.arrived,
            request: RequestInfo {
                id: job.id.clone(),
                max_tokens,
                limited: job.limited,
                finish,
                lora,
                parent: Some(parent),
                kv_source,
                plan: followed.flatten(),
                span: self.settings.traced.then(|| {
                    Arc::new(SpanAttributes {
                        headers: job.trace.clone(),
                        temperature: job.sampling.0,
                        top_p: job.sampling.1,
                        n: job.n,
                    })
                }),
            },
        }
    }

    /// The rank asked for, or the one with the least to do.
    fn rank(&self, asked: Option<i64>) -> Result<usize, ServeError> {
        let ranks = self.ranks.len();
        match asked {
            Some(rank) => usize::try_from(rank)
                .ok()
                .filter(|rank| *rank < ranks)
                .ok_or(ServeError::Rank { rank, ranks }),
            None if ranks == 1 => Ok(0),
            None => {
                // vLLM's score. Of equals the one after the last choice: vLLM counts what it sent
                // until it hears from the engines, so that idle ones take turns there too.
                // Source: `DPLBAsyncMPClient` of `vllm/v1/engine/core_client.py`.
                let start = self.next_rank.load(Ordering::Relaxed);
                let load = |rank: &usize| {
                    let stats = self.ranks[*rank].stats();
                    stats.waiting * 4 + stats.running
                };
                let turn = (0..ranks).map(|turn| (start + turn) % ranks);
                let chosen = turn.min_by_key(load).unwrap_or(0);
                self.next_rank.store(chosen + 1, Ordering::Relaxed);
                Ok(chosen)
            }
        }
    }
}
