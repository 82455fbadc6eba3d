#![doc = include_str!("../README.md")]

mod chat;
#[cfg(feature = "download")]
mod download;
mod error;
mod hf;
mod media;
mod simulated;
mod source;
mod special_tokens;
mod tokenizer;

#[cfg(test)]
mod tests;

pub use chat::{
    ChatMessage, ChatTemplateContentFormat, ChatTemplateError, ChatTemplateInput, ChatTemplates,
    MessageContentPart, TemplateMessage, message_plain_text,
};
pub use error::{TextEncodingTooExpensive, TokenizerError};
pub use hf::HfTokenizer;
pub use media::{
    MediaModality, MediaTokenRule, MediaTokenRules, config_accepts_media, data_url_first_bytes,
};
pub use simulated::{SimulatedTokenizer, fnv1a_32};
pub use source::{HuggingFaceHubSettings, TokenizerLocation};
pub use special_tokens::SpecialTokenHandling;
pub use tokenizer::{
    Detokenizer, MediaItem, PlacedMediaItem, TokenFragments, Tokenizer, media_text_marker,
};
