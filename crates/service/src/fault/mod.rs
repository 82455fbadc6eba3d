//! Faults on purpose: whether a request fails, how, and what its client sees of it.
//!
//! There are two families. A [`Failure`] is a refusal with a status, as llm-d-inference-sim injects
//! it. A [`StreamFault`] spoils a reply that is under way: it stalls, breaks off, is reset, or says
//! something that is not its protocol. A [`FaultSpec`] names any of them for one request,
//! [`FaultRates`] draw them by chance.

mod conn;
mod failure;
mod fault_plan;
mod rates;
mod spec;
mod stream_fault;

use std::sync::Arc;

pub use conn::ConnHandle;
pub use failure::Failure;
pub use fault_plan::{Ending, FaultAction, FaultPlan};
pub use rates::{DrawnFault, FaultRates};
pub use spec::{FaultSpec, FaultSpecError};
pub use stream_fault::{KV_LOAD_FAILURE, StreamFault};

/// Where a fault comes from, as logs and metrics show it; empty outside a scenario.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultOrigin {
    /// The scenario.
    pub scenario: Arc<str>,
    /// Its phase.
    pub phase: Arc<str>,
}

/// What turns requests away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdmissionBound {
    /// Requests in flight.
    Requests,
    /// Prompt tokens without output.
    Tokens,
}

/// Counts every fault that a client got to feel, and every refusal.
pub trait FaultObserver: Send + Sync {
    /// One fault of this kind.
    fn fault(&self, kind: &'static str, origin: &FaultOrigin);

    /// One request that was turned away.
    fn refused(&self, bound: AdmissionBound);
}
