use std::path::PathBuf;

use serde_json::{Map, Value};

use vllm_sim_tokenizer::{ContentFormat, MediaRules};

/// Settings of how prompts are made.
#[derive(Debug, Clone, Default)]
pub struct PromptSettings {
    /// Template that takes the place of the model's own (`--chat-template`).
    pub chat_template: Option<String>,
    /// Template arguments that every conversation has.
    pub chat_template_kwargs: Map<String, Value>,
    /// Form of message contents; `None`: as the template wants it.
    pub content_format: Option<ContentFormat>,
    /// Whether there is no tokenizer (`--skip-tokenizer-init`).
    pub skip_tokenizer_init: bool,
    /// Rules for media.
    pub media: MediaSettings,
}

/// Settings of the media in conversations.
#[derive(Debug, Clone, Default)]
pub struct MediaSettings {
    /// Whether the model takes media, as far as the configuration tells.
    pub accepted: bool,
    /// Whether images, audio and video are taken whatever the model (llm-d's command line).
    pub unchecked: bool,
    /// Tokens of an item.
    pub rules: MediaRules,
    /// Most items in one prompt.
    pub limits: MediaLimits,
    /// Folder whose files may be named (`--allowed-local-media-path`).
    pub local_path: Option<PathBuf>,
}

/// Most items of each modality in one prompt (`--limit-mm-per-prompt`).
#[derive(Debug, Clone, Copy, Default)]
pub struct MediaLimits {
    /// Images.
    pub image: u64,
    /// Audio clips.
    pub audio: u64,
    /// Videos.
    pub video: u64,
}
