use super::prompt::PromptSettings;
use super::{Admission, NgramLookup};
use crate::generate::tools::ToolSettings;
use vllm_sim_engine::LoadFailurePolicy;
use vllm_sim_engine::kv::HashConfig;

/// Settings of the service.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Longest prompt plus output.
    pub max_model_len: u32,
    /// Root of the random streams.
    pub seed: u64,
    /// Whether equal requests always give equal answers (somebody chose the seed).
    pub repeatable: bool,
    /// Bounds.
    pub admission: Admission,
    /// How tools are called.
    pub tools: ToolSettings,
    /// How blocks are named; `None`: there is no prefix cache.
    pub hashes: Option<HashConfig>,
    /// Whether requests leave spans.
    pub traced: bool,
    /// Whether somebody follows the blocks of requests.
    pub followed: bool,
    /// What is done here of each request.
    pub role: Role,
    /// How drafts are found in the text; `None`: not there.
    pub ngram: Option<NgramLookup>,
    /// What becomes of requests whose prompt cannot be loaded.
    pub load_failure_policy: LoadFailurePolicy,
    /// Settings of how prompts are made.
    pub prompts: PromptSettings,
}

/// What the engines of a service do of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// All of it.
    #[default]
    Whole,
    /// Its prompt, and one token.
    Prefill,
    /// Its answer: a prompt is fetched, whoever computed it.
    Decode,
}
