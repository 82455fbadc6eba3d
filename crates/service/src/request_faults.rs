//! What befalls one request on purpose: decided once, when it arrives, and carried along as a value.

use std::sync::Arc;

use super::{FaultInjector, LiveSettings, Service};
use crate::fault::{ConnHandle, Failure, FaultSpec, FaultSpecError, StreamFault};

/// The faults of one request, and the settings it is answered under.
pub struct RequestFaults {
    /// The settings in force when it arrived.
    pub settings: Arc<LiveSettings>,
    /// The refusal that takes the place of an answer.
    pub failure: Option<Failure>,
    /// What goes wrong with an answer.
    pub stream_faults: Vec<StreamFault>,
    conn: Option<Arc<ConnHandle>>,
}

impl RequestFaults {
    /// Decides on a request that arrives now on `conn`. What the client asks for (the text of
    /// `X-Sim-Fault`) takes the place of what chance drew.
    ///
    /// # Errors
    /// [`FaultSpecError`] when what it asks for is no fault.
    pub fn decide(
        service: &Service,
        request_id: Option<&str>,
        asked: Option<&str>,
        conn: Option<Arc<ConnHandle>>,
    ) -> Result<Self, FaultSpecError> {
        let control = &service.faults;
        let (settings, drawn) = if control.is_armed() {
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

    /// Its prompt cannot be loaded: percent of the blocks that come; `None`: it can.
    pub fn lost_blocks(&self) -> Option<u8> {
        self.stream_faults.iter().find_map(|fault| match fault {
            StreamFault::KvLoadFailure(percent) => Some(*percent),
            _ => None,
        })
    }

    /// Counts a fault that the client gets to feel.
    pub fn count(&self, service: &Service, kind: &'static str) {
        service.faults.count(kind, &self.settings.origin);
    }

    /// Waits as long as the first byte is to be late.
    pub async fn delay(&self, service: &Service) {
        for stream_fault in &self.stream_faults {
            if let StreamFault::SlowFirstByte(time) = stream_fault {
                self.count(service, stream_fault.name());
                tokio::time::sleep(*time).await;
            }
        }
    }

    /// What spoils the answer while it is written; `None`: nothing.
    pub fn injector(&self, service: &Arc<Service>) -> Option<Box<FaultInjector>> {
        let conn = self.conn.clone();
        FaultInjector::new(&self.stream_faults, conn, service, &self.settings)
    }
}
