//! Turns a generation job into reply scripts, KV block plans and engine sequences.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::error::MAX_REQUEST_SEQUENCES;
use super::job::{GenerationJob, KvTransfer, MAX_REPLY_BYTES, ReplyContent, ReplySize};
use super::{InferenceService, JobSubmissionError, PrefillHandoff, Reply, ServingRole};
use crate::generate::request::{ReplyContentKind, TokenizedPrompt};
use crate::generate::tools::plan_tool_calls;
use crate::generate::{
    EMPTY_CONTEXT_HASH, OutputEndReason, ReplyScript, ScriptBuilder, extend_context_hash,
};
use crate::models::ServedModels;
use vllm_sim_engine::driver::{
    ParentRequestCounters, PlannedFinishReason, RequestSpanAttributes, SequenceHandle,
    SequenceRecord,
};
use vllm_sim_engine::kv::{
    BlockHashExtraKeys, BlockHasher, HashedMediaSpan, LoraAdapter, PlannedKvBlocksBuilder,
};
use vllm_sim_engine::{
    InjectedKvLoadFailure, LoraId, PlannedKvBlocks, PromptKvTransfer as EngineTransfer, SeqId,
    Sequence, SequenceSubmitError,
};
use vllm_sim_random::{RandomStreamPurpose, mix_u64_pair, request_rng};
use vllm_sim_schema_sampler::{CompiledConstraint, ConstraintError};

fn count_sequences(job: &GenerationJob) -> Result<u32, JobSubmissionError> {
    let asked = u64::from(job.n).saturating_mul(job.prompts.len() as u64);
    u32::try_from(asked)
        .ok()
        .filter(|asked| *asked <= MAX_REQUEST_SEQUENCES)
        .ok_or(JobSubmissionError::TooManySequences { asked })
}

fn too_large() -> JobSubmissionError {
    let most = MAX_REPLY_BYTES >> 20;
    JobSubmissionError::ReplyTooLarge { most }
}

fn submit_error(error: SequenceSubmitError) -> JobSubmissionError {
    match error {
        SequenceSubmitError::QueueFull { .. } => JobSubmissionError::QueueFull,
        SequenceSubmitError::TooLarge { needed, total } => {
            JobSubmissionError::TooLarge { needed, total }
        }
    }
}

impl InferenceService {
    /// Generates the scripts of a job's replies and submits its sequences to an engine.
    ///
    /// The owner drops `caller` when the client disconnects.
    ///
    /// # Errors
    /// [`JobSubmissionError`]; the job then leaves no state behind.
    pub(super) fn submit_job(
        &self,
        job: &GenerationJob,
        caller: Option<&Weak<()>>,
    ) -> Result<Reply, JobSubmissionError> {
        let sequences = count_sequences(job)?;
        let place = self.admit_sequences(sequences)?;
        if self.control.rejects_new_requests() {
            return Err(JobSubmissionError::Paused);
        }
        let prefill = |prompt: &TokenizedPrompt| prompt.tokens.len() as u64 * u64::from(job.n);
        let queued = self.reserve_prefill_tokens(job.prompts.iter().map(prefill).sum())?;
        let rank = self.select_rank(job.request.rank)?;
        let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
        let parent = Arc::new(ParentRequestCounters::new(job.n, sequences));
        self.check_block_plan_size(job)?;
        let vocabulary = || self.generator.tokenizer().vocab_size();
        let mut size = ReplySize::reply_size_of_job(job, vocabulary).ok_or_else(too_large)?;
        // Output tokens for which the block plan reserves memory in advance.
        let answer = job.max_tokens.unwrap_or(0).min(256) as usize;
        let mut scripts = Vec::with_capacity(sequences as usize);
        let mut submissions = Vec::with_capacity(sequences as usize);
        for (place, prompt) in job.prompts.iter().enumerate() {
            let chosen = job.scripted.get(place).and_then(Option::as_ref);
            let context = prompt.tokens.iter().copied();
            let context = context.fold(EMPTY_CONTEXT_HASH, extend_context_hash);
            let key = self.reply_seed_key(job, prompt, context, arrival);
            let media = prompt.encoder_inputs();
            let hasher = self.hasher.as_ref();
            let extras = hasher.map(|_| block_extra_keys(&self.models, job, prompt));
            let hasher = hasher.zip(extras.as_ref());
            let mut chain = hasher.map(|(hasher, extras)| {
                let mut chain =
                    hasher.begin_planned_kv_blocks(extras, prompt.tokens.len() + answer);
                chain.append_tokens(&prompt.tokens);
                chain
            });
            for choice in 0..job.n {
                if caller.is_some_and(|caller| caller.strong_count() == 0) {
                    return Err(JobSubmissionError::Abandoned);
                }
                // Greedy sampling gives every choice the same text.
                let drawn = if job.greedy { 0 } else { choice };
                let key = mix_u64_pair(key, drawn.into());
                let form = match chosen {
                    Some(chosen) => ReplyContentKind::Scripted(chosen.reply().clone()),
                    None => self.reply_form(job, key)?,
                };
                let mut script = self.generate_script(job, prompt, key, &form);
                script.prompt = context;
                size = size.add_choice_size(script.len()).ok_or_else(too_large)?;
                // All choices share the blocks of the prompt.
                let own = if choice + 1 == job.n { chain.take() } else { chain.clone() };
                let plan = own.map(|chain| add_planned_output_blocks(chain, &script, job));
                let (mut sequence, record) =
                    self.engine_sequence(job, prompt, key, &script, plan, parent.clone());
                sequence.media = media.clone();
                let faults = job.request.context.faults.as_ref();
                sequence.delays =
                    faults.and_then(|faults| faults.settings.delays.get(rank).cloned());
                submissions.push((sequence, record));
                scripts.push(script);
            }
        }
        let memory_reservation =
            self.message_memory.reserve_body_bytes(size.reply_size_bytes() as u64)?;
        let handles = self.ranks[rank].submit_sequences(submissions).map_err(submit_error)?;
        let prompts: Vec<_> = job.prompts.iter().map(|p| p.tokens.len() as u32).collect();
        let handoff = self.add_lease(job, rank, &handles);
        if let Some(queued) = queued {
            self.add_to_backlog(job, &handles, &prompts);
            drop(queued);
        }
        let mut reply =
            Reply::new(scripts, handles, prompts, job.n, size.reply_size_bytes(), place);
        reply.memory_reservation = memory_reservation;
        reply.has_end_delay = !job.tail.is_zero();
        reply.set_handoff(handoff);
        Ok(reply)
    }

    fn check_block_plan_size(&self, job: &GenerationJob) -> Result<(), JobSubmissionError> {
        let most = MAX_PLANNED_KV_BLOCK_BYTES >> 20;
        match &self.hasher {
            Some(hasher) if !fits_planned_kv_block_limit(hasher, job) => {
                Err(JobSubmissionError::PromptsTooLarge { most })
            }
            _ => Ok(()),
        }
    }

    /// Stores the lease on a prefill job's KV blocks, which another server fetches; returns the
    /// job's hand-off.
    fn add_lease(
        &self,
        job: &GenerationJob,
        rank: usize,
        handles: &[SequenceHandle],
    ) -> Option<Arc<PrefillHandoff>> {
        let (KvTransfer::ForRemote(prefill_handoff), Some(handle)) =
            (&job.request.transfer, handles.first())
        else {
            return None;
        };
        prefill_handoff.set_rank_and_progress(rank, handle.progress());
        let name = prefill_handoff.request.clone();
        self.leases.add_kv_block_lease(name, rank, handle.id(), self.now());
        Some(Arc::clone(prefill_handoff))
    }

    fn add_to_backlog(&self, job: &GenerationJob, handles: &[SequenceHandle], prompts: &[u32]) {
        for (index, handle) in handles.iter().enumerate() {
            let prompt = prompts.get(index / job.n.max(1) as usize);
            self.backlog.add_prefill(handle.progress(), prompt.copied().unwrap_or(0));
        }
    }

    /// Returns the seed of the random streams that generate the replies to a prompt.
    ///
    /// The key hashes the prompt and, unless sampling is greedy, the seed or the arrival number.
    /// The output limit is excluded, so a longer reply continues the same text.
    fn reply_seed_key(
        &self,
        job: &GenerationJob,
        prompt: &TokenizedPrompt,
        context: u64,
        arrival: u64,
    ) -> u64 {
        let audio = prompt.audio;
        let mut key = audio.map_or(context, |audio| mix_u64_pair(context, audio.key));
        if let Some(adapter) = &job.lora {
            key = adapter.name.bytes().fold(key, |key, byte| mix_u64_pair(key, u64::from(byte)));
        }
        match job.seed {
            _ if job.greedy => key,
            Some(seed) => mix_u64_pair(key, seed as u64),
            None if self.settings.repeatable => key,
            None => mix_u64_pair(key, arrival),
        }
    }

    fn reply_form(
        &self,
        job: &GenerationJob,
        key: u64,
    ) -> Result<ReplyContentKind, JobSubmissionError> {
        Ok(match &job.content {
            ReplyContent::Text => ReplyContentKind::Text,
            ReplyContent::Constrained(compiled) => {
                ReplyContentKind::Exact(self.sample_constrained(compiled, key)?)
            }
            ReplyContent::Parsed(compiled) => {
                ReplyContentKind::Parsed(self.sample_constrained(compiled, key)?)
            }
            ReplyContent::Tools { tools, choice, parallel } => {
                let mut rng = request_rng(self.settings.seed, key, RandomStreamPurpose::Structured);
                let mut calls =
                    plan_tool_calls(tools, choice, &self.settings.tools, &self.schemas, &mut rng)?;
                if !parallel {
                    calls.truncate(1);
                }
                if calls.is_empty() {
                    ReplyContentKind::Text
                } else {
                    ReplyContentKind::Calls(calls)
                }
            }
        })
    }

    fn generate_script(
        &self,
        job: &GenerationJob,
        prompt: &TokenizedPrompt,
        key: u64,
        form: &ReplyContentKind,
    ) -> ReplyScript {
        let room = self.remaining_context_tokens(prompt.tokens.len()).max(1);
        let limit = match self.settings.role {
            ServingRole::Prefill => 1,
            ServingRole::Whole | ServingRole::Decode => {
                job.max_tokens.map_or(room, |max| max.min(room)).max(1)
            }
        };
        let limit = match self.settings.role {
            ServingRole::Whole | ServingRole::Decode
                if job.whole_calls && form.has_tool_calls() =>
            {
                room
            }
            _ => limit,
        };
        ScriptBuilder::new(&self.generator, job, prompt, key, limit).build_script(form)
    }

    fn sample_constrained(
        &self,
        compiled: &CompiledConstraint,
        key: u64,
    ) -> Result<Arc<str>, ConstraintError> {
        let mut rng = request_rng(self.settings.seed, key, RandomStreamPurpose::Structured);
        Ok(compiled.sample_text(&mut rng, &Default::default())?.into())
    }

    fn engine_sequence(
        &self,
        job: &GenerationJob,
        prompt: &TokenizedPrompt,
        key: u64,
        script: &ReplyScript,
        plan: Option<Arc<PlannedKvBlocks>>,
        parent: Arc<ParentRequestCounters>,
    ) -> (Sequence, SequenceRecord) {
        let tokens = prompt.tokens.len().max(1) as u32;
        let mut sequence = Sequence::new(SeqId(0), tokens, script.len());
        sequence.key = key;
        sequence.plan = plan;
        let followed = self.settings.tracks_kv_blocks.then(|| sequence.plan.clone());
        sequence.priority = job.request.priority;
        sequence.timeline = script.times.clone();
        let ngram = self.settings.ngram.as_ref();
        sequence.drafts =
            ngram.map(|ngram| ngram.ngram_draft_lengths_of_script(&prompt.tokens, script));
        if script.calls.len() > 1 {
            sequence.tokens_without_gap = script.tool_call_positions_after_first();
        }
        sequence.skip_cache_read = job.skip_cache_read;
        sequence.hit_threshold = job.request.prefix_cache.hit_threshold;
        sequence.tail = job.tail;
        let (transfer, kv_source) = match &job.request.transfer {
            KvTransfer::Local if self.settings.role == ServingRole::Decode => {
                (EngineTransfer::RemotePrefill, None)
            }
            // A negotiation has ended before.
            KvTransfer::Local | KvTransfer::Negotiated(_) => (EngineTransfer::Local, None),
            KvTransfer::FromRemote(source) => (EngineTransfer::RemotePrefill, source.clone()),
            KvTransfer::FromLostRemote => (EngineTransfer::RemotePrefill, None),
            KvTransfer::ForRemote(_) => (EngineTransfer::RemoteDecode, None),
        };
        sequence.transfer = transfer;
        sequence.load_failure = self.load_failure(job);
        sequence.lora = job.lora.as_ref().map(|adapter| LoraId(adapter.id));
        let finish = match (script.finish.reason, transfer) {
            (_, EngineTransfer::RemoteDecode) => PlannedFinishReason::RemoteDecode,
            (OutputEndReason::Length, _) => PlannedFinishReason::Length,
            (OutputEndReason::Stop, _) if !script.calls.is_empty() => {
                PlannedFinishReason::ToolCalls
            }
            (OutputEndReason::Stop, _) => PlannedFinishReason::Stop,
        };
        let room = self.remaining_context_tokens(prompt.tokens.len()).max(1);
        let max_tokens = job.max_tokens.map_or(room, |max| max.min(room));
        let mut record =
            SequenceRecord::new(job.request.id.clone(), job.request.arrived, &sequence);
        record.max_tokens = max_tokens;
        record.limited = job.limited;
        record.finish = finish;
        record.lora = job.lora.as_ref().map(|adapter| adapter.name.clone());
        record.parent = Some(parent);
        record.kv_source = kv_source;
        record.plan = followed.flatten();
        record.span = self.settings.traced.then(|| {
            Arc::new(RequestSpanAttributes {
                headers: job.request.trace.clone(),
                temperature: job.params.temperature,
                top_p: job.params.top_p,
                n: job.n,
            })
        });
        (sequence, record)
    }

    /// Returns the failure that prevents a job from loading the KV cache of its prompts: an
    /// injected failure, or a lost prefill server.
    fn load_failure(&self, job: &GenerationJob) -> Option<InjectedKvLoadFailure> {
        let faults = job.request.context.faults.as_ref();
        let loaded = match &job.request.transfer {
            KvTransfer::FromLostRemote => 0,
            _ => faults?.loaded_kv_block_percent()?,
        };
        let policy = self.settings.load_failure_policy;
        Some(InjectedKvLoadFailure { policy, loaded: f32::from(loaded) / 100.0 })
    }

    /// Returns the index of the requested data-parallel rank, or of the least loaded one.
    fn select_rank(&self, asked: Option<i64>) -> Result<usize, JobSubmissionError> {
        let ranks = self.ranks.len();
        match asked {
            Some(rank) => usize::try_from(rank)
                .ok()
                .filter(|rank| *rank < ranks)
                .ok_or(JobSubmissionError::Rank { rank, ranks }),
            None if ranks == 1 => Ok(0),
            None => {
                // vLLM's score. Ties rotate from the last choice: vLLM counts its own submissions
                // until the engines report, so idle ranks alternate there too, and what has not
                // reached its engine counts as waiting. Source: `DPLBAsyncMPClient` of
                // `vllm/v1/engine/core_client.py`.
                let load = |rank: &usize| {
                    let stats = self.ranks[*rank].stats();
                    (stats.waiting + stats.in_api_server) * 4 + stats.running
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

/// Maximum size of the planned KV blocks of all sequences of a job, in bytes.
pub(super) const MAX_PLANNED_KV_BLOCK_BYTES: u64 = 128 << 20;

/// Returns whether the planned KV blocks of all prompts of a job fit into [`MAX_PLANNED_KV_BLOCK_BYTES`];
/// output blocks are not counted.
pub(super) fn fits_planned_kv_block_limit(hasher: &BlockHasher, job: &GenerationJob) -> bool {
    let prompts = job.prompts.iter();
    let bytes =
        prompts.map(|prompt| hasher.estimate_planned_blocks_bytes(prompt.tokens.len() as u64));
    bytes.sum::<u64>().saturating_mul(job.n.into()) <= MAX_PLANNED_KV_BLOCK_BYTES
}

/// Returns the extra keys of a prompt's block hashes: LoRA adapter, cache salt and media.
pub(super) fn block_extra_keys(
    models: &ServedModels,
    job: &GenerationJob,
    prompt: &TokenizedPrompt,
) -> BlockHashExtraKeys {
    let lora = job.lora.as_ref().map(|adapter| LoraAdapter {
        id: LoraId(adapter.id),
        name: adapter.name.clone(),
        path: adapter.path.as_str().into(),
    });
    let media = prompt.media.iter().map(|item| HashedMediaSpan {
        identifier: item.identifier.clone(),
        start: item.start,
        len: item.len,
    });
    BlockHashExtraKeys {
        lora,
        model: models.displayed_model_name().clone(),
        salt: job.request.kv_labels.salt.clone(),
        media: media.collect(),
    }
}

/// Adds the blocks of a sequence's output to the planned KV blocks of its prompt. Also adds the
/// request's KV event settings.
///
/// Source: vLLM 0.33 `vllm/v1/request.py`, `session_id` and `kv_cache_report_mode`.
pub(super) fn add_planned_output_blocks(
    mut chain: PlannedKvBlocksBuilder<'_>,
    script: &ReplyScript,
    job: &GenerationJob,
) -> Arc<PlannedKvBlocks> {
    chain.append_tokens(&script.output_token_ids());
    let mut plan = chain.finish_planned_kv_blocks();
    plan.session = job.request.kv_labels.session_id.clone();
    let extra = job.params.extra_args.as_ref();
    let mode = extra.and_then(|extra| extra.get("kv_cache_report_mode"));
    plan.reports_reused = mode.is_some_and(|mode| mode == "full");
    Arc::new(plan)
}
