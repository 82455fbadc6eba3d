//! From ADD to the road of requests, and the words of refusals.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;

use super::decode::Unreadable;
use super::encode::{EventType, FinishReason, Output, PrefillStats, RequestError};
use super::logprobs::{RequestedLogprobs, Source};
use super::output::{Active, Item, Logprobs};
use super::parts::Parts;
use super::pooling;
use super::request::{CoreRequest, LoraRequest, Pooling, RequestFields, Sampling, Work};
use vllm_sim_config::Config;
use vllm_sim_service::generate::request::{Prompt, Target};
use vllm_sim_service::{
    EngineChecks, GenerationRequest, OutputRoom, Policy, Prepared, Protocol, Refusal,
    RequestFaults, ServeError, Service, Transfer,
};
use vllm_sim_tokenizer::Tokenizer;
use vllm_sim_wire::{Fault, Limits, SamplingDefaults, SamplingParams, Version};

/// The code of an error that the front end answers with 400.
const VALIDATION: &str = "validation_error";

/// Submits what front ends ask.
pub(crate) struct Requests {
    parts: Parts,
    policy: Policy,
    queue: Sender<Item>,
}

/// The rules of the engine core: the front end has named the model, filled in its defaults and
/// checked what it could.
fn policy(config: &Config, service: &Service) -> Policy {
    let tokenizer = service.generator.tokenizer();
    let limits = Limits {
        max_model_len: config.model.max_model_len,
        max_logprobs: -1,
        // The simulated tokenizer knows every id.
        vocab_size: matches!(**tokenizer, Tokenizer::Hf(_)).then(|| tokenizer.vocab_size()),
        version: Version::of(&config.model.vllm_version),
        speculative: config.engine.speculative.is_some(),
        ..Limits::default()
    };
    let bad_words = config.api.limits.bad_words as usize;
    Policy::of_token_ids(limits, SamplingDefaults::default(), bad_words)
}

impl Requests {
    pub(crate) fn new(parts: Parts, queue: Sender<Item>) -> Self {
        Self {
            policy: policy(&parts.config, &parts.service),
            parts,
            queue,
        }
    }

    /// Submits a request on this thread, so that requests keep their order; one that takes long to
    /// write goes on among the tasks of `runtime`.
    pub(crate) fn add(self: &Arc<Self>, runtime: &Handle, request: CoreRequest) {
        let _ = self.queue.send(Item::Announced(request.id.clone()));
        let this = self.clone();
        let mut submission: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
            let item = this.submit(request).await;
            let _ = this.queue.send(item);
        });
        let mut cx = Context::from_waker(Waker::noop());
        if submission.as_mut().poll(&mut cx) == Poll::Pending {
            runtime.spawn(submission);
        }
    }

    async fn submit(&self, request: CoreRequest) -> Item {
        let CoreRequest {
            id, client, fields, ..
        } = request;
        let answered = |output: Output| Item::Answered {
            client,
            at: self.parts.service.now(),
            output: Box::new(output),
        };
        match self.answer(&id, client, fields).await {
            Ok(Answer::Generated(active)) => Item::Admitted(active),
            Ok(Answer::Pooled(output)) => answered(*output),
            Err((finish, error)) => answered(Output {
                finish: Some(finish),
                error,
                ..Output::new(id)
            }),
        }
    }

    async fn answer(
        &self,
        id: &Arc<str>,
        client: usize,
        fields: Result<RequestFields, Unreadable>,
    ) -> Result<Answer, Failure> {
        let fields = fields.map_err(|error| invalid(error.to_string()))?;
        if fields.abort_immediately {
            return Err((FinishReason::Abort, None));
        }
        let faults = self.faults(id)?;
        let RequestFields { work, prompt, .. } = fields;
        let sampling = match work {
            Work::Generate(sampling) => *sampling,
            Work::Pool(pooling) => {
                let pooled = self.pool(id.clone(), &prompt, &pooling)?;
                return Ok(Answer::Pooled(Box::new(pooled)));
            }
        };
        let eos = sampling.eos;
        let logprobs = RequestedLogprobs::of(&sampling.params).map(|of| Logprobs {
            prompt: of.of_prompt().then(|| prompt.clone()),
            asked: of,
            source: self.source(),
        });
        let service = &self.parts.service;
        let lora = fields.lora.map(|lora| {
            let name = lora.name.clone();
            self.load(lora).map(|()| name).map_err(invalid)
        });
        let lora = lora.transpose()?;
        let request = GenerationRequest {
            id: id.clone(),
            arrived: service.now(),
            model: lora.as_deref(),
            n: 1,
            prompts: 1,
            max_tokens: sampling.params.max_tokens,
            room: OutputRoom::PerPrompt,
            checks: EngineChecks::All,
            constraint: None,
            tools: None,
            parses_calls: false,
            echo: false,
            reasoning: None,
            priority: fields.priority,
            rank: None,
            cache_salt: fields.cache_salt.map(Into::into),
            hit_threshold: None,
            skip_cache_read: false,
            trace: fields.trace,
            faults: Some(Arc::new(faults)),
            usage: None,
        };
        let call = CoreCall {
            prompt: Prompt {
                // It answers with the same tokens: what the user said among them, nobody knows.
                echo_ids: Some(prompt.as_slice().into()),
                tokens: prompt,
                media: fields.media,
                ..Prompt::default()
            },
            sampling,
        };
        let served = service.serve(&self.policy, request, call).await;
        let served = served.map_err(|refused| error_of(&refused.into_refusal()))?;
        let own = service.generator.tokenizer().eos();
        Ok(Answer::Generated(Box::new(Active::new(
            id.clone(),
            client,
            served.reply,
            (own, eos),
            logprobs,
        ))))
    }

    /// The faults that are drawn for a request.
    ///
    /// # Errors
    /// The failure that takes the place of its answer.
    fn faults(&self, id: &Arc<str>) -> Result<RequestFaults, Failure> {
        let service = &self.parts.service;
        let faults = RequestFaults::decide(service, Some(id), None, None)
            .map_err(|error| invalid(error.to_string()))?;
        let Some(failure) = faults.failure else {
            return Ok(faults);
        };
        faults.count(service, failure.name());
        let message = failure.message(service.models.displayed()).to_string();
        Err(match failure.status() {
            400 | 404 => invalid(message),
            status => failed(failure.name(), message, matches!(status, 429 | 503)),
        })
    }

    /// The whole answer to a request for vectors or classes, which takes no time.
    fn pool(&self, id: Arc<str>, prompt: &[u32], pooling: &Pooling) -> Result<Output, Failure> {
        let service = &self.parts.service;
        let _entered = service
            .enter(1)
            .map_err(|error| error_of(&Refusal::Serve(error)))?;
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

    fn source(&self) -> Source {
        let service = &self.parts.service;
        Source {
            vocabulary: service.generator.tokenizer().vocab_size(),
            seed: service.settings().seed,
        }
    }

    /// Has an adapter at hand, as vLLM's workers load one with its first request.
    fn load(&self, lora: LoraRequest) -> Result<(), String> {
        if !self.parts.config.lora.enabled {
            return Err("LoRA is not enabled. Use --enable-lora to enable LoRA.".to_owned());
        }
        let models = &self.parts.service.models;
        let known = models.resolve(Some(&lora.name));
        if matches!(known, Some(Target::Lora { .. })) && !lora.in_place {
            return Ok(());
        }
        let loaded = models.load(&lora.name, &lora.path, None, true);
        loaded.map(|_| ()).map_err(|error| error.to_string())
    }
}

/// What a request gets at first.
enum Answer {
    Generated(Box<Active>),
    Pooled(Box<Output>),
}

/// How a request ends that is not answered, and why.
type Failure = (FinishReason, Option<RequestError>);

/// What the road asks of a request.
struct CoreCall {
    prompt: Prompt,
    sampling: Sampling,
}

impl Protocol for CoreCall {
    type View = ();

    async fn prompts(&mut self, _: &Target) -> Result<Vec<Prompt>, Refusal> {
        Ok(vec![std::mem::take(&mut self.prompt)])
    }

    fn sampling_params(&mut self, budget: i128) -> Result<SamplingParams, Fault> {
        let mut params = std::mem::take(&mut self.sampling.params);
        params.max_tokens = Some(budget);
        Ok(params)
    }

    fn view(&mut self, _: &Prepared) -> ((), Transfer) {
        ((), Transfer::Local)
    }
}

fn invalid(message: String) -> Failure {
    failed(VALIDATION, message, false)
}

fn failed(code: &'static str, message: String, retryable: bool) -> Failure {
    let error = RequestError {
        code,
        message,
        retryable,
    };
    (FinishReason::Error, Some(error))
}

/// A refusal in the words of the engine core.
fn error_of(refusal: &Refusal) -> Failure {
    let message = refusal.to_string();
    let Refusal::Serve(error) = refusal else {
        return invalid(message);
    };
    match error {
        // The real engine aborts what comes after a signal.
        ServeError::Draining => (FinishReason::Abort, None),
        ServeError::Paused => failed("engine_paused", message, true),
        ServeError::QueueFull | ServeError::TooManyRequests | ServeError::TooManyTokens => {
            failed("engine_overloaded", message, true)
        }
        ServeError::Rank { .. }
        | ServeError::TooLarge { .. }
        | ServeError::TooManySequences { .. }
        | ServeError::PromptsTooLarge { .. }
        | ServeError::AnswerTooLarge { .. }
        | ServeError::Constraint(_)
        | ServeError::Tools(_) => invalid(message),
    }
}
