//! Requests of SGLang's HTTP API.
//!
//! Source: SGLang 0.5.23 `srt/managers/io_struct.py`, `srt/entrypoints/openai/protocol.py`,
//! `srt/sampling/sampling_params.py`.

pub mod chat;
pub mod completion;
pub mod control;
pub mod generate;
pub mod sampling;
pub mod tokenize;
