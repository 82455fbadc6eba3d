//! Entry points of every generation request of the HTTP and gRPC front ends.
//!
//! `resolve_model` finds the LoRA adapter of a request; `generate_reply` validates the request and
//! submits it to an engine.

use std::sync::Arc;

use super::dialect::{RequestRules, RequestValidationPoint};
use super::job::{GenerationJob, KvTransfer, ReplyContent, choose_reply_content};
use super::{
    InferenceService, JobSubmissionError, RejectedRequest, Reply, RequestError, run_blocking,
};
use crate::fault::FaultScenarioAndPhase;
use crate::generate::request::StopPattern;
use crate::models::LoraAdapter;
use crate::prompt::PromptSource;
use crate::request::{GenerationRequest, OutputTokenBudget, RequestSubmissionChecks};
use crate::scripted::{ConversationMatchInput, MatchedRequest, ReservedReply};
use vllm_sim_tokenizer::SpecialTokenHandling;
use vllm_sim_wire::sampling::output_budget_tokens;
use vllm_sim_wire::{Fault, SamplingParams};

/// Minimum number of sequences of a job whose content is generated on the blocking pool.
const BLOCKING_MIN_SEQUENCES: usize = 256;
/// Minimum number of possible output tokens of a job whose content is generated on the blocking
/// pool.
const BLOCKING_MIN_TOKENS: usize = 16_384;

impl InferenceService {
    /// Finds the LoRA adapter with the name `model`; `Ok(None)` if it is a name of the base model.
    ///
    /// # Errors
    /// [`RequestError::UnknownModel`] if no served model or adapter has the name.
    pub fn resolve_model(
        &self,
        rules: &RequestRules,
        model: Option<&str>,
    ) -> Result<Option<Arc<LoraAdapter>>, RequestError> {
        let model = model.unwrap_or_default();
        if model.is_empty() && rules.dialect.requires_model_name() {
            return Err(RequestError::UnknownModel(String::new()));
        }
        self.models.resolve_model_name(model)
    }

    /// Validates a request under the rules of its front end and submits it to an engine.
    ///
    /// # Errors
    /// [`RejectedRequest`] if a check fails; the request then leaves no state behind.
    pub async fn generate_reply(
        self: &Arc<Self>,
        rules: &RequestRules,
        lora: Option<Arc<LoraAdapter>>,
        // Boxed, because a future stores its argument twice and moves with it.
        request: Box<GenerationRequest>,
    ) -> Result<(Reply, Box<GenerationJob>), RejectedRequest<RequestError>> {
        let conversations = match self.replies.has_conversation_conditions() {
            true => conversations(&request),
            false => Vec::new(),
        };
        let mut job = self.check_and_tokenize(rules, lora, request).await?;
        job.scripted = self.reserve_scripted_replies(&job, conversations)?;
        let content = match self.check_engine_limits(rules, &job) {
            Ok(()) => choose_reply_content(&job, rules.tool_schemas).await,
            Err(refusal) => Err(refusal),
        };
        match content {
            Ok(content) => job.content = content,
            Err(error) => return Err(RejectedRequest { error, late: Some(job) }),
        }
        if let KvTransfer::Negotiated(negotiation) = &job.request.transfer {
            match negotiation.begin_negotiation().await {
                Ok(transfer) => job.request.transfer = transfer,
                Err(fault) => return Err(RejectedRequest { error: fault.into(), late: Some(job) }),
            }
        }
        if self.has_lost_kv_source(&job.request.transfer).await {
            job.request.transfer = KvTransfer::FromLostRemote;
        }
        job.tail =
            std::mem::take(&mut job.request.tail).into_result().map_err(RequestError::from)?;
        let (mut job, reply) = match is_long_generation(&job) {
            false => {
                let reply = self.submit_job(&job, None);
                (job, reply)
            }
            true => self.submit_blocking(job).await,
        };
        match reply {
            Ok(mut reply) => {
                override_prompt_tokens(&mut reply, &job.scripted);
                job.scripted.drain(..).flatten().for_each(ReservedReply::mark_reply_used);
                reply.usage = job.request.context.usage.take();
                let faults = job.request.context.faults.take();
                let faults = faults.filter(|f| f.loaded_kv_block_percent().is_some());
                reply.load_failure =
                    faults.and_then(|f| self.faults.kv_load_failure_report(&f.settings.origin));
                Ok((reply, job))
            }
            Err(error) => Err(RejectedRequest {
                late: error.is_reported_after_headers().then_some(job),
                error: error.into(),
            }),
        }
    }

    /// Performs the checks and the tokenization that vLLM performs before it sends the headers of a
    /// stream.
    async fn check_and_tokenize(
        self: &Arc<Self>,
        rules: &RequestRules,
        lora: Option<Arc<LoraAdapter>>,
        mut request: Box<GenerationRequest>,
    ) -> Result<Box<GenerationJob>, RequestError> {
        let RequestRules { limits, defaults, dialect, .. } = rules;
        let source = std::mem::take(&mut request.prompts);
        if dialect.admits_on_arrival() {
            let sequences = request.n.saturating_mul(source.len().max(1) as i128);
            self.check_admission(sequences.clamp(1, i128::from(u32::MAX)) as u32)?;
        }
        let validation = std::mem::take(&mut request.validation);
        if dialect.validation_point() == RequestValidationPoint::BeforePrompt {
            validation.clone().into_result()?;
        }
        let prompts = self.create_prompts(rules, source).await?;
        let lengths = || prompts.iter().map(|prompt| prompt.tokens.len());
        if request.checks != RequestSubmissionChecks::OnlySamplingRanges {
            let asked = request.max_tokens;
            let whole = lengths()
                .try_for_each(|prompt| dialect.check_prompt_and_output(limits, prompt, asked));
            if let (Err(_), Some(adapter), Some(engine)) = (&whole, &lora, self.ranks.first()) {
                engine.report_refused_lora(&adapter.name);
            }
            whole?;
        }
        validation.into_result()?;
        let longest = || lengths().max().unwrap_or(0);
        let budget_after =
            |prompt| output_budget_tokens(limits, request.max_tokens, prompt, defaults);
        let budget = match request.room {
            OutputTokenBudget::Shared | OutputTokenBudget::PerPrompt => budget_after(longest()),
            OutputTokenBudget::Context => budget_after(0),
            OutputTokenBudget::OneToken => 1,
        };
        let params = std::mem::take(&mut request.sampling).into_result()?;
        let mut params = params.unwrap_or_default();
        params.max_tokens = Some(budget);
        if request.checks != RequestSubmissionChecks::AllButSamplingRanges {
            params.normalize_and_verify(&defaults.bounds)?;
        }
        let patterns = compile_stop_patterns(&request.stop_patterns)?;
        Ok(Box::new(GenerationJob::new(rules, request, lora, prompts, params, patterns)))
    }

    /// Returns for each prompt the scripted reply of a matching rule, if any.
    ///
    /// # Errors
    /// The error response that a matching rule injects, or that of a request without a matching rule
    /// under `--strict-replies`.
    fn reserve_scripted_replies(
        &self,
        job: &GenerationJob,
        conversations: Vec<ConversationMatchInput>,
    ) -> Result<Vec<Option<ReservedReply>>, RequestError> {
        let texts = job.prompts.iter().map(|prompt| &*prompt.echo);
        let matched = MatchedRequest {
            model: match (&job.lora, &job.request.model_alias) {
                (None, Some(alias)) => alias,
                (lora, _) => self.models.model_name_in_responses(lora.as_deref()),
            },
            headers: &job.request.headers,
            conversations,
        };
        self.replies.reserve_replies(texts, &matched).map_err(|refusal| {
            if let Some(name) = refusal.injected {
                let settings = job.request.context.faults.as_ref().map(|faults| &faults.settings);
                let origin =
                    settings.map_or_else(FaultScenarioAndPhase::default, |s| s.origin.clone());
                self.faults.report_fault(name, &origin);
            }
            RequestError::Invalid(refusal.fault)
        })
    }

    /// Performs the checks of vLLM's engine, which run after the headers of a stream are sent.
    fn check_engine_limits(
        &self,
        rules: &RequestRules,
        job: &GenerationJob,
    ) -> Result<(), RequestError> {
        if job.request.checks == RequestSubmissionChecks::OnlySamplingRanges {
            return Ok(());
        }
        let limits = &rules.limits;
        self.check_bad_words(rules, &job.params)?;
        job.params.verify_against_engine(limits)?;
        for prompt in &job.prompts {
            prompt.unknown_id.map_or(Ok(()), |id| limits.check_prompt_ids(&[id]))?;
            limits.check_prompt_ids(&prompt.tokens)?;
            job.params.verify_against_prompt(prompt.tokens.len())?;
        }
        Ok(limits.check_data_parallel_rank(job.request.rank.map(i128::from))?)
    }

    /// Checks the number of a request's bad words after tokenization.
    ///
    /// A word counts twice if a leading space changes its first token but not the number of tokens.
    ///
    /// Source: vLLM 0.33 `sampling_params.py`, `update_from_tokenizer`.
    fn check_bad_words(&self, rules: &RequestRules, params: &SamplingParams) -> Result<(), Fault> {
        let words = params.bad_words.as_deref().unwrap_or_default();
        let most = rules.max_bad_words;
        let tokenizer = self.generator.tokenizer();
        let mut count = 0;
        for word in words {
            let word = word.trim_start();
            let plain = tokenizer.encode(word, SpecialTokenHandling::Without);
            let spaced = tokenizer.encode(&format!(" {word}"), SpecialTokenHandling::Without);
            count += 1;
            if plain.len() == spaced.len() && plain.first() != spaced.first() {
                count += 1;
            }
            if count > most {
                let text = format!(
                    "Too many bad words after tokenization: {}. The max number is {most}.",
                    most + 1
                );
                let shown = vllm_sim_python::python_repr(&words.to_vec().into());
                return Err(Fault::invalid_value_fault(text, "bad_words", shown));
            }
        }
        Ok(())
    }

    async fn submit_blocking(
        self: &Arc<Self>,
        job: Box<GenerationJob>,
    ) -> (Box<GenerationJob>, Result<Reply, JobSubmissionError>) {
        let service = self.clone();
        // Dropping this tells the blocking task, which cannot be cancelled, that the caller has
        // left.
        let caller = Arc::new(());
        let waits = Arc::downgrade(&caller);
        // Boxed to keep the future of the caller small.
        let written = run_blocking(async move {
            let reply = service.submit_job(&job, Some(&waits));
            (job, reply)
        });
        let answer = Box::pin(written).await;
        drop(caller);
        answer
    }
}

/// Returns messages and tools of each conversation of a request, as rules of scripted replies match
/// them; empty for other prompts.
fn conversations(request: &GenerationRequest) -> Vec<ConversationMatchInput> {
    let PromptSource::Conversations(conversations) = &request.prompts else {
        return Vec::new();
    };
    let offered = request.tools.iter().flat_map(|offered| &offered.tools);
    let tools: Arc<[String]> = offered.map(|tool| tool.name.clone()).collect();
    let conversations = conversations.iter();
    conversations
        .map(|conversation| ConversationMatchInput::new(&conversation.messages, tools.clone()))
        .collect()
}

/// Replaces the prompt token counts that the response shows by those that scripted replies set.
fn override_prompt_tokens(reply: &mut Reply, scripted: &[Option<ReservedReply>]) {
    for (shown, chosen) in reply.prompts.iter_mut().zip(scripted) {
        let chosen = chosen.as_ref().map(ReservedReply::reply);
        if let Some(tokens) = chosen.and_then(|reply| reply.prompt_tokens) {
            *shown = tokens;
        }
    }
}

/// Returns whether generating the content of a job would block an async thread for long.
fn is_long_generation(job: &GenerationJob) -> bool {
    let sequences = (job.n as usize).saturating_mul(job.prompts.len());
    let tokens = sequences.saturating_mul(job.max_tokens.unwrap_or(0) as usize);
    let constrained = matches!(job.content, ReplyContent::Constrained(_) | ReplyContent::Parsed(_));
    sequences >= BLOCKING_MIN_SEQUENCES || tokens >= BLOCKING_MIN_TOKENS || constrained
}

impl InferenceService {
    /// Waits for the handshake with the prefill server of a request, if a handshake is needed.
    /// Returns true if the prompt cannot be loaded from that server.
    ///
    /// In vLLM the request then waits in the engine, with the reason `deferred`.
    pub(crate) async fn has_lost_kv_source(&self, transfer: &KvTransfer) -> bool {
        let (Some(handshake), KvTransfer::FromRemote(source)) = (&self.handshake, transfer) else {
            return false;
        };
        // Without an address there is no one to ask.
        let Some(source) = source else {
            return true;
        };
        match handshake.begin(source) {
            None => false,
            Some(result) => !result.await.unwrap_or(false),
        }
    }
}

/// Compiles the regular expressions that end an output.
///
/// # Errors
/// A 400 for an expression that the crate `regex` does not have, such as look-around.
fn compile_stop_patterns(patterns: &[String]) -> Result<Vec<StopPattern>, Fault> {
    let compiled = patterns.iter().map(|pattern| {
        StopPattern::new(pattern).map_err(|error| {
            Fault::bad_request(format!("stop_regex {pattern:?} is not simulated: {error}"))
        })
    });
    compiled.collect()
}
