//! Submits the requests of front ends, and maps rejections to errors of the engine core protocol.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use super::adapters::LoadedLoraAdapters;
use super::decode::MsgpackDecodeError;
use super::encode::{
    EngineCoreEventType, EngineCoreOutput, EngineRequestError, FinishReason, PrefillStats,
};
use super::logprobs::{RequestedLogprobs, SimulatedLogprobSource};
use super::output::{ActiveRequest, ActiveRequestLogprobs, OutputThreadMessage};
use super::parts::EngineCoreDependencies;
use super::pooling;
use super::prompt_text::last_chat_message_text;
use super::reasoning::ReasoningMarkers;
use super::request::{
    EngineCoreRequest, EngineCoreRequestFields, EngineCoreRequestKind, LoraRequest, PoolingParams,
    RequestSamplingParams,
};
use super::request_ids::UsedRequestIds;
use vllm_sim_service::generate::request::TokenizedPrompt;
use vllm_sim_service::prompt::PromptSource;
use vllm_sim_service::{
    GenerationRequest, JobSubmissionError, KvBlockSaltAndSession, OutputTokenBudget,
    RequestContext, RequestError, RequestFaults, RequestRules, RequestSubmissionChecks,
};
use vllm_sim_tokenizer::SpecialTokenHandling;

/// Error code for which the front end returns status 400.
const VALIDATION_ERROR_CODE: &str = "validation_error";

pub(crate) struct RequestSubmitter {
    parts: EngineCoreDependencies,
    rules: RequestRules,
    queue: Sender<OutputThreadMessage>,
    adapters: Arc<LoadedLoraAdapters>,
    thoughts: Option<ReasoningMarkers>,
    submitting: Arc<AtomicUsize>,
    /// Ids of the requests that are being submitted to the engine or are running there.
    ids: UsedRequestIds,
    /// Whether recorded replies are looked up by the text of a prompt.
    by_text: bool,
}

/// Total number of prompt tokens of the requests being submitted above which the input sockets are
/// not read.
///
/// The limit is about 64 MiB, copies included.
const MAX_SUBMITTING_TOKENS: usize = 4 << 20;

/// Guard of a request that is being submitted; the request's prompt tokens are counted until the
/// guard is dropped.
struct SubmittingGuard {
    all: Arc<AtomicUsize>,
    own: usize,
}

impl SubmittingGuard {
    fn count_tokens(all: &Arc<AtomicUsize>, own: usize) -> Self {
        all.fetch_add(own, Ordering::Relaxed);
        Self { all: all.clone(), own }
    }
}

impl Drop for SubmittingGuard {
    fn drop(&mut self) {
        self.all.fetch_sub(self.own, Ordering::Relaxed);
    }
}

impl RequestSubmitter {
    pub(crate) fn new(
        parts: EngineCoreDependencies,
        queue: Sender<OutputThreadMessage>,
        adapters: Arc<LoadedLoraAdapters>,
    ) -> Self {
        let generator = &parts.service.generator;
        Self {
            rules: parts.rules.clone(),
            thoughts: parts.thoughts.clone(),
            submitting: Arc::default(),
            ids: UsedRequestIds::default(),
            by_text: generator.conversation_hash([]).is_some(),
            parts,
            queue,
            adapters,
        }
    }

    /// Returns whether further requests should wait in the input sockets, because the requests
    /// being submitted have too many prompt tokens in total.
    pub(crate) fn exceeds_submitted_prompt_token_limit(&self) -> bool {
        self.submitting.load(Ordering::Relaxed) > MAX_SUBMITTING_TOKENS
    }

    /// Submits a request on the calling thread, so that requests are submitted in the order they
    /// arrive.
    ///
    /// A submission that takes long continues as a task on `runtime`. A request with the id of a
    /// running one is ignored, because their events would be mixed.
    pub(crate) fn submit_request_in_order(
        self: &Arc<Self>,
        runtime: &Handle,
        request: EngineCoreRequest,
    ) {
        let Some(reserved) = self.ids.reserve_request_id(&request.id) else {
            tracing::warn!(
                id = %request.id,
                client = request.client,
                "a request with the id of a running one is ignored"
            );
            return;
        };
        let _ = self.queue.send(OutputThreadMessage::Announced(request.id.clone()));
        let (id, client) = (request.id.clone(), request.client);
        let this = self.clone();
        let tokens = SubmittingGuard::count_tokens(&self.submitting, request.prompt_token_count());
        let mut submission: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            let mut item = this.submit_request(request).await;
            if let OutputThreadMessage::Admitted(active) = &mut item {
                active.reserved = Some(reserved);
            }
            let _ = this.queue.send(item);
            drop(tokens);
        });
        let mut cx = Context::from_waker(Waker::noop());
        if submission.as_mut().poll(&mut cx) == Poll::Pending {
            let submitted = runtime.spawn(submission);
            let this = self.clone();
            runtime.spawn(async move {
                if submitted.await.is_err_and(|error| error.is_panic()) {
                    let lost = permanent_failure("internal_error", "a bug of vllm-sim".to_owned());
                    let _ = this.queue.send(this.failure_item(client, id, lost));
                }
            });
        }
    }

    fn failure_item(
        &self,
        client: usize,
        id: Arc<str>,
        (finish, error): RequestFailure,
    ) -> OutputThreadMessage {
        OutputThreadMessage::Answered {
            client,
            at: self.parts.service.now(),
            output: Box::new(EngineCoreOutput {
                finish: Some(finish),
                error,
                ..EngineCoreOutput::empty_output(id)
            }),
        }
    }

    async fn submit_request(&self, request: EngineCoreRequest) -> OutputThreadMessage {
        let EngineCoreRequest { id, client, fields, .. } = request;
        match self.start_request(&id, client, fields).await {
            Ok(StartedRequest::Generated(active)) => OutputThreadMessage::Admitted(active),
            Ok(StartedRequest::Pooled(output)) => {
                OutputThreadMessage::Answered { client, at: self.parts.service.now(), output }
            }
            Err(failure) => self.failure_item(client, id, failure),
        }
    }

    async fn start_request(
        &self,
        id: &Arc<str>,
        client: usize,
        fields: Result<EngineCoreRequestFields, MsgpackDecodeError>,
    ) -> Result<StartedRequest, RequestFailure> {
        let fields = fields.map_err(|error| validation_failure(error.to_string()))?;
        if fields.abort_immediately {
            return Err((FinishReason::Abort, None));
        }
        let faults = self.draw_faults(id)?;
        let EngineCoreRequestFields { work, prompt, .. } = fields;
        let sampling = match work {
            EngineCoreRequestKind::Generate(sampling) => self.with_bad_words(*sampling),
            EngineCoreRequestKind::Pool(pooling) => {
                let pooled = self.pooling_output(id.clone(), &prompt, &pooling)?;
                return Ok(StartedRequest::Pooled(Box::new(pooled)));
            }
        };
        let eos = sampling.eos;
        let logprobs = self.active_logprobs(&sampling, &prompt);
        let service = &self.parts.service;
        let lora = fields.lora.map(|lora| self.load_adapter(lora)).transpose()?;
        let thought = self.thoughts.as_ref().and_then(|thoughts| {
            thoughts.reasoning_fraction_and_start_ids(
                &prompt,
                fields.reasoning_ended,
                &fields.parser_kwargs,
            )
        });
        let (reasoning, reasoning_start) = thought.unzip();
        let request = GenerationRequest {
            id: id.clone(),
            arrived: service.now(),
            n: 1,
            max_tokens: sampling.params.max_tokens,
            room: OutputTokenBudget::PerPrompt,
            reasoning,
            priority: fields.priority,
            kv_labels: KvBlockSaltAndSession {
                salt: fields.cache_salt.map(Into::into),
                session_id: fields.session_id.map(Into::into),
            },
            trace: fields.trace,
            context: RequestContext { faults: Some(Arc::new(faults)), ..Default::default() },
            prompts: PromptSource::Ready(vec![TokenizedPrompt {
                echo: self.prompt_text(&prompt),
                reasoning_start,
                // In echo mode, repeats all tokens, because the user's message cannot be separated.
                echo_ids: Some(prompt.as_slice().into()),
                tokens: prompt,
                media: fields.media,
                ..TokenizedPrompt::default()
            }]),
            checks: RequestSubmissionChecks::AllButSamplingRanges,
            sampling: Ok(Some(Box::new(sampling.params))).into(),
            ..GenerationRequest::default()
        };
        let resolved = service.resolve_model(&self.rules, lora.as_deref());
        let resolved = resolved.map_err(|refusal| failure_of_error(&refusal))?;
        let generated = service.generate_reply(&self.rules, resolved, Box::new(request)).await;
        let (reply, _) = generated.map_err(|refused| failure_of_error(&refused.error))?;
        let own = service.generator.tokenizer().eos_token_id();
        Ok(StartedRequest::Generated(Box::new(ActiveRequest::new(
            id.clone(),
            client,
            reply,
            (own, eos),
            logprobs,
            fields.trace_headers,
        ))))
    }

    fn load_adapter(&self, lora: LoraRequest) -> Result<String, RequestFailure> {
        let name = lora.name.clone();
        self.adapters.load_lora_adapter(lora).map(|()| name).map_err(validation_failure)
    }

    fn active_logprobs(
        &self,
        sampling: &RequestSamplingParams,
        prompt: &[u32],
    ) -> Option<ActiveRequestLogprobs> {
        let asked = RequestedLogprobs::logprobs_requested_by(sampling)?;
        let service = &self.parts.service;
        Some(ActiveRequestLogprobs {
            prompt: asked.wants_prompt_logprobs().then(|| prompt.to_vec()),
            asked,
            source: SimulatedLogprobSource {
                vocabulary: service.generator.tokenizer().vocab_size(),
                seed: service.settings().seed,
            },
        })
    }

    /// Decodes the bad words in requests of `vllm-rs`, which sends only their tokens, with and
    /// without a leading space.
    fn with_bad_words(&self, mut sampling: RequestSamplingParams) -> RequestSamplingParams {
        if sampling.params.bad_words.is_none() && !sampling.bad_words.is_empty() {
            let tokenizer = self.parts.service.generator.tokenizer();
            let words = sampling.bad_words.iter();
            let words = words.map(|ids| {
                tokenizer.decode(ids, SpecialTokenHandling::With).trim_start().to_owned()
            });
            let words: BTreeSet<String> = words.collect();
            sampling.params.bad_words = Some(words.into_iter().collect());
        }
        sampling
    }

    /// Returns the text of a prompt by which scripted and recorded replies are looked up.
    fn prompt_text(&self, prompt: &[u32]) -> Box<str> {
        let service = &self.parts.service;
        let tokenizer = service.generator.tokenizer();
        match service.replies.current_reply_rules() {
            Some(_) => last_chat_message_text(tokenizer, prompt).into(),
            None if self.by_text => tokenizer.decode(prompt, SpecialTokenHandling::Without).into(),
            None => "".into(),
        }
    }

    /// Chooses at random the faults to inject into a request.
    ///
    /// # Errors
    /// The injected error response that replaces the output.
    fn draw_faults(&self, id: &Arc<str>) -> Result<RequestFaults, RequestFailure> {
        let service = &self.parts.service;
        let faults = RequestFaults::decide_request_faults(service, Some(id), None, None)
            .map_err(|error| validation_failure(error.to_string()))?;
        let Some(failure) = faults.failure else {
            return Ok(faults);
        };
        faults.report_fault(service, failure.injected_failure_name());
        let fault = failure.to_fault(service.models.displayed_model_name());
        Err(failure_of_status(fault.status, failure.injected_failure_name(), fault.message))
    }

    /// Returns the complete output of a pooling request, which takes no simulated time.
    fn pooling_output(
        &self,
        id: Arc<str>,
        prompt: &[u32],
        pooling: &PoolingParams,
    ) -> Result<EngineCoreOutput, RequestFailure> {
        let service = &self.parts.service;
        let _entered = service
            .admit_sequences(1)
            .map_err(|error| failure_of_error(&RequestError::Serve(error)))?;
        let pooled = pooling::compute_pooling_result(&self.parts.config, prompt, pooling)
            .map_err(validation_failure)?;
        let now = service.now();
        Ok(EngineCoreOutput {
            pooled: Some(pooled),
            finish: Some(FinishReason::Stop),
            events: vec![(EngineCoreEventType::Queued, now), (EngineCoreEventType::Scheduled, now)],
            prefill: Some(PrefillStats { prompt: prompt.len() as u32, cached: 0, external: 0 }),
            ..EngineCoreOutput::empty_output(id)
        })
    }
}

enum StartedRequest {
    Generated(Box<ActiveRequest>),
    Pooled(Box<EngineCoreOutput>),
}

/// Finish reason and error of a request that ends without output.
type RequestFailure = (FinishReason, Option<EngineRequestError>);

fn validation_failure(message: String) -> RequestFailure {
    permanent_failure(VALIDATION_ERROR_CODE, message)
}

/// Maps an HTTP status to the failure of a request; front ends know 400, 500 and 503.
fn failure_of_status(status: u16, code: &'static str, message: String) -> RequestFailure {
    match status {
        429 | 503 => retryable_failure(code, message),
        400..500 => validation_failure(message),
        _ => permanent_failure(code, message),
    }
}

fn permanent_failure(code: &'static str, message: String) -> RequestFailure {
    let error = EngineRequestError { code, message, retryable: false };
    (FinishReason::Error, Some(error))
}

fn retryable_failure(code: &'static str, message: String) -> RequestFailure {
    let error = EngineRequestError { code, message, retryable: true };
    (FinishReason::Error, Some(error))
}

fn failure_of_error(refusal: &RequestError) -> RequestFailure {
    let message = refusal.to_string();
    let error = match refusal {
        RequestError::Serve(error) => error,
        RequestError::UnknownModel(_) => return validation_failure(message),
        RequestError::Invalid(fault) => {
            return failure_of_status(fault.status, "request_failed", message);
        }
    };
    match error {
        // vLLM aborts requests that arrive after a shutdown signal.
        JobSubmissionError::Draining | JobSubmissionError::Abandoned => (FinishReason::Abort, None),
        JobSubmissionError::Paused => retryable_failure("engine_paused", message),
        JobSubmissionError::QueueFull
        | JobSubmissionError::TooManyRequests
        | JobSubmissionError::TooManyTokens
        | JobSubmissionError::MessageMemoryFull(_) => {
            retryable_failure("engine_overloaded", message)
        }
        JobSubmissionError::Rank { .. }
        | JobSubmissionError::TooLarge { .. }
        | JobSubmissionError::TooManySequences { .. }
        | JobSubmissionError::PromptsTooLarge { .. }
        | JobSubmissionError::ReplyTooLarge { .. }
        | JobSubmissionError::Constraint(_)
        | JobSubmissionError::Tools(_) => validation_failure(message),
    }
}
