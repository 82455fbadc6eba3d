use super::prompt::PromptSettings;
use super::{Admission, NgramLookup};
use crate::generate::tools::ToolSettings;
use vllm_sim_engine::LoadFailurePolicy;
use vllm_sim_engine::kv::HashConfig;

/// Settings of the service.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Maximum length of prompt plus output, in tokens.
    pub max_model_len: u32,
    /// Root seed of the random streams.
    pub seed: u64,
    /// Whether equal requests always get equal replies, because the seed was configured.
    pub repeatable: bool,
    /// Limits on the work in flight.
    pub admission: Admission,
    /// Generation of tool calls.
    pub tools: ToolSettings,
    /// Hashing of KV blocks; `None` disables the prefix cache.
    pub hashes: Option<HashConfig>,
    /// Whether requests emit tracing spans.
    pub traced: bool,
    /// Whether metrics track the KV blocks of each request.
    pub tracks_kv_blocks: bool,
    /// Parts of a request that this server performs (disaggregated serving).
    pub role: ServingRole,
    /// N-gram speculative decoding; `None` disables it.
    pub ngram: Option<NgramLookup>,
    /// Handling of requests whose KV cache cannot be loaded.
    pub load_failure_policy: LoadFailurePolicy,
    /// Tokenization and chat templates.
    pub prompts: PromptSettings,
}

/// The parts of a request that a server performs (disaggregated serving).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServingRole {
    /// Prefill and decode.
    #[default]
    Whole,
    /// Prefill and one output token.
    Prefill,
    /// Decode; the KV cache of a prompt without a named source is fetched as well.
    Decode,
}
