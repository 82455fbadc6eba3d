use super::prompt::PromptSettings;
use super::{AdmissionLimits, NgramLookup};
use crate::generate::tools::ToolSettings;
use vllm_sim_engine::LoadFailurePolicy;
use vllm_sim_engine::kv::BlockHashConfig;

/// Settings of the service that hold for all requests.
#[derive(Debug, Clone)]
pub struct ServiceSettings {
    /// Maximum length of prompt plus output, in tokens.
    pub max_model_len: u32,
    /// Root seed of all random streams.
    pub seed: u64,
    /// Whether equal requests always get equal replies, because the operator configured the seed.
    pub repeatable: bool,
    /// Limits on the requests in flight.
    pub admission: AdmissionLimits,
    /// Settings of generated tool calls.
    pub tools: ToolSettings,
    /// Hash settings of KV blocks; `None` disables the prefix cache.
    pub hashes: Option<BlockHashConfig>,
    /// Whether requests emit OpenTelemetry spans.
    pub traced: bool,
    /// Whether metrics track the KV blocks of each request.
    pub tracks_kv_blocks: bool,
    /// Phases of a request that this server performs: prefill, decode or both.
    pub role: ServingRole,
    /// N-gram speculative decoding; `None` disables it.
    pub ngram: Option<NgramLookup>,
    /// Treatment of requests whose KV cache cannot be loaded.
    pub load_failure_policy: LoadFailurePolicy,
    /// Settings of tokenization and chat templates.
    pub prompts: PromptSettings,
}

/// The phases of a request that a server performs (disaggregated serving).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServingRole {
    /// Prefill and decode on the same server.
    #[default]
    Whole,
    /// Prefill and one output token, for a decode server.
    Prefill,
    /// Decode; the KV cache of a prompt without a named source is fetched as well.
    Decode,
}
