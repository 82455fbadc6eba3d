use anyhow::Result;

use vllm_sim_engine::sched::EngineSpec;

/// The engine that flags of `serve` describe.
#[derive(Debug, Clone)]
pub struct Deployment {
    /// The engine of each worker.
    pub engine: EngineSpec,
    /// GPUs of a worker.
    pub gpus: u32,
    /// The flags that describe it, those added by us included.
    pub flags: Vec<String>,
    /// Seed of all draws.
    pub seed: u64,
    /// What a report says about it: names and values.
    pub about: Vec<(String, String)>,
}

/// From flags of `serve` to an engine; refuses what it does not know.
pub type Deploy<'a> = &'a dyn Fn(&[String]) -> Result<Deployment>;

/// Tells loose words from those that belong to flags of `serve`: (flags, loose).
pub type Sort<'a> = &'a dyn Fn(&[String]) -> Result<(Vec<String>, Vec<String>)>;
