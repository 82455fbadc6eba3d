//! Faults on purpose in a call: by metadata or by chance.

use std::sync::Arc;

use tonic::{Request, Status};

use super::{Parts, status};
use vllm_sim_service::fault::{Failure, Flaw, Line, Order};
use vllm_sim_service::{Hurt, Tuned};
use vllm_sim_wire::fault::{Fault, Kind};

/// What befalls a call.
pub(super) struct Ruling {
    pub(super) tuned: Arc<Tuned>,
    failure: Option<Failure>,
    flaws: Vec<Flaw>,
    line: Option<Arc<Line>>,
}

/// The verdict on a call.
///
/// # Errors
/// `INVALID_ARGUMENT` for metadata `x-sim-fault` that is no order.
pub(super) fn judge<T>(parts: &Parts, request: &Request<T>) -> Result<Ruling, Status> {
    let service = &parts.service;
    let word = |name| {
        let value = request.metadata().get(name);
        value.and_then(|value| value.to_str().ok())
    };
    let mut order = Order::default();
    let mut tuned = None;
    if service.drill.is_armed() {
        let seed = service.settings().seed;
        let verdict = service
            .drill
            .judge(seed, service.now(), word("x-request-id"));
        order = verdict.dealt.order.unwrap_or_default();
        order.failure = verdict.dealt.failure.or(order.failure);
        tuned = Some(verdict.tuned);
    }
    if let Some(text) = word("x-sim-fault") {
        let asked: Result<Order, _> = text.parse();
        order = asked.map_err(|error| {
            Status::invalid_argument(format!("Invalid x-sim-fault metadata: {error}"))
        })?;
    }
    Ok(Ruling {
        tuned: tuned.unwrap_or_else(|| service.drill.tuned()),
        failure: order.failure,
        flaws: order.flaws,
        line: request.extensions().get::<Arc<Line>>().cloned(),
    })
}

impl Ruling {
    /// A slow first byte.
    pub(super) async fn delay(&self, parts: &Parts) {
        for flaw in &self.flaws {
            if let Flaw::SlowFirstByte(time) = flaw {
                parts.service.drill.count(flaw.name(), &self.tuned.origin);
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
        service.drill.count(failure.name(), &self.tuned.origin);
        let message = failure.message(service.models.displayed());
        let fault = Fault::new(failure.status(), Kind::BadRequest, message);
        Err(status::fault(&fault))
    }

    /// The wound of the answer. Messages of protobuf are not garbled, and have no `[DONE]`.
    pub(super) fn hurt(mut self, parts: &Parts) -> Option<Box<Hurt>> {
        self.flaws.retain(|flaw| {
            matches!(
                flaw,
                Flaw::Stall { .. } | Flaw::CutAfter(_) | Flaw::ResetAfter(_)
            )
        });
        Hurt::new(&self.flaws, self.line, &parts.service, &self.tuned)
    }
}
