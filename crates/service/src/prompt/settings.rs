use std::path::PathBuf;

use serde_json::{Map, Value};

use vllm_sim_tokenizer::{ContentFormat, MediaRules};

/// Settings for chat templates, tokenization and media.
#[derive(Debug, Clone, Default)]
pub struct PromptSettings {
    /// Template in place of the model's own (`--chat-template`).
    pub chat_template: Option<String>,
    /// Default template arguments.
    pub chat_template_kwargs: Map<String, Value>,
    /// Format of message contents; `None` lets the template decide.
    pub content_format: Option<ContentFormat>,
    /// Whether the server has no tokenizer (`--skip-tokenizer-init`).
    pub skip_tokenizer_init: bool,
    /// Media settings.
    pub media: MediaSettings,
}

/// Settings for media in conversations.
#[derive(Debug, Clone, Default)]
pub struct MediaSettings {
    /// Whether the configuration declares a model that accepts media.
    pub accepted: bool,
    /// Whether media are accepted whatever the model (llm-d's command line).
    pub unchecked: bool,
    /// Token counts of media items.
    pub rules: MediaRules,
    /// Maximum numbers of items per prompt.
    pub limits: MediaLimits,
    /// Directory for `file://` URLs (`--allowed-local-media-path`).
    pub local_path: Option<PathBuf>,
}

/// Maximum number of items of each modality per prompt (`--limit-mm-per-prompt`).
#[derive(Debug, Clone, Copy, Default)]
pub struct MediaLimits {
    /// Maximum number of images.
    pub image: u64,
    /// Maximum number of audio clips.
    pub audio: u64,
    /// Maximum number of videos.
    pub video: u64,
}
