//! Routes of the OpenAI API as vLLM serves it.

pub(super) mod batch_chat;
pub(super) mod chat;
mod chat_render;
pub(super) mod chat_stream;
pub(super) mod completion;
mod completion_render;
pub(super) mod logprobs;
pub(super) mod models;
pub(super) mod response_settings;
pub(super) mod responses;
