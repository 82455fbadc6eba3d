use std::sync::Once;

use anyhow::Result;

use vllm_sim_explain::DeploymentEvidence;

use vllm_sim_engine::sched::SchedulerSpec;

/// Simulated engine described by flags of `vllm-sim serve`.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// Engine specification of each worker.
    pub engine: SchedulerSpec,
    /// Number of GPUs per data-parallel rank.
    pub gpus: u32,
    /// Number of data-parallel ranks per worker; each is an engine, and all step together.
    pub ranks: u32,
    /// Flags of the engine, including those added by this program.
    pub flags: Vec<String>,
    /// Measured errors of the latencies that the engine's latency model predicts, where known.
    pub evidence: Option<DeploymentEvidence>,
    /// Origin of the engine's step times.
    pub step_times: StepTimeOrigin,
    /// Seed of all random draws.
    pub seed: u64,
    /// Names and values that describe the engine in a report.
    pub about: Vec<(String, String)>,
}

/// Origin of an engine's step times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepTimeOrigin {
    /// Flags name a GPU, a latency model or delays.
    Configured,
    /// No flag names any, so they are those of Dynamo's mocker.
    Default,
}

impl StepTimeOrigin {
    /// Logs once per process that step times belong to no GPU, if they are the default ones.
    pub(super) fn warn_if_default(self) {
        static WARNED: Once = Once::new();
        if self == Self::Default {
            WARNED.call_once(|| {
                tracing::warn!(
                    "no --gpu, latency model or delay: step times are the polynomial of Dynamo's \
                     mocker, whatever the model"
                );
            });
        }
    }
}

/// The weights leave no memory for a KV cache.
#[derive(Debug, thiserror::Error)]
#[error("engine: {0}")]
pub struct WeightsDoNotFit(pub String);

/// Builder of an engine from flags of `vllm-sim serve`; rejects unknown flags.
pub type DeploymentFactory<'a> = &'a dyn Fn(&[String]) -> Result<Deployment>;

/// Separates flags of `vllm-sim serve` from positional words, and returns (flags, words).
pub type FlagSplitter<'a> = &'a dyn Fn(&[String]) -> Result<(Vec<String>, Vec<String>)>;
