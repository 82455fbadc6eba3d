//! Requests of vLLM's own routes.

pub mod control;
pub mod lora;
