//! OpenAI's API as vLLM serves it.

pub mod chat;
pub mod completion;
pub mod conversation;
pub mod message;
mod rules;
pub mod shared;
pub(crate) mod validators;

pub use chat::ChatRequest;
pub use completion::CompletionRequest;
