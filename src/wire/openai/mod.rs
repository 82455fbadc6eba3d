//! OpenAI's API as vLLM serves it.

pub mod chat;
pub mod completion;
pub mod message;
pub mod shared;
mod validators;

pub use chat::ChatRequest;
pub use completion::CompletionRequest;
