//! The words and shapes of the APIs we answer for: parsing what clients send, and the errors
//! vLLM would answer with.
//!
//! Requests are read as vLLM reads them: Python's JSON ([`python_json`]), then validators that
//! look at the raw body, then a schema check in pydantic's lax mode ([`check`]), each with its
//! own error text. A request type is declared once, field by field in upstream's order, by
//! `wire_model!`; its [`schema`] follows from the types.

pub mod anthropic;
pub mod anthropic_chat;
pub mod body;
pub mod check;
pub mod cohere;
pub mod fault;
mod lax;
pub mod limits;
pub mod openai;
pub mod python;
pub mod python_json;
mod report;
pub mod sampling;
mod sampling_checks;
pub mod schema;
mod structured;
pub mod vllm;

pub use fault::{Fault, Kind};
pub use limits::Limits;
pub use sampling::{SamplingDefaults, SamplingParams};

/// The vLLM release whose wire is spoken, where releases differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Version {
    /// 0.32.
    V032,
    /// 0.33.
    #[default]
    V033,
}
