#![doc = include_str!("../README.md")]
//!
//! # How a request is parsed
//!
//! Requests are parsed as vLLM does it: Python's JSON ([`vllm_sim_python`]), then validators of the
//! raw body, then a schema check in pydantic's lax mode ([`body`]). Each stage has its own error
//! text. `wire_model!` declares a request type once, field by field in upstream's order; its
//! [`schema`] follows from the types.

pub mod anthropic;
pub mod body;
pub mod bounds;
mod checker;
pub mod cohere;
pub mod fastapi;
pub mod fault;
mod lax;
pub mod limits;
mod long_ids;
pub mod long_texts;
pub mod openai;
mod report;
pub mod sampling;
pub mod schema;
pub mod sglang;
mod structured;
mod version;
pub mod vllm;

pub use fault::{ErrorType, Fault};
pub use limits::ServerLimits;
pub use sampling::{SamplingDefaults, SamplingParams};
pub use version::VllmVersion;
