//! Converts the messages, texts or token ids of a request to prompt tokens.

mod conversation;
mod inputs;
mod media;
mod media_cache;
mod messages;
mod schema;
mod settings;
mod source;
mod truncation;

pub use media_cache::MediaCache;
pub use messages::{conversation, unread_conversation};
pub use settings::{MediaLimits, MediaSettings, PromptSettings};
pub use source::{Conversation, PromptBound, PromptInput, PromptInputs, PromptSource};
pub use truncation::{CutSide, Truncation};
