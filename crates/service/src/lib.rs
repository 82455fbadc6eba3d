//! The protocol-independent core of the simulated server, shared by the HTTP and gRPC front ends.

mod admission;
mod blocking_pool;
mod control;
pub mod dialect;
mod disaggregation;
mod error;
pub mod fault;
mod fault_control;
mod fields;
pub mod generate;
mod generation;
mod job;
pub mod logprobs;
mod models;
mod ngram;
pub mod pooling;
pub mod prompt;
mod request;
mod request_faults;
pub mod scenario;
pub mod scripted;
mod settings;
mod submit;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::fault::ExceededAdmissionLimit;
use crate::generate::ReplyGenerator;
use scripted::ScriptedReplies;
use vllm_sim_engine::SimTime;
use vllm_sim_engine::driver::LiveEngine;
use vllm_sim_engine::kv::BlockHasher;
use vllm_sim_schema_sampler::SchemaCache;

pub use admission::{
    AdmissionLimits, LargeBodyMemory, LargeBodyMemoryFull, LargeBodyReservation, ServerLoad,
    ServerLoadGuard,
};
pub use blocking_pool::{is_large_text, run_blocking, run_blocking_if_large};
pub use control::{PauseControl, PauseMode, SleepTag};
pub use dialect::{AllowedToolSchemas, RequestRules, ServerDialect};
pub use disaggregation::PrefillHandshake;
pub use error::{JobSubmissionError, RequestError};
pub use fault_control::{ConnectionHandle, FaultControl, LiveFaultSettings, ServerAvailability};
pub use job::{
    GenerationJob, KvTransfer, KvTransferAgreementFuture, KvTransferNegotiation, PrefillHandoff,
    RejectedRequest,
};
pub use models::{LoraAdapter, LoraAdapterLoadError, LoraAdapterLoadMode, ServedModels};
pub use ngram::NgramLookupSettings;
pub use request::{
    DeferredRequestCheck, GenerationRequest, KvBlockSaltAndSession, OutputTokenBudget,
    PrefixCacheReadRules, Reply, ReplyChoice, RequestContext, RequestSubmissionChecks,
    RequestedTools, TokenUsage, TokenUsageCounts,
};
pub use request_faults::{
    CONNECTION_BREAK_FLUSH_DELAY, FaultInjector, FaultInjectorAction, RequestFaults,
};
pub use settings::{ServiceSettings, ServingRole};
pub use vllm_sim_engine::{CachedBlock, EngineCommand, PrefixCacheResetScope};

/// The core of a server: models, generator of replies, engines and their settings.
pub struct InferenceService {
    /// Served model names and loaded LoRA adapters.
    pub models: ServedModels,
    /// Generator of reply content.
    pub generator: ReplyGenerator,
    /// Pause and sleep state of all engines.
    pub control: PauseControl,
    /// Injected faults, and the settings that an operator may change at run time.
    pub faults: FaultControl,
    /// Scripted replies for requests that match a rule.
    pub replies: ScriptedReplies,
    /// Simulated cache of the processed images, audio clips and videos of prompts.
    pub media_cache: prompt::MediaCache,
    /// Handshakes with prefill servers; `None`: every prefill server counts as running.
    pub handshake: Option<Box<dyn PrefillHandshake>>,
    /// LoRA adapters from the command line, restored by [`Self::reset_for_restart`].
    adapters: Arc<Vec<Arc<LoraAdapter>>>,
    ranks: Vec<LiveEngine>,
    hasher: Option<BlockHasher>,
    schemas: SchemaCache,
    settings: ServiceSettings,
    leases: disaggregation::KvBlockLeases,
    arrivals: AtomicU64,
    next_rank: AtomicUsize,
    in_flight: Arc<AtomicU32>,
    backlog: admission::PrefillTokenBacklog,
    message_memory: LargeBodyMemory,
    draining: std::sync::atomic::AtomicBool,
}

/// Reports to all engines that the given LoRA adapters were loaded.
fn report_adapters(ranks: &[LiveEngine], adapters: &[Arc<LoraAdapter>]) {
    for adapter in adapters {
        ranks.iter().for_each(|rank| rank.report_loaded_lora(&adapter.name));
    }
}

/// Guard of a job's sequences, which count as in flight until the guard is dropped.
#[derive(Debug)]
pub struct InFlightSequencesGuard {
    sequences: u32,
    in_flight: Arc<AtomicU32>,
}

impl Drop for InFlightSequencesGuard {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(self.sequences, Ordering::Relaxed);
    }
}

impl InferenceService {
    /// Creates a service over running engines, one per data-parallel rank (at least one).
    pub fn new(
        models: ServedModels,
        generator: ReplyGenerator,
        ranks: Vec<LiveEngine>,
        settings: ServiceSettings,
    ) -> Self {
        report_adapters(&ranks, &models.loaded_lora_adapters());
        Self {
            adapters: models.loaded_lora_adapters(),
            models,
            generator,
            control: PauseControl::default(),
            faults: FaultControl::default(),
            replies: ScriptedReplies::default(),
            media_cache: prompt::MediaCache::default(),
            handshake: None,
            ranks,
            schemas: SchemaCache::default(),
            hasher: settings.hashes.clone().map(BlockHasher::new),
            settings,
            leases: disaggregation::KvBlockLeases::default(),
            arrivals: AtomicU64::new(0),
            next_rank: AtomicUsize::new(0),
            in_flight: Arc::default(),
            backlog: admission::PrefillTokenBacklog::default(),
            message_memory: LargeBodyMemory::default(),
            draining: false.into(),
        }
    }

    /// Resets the state that a server process loses when it is killed and restarted.
    ///
    /// Injected faults and scripted replies, which the operator has set, are kept.
    pub fn reset_for_restart(&self) {
        // No `..`, so that a new field does not compile until someone decides about it.
        let Self {
            models,
            generator: _,
            control,
            faults: _,
            replies: _,
            media_cache,
            handshake: _,
            adapters,
            ranks: _,
            hasher: _,
            schemas: _,
            settings: _,
            leases,
            arrivals,
            next_rank,
            in_flight: _,
            backlog: _,
            message_memory: _,
            draining: _,
        } = self;
        self.command_all_engines(&EngineCommand::CancelAll);
        self.command_all_engines(&EngineCommand::ResetPrefixCache(PrefixCacheResetScope::Forget));
        self.command_all_engines(&EngineCommand::ResetHostTier);
        self.command_all_engines(&EngineCommand::ResetEncoderCache);
        models.restore_lora_adapters(adapters);
        self.ranks.iter().for_each(LiveEngine::report_loras_cleared_by_restart);
        report_adapters(&self.ranks, adapters);
        media_cache.clear_media_cache();
        leases.clear_kv_block_leases();
        arrivals.store(0, Ordering::Relaxed);
        next_rank.store(0, Ordering::Relaxed);
        control.clear_for_restart(self);
    }

    /// Loads a LoRA adapter into the engines.
    ///
    /// # Errors
    /// [`LoraAdapterLoadError`] if the name is taken, or if name or path is too long.
    pub fn load_lora_adapter(
        &self,
        name: &str,
        path: &str,
        mode: LoraAdapterLoadMode,
    ) -> Result<(), LoraAdapterLoadError> {
        let adapter = self.models.load_lora_adapter(name, path, None, mode)?;
        report_adapters(&self.ranks, &[adapter]);
        Ok(())
    }

    /// Returns the settings of the service.
    pub fn settings(&self) -> &ServiceSettings {
        &self.settings
    }

    /// Returns the engines, one per data-parallel rank.
    pub fn rank_engines(&self) -> &[LiveEngine] {
        &self.ranks
    }

    /// Returns the current time of the engines' clock.
    pub fn now(&self) -> SimTime {
        self.ranks[0].now()
    }

    /// Returns the counter of the bytes of all large responses.
    pub fn large_body_memory(&self) -> &LargeBodyMemory {
        &self.message_memory
    }

    /// Returns the number of sequences in flight, from all front ends.
    pub fn in_flight_sequences(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Rejects all further jobs, because the server is shutting down.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Returns whether the service rejects jobs because the server is shutting down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    fn admission_limits(&self) -> AdmissionLimits {
        match self.faults.needs_fault_draw() {
            true => self.faults.settings().admission,
            false => self.settings.admission,
        }
    }

    /// Checks whether the admission limits allow a further job of `sequences` sequences; counts the
    /// rejection if they do not.
    pub fn check_admission(&self, sequences: u32) -> Result<(), JobSubmissionError> {
        if self.is_draining() {
            return Err(JobSubmissionError::Draining);
        }
        let AdmissionLimits { requests, tokens } = self.admission_limits();
        if requests.is_some_and(|max| self.in_flight_sequences().saturating_add(sequences) > max) {
            return Err(self.count_rejection(ExceededAdmissionLimit::Requests));
        }
        if tokens.is_some_and(|max| self.backlog.total_backlog_tokens() >= max) {
            return Err(self.count_rejection(ExceededAdmissionLimit::Tokens));
        }
        Ok(())
    }

    fn count_rejection(&self, bound: ExceededAdmissionLimit) -> JobSubmissionError {
        self.faults.report_rejected_request(bound);
        match bound {
            ExceededAdmissionLimit::Requests => JobSubmissionError::TooManyRequests,
            ExceededAdmissionLimit::Tokens => JobSubmissionError::TooManyTokens,
        }
    }

    /// Reserves admission for a job of `sequences` sequences, which count as in flight until the
    /// guard is dropped.
    ///
    /// The check and the reservation are one atomic step, so concurrent requests cannot exceed the
    /// limit together.
    pub fn admit_sequences(
        &self,
        sequences: u32,
    ) -> Result<InFlightSequencesGuard, JobSubmissionError> {
        if self.is_draining() {
            return Err(JobSubmissionError::Draining);
        }
        let AdmissionLimits { requests, tokens } = self.admission_limits();
        let fits = |now: u32| {
            let then = now.saturating_add(sequences);
            requests.is_none_or(|max| then <= max).then_some(then)
        };
        let count = self.in_flight.as_ref();
        if (count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)).is_err() {
            return Err(self.count_rejection(ExceededAdmissionLimit::Requests));
        }
        let guard = InFlightSequencesGuard { sequences, in_flight: self.in_flight.clone() };
        if tokens.is_some_and(|max| self.backlog.total_backlog_tokens() >= max) {
            return Err(self.count_rejection(ExceededAdmissionLimit::Tokens));
        }
        Ok(guard)
    }

    /// Reserves admission for prompt tokens that are to be computed; `None` if they are not
    /// limited.
    ///
    /// # Errors
    /// [`JobSubmissionError::TooManyTokens`] at the limit of prompt tokens.
    fn reserve_prefill_tokens(
        &self,
        tokens: u64,
    ) -> Result<Option<admission::PrefillTokenReservation<'_>>, JobSubmissionError> {
        let Some(max) = self.admission_limits().tokens else {
            return Ok(None);
        };
        let reserved = self.backlog.reserve_prefill_tokens(tokens, max);
        let refused = || self.count_rejection(ExceededAdmissionLimit::Tokens);
        reserved.map(Some).ok_or_else(refused)
    }

    /// Returns the number of output tokens that the context leaves after a prompt of `prompt_tokens`
    /// tokens.
    pub fn remaining_context_tokens(&self, prompt_tokens: usize) -> u32 {
        self.settings.max_model_len.saturating_sub(u32::try_from(prompt_tokens).unwrap_or(u32::MAX))
    }
}
