//! Turns a generation job into reply scripts, KV block plans and engine sequences.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::block_plan;
use super::job::{Content, GenerationJob, Transfer};
use super::reply_size::{MAX_BYTES, ReplySize};
use super::{MAX_SEQUENCES, Reply, ServeError, Service, ServingRole};
use crate::generate::request::{GenerateRequest, OutputForm, Prompt, Target};
use crate::generate::tools::plan_calls;
use crate::generate::{CONTEXT_START, Reason, Script, context_after};
use vllm_sim_engine::driver::{
    ParentRequest, PlannedFinish, RequestInfo, SequenceHandle, SpanAttributes, Submission,
};
use vllm_sim_engine::{
    BlockPlan, LoadFailure, LoraId, SeqId, Sequence, SubmitError, Transfer as EngineTransfer,
};
use vllm_sim_random::{Purpose, mix, stream};
use vllm_sim_schema_sampler::{Compiled, ConstraintError};
use vllm_sim_tokenizer::SpecialTokens;

fn sequences_of(job: &GenerationJob) -> Result<u32, ServeError> {
    let asked = u64::from(job.n).saturating_mul(job.facts.prompts.len() as u64);
    u32::try_from(asked)
        .ok()
        .filter(|asked| *asked <= MAX_SEQUENCES)
        .ok_or(ServeError::TooManySequences { asked })
}

fn too_large() -> ServeError {
    let most = MAX_BYTES >> 20;
    ServeError::ReplyTooLarge { most }
}

fn refused(error: SubmitError) -> ServeError {
    match error {
        SubmitError::QueueFull { .. } => ServeError::QueueFull,
        SubmitError::TooLarge { needed, total } => ServeError::TooLarge { needed, total },
    }
}

impl Service {
    /// Generates the scripts of a job's replies and submits its sequences to an engine.
    ///
    /// The owner drops `caller` when the client disconnects.
    ///
    /// # Errors
    /// [`ServeError`]; the job then leaves no state behind.
    pub(super) fn submit(
        &self,
        job: &GenerationJob,
        caller: Option<&Weak<()>>,
    ) -> Result<Reply, ServeError> {
        let sequences = sequences_of(job)?;
        let place = self.enter(sequences)?;
        if self.control.refuses() {
            return Err(ServeError::Paused);
        }
        let prefill = |prompt: &Prompt| prompt.tokens.len() as u64 * u64::from(job.n);
        let queued = self.queue_tokens(job.facts.prompts.iter().map(prefill).sum())?;
        let rank = self.rank(job.request.rank)?;
        let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
        let parent = Arc::new(ParentRequest::new(job.n, sequences));
        self.check_block_plans(job)?;
        let vocabulary = || self.generator.tokenizer().vocab_size();
        let mut size = ReplySize::of(job, vocabulary).ok_or_else(too_large)?;
        // Output tokens for which the block plan reserves memory in advance.
        let answer = job.max_tokens.unwrap_or(0).min(256) as usize;
        let mut scripts = Vec::with_capacity(sequences as usize);
        let mut submissions = Vec::with_capacity(sequences as usize);
        for (place, prompt) in job.facts.prompts.iter().enumerate() {
            let chosen = job.scripted.get(place).and_then(Option::as_ref);
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
                // Greedy sampling gives every choice the same text.
                let drawn = if job.sampler.greedy { 0 } else { choice };
                let key = mix(key, drawn.into());
                let form = match chosen {
                    Some(chosen) => OutputForm::Scripted(chosen.reply().clone()),
                    None => self.form(job, key)?,
                };
                let mut script = self.script(job, prompt, key, form);
                script.prompt = context;
                size = size.with(script.len()).ok_or_else(too_large)?;
                // All choices share the blocks of the prompt.
                let own = match choice + 1 == job.n {
                    true => chain.take(),
                    false => chain.clone(),
                };
                let plan = own.map(|chain| block_plan::finish(chain, &script));
                let mut submission =
                    self.submission(job, prompt, key, &script, plan, parent.clone());
                submission.sequence.media = media.clone();
                let faults = job.request.faults.as_ref();
                submission.sequence.delays =
                    faults.and_then(|faults| faults.settings.delays.get(rank).cloned());
                submissions.push(submission);
                scripts.push(script);
            }
        }
        let reserved = self.large_replies.reserve(size.bytes() as u64)?;
        let handles = self.ranks[rank].submit(submissions).map_err(refused)?;
        let prompts = job.facts.prompts.iter();
        let prompts: Vec<_> = prompts.map(|prompt| prompt.tokens.len() as u32).collect();
        self.note_lease(job, rank, &handles);
        if let Some(queued) = queued {
            self.note_backlog(job, &handles, &prompts);
            drop(queued);
        }
        let mut reply = Reply::new(scripts, handles, prompts, job.n, size.bytes(), place);
        reply.reserved = reserved;
        reply.has_end_delay = !job.tail.is_zero();
        Ok(reply)
    }

    fn check_block_plans(&self, job: &GenerationJob) -> Result<(), ServeError> {
        let most = block_plan::MAX_BYTES >> 20;
        match &self.hasher {
            Some(hasher) if !block_plan::fits(hasher, job) => {
                Err(ServeError::PromptsTooLarge { most })
            }
            _ => Ok(()),
        }
    }

    /// Stores the lease of a prefill job whose KV blocks another server fetches.
    fn note_lease(&self, job: &GenerationJob, rank: usize, handles: &[SequenceHandle]) {
        if let (Transfer::ForRemote(prefill_handoff), Some(handle)) =
            (&job.request.transfer, handles.first())
        {
            prefill_handoff.place(rank, handle.progress());
            let name = prefill_handoff.request.clone();
            self.leases.note(name, rank, handle.id(), self.now());
        }
    }

    fn note_backlog(&self, job: &GenerationJob, handles: &[SequenceHandle], prompts: &[u32]) {
        for (index, handle) in handles.iter().enumerate() {
            let prompt = prompts.get(index / job.n.max(1) as usize);
            self.backlog
                .note(handle.progress(), prompt.copied().unwrap_or(0));
        }
    }

    /// Returns the key of the random streams that generate the replies to a prompt.
    ///
    /// The key hashes the prompt and, unless sampling is greedy, the seed or the arrival number.
    /// The output limit is excluded, so a longer reply continues the same text.
    fn key(&self, job: &GenerationJob, prompt: &Prompt, context: u64, arrival: u64) -> u64 {
        let audio = prompt.audio;
        let mut key = audio.map_or(context, |audio| mix(context, audio.key));
        if let Target::Lora { name, .. } = &job.facts.target {
            key = name
                .bytes()
                .fold(key, |key, byte| mix(key, u64::from(byte)));
        }
        match job.sampler.seed {
            _ if job.sampler.greedy => key,
            Some(seed) => mix(key, seed as u64),
            None if self.settings.repeatable => key,
            None => mix(key, arrival),
        }
    }

    fn form(&self, job: &GenerationJob, key: u64) -> Result<OutputForm, ServeError> {
        Ok(match &job.content {
            Content::Text => OutputForm::Text,
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
        })
    }

    fn script(&self, job: &GenerationJob, prompt: &Prompt, key: u64, form: OutputForm) -> Script {
        let room = self.room(prompt.tokens.len()).max(1);
        let limit = match self.settings.role {
            ServingRole::Prefill => 1,
            ServingRole::Whole | ServingRole::Decode => {
                job.max_tokens.map_or(room, |max| max.min(room)).max(1)
            }
        };
        let limit = match self.settings.role {
            ServingRole::Whole | ServingRole::Decode if job.whole_calls && form.calls() => room,
            _ => limit,
        };
        self.generator.script(&GenerateRequest {
            key,
            limit,
            limited: job.limited,
            echo: &prompt.echo,
            echo_ids: prompt.echo_ids.as_deref(),
            stops: &job.sampler.stops,
            bias: &job.sampler.bias,
            form,
            reasoning: job.request.reasoning,
            reasoning_start: prompt.reasoning_start.as_deref().unwrap_or_default(),
            thinking_budget: job.sampler.thinking_budget,
            special_tokens: SpecialTokens::when(!job.facts.params.skip_special_tokens),
            arrived: job.request.arrived,
            hashes: self.generator.hashes(prompt),
            length: prompt.audio.map(|audio| audio.tokens),
        })
    }

    fn sample(&self, compiled: &Compiled, key: u64) -> Result<Arc<str>, ConstraintError> {
        let mut rng = stream(self.settings.seed, key, Purpose::Structured);
        Ok(compiled.sample(&mut rng, &Default::default())?.into())
    }

    fn submission(
        &self,
        job: &GenerationJob,
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
        let followed = self
            .settings
            .tracks_kv_blocks
            .then(|| sequence.plan.clone());
        sequence.priority = job.request.priority;
        sequence.timeline = script.times.clone();
        let ngram = self.settings.ngram.as_ref();
        sequence.drafts = ngram.map(|ngram| ngram.script_drafts(&prompt.tokens, script));
        if script.calls.len() > 1 {
            sequence.tokens_without_gap = script.further_calls();
        }
        sequence.skip_cache_read = job.skip_cache_read;
        sequence.hit_threshold = job.request.hit_threshold;
        sequence.tail = job.tail;
        let (transfer, kv_source) = match &job.request.transfer {
            Transfer::Local if self.settings.role == ServingRole::Decode => {
                (EngineTransfer::RemotePrefill, None)
            }
            Transfer::Local => (EngineTransfer::Local, None),
            Transfer::FromRemote(source) => (EngineTransfer::RemotePrefill, source.clone()),
            Transfer::ForRemote(_) => (EngineTransfer::RemoteDecode, None),
        };
        sequence.transfer = transfer;
        let faults = job.request.faults.as_ref();
        let lost_blocks = faults.and_then(|faults| faults.lost_blocks());
        sequence.load_failure = lost_blocks.map(|loaded| LoadFailure {
            policy: self.settings.load_failure_policy,
            loaded: f32::from(loaded) / 100.0,
        });
        let lora = match &job.facts.target {
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
            arrived: job.request.arrived,
            request: RequestInfo {
                id: job.facts.id.clone(),
                max_tokens,
                limited: job.limited,
                finish,
                lora,
                parent: Some(parent),
                kv_source,
                plan: followed.flatten(),
                span: self.settings.traced.then(|| {
                    Arc::new(SpanAttributes {
                        headers: job.request.trace.clone(),
                        temperature: job.facts.params.temperature,
                        top_p: job.facts.params.top_p,
                        n: job.n,
                    })
                }),
            },
        }
    }

    /// Returns the index of the requested data-parallel rank, or of the least loaded one.
    fn rank(&self, asked: Option<i64>) -> Result<usize, ServeError> {
        let ranks = self.ranks.len();
        match asked {
            Some(rank) => usize::try_from(rank)
                .ok()
                .filter(|rank| *rank < ranks)
                .ok_or(ServeError::Rank { rank, ranks }),
            None if ranks == 1 => Ok(0),
            None => {
                // vLLM's score. Ties rotate from the last choice: vLLM counts its own submissions
                // until the engines report, so idle ranks alternate there too. Source:
                // `DPLBAsyncMPClient` of `vllm/v1/engine/core_client.py`.
                let load = |rank: &usize| {
                    let stats = self.ranks[*rank].stats();
                    stats.waiting * 4 + stats.running
                };
                let chosen = |start: usize| {
                    let turn = (0..ranks).map(|turn| (start + turn) % ranks);
                    turn.min_by_key(load).unwrap_or(0)
                };
                let mut start = self.next_rank.load(Ordering::Relaxed);
                // Retry, so that concurrent calls see each other's choice.
                loop {
                    let rank = chosen(start);
                    let next = &self.next_rank;
                    match next.compare_exchange(
                        start,
                        rank + 1,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    ) {
                        Ok(_) => return Ok(rank),
                        Err(now) => start = now,
                    }
                }
            }
        }
    }
}
