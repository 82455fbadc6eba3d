//! vllm-sim: a vLLM deployment seen from outside, with no GPU and no model.
//!
//! The generator decides what is said, the engine decides when, the API decides how it
//! looks. `ARCHITECTURE.md` has the map.

pub mod cli;
pub mod server;
pub mod tls;
