use anyhow::Result;

use vllm_sim_explain::DeploymentEvidence;

use vllm_sim_engine::sched::EngineSpec;

/// Simulated engine described by flags of `vllm-sim serve`.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// Engine specification of each worker.
    pub engine: EngineSpec,
    /// Number of GPUs per data-parallel rank.
    pub gpus: u32,
    /// Number of data-parallel ranks per worker; each is an engine, and all step together.
    pub ranks: u32,
    /// Flags of the engine, including those added by this program.
    pub flags: Vec<String>,
    /// Measured errors of the latencies that the engine's latency model predicts, where known.
    pub evidence: Option<DeploymentEvidence>,
    /// Seed of all random draws of the simulation.
    pub seed: u64,
    /// Names and values that describe the engine in a report.
    pub about: Vec<(String, String)>,
}

/// Error: the model's weights leave no GPU memory for a KV cache.
#[derive(Debug, thiserror::Error)]
#[error("engine: {0}")]
pub struct DoesNotFit(pub String);

/// Builder of an engine from flags of `vllm-sim serve`; rejects unknown flags.
pub type DeploymentFactory<'a> = &'a dyn Fn(&[String]) -> Result<Deployment>;

/// Separates flags of `vllm-sim serve` from positional words, and returns (flags, words).
pub type FlagSplitter<'a> = &'a dyn Fn(&[String]) -> Result<(Vec<String>, Vec<String>)>;
