//! Requests of SGLang's HTTP API.
//!
//! Source: SGLang 0.5.23 `srt/managers/io_struct.py`, `srt/entrypoints/openai/protocol.py`,
//! `srt/sampling/sampling_params.py`.

pub mod chat;
mod chat_schema;
pub mod completion;
pub mod control;
pub mod generate;
pub mod ollama;
pub mod pooling;
pub mod responses;
pub mod sampling;
pub mod tokenize;
