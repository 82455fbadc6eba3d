//! Faults injected into replies and connections.
//!
//! There are two families. An `InjectedFailure` is an error response that replaces the reply, as in
//! llm-d-inference-sim. A [`StreamFault`] damages an accepted reply: a stall, a cut or reset
//! connection, or malformed data. A [`FaultSpec`] lists the faults of one request; [`FaultRates`]
//! draws them at random.

mod failure;
mod fault_plan;
mod rates;
mod spec;
mod stream_fault;

use std::sync::Arc;

pub use failure::InjectedFailure;
pub use fault_plan::{ReplyFaultPlan, StreamEnding, StreamFaultAction};
pub use rates::{DrawnFaults, FaultRates};
pub use spec::{FaultSpec, FaultSpecError};
pub use stream_fault::{KV_LOAD_FAILURE, StreamFault};

/// Scenario and phase that injected a fault, for logs and metrics; empty outside a scenario.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FaultScenarioAndPhase {
    /// Name of the scenario that injected the fault.
    pub scenario: Arc<str>,
    /// Name of the scenario's phase that injected the fault.
    pub phase: Arc<str>,
}

/// An admission limit that rejected a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExceededAdmissionLimit {
    /// Admission limit: maximum number of sequences in flight, waiting and running.
    Requests,
    /// Admission limit: maximum number of prompt tokens that the engines have not yet computed,
    /// over all requests.
    Tokens,
}

/// Observer of the injected faults that reached a client, and of rejections by an admission limit.
pub trait FaultObserver: Send + Sync {
    /// Reports an injected fault that reached a client; `kind` is the name of the fault.
    fn on_fault(&self, kind: &'static str, origin: &FaultScenarioAndPhase);

    /// Reports the admission limit that rejected a request.
    fn on_rejected(&self, bound: ExceededAdmissionLimit);
}
