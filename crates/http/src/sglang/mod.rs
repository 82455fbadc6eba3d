//! The HTTP API of SGLang (`vllm-sim sglang`): routes, handlers and responses.
//!
//! Requests become the same `GenerationRequest` as those of vLLM's routes; sampling parameters of
//! all routes are read by one type, as in SGLang.
//!
//! Source: SGLang 0.5.23 `srt/entrypoints/http_server.py`.

mod cache_storage;
mod chat;
mod chat_render;
mod completion;
mod completion_render;
mod control;
mod decisions;
mod dialect;
pub mod disaggregation;
mod endpoint;
mod errors;
mod generate;
mod generate_render;
mod info;
mod loads;
mod memory;
mod messages;
mod messages_render;
mod meta;
mod ollama;
mod parse;
mod pooling;
mod pooling_inputs;
mod request;
mod responses;
mod responses_render;
mod routes;
mod score;
pub(crate) mod session_store;
mod sessions;
mod systemone;
mod tokenize;
mod transcription;
mod usage;
mod weights;

pub(super) use dialect::SglangDialect;
pub(super) use routes::sglang_routes;
