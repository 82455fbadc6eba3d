use anyhow::Result;

use vllm_sim_explain::DeploymentEvidence;

use vllm_sim_engine::sched::EngineSpec;

/// The engine that flags of `serve` describe.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// The engine of each worker.
    pub engine: EngineSpec,
    /// GPUs of a rank.
    pub gpus: u32,
    /// Data-parallel ranks of a worker, each an engine, that share experts and so step together.
    pub ranks: u32,
    /// The flags that describe it, those added by us included.
    pub flags: Vec<String>,
    /// What is known of the errors of its predictions.
    pub evidence: Option<DeploymentEvidence>,
    /// Seed of all draws.
    pub seed: u64,
    /// What a report says about it: names and values.
    pub about: Vec<(String, String)>,
}

/// The weights leave no room for a KV cache.
#[derive(Debug, thiserror::Error)]
#[error("engine: {0}")]
pub struct DoesNotFit(pub String);

/// From flags of `serve` to an engine; refuses what it does not know.
pub type Deploy<'a> = &'a dyn Fn(&[String]) -> Result<Deployment>;

/// Tells loose words from those that belong to flags of `serve`: (flags, loose).
pub type Sort<'a> = &'a dyn Fn(&[String]) -> Result<(Vec<String>, Vec<String>)>;
