//! The injected faults of one request, decided once when it arrives.

use std::sync::Arc;

use super::{FaultInjector, LiveSettings, Service};
use crate::fault::{ConnHandle, Failure, FaultSpec, FaultSpecError, StreamFault};

/// The injected faults of one request, and the fault settings at its arrival.
pub struct RequestFaults {
    /// Fault settings at the arrival of the request.
    pub settings: Arc<LiveSettings>,
    /// Error response in place of the reply; `None` serves the request.
    pub failure: Option<Failure>,
    /// Faults injected into the reply.
    pub stream_faults: Vec<StreamFault>,
    conn: Option<Arc<ConnHandle>>,
}

impl RequestFaults {
    /// Decides on the injected faults of a request that arrives on connection `conn`.
    ///
    /// The value of the header `X-Sim-Fault` in `asked` replaces randomly drawn faults.
    ///
    /// # Errors
    /// [`FaultSpecError`] if `asked` is not a valid fault spec.
    pub fn decide(
        service: &Service,
        request_id: Option<&str>,
        asked: Option<&str>,
        conn: Option<Arc<ConnHandle>>,
    ) -> Result<Self, FaultSpecError> {
        let control = &service.faults;
        let (settings, drawn) = if control.needs_fault_draw() {
            control.decide(service.settings().seed, service.now(), request_id)
        } else {
            (control.settings(), Default::default())
        };
        let spec = match asked {
            Some(text) => text.parse()?,
            None => {
                let spec = drawn.spec.unwrap_or_default();
                FaultSpec {
                    failure: drawn.failure.or(spec.failure),
                    ..spec
                }
            }
        };
        Ok(Self {
            settings,
            failure: spec.failure,
            stream_faults: spec.stream_faults,
            conn,
        })
    }

    /// Returns the percentage of KV blocks that are still loaded; `None` unless the load of the
    /// prompt's KV cache is to fail.
    pub fn lost_blocks(&self) -> Option<u8> {
        self.stream_faults.iter().find_map(|fault| match fault {
            StreamFault::KvLoadFailure(percent) => Some(*percent),
            _ => None,
        })
    }

    /// Counts an injected fault of the request that reached the client.
    pub fn count(&self, service: &Service, kind: &'static str) {
        service.faults.count(kind, &self.settings.origin);
    }

    /// Waits for the delay that an injected fault adds before the first byte of the response.
    pub async fn delay(&self, service: &Service) {
        for stream_fault in &self.stream_faults {
            if let StreamFault::SlowFirstByte(time) = stream_fault {
                self.count(service, stream_fault.name());
                tokio::time::sleep(*time).await;
            }
        }
    }

    /// Returns the injector of faults into the reply; `None` if there are none.
    pub fn injector(&self, service: &Arc<Service>) -> Option<Box<FaultInjector>> {
        let conn = self.conn.clone();
        FaultInjector::new(&self.stream_faults, conn, service, &self.settings)
    }
}
