//! Requests of the OpenAI API as vLLM serves it.

pub mod audio;
pub mod batch_chat;
pub mod chat;
pub mod completion;
pub(crate) mod message_schema;
pub mod request_message;
pub mod responses;
pub mod responses_rules;
pub mod validated_message;
#[rustfmt::skip]
mod responses_schema;
mod rules;
pub mod sampling_fields;
pub mod shared_request_fields;

pub use batch_chat::BatchChatRequest;
pub use chat::ChatRequest;
pub use completion::CompletionRequest;
pub use responses::ResponsesRequest;
