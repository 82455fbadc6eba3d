//! Requests of the OpenAI API as vLLM serves it.

pub mod audio;
pub mod batch;
pub mod chat;
pub mod checked_message;
pub mod completion;
pub mod message;
pub(crate) mod message_schema;
pub mod responses;
pub mod responses_rules;
#[rustfmt::skip]
mod responses_schema;
mod rules;
pub mod shared;
pub(crate) mod validators;

pub use batch::BatchChatRequest;
pub use chat::ChatRequest;
pub use completion::CompletionRequest;
pub use responses::ResponsesRequest;
