//! Requests of SGLang's HTTP API.
//!
//! Source: SGLang 0.5.23 `srt/managers/io_struct.py`, `srt/entrypoints/openai/protocol.py`,
//! `srt/sampling/sampling_params.py`.

pub mod chat;
mod chat_schema;
pub mod completion;
pub mod decisions;
pub mod errors;
pub mod generate;
pub mod generate_types;
pub mod messages;
mod messages_chat;
pub mod ollama;
pub mod output_parsing;
pub mod pooling;
pub mod responses;
pub mod sampling;
pub mod server_control;
pub mod system_one;
pub mod tokenize;
pub mod transcription;
pub mod weight_requests;

use crate::fault::{ErrorType, Fault};

/// Imitated release of SGLang.
pub const SGLANG_VERSION: &str = "0.5.23";

/// Returns the error of a request that SGLang's code does not expect: a 500 without reason.
pub fn unhandled_exception_fault() -> Fault {
    Fault::new(500, ErrorType::Detail, "Internal Server Error")
}
