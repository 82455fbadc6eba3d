//! Faults on purpose: whether a request fails, how, and what its client sees of it.
//!
//! There are two families. A [`Failure`] is a refusal with a status, as llm-d-inference-sim injects
//! it. A [`Flaw`] spoils a reply that is under way: it stalls, breaks off, is reset, or says
//! something that is not its protocol. An [`Order`] names any of them for one request, a [`Plan`]
//! deals them out by chance.

mod failure;
mod flaw;
mod line;
mod order;
mod plan;
mod wound;

use std::sync::Arc;

pub use failure::Failure;
pub use flaw::Flaw;
pub use line::Line;
pub use order::{Order, OrderError};
pub use plan::{Dealt, Plan};
pub use wound::{Ending, Incision, Wound};

/// Where a fault comes from, as logs and metrics show it; empty outside a drill.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    /// The scenario.
    pub scenario: Arc<str>,
    /// Its phase.
    pub phase: Arc<str>,
}

/// What turns requests away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// Requests in flight.
    Requests,
    /// Prompt tokens without output.
    Tokens,
}

/// Hears of every fault that a client got to feel, and of every refusal.
pub trait Tally: Send + Sync {
    /// One fault of this kind.
    fn count(&self, kind: &'static str, origin: &Origin);

    /// One request that was turned away.
    fn refused(&self, bound: Bound);
}
