//! Context length of a deployment, and the requests that it refuses.

use std::fmt;

use anyhow::Result;

use super::idle_worker::for_each_prompt_length;
use vllm_sim_engine::sched::SchedulerSpec;
use vllm_sim_replay::workload::WorkloadSource;
use vllm_sim_replay_cli::{WeightsDoNotFitError, WorkerPools};

/// Argument of vLLM for the longest context that fits into the KV cache.
pub(super) const FITTING_CONTEXT_FLAG: &str = "--max-model-len=auto";

/// Returns whether a deployment that does not fit sets no context length, so that a shorter context
/// than the model's may fit.
pub(super) fn may_shorten_context(misfit: &WeightsDoNotFitError) -> bool {
    misfit.about.iter().all(|(name, _)| name != "--max-model-len")
}

/// Number of requests of a workload that the context length of a deployment refuses.
#[derive(Debug, Clone, Copy)]
pub(super) struct ContextRefusals {
    context_tokens: u32,
    refused: u64,
    all: u64,
}

impl ContextRefusals {
    /// Counts the requests of `source` whose prompts leave no room for an output token; `None` if
    /// there are none, or if the engines are not those of vLLM.
    ///
    /// # Errors
    /// Returns the errors of the workload.
    pub(super) fn count(
        pools: &WorkerPools,
        source: &mut dyn WorkloadSource,
    ) -> Result<Option<Self>> {
        let Some(context_tokens) = context_tokens(pools) else {
            return Ok(None);
        };
        let mut refusals = Self { context_tokens, refused: 0, all: 0 };
        for_each_prompt_length(source, |tokens| {
            refusals.all += 1;
            refusals.refused += u64::from(tokens >= u64::from(context_tokens));
        })?;
        Ok(Some(refusals).filter(|refusals| refusals.refused > 0))
    }

    /// Returns whether the context length refuses every request of the workload.
    pub(super) fn refuses_all(&self) -> bool {
        self.refused == self.all
    }
}

impl fmt::Display for ContextRefusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { context_tokens, refused, all } = self;
        write!(f, "the context of {context_tokens} tokens refuses {refused} of {all} requests")
    }
}

/// Returns notes about the context length of a deployment and the requests that it refuses.
/// `requests` holds the numbers of rejected requests and of all requests.
pub(super) fn context_notes(pools: &WorkerPools, requests: [f64; 2]) -> Vec<String> {
    let Some(context_tokens) = context_tokens(pools) else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    let is_fitted = |(name, value): &(String, String)| name == "--max-model-len" && value == "auto";
    if pools.about.iter().any(is_fitted) {
        notes.push(format!(
            "{FITTING_CONTEXT_FLAG}: the longest context that fits into the KV cache, here \
             {context_tokens} tokens"
        ));
    }
    let [rejected, all] = requests;
    if rejected > 0.0 {
        notes.push(format!(
            "{rejected} of {all} requests are rejected; prompts must be shorter than the context \
             of {context_tokens} tokens"
        ));
    }
    notes
}

/// Returns the longest context of the serving engines, in tokens; `None` unless all are vLLM's.
fn context_tokens(pools: &WorkerPools) -> Option<u32> {
    let lengths = pools.serving.engines.iter().map(|engine| match engine {
        SchedulerSpec::Vllm(config) => Some(config.max_model_len),
        _ => None,
    });
    lengths.collect::<Option<Vec<u32>>>()?.into_iter().max()
}
