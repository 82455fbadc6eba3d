//! Faults on purpose in a call: by metadata or by chance.

use std::sync::Arc;

use tonic::{Request, Status};

use super::{Parts, status};
use vllm_sim_service::fault::{ConnHandle, Failure, FaultSpec, StreamFault};
use vllm_sim_service::{FaultInjector, LiveSettings};
use vllm_sim_wire::fault::{Fault, Kind};

/// What befalls a call.
pub(super) struct RequestFaults {
    pub(super) tuned: Arc<LiveSettings>,
    failure: Option<Failure>,
    stream_faults: Vec<StreamFault>,
    line: Option<Arc<ConnHandle>>,
}

/// The verdict on a call.
///
/// # Errors
/// `INVALID_ARGUMENT` for metadata `x-sim-fault` that is no order.
pub(super) fn judge<T>(parts: &Parts, request: &Request<T>) -> Result<RequestFaults, Status> {
    let service = &parts.service;
    let word = |name| {
        let value = request.metadata().get(name);
        value.and_then(|value| value.to_str().ok())
    };
    let mut order = FaultSpec::default();
    let mut tuned = None;
    if service.faults.is_armed() {
        let seed = service.settings().seed;
        let verdict = service
            .faults
            .judge(seed, service.now(), word("x-request-id"));
        order = verdict.dealt.order.unwrap_or_default();
        order.failure = verdict.dealt.failure.or(order.failure);
        tuned = Some(verdict.tuned);
    }
    if let Some(text) = word("x-sim-fault") {
        let asked: Result<FaultSpec, _> = text.parse();
        order = asked.map_err(|error| {
            Status::invalid_argument(format!("Invalid x-sim-fault metadata: {error}"))
        })?;
    }
    Ok(RequestFaults {
        tuned: tuned.unwrap_or_else(|| service.faults.tuned()),
        failure: order.failure,
        stream_faults: order.stream_faults,
        line: request.extensions().get::<Arc<ConnHandle>>().cloned(),
    })
}

impl RequestFaults {
    /// A slow first byte.
    pub(super) async fn delay(&self, parts: &Parts) {
        for stream_fault in &self.stream_faults {
            if let StreamFault::SlowFirstByte(time) = stream_fault {
                parts
                    .service
                    .faults
                    .count(stream_fault.name(), &self.tuned.origin);
                tokio::time::sleep(*time).await;
            }
        }
    }

    /// The status of an injected failure.
    ///
    /// # Errors
    /// That status.
    pub(super) fn refuse(&self, parts: &Parts) -> Result<(), Status> {
        let Some(failure) = self.failure else {
            return Ok(());
        };
        let service = &parts.service;
        service.faults.count(failure.name(), &self.tuned.origin);
        let message = failure.message(service.models.displayed());
        let fault = Fault::new(failure.status(), Kind::BadRequest, message);
        Err(status::fault(&fault))
    }

    /// The fault_plan of the answer. Messages of protobuf are not garbled, and have no `[DONE]`.
    pub(super) fn hurt(mut self, parts: &Parts) -> Option<Box<FaultInjector>> {
        self.stream_faults.retain(|stream_fault| {
            matches!(
                stream_fault,
                StreamFault::Stall { .. } | StreamFault::CutAfter(_) | StreamFault::ResetAfter(_)
            )
        });
        FaultInjector::new(&self.stream_faults, self.line, &parts.service, &self.tuned)
    }
}
