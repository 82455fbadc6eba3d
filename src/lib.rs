//! vllm-sim: simulates a vLLM deployment behind its APIs, without GPU and model.
//!
//! The generator produces the text, the engine the timing, and the API layer the responses.
//! `ARCHITECTURE.md` has an overview.

pub mod cli;
pub mod server;
pub mod tls;
