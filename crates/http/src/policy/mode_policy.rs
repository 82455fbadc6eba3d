//! What the two command-line modes do differently over HTTP, whatever `--compat` says.

use vllm_sim_config::CliMode;

/// What a server does without being asked to, by its command-line mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModePolicy {
    /// Whether vectors of texts with words in common are near each other.
    pub(crate) embeds_words: bool,
    /// Whether vectors are as long as the model's hidden states.
    pub(crate) embeds_like_model: bool,
    /// Whether whatever is sent as audio has a duration.
    pub(crate) any_audio: bool,
    /// Whether images, audio and video are taken whatever the model.
    pub(crate) any_media: bool,
    /// Whether KV transfer needs no connector.
    pub(crate) transfers_unasked: bool,
    /// Whether adapters are loaded with neither LoRA enabled nor files there.
    pub(crate) any_adapter: bool,
    /// Whether `/sleep` and `/wake_up` act with sleep mode alone, and ignore tags that nobody knows.
    pub(crate) lenient_sleep: bool,
}

impl ModePolicy {
    /// What `mode` does.
    pub(crate) const fn of(mode: CliMode) -> Self {
        let is_llmd = matches!(mode, CliMode::Llmd);
        Self {
            embeds_words: !is_llmd,
            embeds_like_model: !is_llmd,
            any_audio: is_llmd,
            any_media: is_llmd,
            transfers_unasked: is_llmd,
            any_adapter: is_llmd,
            lenient_sleep: is_llmd,
        }
    }
}
