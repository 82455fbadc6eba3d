use std::path::PathBuf;

use serde_json::{Map, Value};

use vllm_sim_tokenizer::{ContentFormat, MediaTokenRules};

/// Settings for chat templates, tokenization and media.
#[derive(Debug, Clone, Default)]
pub struct PromptSettings {
    /// Chat template in place of the model's own (`--chat-template`).
    pub chat_template: Option<String>,
    /// Default arguments of the chat template.
    pub chat_template_kwargs: Map<String, Value>,
    /// Format of message contents; `None` lets the chat template decide.
    pub content_format: Option<ContentFormat>,
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
