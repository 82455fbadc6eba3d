//! OpenAI's API as vLLM speaks it.

pub(super) mod chat;
mod chat_render;
pub(super) mod completion;
mod completion_render;
pub(super) mod logprobs;
pub(super) mod models;
pub(super) mod prepare;
pub(super) mod view;
