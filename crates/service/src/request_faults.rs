//! The injected faults of one request, decided once when it arrives.

use std::sync::Arc;

use super::{ConnectionHandle, FaultInjector, InferenceService, LiveFaultSettings};
use crate::fault::{FaultSpec, FaultSpecError, InjectedFailure, StreamFault};

/// The injected faults of one request, and the fault settings at its arrival.
pub struct RequestFaults {
    /// Fault settings at the arrival of the request.
    pub settings: Arc<LiveFaultSettings>,
    /// Error response in place of the reply; `None` serves the request.
    pub failure: Option<InjectedFailure>,
    /// Faults injected into the reply.
    pub stream_faults: Vec<StreamFault>,
    conn: Option<Arc<ConnectionHandle>>,
}

impl RequestFaults {
    /// Decides on the injected faults of a request that arrives on connection `conn`.
    ///
    /// The value of the header `X-Sim-Fault` in `asked` replaces randomly drawn faults.
    ///
    /// # Errors
    /// [`FaultSpecError`] if `asked` is not a valid fault spec.
    pub fn decide(
        service: &InferenceService,
        request_id: Option<&str>,
        asked: Option<&str>,
        conn: Option<Arc<ConnectionHandle>>,
    ) -> Result<Self, FaultSpecError> {
        let control = &service.faults;
        let (settings, drawn) = if control.needs_fault_draw() {
            control.decide_faults(service.settings().seed, service.now(), request_id)
        } else {
            (control.settings(), Default::default())
        };
        let spec = match asked {
            Some(text) => text.parse()?,
            None => {
                let spec = drawn.spec.unwrap_or_default();
                FaultSpec { failure: drawn.failure.or(spec.failure), ..spec }
            }
        };
        Ok(Self { settings, failure: spec.failure, stream_faults: spec.stream_faults, conn })
    }

    /// Returns the percentage of KV blocks that are still loaded; `None` unless the load of the
    /// prompt's KV cache is to fail.
    pub fn loaded_kv_percent(&self) -> Option<u8> {
        self.stream_faults.iter().find_map(|fault| match fault {
            StreamFault::KvLoadFailure(percent) => Some(*percent),
            _ => None,
        })
    }

    /// Counts an injected fault of the request that reached the client.
    pub fn report_fault(&self, service: &InferenceService, kind: &'static str) {
        service.faults.report_fault(kind, &self.settings.origin);
    }

    /// Waits for the delay that an injected fault adds before the first byte of the response.
    pub async fn wait_first_byte_delay(&self, service: &InferenceService) {
        for stream_fault in &self.stream_faults {
            if let StreamFault::SlowFirstByte(time) = stream_fault {
                self.report_fault(service, stream_fault.name());
                tokio::time::sleep(*time).await;
            }
        }
    }

    /// Returns the injector of faults into the reply; `None` if there are none.
    pub fn injector(&self, service: &Arc<InferenceService>) -> Option<Box<FaultInjector>> {
        let conn = self.conn.clone();
        FaultInjector::new(&self.stream_faults, conn, service, &self.settings)
    }
}
