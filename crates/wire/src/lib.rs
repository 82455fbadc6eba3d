//! The words and shapes of the APIs we answer for: parsing what clients send, and the errors
//! vLLM would answer with.
//!
//! Requests are read as vLLM reads them: Python's JSON ([`vllm_sim_python`]), then validators that
//! look at the raw body, then a schema check in pydantic's lax mode ([`check`]), each with its
//! own error text. A request type is declared once, field by field in upstream's order, by
//! `wire_model!`; its [`schema`] follows from the types.

pub mod anthropic;
pub mod body;
pub mod bounds;
pub mod check;
pub mod cohere;
pub mod fault;
mod lax;
pub mod limits;
pub mod openai;
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

impl Version {
    /// The wire of a release: 0.32's for 0.32 and older, else 0.33's.
    pub fn of(release: &str) -> Self {
        let mut numbers = release.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
        let release = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if release < (0, 33) {
            Self::V032
        } else {
            Self::V033
        }
    }
}
