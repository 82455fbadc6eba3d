//! Converts the messages, texts or token ids of a request to prompt tokens.

mod media;
mod media_cache;
mod schema;
mod source;
mod truncation;

pub use super::settings::{MediaLimits, MediaSettings, PromptSettings};
pub use media_cache::MediaCache;
pub use source::{
    Conversation, PromptLengthLimit, PromptSource, PromptTextOrTokenIds, PromptTextsOrTokenIds,
    to_template_messages, to_unvalidated_messages,
};
pub use truncation::{PromptTruncation, TruncationSide};
