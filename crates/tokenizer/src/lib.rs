#![doc = include_str!("../README.md")]

mod chat;
mod detokenizer;
#[cfg(feature = "download")]
mod download;
mod error;
#[cfg(feature = "hf")]
mod hf;
#[cfg(not(feature = "hf"))]
#[path = "without_hf.rs"]
mod hf;
mod interner;
mod media;
mod simulated;
mod source;
mod special_tokens;
mod tokenizer;

#[cfg(test)]
#[cfg(feature = "hf")]
mod tests;

pub use chat::{
    ChatInput, ChatMessage, ChatTemplates, ContentFormat, MessagePart, TemplateError,
    TemplateMessage, plain_text,
};
pub use detokenizer::{Detokenizer, Fragments};
pub use error::{EncodingGivenUp, TokenizerError};
pub use hf::Hf;
pub use media::{
    MediaFeature, MediaItem, MediaRule, MediaRules, Modality, accepts_media, data_url_head,
    media_marker,
};
pub use simulated::{Simulated, fnv1a};
pub use source::{Hub, TokenizerLocation};
pub use special_tokens::SpecialTokens;
pub use tokenizer::Tokenizer;
