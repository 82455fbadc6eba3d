//! Settings of the service.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::{AdmissionLimits, NgramLookupSettings};
use crate::generate::tools::ToolCallSettings;
use vllm_sim_engine::KvLoadFailurePolicy;
use vllm_sim_engine::kv::BlockHashConfig;
use vllm_sim_tokenizer::{ChatTemplateContentFormat, MediaTokenRules};

/// Settings of the service that apply to all requests.
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
    pub tools: ToolCallSettings,
    /// Hash settings of KV blocks; `None` disables the prefix cache.
    pub hashes: Option<BlockHashConfig>,
    /// Whether requests emit OpenTelemetry spans.
    pub traced: bool,
    /// Whether metrics track the KV blocks of each request.
    pub tracks_kv_blocks: bool,
    /// Phases of a request that this server performs: prefill, decode or both.
    pub role: ServingRole,
    /// N-gram speculative decoding; `None` disables it.
    pub ngram: Option<NgramLookupSettings>,
    /// Treatment of requests whose KV cache cannot be loaded.
    pub load_failure_policy: KvLoadFailurePolicy,
    /// Settings of tokenization and chat templates.
    pub prompts: PromptSettings,
}

/// The phases of a request that a server performs (disaggregated serving).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServingRole {
    /// The server performs prefill and decode.
    #[default]
    Whole,
    /// The server performs prefill and generates one token; a decode server continues.
    Prefill,
    /// The server performs decode; it fetches the prompt's KV cache from a prefill server, even if
    /// the request names none.
    Decode,
}

/// Settings for chat templates, tokenization and media.
#[derive(Debug, Clone, Default)]
pub struct PromptSettings {
    /// Chat template in place of the model's own (`--chat-template`).
    pub chat_template: Option<String>,
    /// Default arguments of the chat template.
    pub chat_template_kwargs: Map<String, Value>,
    /// Format of message contents; `None` lets the chat template decide.
    pub content_format: Option<ChatTemplateContentFormat>,
    /// Whether the server has no tokenizer (`--skip-tokenizer-init`).
    pub skip_tokenizer_init: bool,
    /// Settings of images, audio and video.
    pub media: MediaSettings,
}

/// Settings of images, audio and video in conversations.
#[derive(Debug, Clone, Default)]
pub struct MediaSettings {
    /// Whether the configuration declares a model that accepts media.
    pub accepted: bool,
    /// Whether media are accepted by any model (llm-d's command line).
    pub unchecked: bool,
    /// Rules for the number of tokens of an image, audio clip or video.
    pub rules: MediaTokenRules,
    /// Maximum number of media items per prompt.
    pub limits: MediaLimits,
    /// Directory of files for `file://` URLs (`--allowed-local-media-path`).
    pub local_path: Option<PathBuf>,
}

/// Maximum number of media items of each modality per prompt (`--limit-mm-per-prompt`).
#[derive(Debug, Clone, Copy, Default)]
pub struct MediaLimits {
    /// Maximum number of images per prompt.
    pub image: u64,
    /// Maximum number of audio clips per prompt.
    pub audio: u64,
    /// Maximum number of videos per prompt.
    pub video: u64,
}
