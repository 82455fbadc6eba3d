//! Submits the requests of front ends, and maps rejections to errors of the engine core protocol.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use super::adapters::Adapters;
use super::decode::DecodeError;
use super::encode::{EngineRequestError, EventType, FinishReason, Output, PrefillStats};
use super::logprobs::{RequestedLogprobs, Source};
use super::output::{Active, Item, Logprobs};
use super::parts::EngineCoreParts;
use super::pooling;
use super::prompt_text::last_message;
use super::reasoning::ReasoningMarkers;
use super::request::{CoreRequest, LoraRequest, Pooling, RequestFields, RequestKind, Sampling};
use super::request_ids::RequestIds;
use vllm_sim_service::generate::request::Prompt;
use vllm_sim_service::prompt::PromptSource;
use vllm_sim_service::{
    GenerationRequest, OutputBudget, RequestError, RequestFaults, RequestRules, ServeError,
};
use vllm_sim_tokenizer::SpecialTokens;
use vllm_sim_wire::SamplingRequest;
use vllm_sim_wire::sampling::SamplingChecks;

/// Error code for which the front end returns status 400.
const VALIDATION: &str = "validation_error";

pub(crate) struct Requests {
    parts: EngineCoreParts,
    rules: RequestRules,
    queue: Sender<Item>,
    adapters: Arc<Adapters>,
    thoughts: Option<ReasoningMarkers>,
    submitting: Arc<AtomicUsize>,
    /// Ids of the requests in submission and in the engine.
    ids: RequestIds,
    /// Whether recorded replies are looked up by the text of a prompt.
    by_text: bool,
}

/// Number of prompt tokens in submission beyond which input sockets are not read.
///
/// The limit is about 64 MiB, copies included.
const MAX_SUBMITTING_TOKENS: usize = 4 << 20;

/// Guard of a request: its prompt tokens count as in submission until the guard is dropped.
struct Submitting {
    all: Arc<AtomicUsize>,
    own: usize,
}

impl Submitting {
    fn count(all: &Arc<AtomicUsize>, own: usize) -> Self {
        all.fetch_add(own, Ordering::Relaxed);
        Self {
            all: all.clone(),
            own,
        }
    }
}

impl Drop for Submitting {
    fn drop(&mut self) {
        self.all.fetch_sub(self.own, Ordering::Relaxed);
    }
}

impl Requests {
    pub(crate) fn new(
        parts: EngineCoreParts,
        queue: Sender<Item>,
        adapters: Arc<Adapters>,
    ) -> Self {
        let generator = &parts.service.generator;
        Self {
            rules: parts.rules.clone(),
            thoughts: parts.thoughts.clone(),
            submitting: Arc::default(),
            ids: RequestIds::default(),
            by_text: generator.text_hash([]).is_some(),
            parts,
            queue,
            adapters,
        }
    }

    /// Returns whether further requests should wait in the input sockets, because too many prompt
    /// tokens are in submission.
    pub(crate) fn is_busy(&self) -> bool {
        self.submitting.load(Ordering::Relaxed) > MAX_SUBMITTING_TOKENS
    }

    /// Submits a request on the calling thread, which keeps the order of requests.
    ///
    /// A submission that takes long continues as a task on `runtime`. A request with the id of a
    /// running one is ignored, because their events would be mixed.
    pub(crate) fn add(self: &Arc<Self>, runtime: &Handle, request: CoreRequest) {
        let Some(reserved) = self.ids.reserve(&request.id) else {
            tracing::warn!(
                id = %request.id,
                client = request.client,
                "a request with the id of a running one is ignored"
            );
            return;
        };
        let _ = self.queue.send(Item::Announced(request.id.clone()));
        let (id, client) = (request.id.clone(), request.client);
        let this = self.clone();
        let tokens = Submitting::count(&self.submitting, request.prompt_tokens());
        let mut submission: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            let mut item = this.submit(request).await;
            if let Item::Admitted(active) = &mut item {
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
                    let lost = failed("internal_error", "a bug of vllm-sim".to_owned());
                    let _ = this.queue.send(this.refused(client, id, lost));
                }
            });
        }
    }

    fn refused(&self, client: usize, id: Arc<str>, (finish, error): Failure) -> Item {
        Item::Answered {
            client,
            at: self.parts.service.now(),
            output: Box::new(Output {
                finish: Some(finish),
                error,
                ..Output::new(id)
            }),
        }
    }

    async fn submit(&self, request: CoreRequest) -> Item {
        let CoreRequest {
            id, client, fields, ..
        } = request;
        match self.answer(&id, client, fields).await {
            Ok(Answer::Generated(active)) => Item::Admitted(active),
            Ok(Answer::Pooled(output)) => Item::Answered {
                client,
                at: self.parts.service.now(),
                output,
            },
            Err(failure) => self.refused(client, id, failure),
        }
    }

    async fn answer(
        &self,
        id: &Arc<str>,
        client: usize,
        fields: Result<RequestFields, DecodeError>,
    ) -> Result<Answer, Failure> {
        let fields = fields.map_err(|error| invalid(error.to_string()))?;
        if fields.abort_immediately {
            return Err((FinishReason::Abort, None));
        }
        let faults = self.faults(id)?;
        let RequestFields { work, prompt, .. } = fields;
        let sampling = match work {
            RequestKind::Generate(sampling) => self.with_bad_words(*sampling),
            RequestKind::Pool(pooling) => {
                let pooled = self.pool(id.clone(), &prompt, &pooling)?;
                return Ok(Answer::Pooled(Box::new(pooled)));
            }
        };
        let eos = sampling.eos;
        let logprobs = self.logprobs(&sampling, &prompt);
        let service = &self.parts.service;
        let lora = fields.lora.map(|lora| self.adapter(lora)).transpose()?;
        let thought = self.thoughts.as_ref().and_then(|thoughts| {
            thoughts.reasoning_for(&prompt, fields.reasoning_ended, &fields.parser_kwargs)
        });
        let (reasoning, reasoning_start) = thought.unzip();
        let request = GenerationRequest {
            id: id.clone(),
            arrived: service.now(),
            n: 1,
            max_tokens: sampling.params.max_tokens,
            room: OutputBudget::PerPrompt,
            reasoning,
            priority: fields.priority,
            cache_salt: fields.cache_salt.map(Into::into),
            trace: fields.trace,
            faults: Some(Arc::new(faults)),
            prompts: PromptSource::Ready(vec![Prompt {
                echo: self.text(&prompt),
                reasoning_start,
                // In echo mode, repeats all tokens, because the user's message cannot be separated.
                echo_ids: Some(prompt.as_slice().into()),
                tokens: prompt,
                media: fields.media,
                ..Prompt::default()
            }]),
            sampling: Ok(SamplingRequest {
                checks: SamplingChecks::None,
                ..sampling.params.into()
            })
            .into(),
            ..GenerationRequest::default()
        };
        let resolved = service.resolve(&self.rules, lora.as_deref());
        let resolved = resolved.map_err(|refusal| error_of(&refusal))?;
        let generated = service
            .generate(&self.rules, resolved, Box::new(request))
            .await;
        let generated = generated.map_err(|refused| error_of(&refused.into_error()))?;
        let own = service.generator.tokenizer().eos();
        Ok(Answer::Generated(Box::new(Active::new(
            id.clone(),
            client,
            generated.reply,
            (own, eos),
            logprobs,
            fields.trace_headers,
        ))))
    }

    fn adapter(&self, lora: LoraRequest) -> Result<String, Failure> {
        let name = lora.name.clone();
        self.adapters.load(lora).map(|()| name).map_err(invalid)
    }

    fn logprobs(&self, sampling: &Sampling, prompt: &[u32]) -> Option<Logprobs> {
        let asked = RequestedLogprobs::of(sampling)?;
        let service = &self.parts.service;
        Some(Logprobs {
            prompt: asked.of_prompt().then(|| prompt.to_vec()),
            asked,
            source: Source {
                vocabulary: service.generator.tokenizer().vocab_size(),
                seed: service.settings().seed,
            },
        })
    }

    /// Decodes the bad words in requests of `vllm-rs`, which sends only their tokens, with and
    /// without a leading space.
    fn with_bad_words(&self, mut sampling: Sampling) -> Sampling {
        if sampling.params.bad_words.is_none() && !sampling.bad_words.is_empty() {
            let tokenizer = self.parts.service.generator.tokenizer();
            let words = sampling.bad_words.iter();
            let words = words.map(|ids| {
                tokenizer
                    .decode(ids, SpecialTokens::With)
                    .trim_start()
                    .to_owned()
            });
            let words: BTreeSet<String> = words.collect();
            sampling.params.bad_words = Some(words.into_iter().collect());
        }
        sampling
    }

    /// Returns the text of a prompt by which scripted and recorded replies are looked up.
    fn text(&self, prompt: &[u32]) -> Box<str> {
        let service = &self.parts.service;
        let tokenizer = service.generator.tokenizer();
        match service.replies.rules() {
            Some(_) => last_message(tokenizer, prompt).into(),
            None if self.by_text => tokenizer.decode(prompt, SpecialTokens::Without).into(),
            None => "".into(),
        }
    }

    /// Draws the injected faults of a request.
    ///
    /// # Errors
    /// The injected error response that replaces the output.
    fn faults(&self, id: &Arc<str>) -> Result<RequestFaults, Failure> {
        let service = &self.parts.service;
        let faults = RequestFaults::decide(service, Some(id), None, None)
            .map_err(|error| invalid(error.to_string()))?;
        let Some(failure) = faults.failure else {
            return Ok(faults);
        };
        faults.count(service, failure.name());
        let message = failure.message(service.models.displayed()).to_string();
        Err(of_status(failure.status(), failure.name(), message))
    }

    /// Returns the complete output of a pooling request, which takes no simulated time.
    fn pool(&self, id: Arc<str>, prompt: &[u32], pooling: &Pooling) -> Result<Output, Failure> {
        let service = &self.parts.service;
        let _entered = service
            .enter(1)
            .map_err(|error| error_of(&RequestError::Serve(error)))?;
        let pooled = pooling::pool(&self.parts.config, prompt, pooling).map_err(invalid)?;
        let now = service.now();
        Ok(Output {
            pooled: Some(pooled),
            finish: Some(FinishReason::Stop),
            events: vec![(EventType::Queued, now), (EventType::Scheduled, now)],
            prefill: Some(PrefillStats {
                prompt: prompt.len() as u32,
                cached: 0,
                external: 0,
            }),
            ..Output::new(id)
        })
    }
}

enum Answer {
    Generated(Box<Active>),
    Pooled(Box<Output>),
}

/// Finish reason and error of a request without output.
type Failure = (FinishReason, Option<EngineRequestError>);

fn invalid(message: String) -> Failure {
    failed(VALIDATION, message)
}

/// Maps an HTTP status to the failure of a request; front ends know 400, 500 and 503.
fn of_status(status: u16, code: &'static str, message: String) -> Failure {
    match status {
        429 | 503 => to_be_retried(code, message),
        400..500 => invalid(message),
        _ => failed(code, message),
    }
}

fn failed(code: &'static str, message: String) -> Failure {
    let error = EngineRequestError {
        code,
        message,
        retryable: false,
    };
    (FinishReason::Error, Some(error))
}

fn to_be_retried(code: &'static str, message: String) -> Failure {
    let error = EngineRequestError {
        code,
        message,
        retryable: true,
    };
    (FinishReason::Error, Some(error))
}

fn error_of(refusal: &RequestError) -> Failure {
    let message = refusal.to_string();
    let error = match refusal {
        RequestError::Serve(error) => error,
        RequestError::UnknownModel(_) => return invalid(message),
        RequestError::Invalid(fault) => return of_status(fault.status, "request_failed", message),
    };
    match error {
        // vLLM aborts requests that arrive after a shutdown signal.
        ServeError::Draining | ServeError::Abandoned => (FinishReason::Abort, None),
        ServeError::Paused => to_be_retried("engine_paused", message),
        ServeError::QueueFull
        | ServeError::TooManyRequests
        | ServeError::TooManyTokens
        | ServeError::RepliesTooLarge(_) => to_be_retried("engine_overloaded", message),
        ServeError::Rank { .. }
        | ServeError::TooLarge { .. }
        | ServeError::TooManySequences { .. }
        | ServeError::PromptsTooLarge { .. }
        | ServeError::ReplyTooLarge { .. }
        | ServeError::Constraint(_)
        | ServeError::Tools(_) => invalid(message),
    }
}
